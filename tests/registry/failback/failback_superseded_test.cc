// One id on two hosts: the later incarnation has it, and the other waits for it without a fight.

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "registry/base/proto_time.h"
#include "registry/store/store_registry.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int Superseded(const std::vector<IntentEvent>& events) {
  int count = 0;
  for (const IntentEvent& event : events) {
    if (event.kind == IntentEvent::Kind::kSuperseded) ++count;
  }
  return count;
}

// Agents over one registry, on simulated time. Each registers `a` with a port of its own.
class SupersededHostsTest : public testing::Test {
 protected:
  struct Host {
    LinkWorld world;
    FailbackRegistry::Options options;
    std::vector<IntentEvent> events;
    std::unique_ptr<FailbackRegistry> registry;
  };

  SupersededHostsTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(std::move(timer)).value();
    StoreRegistry::Options store;
    store.timer = timer_.get();
    store_ = StoreRegistry::Open(store).value();
    // Who has `a` from time to time, by port; 0: none.
    listener_ = std::make_shared<RecordingListener>([this](const MessagePtr& event) {
      for (const auto& instance : event->snapshot().instances()) seen_.push_back(instance.port());
      for (const auto& instance : event->delta().upserts()) seen_.push_back(instance.port());
      for (const auto& key : event->delta().removals()) {
        EXPECT_EQ(key.instance_id(), "a");
        seen_.push_back(0);
      }
    });
    SubscribeRequest request;
    request.mutable_selector()->set_service("orders");
    watch_ = store_->Subscribe(request, listener_);
    older_ = NewHost("older");
    newer_ = NewHost("newer");
  }

  ~SupersededHostsTest() override {
    for (Host* host : {older_.get(), newer_.get()}) {
      if (host->registry == nullptr) continue;
      EXPECT_EQ(FailbackRegistryPeer::CheckInvariants(*host->registry), "");
    }
  }

  std::unique_ptr<Host> NewHost(const std::string& incarnation) {
    auto host = std::make_unique<Host>();
    host->world.target = [this] { return store_.get(); };
    host->world.timer = timer_.get();
    host->world.random = &random_;
    host->world.max_calls_in_flight = 8;
    host->options.upstream_name = "store";
    host->options.incarnation = incarnation;
    host->options.timer = timer_.get();
    host->options.random = [this] { return std::uniform_real_distribution<>(0, 1)(random_); };
    host->options.on_event = [events = &host->events](const IntentEvent& event) {
      events->push_back(event);
    };
    return host;
  }

  void Start(Host* host) {
    auto created =
        FailbackRegistry::Create(std::make_unique<FaultyLink>(&host->world), host->options);
    ASSERT_TRUE(created.ok()) << created.status();
    host->registry = *std::move(created);
    Advance(absl::Seconds(1));
  }

  Answer<RegisterResponse> Register(Host* host, uint32_t port, bool wait = false) {
    RegisterRequest request = MakeRegister({MakeInstance("a", port)});
    if (wait) request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    Answer<RegisterResponse> answer;
    host->registry->Register(request, answer.Catch());
    return answer;
  }

  // The older registers, then the newer; the older finds out when it compares.
  void Lose() {
    Start(older_.get());
    Register(older_.get(), 1);
    Advance(absl::Seconds(1));
    Start(newer_.get());
    Register(newer_.get(), 2);
    Advance(absl::Minutes(2));
    EXPECT_THAT(seen_, ElementsAre(1, 2));
    ASSERT_EQ(Superseded(older_->events), 1);
  }

  void Drain(Host* host) {
    Answer<agent::v1::DrainResponse> drained;
    host->registry->Drain(absl::Seconds(10), drained.Catch());
    Advance(absl::Seconds(1));
    EXPECT_TRUE(drained.done());
  }

  void Advance(absl::Duration duration) { clock_.Advance(duration); }

  SimulatedClock clock_;
  std::mt19937 random_{7};
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::vector<uint32_t> seen_;
  std::shared_ptr<RecordingListener> listener_;
  std::unique_ptr<SubscribeStream> watch_;
  std::unique_ptr<Host> older_, newer_;
};

// 30 s, and at most 15 % more.
constexpr absl::Duration kLongestPeriod = absl::Milliseconds(34500);

