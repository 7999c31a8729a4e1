// A session that was not renewed for its TTL: what was acknowledged in it is not called so.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kWhereToLook[] =
    "; the registry refuses this agent: look at its token_file and registry_tls, and at the "
    "registry's tokens and policy";

// The TTL is 9 s, and the session renewed every 3.
class FailbackLapseTest : public FailbackTest {
 protected:
  FailbackLapseTest() {
    Back("session-1");
    SetLogSink(LogLevel::kInfo, [this](LogLevel, const std::string& event, const LogFields& f) {
      if (event.rfind("lease", 0) == 0) log_.push_back(FormatLogLine(event, f));
      if (event == "registry refuses this agent") refused_.push_back(FormatLogLine(event, f));
      told_away_ = told_away_ || event == "registry away";
    });
  }
  ~FailbackLapseTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  // From now on the agent's token is not taken.
  void Revoke() {
    const absl::Status revoked = absl::UnauthenticatedError("the token was revoked");
    fake_->keep_alives.AnswerWith([revoked](const auto&) { return revoked; });
    fake_->opens.AnswerWith([revoked](const auto&) { return revoked; });
  }
  void RegisterAndRevoke() {
    Start();
    Register("a");
    Register("b");
    ASSERT_EQ(Acknowledged(), 2);
    Revoke();
  }

  int64_t Acknowledged() const {
    EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), registry_->Stats().acknowledged);
    return registry_->Stats().acknowledged;
  }
  Answer<RegisterResponse> RegisterAndWait(const std::string& id, bool check = false) {
    RegisterRequest request = MakeRegister({MakeInstance(id)});
    request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    request.set_check(check);
    return Register(request);
  }
  registry::v1::IntentState Listed() {
    ListRequest request;
    request.set_incarnation("inc");
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    return answer.get().ok() && answer.get()->records_size() > 0
               ? answer.get()->records(0).state()
               : registry::v1::INTENT_STATE_UNSPECIFIED;
  }
  // Of sessions.
  std::vector<IntentEvent> Told() const {
    std::vector<IntentEvent> told;
    for (const IntentEvent& event : events_) {
      if (event.id.empty()) told.push_back(event);
    }
    return told;
  }

  std::vector<std::string> log_;
  std::vector<std::string> refused_;
  bool told_away_ = false;
};

