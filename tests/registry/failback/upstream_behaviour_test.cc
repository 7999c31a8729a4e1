#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/upstream_driver.h"

namespace failback {
namespace {

using Phase = UpstreamDriver::Phase;

class UpstreamBehaviourTest : public testing::Test {
 protected:
  UpstreamBehaviourTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(std::move(timer)).value();
    fake_ = std::make_shared<FakeRegistry>();
    fake_->opens.AnswerWith([this](const auto&) { return Opened(); });
    fake_->keep_alives.AnswerWith([this](const KeepAliveRequest& request) {
      KeepAliveResponse response;
      response.set_session_id(request.session_id());
      response.mutable_ttl()->set_seconds(9);
      response.set_epoch(epoch_);
      return response;
    });
    session_ = UpstreamDriver::Create(
        fake_,
        {"inc", "client", absl::Seconds(9),
         BackoffOptions{absl::Milliseconds(100), 2.0, absl::Milliseconds(1100), 0.2}, timer_.get(),
         [] { return 0.5; }},
        [this] { ++changes_; });
  }
  ~UpstreamBehaviourTest() override { session_->Stop(); }

  OpenSessionResponse Opened() {
    OpenSessionResponse response;
    response.set_session_id(absl::StrCat("s", ++opened_));
    response.mutable_ttl()->set_seconds(9);
    response.set_rank(5);
    response.set_store_id(store_);
    response.set_epoch(epoch_);
    return response;
  }
  void Advance(absl::Duration duration) { clock_.Advance(duration); }
  Phase phase() const { return session_->state().phase; }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::shared_ptr<FakeRegistry> fake_;
  int opened_ = 0;
  int changes_ = 0;
  uint64_t epoch_ = 1;
  std::string store_ = "A";
  std::shared_ptr<UpstreamDriver> session_;
};

TEST_F(UpstreamBehaviourTest, OpensAndRenewsAtAThirdOfTheTtl) {
  session_->Start();
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().session_serial, 1);
  EXPECT_EQ(fake_->opens.last_request().incarnation(), "inc");
  EXPECT_EQ(fake_->opens.last_request().ttl().seconds(), 9);
  Advance(absl::Milliseconds(2999));
  EXPECT_EQ(fake_->keep_alives.request_count(), 0);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  Advance(absl::Seconds(30));
  EXPECT_EQ(fake_->keep_alives.request_count(), 11);
  EXPECT_EQ(fake_->keep_alives.last_request().session_id(), "s1");
  EXPECT_EQ(session_->state().connection_serial, 1);
}

TEST_F(UpstreamBehaviourTest, Report_GoesWithTheFirstRenewalWhenItHasChangedAndAfterAnOutage) {
  registry::v1::AgentReport report;
  report.set_intents(1);
  session_ = UpstreamDriver::Create(
      fake_,
      {"inc", "client", absl::Seconds(9),
       BackoffOptions{absl::Milliseconds(100), 2.0, absl::Milliseconds(1100), 0.2}, timer_.get(),
       [] { return 0.5; }, [&] { return report; }},
      [] {});
  session_->Start();
  const auto sent = [this] { return fake_->keep_alives.last_request().has_report(); };
  Advance(absl::Seconds(3));
  EXPECT_TRUE(sent());
  EXPECT_EQ(fake_->keep_alives.last_request().report().intents(), 1u);
  Advance(absl::Seconds(3));
  EXPECT_FALSE(sent()) << "nothing has changed";
  report.set_parked(2);
  EXPECT_EQ(fake_->keep_alives.request_count(), 2u) << "it waits for a renewal";
  Advance(absl::Seconds(3));
  EXPECT_EQ(fake_->keep_alives.last_request().report().parked(), 2u);
  // Another process may answer now, which knows nothing of it.
  fake_->keep_alives.Answer(Away());
  Advance(absl::Seconds(3));
  ASSERT_FALSE(sent());
  Advance(absl::Seconds(4));
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_TRUE(sent());
}