TEST_F(SupersededHostsTest, TheLoserShowsIt) {
  Lose();
  const agent::v1::UpstreamStatus status = older_->registry->UpstreamStatus();
  EXPECT_EQ(status.desired(), 1);
  EXPECT_EQ(status.acknowledged(), 0);
  EXPECT_EQ(status.superseded(), 1);
  EXPECT_EQ(status.pending(), 0);
  EXPECT_EQ(status.parked(), 0);
  EXPECT_EQ(older_->registry->Stats().superseded, 1);
  EXPECT_EQ(older_->registry->Stats().oldest_pending, absl::ZeroDuration());
  const auto rows = older_->registry->Pending();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].id(), "register default/orders/a");
  EXPECT_EQ(rows[0].state(), agent::v1::PENDING_STATE_SUPERSEDED);
  EXPECT_EQ(ReasonOf(StatusFromProto(rows[0].last_status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  const absl::Duration next = FromProto(rows[0].next_attempt()) - clock_.WallNow();
  EXPECT_GT(next, absl::ZeroDuration());
  EXPECT_LE(next, kLongestPeriod);
  const auto& events = older_->events;
  const auto news = std::find_if(events.begin(), events.end(), [](const IntentEvent& event) {
    return event.kind == IntentEvent::Kind::kSuperseded;
  });
  ASSERT_NE(news, events.end());
  EXPECT_EQ(news->times, 1) << "its first attempt";
  const int tries = rows[0].times();
  EXPECT_GE(tries, 1);
  EXPECT_EQ(rows[0].retry_times(), -1) << "without end";
  Advance(next + absl::Seconds(1));
  EXPECT_EQ(older_->registry->Pending()[0].times(), tries + 1);
  EXPECT_EQ(newer_->registry->UpstreamStatus().superseded(), 0);
  EXPECT_EQ(*older_->registry->Cancel({"register default/orders/a"}), 1);
  EXPECT_EQ(older_->events.back().kind, IntentEvent::Kind::kCancelled);
  EXPECT_EQ(older_->events.back().times, tries + 1) << "as the pending operation said";
}

TEST_F(SupersededHostsTest, AWinnerThatLivesIsNeverDisplaced) {
  Lose();
  const auto refusals = [this] {
    return older_->registry->Stats()
        .counters.attempts[0][static_cast<size_t>(absl::StatusCode::kFailedPrecondition)];
  };
  const int64_t before = refusals();
  Advance(absl::Hours(1));
  EXPECT_THAT(seen_, ElementsAre(1, 2));
  EXPECT_EQ(Superseded(older_->events), 1) << "told once";
  EXPECT_EQ(Superseded(newer_->events), 0);
  EXPECT_GE(refusals() - before, 3600 / 34.5 - 1);
  EXPECT_LE(refusals() - before, 3600 / 25.5 + 1);
}

TEST_F(SupersededHostsTest, TheLoserClaimsTheKeyWhenTheWinnerDrains) {
  Lose();
  Drain(newer_.get());
  Advance(kLongestPeriod);
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
  const agent::v1::UpstreamStatus status = older_->registry->UpstreamStatus();
  EXPECT_EQ(status.acknowledged(), 1);
  EXPECT_EQ(status.superseded(), 0);
  EXPECT_THAT(older_->registry->Pending(), IsEmpty());
  EXPECT_EQ(older_->events.back().kind, IntentEvent::Kind::kAcknowledged);
}

TEST_F(SupersededHostsTest, TheLoserClaimsTheKeyWhenTheWinnerDies) {
  Lose();
  newer_->registry.reset();
  // The lease, which was renewed up to a third of it ago, and the fence.
  Advance(absl::Seconds(66));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0)) << "its fence is there";
  Advance(absl::Seconds(4) + kLongestPeriod + absl::Seconds(1));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
}

TEST_F(SupersededHostsTest, TheLoserClaimsTheKeyWhenTheWinnerUnregisters) {
  Lose();
  Answer<UnregisterResponse> answer;
  newer_->registry->Unregister(MakeUnregister("a"), answer.Catch());
  Advance(absl::Seconds(61) + kLongestPeriod);
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
  EXPECT_EQ(older_->registry->UpstreamStatus().acknowledged(), 1);
}

TEST_F(SupersededHostsTest, TheWinnerThatComesBackHasItAgain) {
  Lose();
  newer_->registry.reset();
  Advance(absl::Minutes(3));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
  Start(newer_.get());
  Register(newer_.get(), 2);
  Advance(absl::Minutes(3));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1, 2));
  EXPECT_EQ(older_->registry->UpstreamStatus().superseded(), 1);
  EXPECT_EQ(Superseded(older_->events), 2);
}

TEST_F(SupersededHostsTest, ItSurvivesARestartOfTheLoser) {
  TempDir dir;
  older_->options.state_dir = dir.File("state");
  older_->options.manual_journal = true;
  Lose();
  older_->registry.reset();
  Start(older_.get());
  EXPECT_EQ(older_->registry->UpstreamStatus().superseded(), 1);
  EXPECT_EQ(Superseded(older_->events), 2) << "once in each life";
  Drain(newer_.get());
  Advance(kLongestPeriod);
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
}

