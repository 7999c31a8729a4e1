// What the failback core counts of itself.

#include "registry/failback/failback_statistics.h"

#include <numeric>

#include "registry/base/proto_time.h"
#include "registry/failback/status_policy.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

class FailbackStatisticsTest : public FailbackTest {
 protected:
  int64_t Attempts(OperationKind kind, absl::StatusCode code) const {
    return registry_->Stats().counters.attempts[static_cast<size_t>(kind)][static_cast<int>(code)];
  }
  int64_t AllAttempts() const {
    int64_t all = 0;
    for (const auto& codes : registry_->Stats().counters.attempts) {
      all = std::accumulate(codes.begin(), codes.end(), all);
    }
    return all;
  }
};

TEST_F(FailbackStatisticsTest, AttemptsAreCountedByOperationAndCode) {
  Start();
  Register("a");
  Unregister("a");
  fake_->registers.Answer(absl::InternalError("broken"));
  Register("b");
  auto stream = Subscribe(std::make_shared<RecordingListener>());
  fake_->subscriptions().back()->Push(SnapshotEvent(1, {}));
  EXPECT_EQ(Attempts(OperationKind::kRegister, absl::StatusCode::kOk), 1);
  EXPECT_EQ(Attempts(OperationKind::kRegister, absl::StatusCode::kInternal), 1);
  EXPECT_EQ(Attempts(OperationKind::kUnregister, absl::StatusCode::kOk), 1);
  EXPECT_EQ(Attempts(OperationKind::kSubscribe, absl::StatusCode::kOk), 1);
  EXPECT_EQ(AllAttempts(), 4);
  // The end of a stream that has begun is no attempt; that of one that has not is.
  fake_->EndSubscriptionsWith(absl::InternalError("broken"));
  fake_->subscriptions().back()->End(absl::InternalError("broken"));
  EXPECT_EQ(Attempts(OperationKind::kSubscribe, absl::StatusCode::kInternal), 0);
  Advance(absl::Seconds(10));
  EXPECT_GT(Attempts(OperationKind::kSubscribe, absl::StatusCode::kInternal), 0);
}

TEST_F(FailbackStatisticsTest, EachItemOfABatchIsAnAttempt) {
  Start();
  RegisterResponse response;
  response.add_results();
  *response.add_results()->mutable_status() = StatusToProto(absl::PermissionDeniedError("no"));
  fake_->registers.Answer(response);
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b")}));
  EXPECT_EQ(Attempts(OperationKind::kRegister, absl::StatusCode::kOk), 1);
  EXPECT_EQ(Attempts(OperationKind::kRegister, absl::StatusCode::kPermissionDenied), 1);
  const FailbackStatistics stats = registry_->Stats();
  EXPECT_EQ(stats.desired, 2);
  EXPECT_EQ(stats.acknowledged, 1);
  EXPECT_EQ(stats.parked[static_cast<size_t>(OperationKind::kRegister)], 1);
  EXPECT_EQ(stats.pending[static_cast<size_t>(OperationKind::kRegister)], 0);
}

TEST_F(FailbackStatisticsTest, WaitsAndRecoveriesAreMeasured) {
  options_.retry.retry_period = absl::Seconds(2);
  Start();
  fake_->registers.Answer(absl::InternalError("broken"));
  fake_->registers.Answer(absl::InternalError("broken"));
  Register("a");
  EXPECT_EQ(registry_->Stats().counters.recovery_nanos.count(), 0);
  EXPECT_EQ(registry_->Stats().counters.retry_delay_nanos.count(), 1);
  EXPECT_EQ(registry_->Stats().counters.retry_delay_nanos.sum(), 2000000000);
  Advance(absl::Seconds(5));
  const FailbackStatistics stats = registry_->Stats();
  EXPECT_EQ(stats.counters.retry_delay_nanos.count(), 2);
  EXPECT_EQ(stats.counters.recovery_nanos.count(), 1);
  EXPECT_EQ(absl::ToInt64Seconds(absl::Nanoseconds(stats.counters.recovery_nanos.sum())), 4);
  // What never failed has nothing to recover from, nor has what a lost session has to be told
  // again.
  Register("b");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(registry_->Stats().acknowledged, 2);
  EXPECT_EQ(registry_->Stats().counters.recovery_nanos.count(), 1);
}

TEST_F(FailbackStatisticsTest, ARecoveryCountsFromTheFirstFailureAlsoOverAnOutage) {
  Start();
  GoAway();
  Register("a");
  Advance(absl::Seconds(100));
  FailbackStatistics stats = registry_->Stats();
  EXPECT_FALSE(stats.up);
  EXPECT_EQ(stats.state, agent::v1::UPSTREAM_STATE_CONNECTING);
  EXPECT_EQ(stats.pending[static_cast<size_t>(OperationKind::kRegister)], 1);
  EXPECT_EQ(absl::ToInt64Seconds(stats.oldest_pending), 100);
  EXPECT_GT(stats.counters.unsent[static_cast<size_t>(OperationKind::kRegister)], 0);
  Back();
  Advance(absl::Seconds(2));
  stats = registry_->Stats();
  EXPECT_TRUE(stats.up);
  EXPECT_EQ(stats.state, agent::v1::UPSTREAM_STATE_READY);
  EXPECT_EQ(stats.acknowledged, 1);
  EXPECT_EQ(stats.oldest_pending, absl::ZeroDuration());
  EXPECT_EQ(stats.counters.recovery_nanos.count(), 1);
  EXPECT_GT(stats.counters.recovery_nanos.sum(), absl::ToInt64Nanoseconds(absl::Seconds(99)));
}