TEST_F(UpstreamBehaviourTest, ProbesWithBackoffWhileAwayAndCountsTheReturn) {
  session_->Start();
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(3));
  EXPECT_EQ(phase(), Phase::kDown);
  EXPECT_EQ(session_->state().last_error, Away());
  const std::vector<int> expected = {90, 180, 360, 720, 990, 990};  // 90 % of the ceiling
  size_t calls = fake_->opens.request_count();
  for (const int ms : expected) {
    Advance(absl::Milliseconds(ms - 1));
    EXPECT_EQ(fake_->opens.request_count(), calls);
    Advance(absl::Milliseconds(1));
    EXPECT_EQ(fake_->opens.request_count(), ++calls);
  }
  EXPECT_EQ(fake_->keep_alives.request_count(), 1) << "it asks for the session, resumed or new";
  const auto before = session_->state();
  fake_->opens.AnswerWith([this](const auto&) {
    opened_ = 0;
    return Opened();  // the same session
  });
  Advance(absl::Seconds(1));
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().connection_serial, before.connection_serial + 1);
  EXPECT_EQ(session_->state().session_serial, before.session_serial);
}

TEST_F(UpstreamBehaviourTest, ARenewalThatIsSlowOnceIsNotALoss) {
  session_->Start();
  fake_->keep_alives.Answer(absl::DeadlineExceededError("slow"));
  Advance(absl::Seconds(3));
  EXPECT_EQ(phase(), Phase::kSuspect);
  Advance(absl::Seconds(1));
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().connection_serial, 1);
  fake_->keep_alives.Answer(absl::DeadlineExceededError("slow"));
  fake_->keep_alives.Answer(absl::DeadlineExceededError("slow again"));
  Advance(absl::Milliseconds(2200));
  EXPECT_EQ(phase(), Phase::kDown);
}

// A frozen registry takes connections and answers nothing: suspect, then down, and when it goes on
// it may have lost the session.
TEST_F(UpstreamBehaviourTest, AnOutageHasOneBegin) {
  session_->Start();
  const absl::Time up = session_->state().since;
  fake_->keep_alives.AnswerWith([](const auto&) { return absl::DeadlineExceededError("frozen"); });
  fake_->opens.AnswerWith([](const auto&) { return absl::DeadlineExceededError("frozen"); });
  Advance(absl::Seconds(3));
  ASSERT_EQ(phase(), Phase::kSuspect);
  const absl::Time begin = session_->state().since;
  EXPECT_GT(begin, up);
  Advance(absl::Seconds(10));
  ASSERT_EQ(phase(), Phase::kDown);
  EXPECT_EQ(session_->state().since, begin);
  fake_->opens.AnswerWith([this](const auto&) { return Opened(); });
  Advance(absl::Seconds(2));
  ASSERT_EQ(phase(), Phase::kUp);
  const absl::Time back = session_->state().since;
  EXPECT_GT(back, begin + absl::Seconds(9));
  // The next one is another.
  Advance(absl::Seconds(1));
  session_->ReportFailure(Away());
  ASSERT_EQ(phase(), Phase::kSuspect);
  EXPECT_GT(session_->state().since, back);
}

TEST_F(UpstreamBehaviourTest, ALostSessionIsOpenedAnewWithTheSameIncarnationAndRank) {
  session_->Start();
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(3));
  Advance(absl::Milliseconds(1));
  ASSERT_EQ(fake_->opens.request_count(), 2);
  EXPECT_EQ(fake_->opens.last_request().incarnation(), "inc");
  EXPECT_EQ(fake_->opens.last_request().rank(), 5);
  EXPECT_EQ(fake_->opens.last_request().store_id(), "A");
  EXPECT_EQ(session_->state().session_id, "s2");
  EXPECT_EQ(session_->state().session_serial, 2);
}