TEST_F(SupersededHostsTest, WithoutAPeriodItIsTriedByHandOnly) {
  older_->options.superseded_period = absl::ZeroDuration();
  Lose();
  Drain(newer_.get());
  Advance(absl::Hours(1));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0));
  ASSERT_EQ(older_->registry->Pending().size(), 1u);
  EXPECT_FALSE(older_->registry->Pending()[0].has_next_attempt());
  EXPECT_EQ(*older_->registry->Retry({"register default/orders/a"}), 1);
  Advance(absl::Seconds(1));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
}

TEST_F(SupersededHostsTest, ANewIntentIsTriedAtOnce) {
  Lose();
  const auto refused = Register(older_.get(), 1, /*wait=*/true);
  Advance(absl::Seconds(1));
  EXPECT_EQ(ReasonOf(refused.item()), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonMetadata(refused.item(), "rank"), std::nullopt)
      << "a rank of the registry's, and no local session's";
  EXPECT_EQ(refused.get()->results(0).state(), registry::v1::INTENT_STATE_SUPERSEDED);
  EXPECT_EQ(older_->registry->UpstreamStatus().superseded(), 1) << "told, and kept";
  Drain(newer_.get());
  const auto accepted = Register(older_.get(), 1, /*wait=*/true);
  Advance(absl::Seconds(1));
  EXPECT_EQ(accepted.get()->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0, 1));
}

TEST_F(SupersededHostsTest, CancelEndsIt) {
  Lose();
  EXPECT_EQ(*older_->registry->Cancel({"register default/orders/a"}), 1);
  EXPECT_THAT(older_->registry->Pending(), IsEmpty());
  EXPECT_EQ(older_->registry->UpstreamStatus().desired(), 0);
  Drain(newer_.get());
  Advance(absl::Minutes(5));
  EXPECT_THAT(seen_, ElementsAre(1, 2, 0));
}

TEST_F(SupersededHostsTest, ADrainOfTheLoserLeavesTheWinnerAlone) {
  Lose();
  Answer<agent::v1::DrainResponse> drained;
  older_->registry->Drain(absl::Seconds(10), drained.Catch());
  Advance(absl::Minutes(2));
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 0);
  EXPECT_THAT(seen_, ElementsAre(1, 2));
}

// Against a registry that says what the test wants.
class SupersededTest : public FailbackTest {
 protected:
  SupersededTest() { Back("session-1"); }

  static RegisterResponse Refused(int items = 1) {
    RegisterResponse response;
    for (int i = 0; i < items; ++i) {
      *response.add_results()->mutable_status() =
          StatusToProto(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a later incarnation",
                                {{"rank", "8"}, {"generation", "1"}}));
    }
    return response;
  }
  void RefuseAll() {
    fake_->registers.AnswerWith(
        [](const RegisterRequest& request) { return Refused(request.registrations_size()); });
  }
  uint64_t superseded() const { return registry_->UpstreamStatus().superseded(); }
};

TEST_F(SupersededTest, ThoseOfOneAgentAreTriedAgainTogether) {
  Start();
  RefuseAll();
  for (int i = 0; i < 600; ++i) Register(absl::StrCat("i", i));
  EXPECT_EQ(superseded(), 600);
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(300));
  EXPECT_EQ(fake_->registers.request_count(), 10 * 3) << "batches of 250";
}