TEST_F(FailbackLapseTest, ALeaseThatHasRunOutIsNotAcknowledged) {
  RegisterAndRevoke();
  const absl::Time opened = clock_.WallNow();
  Advance(absl::Seconds(9) - absl::Milliseconds(1));
  EXPECT_EQ(Acknowledged(), 2) << "it may live";
  EXPECT_FALSE(registry_->UpstreamStatus().has_lapsed_since());
  EXPECT_EQ(Listed(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_THAT(Told(), IsEmpty());
  Advance(absl::Milliseconds(2));
  EXPECT_EQ(Acknowledged(), 0);
  EXPECT_EQ(Listed(), registry::v1::INTENT_STATE_LAPSED);
  Advance(absl::Hours(1));
  const agent::v1::UpstreamStatus status = registry_->UpstreamStatus();
  EXPECT_EQ(status.desired(), 2);
  EXPECT_EQ(status.pending(), 0);
  EXPECT_EQ(FromProto(status.lapsed_since()), opened + absl::Seconds(9));
  EXPECT_EQ(status.last_error().code(), static_cast<int>(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(status.state(), agent::v1::UPSTREAM_STATE_CONNECTING);
  EXPECT_TRUE(status.refused());
  EXPECT_EQ(registry_->Stats().lapsed_since, opened + absl::Seconds(9));
  EXPECT_THAT(registry_->Pending(), IsEmpty());
  EXPECT_EQ(fake_->registers.request_count(), 2) << "nothing is sent again for it";
  ASSERT_THAT(Told(), SizeIs(1)) << "one for all";
  EXPECT_EQ(Told()[0].kind, IntentEvent::Kind::kLapsed);
  const std::string why = absl::StrCat("the token was revoked", kWhereToLook);
  EXPECT_EQ(Told()[0].status, absl::UnauthenticatedError(why));
  EXPECT_EQ(status.last_error().message(), why);
  EXPECT_THAT(log_, ElementsAre(absl::StrCat("lease lapsed upstream=grpc://fake "
                                             "code=UNAUTHENTICATED message=\"",
                                             why, "\"")));
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_THAT(refused_[0], testing::HasSubstr("token_file"));
  EXPECT_FALSE(told_away_) << "it is reached";
}

TEST_F(FailbackLapseTest, WhoWaitsIsAnsweredWhenTheSessionIsRenewed) {
  RegisterAndRevoke();
  Advance(absl::Minutes(1));
  const auto waiting = RegisterAndWait("a");
  const auto accepted = Register("b");
  EXPECT_EQ(accepted.get()->results(0).state(), registry::v1::INTENT_STATE_ACCEPTED);
  CheckInvariants();
  Advance(absl::Minutes(1));
  EXPECT_FALSE(waiting.done());
  EXPECT_THAT(registry_->Pending(), IsEmpty());
  Back("session-1");
  Advance(absl::Seconds(2));
  EXPECT_EQ(waiting.get()->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(Acknowledged(), 2);
  EXPECT_FALSE(registry_->UpstreamStatus().has_lapsed_since());
  ASSERT_THAT(Told(), SizeIs(2));
  EXPECT_EQ(Told()[1].kind, IntentEvent::Kind::kRenewed);
  ASSERT_THAT(log_, SizeIs(2));
  EXPECT_THAT(log_[1],
              testing::HasSubstr("lease renewed upstream=grpc://fake session=\"the same\""));
  CheckInvariants();
}

TEST_F(FailbackLapseTest, WhoWaitsIsAnsweredWhenItIsSentInAnotherSession) {
  RegisterAndRevoke();
  Advance(absl::Minutes(1));
  const auto waiting = RegisterAndWait("a");
  Back("session-2");
  fake_->registers.Hold();
  Advance(absl::Seconds(2));
  EXPECT_FALSE(waiting.done()) << "the new session has nothing yet";
  EXPECT_EQ(Acknowledged(), 0);
  EXPECT_THAT(registry_->Pending(), SizeIs(2));
  fake_->registers.Release();
  EXPECT_EQ(waiting.get()->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(Acknowledged(), 2);
}

TEST_F(FailbackLapseTest, ACheckedIntentIsRefusedAtOnceAndChangesNothing) {
  RegisterAndRevoke();
  Advance(absl::Minutes(1));
  EXPECT_EQ(RegisterAndWait("a", /*check=*/true).item(),
            absl::UnauthenticatedError(
                absl::StrCat("no session at grpc://fake: the token was revoked", kWhereToLook)));
  EXPECT_THAT(registry_->Pending(), IsEmpty());
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
}

// The deadline that has passed is the agent's own, of a renewal; the caller's has not.
TEST_F(FailbackLapseTest, ACheckAtARegistryThatHangsIsRefusedAsUnavailable) {
  Start();
  const absl::Status late = absl::DeadlineExceededError("a renewal was not answered within 5s");
  GoAway(late);
  Advance(absl::Seconds(5));
  const absl::Status refused = RegisterAndWait("a", /*check=*/true).item();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(refused.message(), absl::StrCat("no session at grpc://fake: ", late.message()));
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE);
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
}

TEST_F(FailbackLapseTest, WhoWaitsIsAnsweredWhenTheIntentIsReplacedOrTheAgentDrains) {
  RegisterAndRevoke();
  Advance(absl::Minutes(1));
  const auto replaced = RegisterAndWait("a");
  const auto drained = RegisterAndWait("b");
  Register("a", 9090);
  EXPECT_EQ(ReasonOf(replaced.item()), registry::v1::ERROR_REASON_SUPERSEDED);
  registry_->Drain(absl::Seconds(10), [](const absl::StatusOr<agent::v1::DrainResponse>&) {});
  EXPECT_EQ(ReasonOf(drained.item()), registry::v1::ERROR_REASON_DRAINING);
}

TEST_F(FailbackLapseTest, ALeaseCountsFromWhenItsRenewalWasSent) {
  Start();
  Register("a");
  fake_->keep_alives.Hold();
  Advance(absl::Seconds(10));  // sent after 3
  EXPECT_EQ(Acknowledged(), 0);
  EXPECT_EQ(registry_->UpstreamStatus().last_error().code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  const auto waiting = RegisterAndWait("a");
  EXPECT_FALSE(waiting.done());
  fake_->keep_alives.Complete(Renewed(fake_->keep_alives.last_request()));
  EXPECT_TRUE(waiting.item().ok());
  EXPECT_EQ(Acknowledged(), 1);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->keep_alives.request_count(), 2) << "the next was due long ago";
  Advance(absl::Seconds(2));
  EXPECT_EQ(Acknowledged(), 0) << "9 s after the first was sent";
  fake_->keep_alives.Release();
  EXPECT_EQ(Acknowledged(), 1);
}

TEST_F(FailbackLapseTest, ASessionThatIsLostIsNoLeaseUntilEverythingIsSentAgain) {
  Start();
  Register("a");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->opens.Hold();
  Advance(absl::Seconds(4));
  EXPECT_EQ(Acknowledged(), 0) << "the registry has said that it knows nothing";
  EXPECT_TRUE(registry_->UpstreamStatus().has_lapsed_since());
  const auto waiting = RegisterAndWait("a");
  ASSERT_TRUE(fake_->opens.Complete(absl::UnavailableError("away")));
  EXPECT_FALSE(waiting.done()) << "there is no session";
  Advance(absl::Seconds(2));
  fake_->registers.Hold();
  ASSERT_TRUE(fake_->opens.Complete(Opened("session-2")));
  EXPECT_FALSE(waiting.done()) << "the new session has nothing yet";
  fake_->registers.Release();
  EXPECT_TRUE(waiting.item().ok());
  EXPECT_EQ(Acknowledged(), 1);
  EXPECT_THAT(Told(), IsEmpty()) << "its lease had not run out";
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(FailbackLapseTest, ACheckedIntentHasOneAttemptInTheSessionThatReplacesALostOne) {
  Start();
  Register("a");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->opens.Hold();
  Advance(absl::Seconds(4));
  const auto checked = RegisterAndWait("a", /*check=*/true);
  EXPECT_FALSE(checked.done()) << "there is no session";
  fake_->registers.Answer(absl::UnavailableError("away"));
  ASSERT_TRUE(fake_->opens.Complete(Opened("session-2")));
  ASSERT_TRUE(checked.done());
  EXPECT_EQ(checked.item(), absl::UnavailableError("away"));
  CheckInvariants();
  Advance(absl::Seconds(2));
  EXPECT_EQ(Acknowledged(), 1) << "what was there before is sent again";
}

TEST_F(FailbackLapseTest, ABriefAbsenceIsNoLapse) {
  Start();
  Register("a");
  GoAway();
  Advance(absl::Seconds(7));
  EXPECT_EQ(Acknowledged(), 1);
  Back("session-1");
  Advance(absl::Minutes(1));
  EXPECT_EQ(Acknowledged(), 1);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(FailbackLapseTest, NothingIsLapsedBeforeTheFirstSession) {
  GoAway();
  Start();
  Register("a");
  Advance(absl::Minutes(1));
  EXPECT_FALSE(registry_->UpstreamStatus().has_lapsed_since());
  EXPECT_THAT(Told(), IsEmpty());
}

}  // namespace
}  // namespace failback