TEST_F(UpstreamBehaviourTest, ReportLostOfAnOlderSessionChangesNothing) {
  session_->Start();
  session_->ReportLost("s0");
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->opens.request_count(), 1);
  Advance(absl::Seconds(1));
  session_->ReportLost("s1");
  EXPECT_EQ(phase(), Phase::kConnecting);
  EXPECT_EQ(session_->state().session_id, "");
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->opens.request_count(), 2);
}

TEST_F(UpstreamBehaviourTest, ARenewalsLateAnswerDoesNotBringALostSessionUp) {
  session_->Start();
  Advance(absl::Seconds(2));
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(1));
  session_->ReportLost("s1");
  fake_->opens.Hold();
  fake_->keep_alives.Release();
  EXPECT_EQ(phase(), Phase::kConnecting) << "up, and without a session";
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->opens.held_count(), 1);
  fake_->opens.Release();
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().session_id, "s2");
}

TEST_F(UpstreamBehaviourTest, AChangedEpochCountsAsANewSession) {
  session_->Start();
  epoch_ = 2;
  Advance(absl::Seconds(3));
  EXPECT_EQ(session_->state().session_serial, 2);
  EXPECT_EQ(session_->state().info.epoch(), 2);
  EXPECT_EQ(session_->state().session_id, "s1");
}

TEST_F(UpstreamBehaviourTest, ARenewalMayChangeTheTtl) {
  session_->Start();
  fake_->keep_alives.AnswerWith([this](const KeepAliveRequest&) {
    KeepAliveResponse response;
    response.mutable_ttl()->set_seconds(3);
    response.set_epoch(epoch_);
    return response;
  });
  Advance(absl::Seconds(3));
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  Advance(absl::Seconds(3));
  EXPECT_EQ(fake_->keep_alives.request_count(), 4);
}

TEST_F(UpstreamBehaviourTest, ASessionThatIsNoLongerOursIsOpenedAnew) {
  session_->Start();
  fake_->keep_alives.Answer(
      Refusal(registry::v1::ERROR_REASON_SESSION_NOT_OWNED, "opened under another name"));
  Advance(absl::Seconds(4));
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().session_id, "s2");
}

// A copy of this process's state directory runs elsewhere.
TEST_F(UpstreamBehaviourTest, OfTwoProcessesInOneSessionThisOneTakesAnotherIncarnation) {
  uint64_t opener = 0;
  fake_->opens.AnswerWith([&](const OpenSessionRequest& request) {
    opener = request.process();
    OpenSessionResponse response = Opened();
    response.set_session_id(absl::StrCat("of ", request.incarnation()));
    return response;
  });
  fake_->keep_alives.AnswerWith([&](const KeepAliveRequest& request) {
    KeepAliveResponse response;
    response.set_session_id(request.session_id());
    response.set_process(opener);
    EXPECT_NE(request.process(), 0);
    return response;
  });
  session_->Start();
  ASSERT_NE(opener, 0);
  const uint64_t own = opener;
  Advance(absl::Minutes(1));
  EXPECT_FALSE(session_->state().contested);

  opener = 7;
  Advance(absl::Milliseconds(3010));
  EXPECT_EQ(opener, own) << "it says once more that it is there";
  EXPECT_TRUE(session_->state().contested);
  EXPECT_EQ(session_->state().incarnation, "inc");
  EXPECT_EQ(session_->state().session_serial, 1) << "nothing was lost";
  EXPECT_EQ(phase(), Phase::kUp);
  Advance(absl::Seconds(2));
  opener = 7;  // which does the same
  const absl::Time before = clock_.WallNow();
  Advance(absl::Milliseconds(3010));
  EXPECT_NE(session_->state().incarnation, "inc");
  EXPECT_EQ(fake_->opens.last_request().incarnation(), session_->state().incarnation);
  EXPECT_EQ(fake_->opens.last_request().rank(), 0) << "a later rank";
  EXPECT_EQ(fake_->closes.request_count(), 0) << "the session is the other one's";
  EXPECT_EQ(session_->state().session_serial, 2);
  EXPECT_EQ(session_->state().twins, 1);
  EXPECT_GT(session_->state().twin_time, before);
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_FALSE(session_->state().contested);
}