TEST_F(SupersededTest, ItIsNotCountedAgainstWhatMayBePending) {
  options_.max_pending = 1;
  Start();
  fake_->registers.Answer(Refused());
  Register("a");
  EXPECT_EQ(superseded(), 1);
  fake_->registers.Hold();
  EXPECT_TRUE(Register("b").item().ok());
  EXPECT_EQ(ReasonOf(Register("c").item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  fake_->registers.Release();
}

TEST_F(SupersededTest, ANewSessionTriesAtOnce) {
  Start();
  fake_->registers.Answer(Refused());
  Register("a");
  fake_->registers.ClearRequests();
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(superseded(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(SupersededTest, AReconnectTriesAtOnceAndIsNoNews) {
  Start();
  RefuseAll();
  Register("a");
  GoAway();
  Advance(absl::Seconds(100));
  EXPECT_EQ(superseded(), 1) << "an outage changes nothing";
  EXPECT_EQ(ReasonOf(StatusFromProto(registry_->Pending()[0].last_status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  fake_->registers.ClearRequests();
  Back("session-1");
  RefuseAll();
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(Superseded(events_), 1);
}

TEST_F(SupersededTest, AFailureIsTriedAgainAndARefusalForGoodIsParked) {
  Start();
  fake_->registers.Answer(Refused());
  Register("a");
  fake_->registers.Answer(absl::DeadlineExceededError("slow"));
  Advance(absl::Seconds(30));
  ASSERT_EQ(fake_->registers.request_count(), 2);
  EXPECT_EQ(superseded(), 1);
  CheckInvariants();
  fake_->registers.Answer(absl::PermissionDeniedError("no"));
  Advance(absl::Seconds(30));
  EXPECT_EQ(superseded(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().parked(), 1);
}

TEST_F(SupersededTest, AnUnregisterIsDone) {
  Start();
  fake_->registers.Answer(Refused());
  Register("a");
  UnregisterResponse refused;
  *refused.add_results()->mutable_status() = Refused().results(0).status();
  fake_->unregisters.Answer(refused);
  Unregister("a");
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_THAT(registry_->Pending(), IsEmpty());
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
  EXPECT_EQ(EventNames().back(), "superseded unregister default/orders/a");
  Advance(absl::Minutes(5));
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(SupersededTest, TheEndOfALocalSessionEndsIt) {
  Start();
  RefuseAll();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(OpenLocal("app", 20));
  Register(request);
  EXPECT_EQ(superseded(), 1);
  Advance(absl::Seconds(21));
  EXPECT_EQ(superseded(), 0);
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_THAT(registry_->Pending(), IsEmpty());
}

TEST_F(SupersededTest, ACheckedIntentGoesBackToItsCaller) {
  Start();
  RefuseAll();
  RegisterRequest checked = MakeRegister({MakeInstance("a")});
  checked.set_check(true);
  EXPECT_EQ(ReasonOf(Register(checked).item()), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(superseded(), 0) << "there was nothing before";
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
  // Where there was, that is what waits.
  Register("a", 1);
  EXPECT_EQ(superseded(), 1);
  checked = MakeRegister({MakeInstance("a", 2)});
  checked.set_check(true);
  EXPECT_EQ(ReasonOf(Register(checked).item()), registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(superseded(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 1);
}

TEST_F(SupersededTest, ARefusalFromBeforeTheLossDoesNotCount) {
  Start();
  fake_->registers.Hold();
  Register("a");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  fake_->registers.Complete(Refused());
  ASSERT_EQ(fake_->registers.request_count(), 2) << "sent in the new session";
  EXPECT_EQ(superseded(), 0);
  fake_->registers.Release();
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(SupersededTest, AListingFromMemorySaysSo) {
  Start();
  RefuseAll();
  Register("a");
  Register("b");
  GoAway();
  Advance(absl::Seconds(10));
  ListRequest request;
  request.set_incarnation("inc");
  Answer<ListResponse> answer;
  registry_->List(request, answer.Catch());
  ASSERT_EQ(answer.get()->records_size(), 2);
  EXPECT_EQ(answer.get()->records(0).state(), registry::v1::INTENT_STATE_SUPERSEDED);
}

// Where the winner's instance is known, that is what is there.
TEST_F(SupersededTest, AListingFromMemoryShowsTheWinnersInstance) {
  Start();
  RefuseAll();
  Register("a", 1);
  Register("b", 1);
  auto stream = Subscribe(std::make_shared<RecordingListener>());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a", 2)}));
  ASSERT_EQ(superseded(), 2);
  GoAway();
  fake_->lists.AnswerWith([](const auto&) { return Away(); });
  Advance(absl::Seconds(10));
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  Answer<ListResponse> answer;
  registry_->List(request, answer.Catch());
  ASSERT_TRUE(answer.get().ok()) << answer.get().status();
  ASSERT_EQ(answer.get()->records_size(), 2);
  EXPECT_EQ(answer.get()->records(0).instance().port(), 2) << "the winner's";
  EXPECT_NE(answer.get()->records(0).state(), registry::v1::INTENT_STATE_SUPERSEDED);
  EXPECT_EQ(answer.get()->records(1).instance().port(), 1) << "whose winner is not known";
  EXPECT_EQ(answer.get()->records(1).state(), registry::v1::INTENT_STATE_SUPERSEDED);
}

TEST_F(SupersededTest, AComparisonLeavesItAlone) {
  options_.anti_entropy_interval = absl::Seconds(60);
  options_.superseded_period = absl::ZeroDuration();
  Start();
  RefuseAll();
  Register("a");
  Advance(absl::Minutes(10));
  EXPECT_GT(fake_->lists.request_count(), 8u);
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(SupersededTest, ANegativePeriodIsRefused) {
  options_.superseded_period = absl::Seconds(-1);
  const auto created = FailbackRegistry::Create(std::move(upstream_), options_);
  EXPECT_EQ(created.status(), absl::InvalidArgumentError("superseded_period: -1s is negative"));
}

}  // namespace
}  // namespace failback