TEST_F(FailbackStatisticsTest, ANewIntentRecoversFromItsOwnFailuresOnly) {
  options_.retry.retry_period = absl::Seconds(1000);
  Start();
  fake_->registers.Answer(absl::InternalError("broken"));
  Register("a");
  Advance(absl::Seconds(10));
  Register("a", 9090);
  EXPECT_EQ(registry_->Stats().acknowledged, 1);
  EXPECT_EQ(registry_->Stats().counters.recovery_nanos.count(), 0);
}

TEST_F(FailbackStatisticsTest, SubscriptionsAndStaleOnes) {
  Start();
  auto first = Subscribe(std::make_shared<RecordingListener>());
  auto second = Subscribe(std::make_shared<RecordingListener>());
  auto third = Subscribe(std::make_shared<RecordingListener>(), "payments");
  for (const auto& subscription : fake_->subscriptions()) subscription->Push(SnapshotEvent(1, {}));
  EXPECT_EQ(registry_->Stats().subscriptions, 2);
  EXPECT_EQ(registry_->Stats().subscribers, 3);
  EXPECT_EQ(registry_->Stats().stale_subscriptions, 0);
  GoAway();
  for (const auto& subscription : fake_->subscriptions()) subscription->End(Away());
  Advance(absl::Seconds(5));
  EXPECT_EQ(registry_->Stats().stale_subscriptions, 2);
}

TEST_F(FailbackStatisticsTest, PendingSinceItsStreamEndedAndNotSinceItWasStated) {
  Start();
  auto stream = Subscribe(std::make_shared<RecordingListener>());
  fake_->subscriptions().back()->Push(SnapshotEvent(1, {}));
  Advance(absl::Minutes(10));
  fake_->EndSubscriptionsWith(absl::InternalError("broken"));
  fake_->subscriptions().back()->End(absl::InternalError("broken"));
  Advance(absl::Seconds(3));
  EXPECT_EQ(registry_->Stats().oldest_pending, absl::Seconds(3));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(FromProto(registry_->Pending()[0].since()), clock_.WallNow() - absl::Seconds(3));
}

TEST_F(FailbackStatisticsTest, StaleOnesAreCountedAlsoWhileTheirStreamsLookOpen) {
  Start();
  auto stream = Subscribe(std::make_shared<RecordingListener>());
  fake_->subscriptions().back()->Push(SnapshotEvent(1, {}));
  GoAway();
  Advance(absl::Seconds(10));
  EXPECT_EQ(registry_->Stats().stale_subscriptions, 1);
  CheckInvariants();
}

TEST_F(FailbackStatisticsTest, WhatIsGivenUpIsNeitherPendingNorDesired) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("no"));
  Register("a");
  EXPECT_EQ(registry_->Stats().parked[static_cast<size_t>(OperationKind::kRegister)], 1);
  EXPECT_EQ(registry_->Stats().desired, 1);
  EXPECT_EQ(*registry_->Cancel({}), 1);
  EXPECT_EQ(registry_->Stats().parked[static_cast<size_t>(OperationKind::kRegister)], 0);
  EXPECT_EQ(registry_->Stats().desired, 0);
  CheckInvariants();
}

TEST_F(FailbackStatisticsTest, ADrainTakesWhatIsParkedBack) {
  Start();
  fake_->registers.Answer(absl::PermissionDeniedError("no"));
  Register("a");
  fake_->closes.Hold();
  registry_->Drain(absl::Seconds(10), [](const absl::StatusOr<agent::v1::DrainResponse>&) {});
  EXPECT_TRUE(registry_->Stats().draining);
  EXPECT_EQ(registry_->Stats().parked[static_cast<size_t>(OperationKind::kRegister)], 0);
  CheckInvariants();
}

TEST_F(FailbackStatisticsTest, ANewIntentIsPendingSinceItWasStated) {
  options_.retry.retry_period = absl::Seconds(1000);
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("broken"); });
  Register("a");
  Advance(absl::Seconds(10));
  EXPECT_EQ(registry_->Stats().oldest_pending, absl::Seconds(10));
  Register("a", 9090);
  EXPECT_EQ(registry_->Stats().oldest_pending, absl::ZeroDuration());
}

TEST_F(FailbackStatisticsTest, TheJournalIsMeasuredWhereThereIsOne) {
  options_.state_dir = testing::TempDir() + "/statistics";
  options_.manual_journal = true;
  Start();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b")}));
  const FailbackStatistics stats = registry_->Stats();
  ASSERT_TRUE(stats.journal.has_value());
  EXPECT_GT(stats.journal->bytes, 0);
  EXPECT_EQ(stats.journal->error, absl::OkStatus());
  EXPECT_EQ(stats.journal->write_nanos.count(), 1);
  EXPECT_EQ(stats.journal->group_intents.sum(), 2);
}

}  // namespace
}  // namespace failback