// An OpenSession of the process before, which was long on its way.
TEST_F(UpstreamBehaviourTest, OneOpeningByAnotherProcessIsNoTwin) {
  uint64_t opener = 0;
  fake_->opens.AnswerWith([&](const OpenSessionRequest& request) {
    opener = request.process();
    OpenSessionResponse response = Opened();
    response.set_session_id("s");
    return response;
  });
  fake_->keep_alives.AnswerWith([&](const KeepAliveRequest& request) {
    KeepAliveResponse response;
    response.set_session_id(request.session_id());
    response.set_process(opener);
    return response;
  });
  session_->Start();
  for (int round = 0; round < 3; ++round) {
    opener = 7;
    Advance(absl::Seconds(3));
    EXPECT_TRUE(session_->state().contested);
    Advance(absl::Seconds(16));
    EXPECT_TRUE(session_->state().contested) << "six renewals without another are two TTLs";
    Advance(absl::Seconds(3));
    EXPECT_FALSE(session_->state().contested);
  }
  EXPECT_EQ(session_->state().incarnation, "inc");
  EXPECT_EQ(session_->state().twins, 0);
}

TEST_F(UpstreamBehaviourTest, ASessionWithoutAnIdIsNone) {
  fake_->opens.Answer(OpenSessionResponse());
  session_->Start();
  EXPECT_EQ(phase(), Phase::kDown);
  EXPECT_EQ(session_->state().last_error.code(), absl::StatusCode::kInternal);
  Advance(absl::Seconds(1));
  EXPECT_EQ(session_->state().session_id, "s1");
}

TEST_F(UpstreamBehaviourTest, ARenewalWithoutAnEpochChangesNothing) {
  session_->Start();
  epoch_ = 0;
  Advance(absl::Seconds(3));
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  EXPECT_EQ(session_->state().session_serial, 1);
  EXPECT_EQ(session_->state().info.epoch(), 1);
}

TEST_F(UpstreamBehaviourTest, ReportFailureProbesBeforeItBelieves) {
  session_->Start();
  Advance(absl::Seconds(1));
  session_->ReportFailure(Away());
  EXPECT_EQ(phase(), Phase::kSuspect);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  EXPECT_EQ(phase(), Phase::kUp);
  EXPECT_EQ(session_->state().connection_serial, 1) << "a probe that succeeds was no loss";
}

TEST_F(UpstreamBehaviourTest, ReportsCountOnlyWhileItIsUp) {
  session_->Start();
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(3));
  ASSERT_EQ(phase(), Phase::kDown);
  session_->ReportFailure(absl::UnavailableError("another call's"));
  EXPECT_EQ(phase(), Phase::kDown);
  EXPECT_EQ(session_->state().last_error, Away());
  fake_->closes.Hold();
  session_->Close();
  session_->ReportFailure(Away());
  session_->ReportLost("s1");
  EXPECT_EQ(phase(), Phase::kClosing);
  fake_->closes.Release();
  EXPECT_EQ(phase(), Phase::kClosed);
  session_->ReportFailure(Away());
  session_->ReportLost("s1");
  const size_t opens = fake_->opens.request_count();
  Advance(absl::Minutes(1));
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_EQ(fake_->opens.request_count(), opens);
}

TEST_F(UpstreamBehaviourTest, ReportedFailuresDoNotMakeItProbeWithoutEnd) {
  session_->Start();
  for (int ms = 0; ms < 1000; ++ms) {
    session_->ReportFailure(Away());
    Advance(absl::Milliseconds(1));
  }
  EXPECT_LE(fake_->keep_alives.request_count(), 11);
}

TEST_F(UpstreamBehaviourTest, TwoRegistriesBehindOneAddressDoNotMakeItSpin) {
  session_->Start();
  int opens = 0;
  fake_->opens.AnswerWith([&](const auto&) {
    store_ = ++opens % 2 == 0 ? "A" : "B";
    return Opened();
  });
  bool told = false;
  for (int ms = 0; ms < 60000; ++ms) {
    // Every session is unknown at the other registry at once.
    const auto state = session_->state();
    if (state.phase == Phase::kUp) session_->ReportLost(state.session_id);
    told = told || (state.phase == Phase::kDown &&
                    state.last_error.message().find("two registries") != std::string::npos);
    Advance(absl::Milliseconds(1));
  }
  EXPECT_TRUE(told) << "a clear error";
  EXPECT_LT(fake_->opens.request_count(), 130) << "about two a second";
}

TEST_F(UpstreamBehaviourTest, AStoreThatWasPutBackIsBelievedAfterAWhile) {
  session_->Start();
  for (const char* store : {"B", "A"}) {
    store_ = store;
    fake_->keep_alives.Answer(SessionUnknown());
    Advance(absl::Seconds(15));
    EXPECT_EQ(phase(), Phase::kUp) << store;
    EXPECT_EQ(session_->state().info.store_id(), store);
  }
  store_ = "B";  // and forth again: not accepted before it has come as often
  fake_->keep_alives.Answer(SessionUnknown());
  while (phase() == Phase::kUp) Advance(absl::Milliseconds(1));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(phase(), Phase::kDown);
  Advance(absl::Seconds(15));
  EXPECT_EQ(session_->state().info.store_id(), "B");
}

TEST_F(UpstreamBehaviourTest, TheServersRetryDelayIsHonoured) {
  fake_->opens.Answer(
      WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Seconds(7)));
  session_->Start();
  EXPECT_EQ(phase(), Phase::kDown);
  Advance(absl::Milliseconds(6999));
  EXPECT_EQ(fake_->opens.request_count(), 1);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->opens.request_count(), 2);
}

TEST_F(UpstreamBehaviourTest, RepeatedRefusalsAreStretchedApart) {
  fake_->opens.AnswerWith([](const auto&) {
    return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Seconds(1));
  });
  session_->Start();
  // 1 + random * refusals before, with random = 0.5: after 1, 1.5, 2, 2.5 s.
  std::vector<int> calls;
  for (int ms = 0; ms < 7100; ms += 500) {
    calls.push_back(static_cast<int>(fake_->opens.request_count()));
    Advance(absl::Milliseconds(500));
  }
  EXPECT_EQ(calls, (std::vector<int>{1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5}));
}

TEST_F(UpstreamBehaviourTest, RefusalsThatAreNotInARowAreNotStretched) {
  const absl::Status busy =
      WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"), absl::Seconds(1));
  // Another failure lies between, then a success.
  fake_->opens.Answer(busy);
  fake_->opens.Answer(Away());
  fake_->opens.Answer(busy);
  session_->Start();
  while (fake_->opens.request_count() < 3) Advance(absl::Milliseconds(1));
  ASSERT_EQ(phase(), Phase::kDown);
  Advance(absl::Seconds(1));
  ASSERT_EQ(phase(), Phase::kUp) << "the delay is the one that was asked for";
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->opens.Answer(busy);
  while (fake_->opens.request_count() < 5) Advance(absl::Milliseconds(1));
  ASSERT_EQ(phase(), Phase::kDown);
  Advance(absl::Seconds(1));
  EXPECT_EQ(phase(), Phase::kUp);
}

TEST_F(UpstreamBehaviourTest, AConnectionThatBreaksWhileIdleIsNoticedAtOnce) {
  session_->Start();
  Advance(absl::Seconds(1));
  fake_->keep_alives.AnswerWith([](const auto&) { return Away(); });
  fake_->Disconnect(Away());
  EXPECT_EQ(phase(), Phase::kSuspect);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(phase(), Phase::kDown) << "two seconds before the next renewal";
}

TEST_F(UpstreamBehaviourTest, ClosesAtTheUpstreamAndTriesUntilItSucceeds) {
  session_->Start();
  fake_->closes.Answer(Away());
  session_->Close();
  EXPECT_EQ(phase(), Phase::kClosing);
  Advance(absl::Milliseconds(90));
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_EQ(fake_->closes.request_count(), 2);
  EXPECT_EQ(fake_->closes.last_request().session_id(), "s1");
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->keep_alives.request_count(), 0);
}

TEST_F(UpstreamBehaviourTest, CloseWhileOpeningEndsTheSessionThatComes) {
  fake_->opens.Hold();
  session_->Start();
  session_->Close();
  fake_->opens.Release();
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_EQ(fake_->closes.last_request().session_id(), "s1");
}

TEST_F(UpstreamBehaviourTest, CloseWithoutASessionAsksNobody) {
  fake_->opens.AnswerWith([](const auto&) { return Away(); });
  session_->Start();
  session_->Close();
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_EQ(fake_->closes.request_count(), 0);
}

TEST_F(UpstreamBehaviourTest, OneCallIsUnderWayAlsoWhenTheSessionIsFoundLostMeanwhile) {
  session_->Start();
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(3));
  session_->ReportLost("s1");
  Advance(absl::Milliseconds(500));
  EXPECT_EQ(fake_->opens.request_count(), 1) << "the renewal has not ended";
  fake_->keep_alives.Complete(SessionUnknown());
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->opens.request_count(), 2);
  EXPECT_EQ(phase(), Phase::kUp);
}

TEST_F(UpstreamBehaviourTest, CloseWhileRenewingASessionThatIsLostIsDone) {
  session_->Start();
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(3));
  session_->Close();
  fake_->keep_alives.Complete(SessionUnknown());
  EXPECT_EQ(phase(), Phase::kClosed);
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->opens.request_count(), 1);
  EXPECT_EQ(fake_->closes.request_count(), 0);
}

TEST_F(UpstreamBehaviourTest, CloseWhileRenewingFollowsTheRenewal) {
  session_->Start();
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(3));
  session_->Close();
  EXPECT_EQ(fake_->closes.request_count(), 0);
  fake_->keep_alives.Complete(absl::DeadlineExceededError("slow"));
  Advance(absl::Seconds(2));
  EXPECT_EQ(phase(), Phase::kClosed);
  EXPECT_EQ(fake_->closes.request_count(), 1);
}

TEST_F(UpstreamBehaviourTest, CloseOfAnUnknownSessionIsDone) {
  session_->Start();
  fake_->closes.Answer(SessionUnknown());
  session_->Close();
  EXPECT_EQ(phase(), Phase::kClosed);
}

TEST_F(UpstreamBehaviourTest, NothingHappensAfterStop) {
  session_->Start();
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(3));
  session_->Stop();
  const int changes = changes_;
  fake_->keep_alives.Release();
  Advance(absl::Minutes(1));
  EXPECT_EQ(changes_, changes);
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  EXPECT_EQ(timer_->pending(), 0);
}

TEST_F(UpstreamBehaviourTest, ASessionWithoutATtlIsNotRenewedInALoop) {
  fake_->opens.Answer([] {
    OpenSessionResponse response;
    response.set_session_id("s");
    return response;
  }());
  session_->Start();
  Advance(absl::Milliseconds(2999));
  EXPECT_EQ(fake_->keep_alives.request_count(), 0);
}

TEST_F(UpstreamBehaviourTest, WhereNobodyNamesATtlThereIsOne) {
  fake_->opens.AnswerWith([](const auto&) {
    OpenSessionResponse response;
    response.set_session_id("s");
    return response;
  });
  const auto session = UpstreamDriver::Create(
      fake_,
      {"inc", "client", absl::ZeroDuration(), BackoffOptions(), timer_.get(), [] { return 0.5; }},
      [] {});
  session->Start();
  Advance(absl::Seconds(3));
  EXPECT_EQ(fake_->keep_alives.request_count(), 0);
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->keep_alives.request_count(), 1);
  session->Stop();
}

}  // namespace
}  // namespace failback
