// State and its transactions: the fencing table of docs/protocol.md, sessions, limits.

#include <cstdint>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/store/transaction.h"
#include "tests/registry/store/state_fixture.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- The fencing table of docs/protocol.md, row by row.

TEST_F(StateTest, NoFenceIsAccepted) {
  const std::string a = Open("a");
  EXPECT_TRUE(Apply(a, Put("1", "1:x", 5)).status.ok());
  EXPECT_EQ(Get("1"), "1:x");
  EXPECT_EQ(state_.revision(), 1u);
}

TEST_F(StateTest, HigherGenerationIsAccepted) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  const auto outcome = Apply(a, Put("1", "1:y", 6));
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.generation, 6u);
  EXPECT_EQ(Get("1"), "1:y");
  EXPECT_TRUE(Apply(a, Remove("1", 7)).status.ok());
  EXPECT_EQ(Get("1"), "-");
  EXPECT_TRUE(Apply(a, Put("1", "1:z", 8)).status.ok());
  EXPECT_EQ(Get("1"), "1:z");
}

TEST_F(StateTest, HigherRankIsAcceptedWithAnyGeneration) {
  const std::string a = Open("a");
  const std::string b = Open("b");
  Apply(a, Put("1", "1:a", 500));
  EXPECT_TRUE(Apply(b, Put("1", "1:b", 1)).status.ok());
  EXPECT_EQ(Get("1"), "1:b");
  // It now is b's: a's end leaves it.
  Expire(a);
  EXPECT_EQ(Get("1"), "1:b");
  Expire(b);
  EXPECT_EQ(Get("1"), "-");
}

TEST_F(StateTest, LowerGenerationIsSupersededAndToldTheWinner) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  for (Intent late : {Put("1", "1:w", 4), Remove("1", 4)}) {
    const auto outcome = Apply(a, std::move(late));
    ExpectReason(outcome, kSuperseded);
    EXPECT_EQ(ReasonMetadata(outcome.status, "rank").value_or(""), "1");
    EXPECT_EQ(ReasonMetadata(outcome.status, "generation").value_or(""), "5");
    EXPECT_FALSE(committed_);
  }
  EXPECT_EQ(Get("1"), "1:x");
}

TEST_F(StateTest, LateRegisterAfterUnregisterIsSuperseded) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Apply(a, Remove("1", 6));
  ExpectReason(Apply(a, Put("1", "1:x", 5)), kSuperseded);
  EXPECT_EQ(Get("1"), "-");
}

TEST_F(StateTest, UnregisterThatOvertakesItsRegisterWins) {
  const std::string a = Open("a");
  EXPECT_TRUE(Apply(a, Remove("1", 6)).status.ok());
  EXPECT_TRUE(committed_);
  EXPECT_EQ(state_.tombstones(), 1);
  ExpectReason(Apply(a, Put("1", "1:x", 5)), kSuperseded);
  EXPECT_EQ(Get("1"), "-");
}

TEST_F(StateTest, LowerRankIsSupersededEvenUnfenced) {
  const std::string old_pod = Open("old");
  const std::string successor = Open("new");
  Apply(successor, Put("1", "1:new", 1));
  for (const uint64_t generation : {0, 1, 900}) {
    const auto outcome = Apply(old_pod, Put("1", "1:old", generation));
    ExpectReason(outcome, kSuperseded);
    EXPECT_EQ(ReasonMetadata(outcome.status, "rank").value_or(""), "2");
    ExpectReason(Apply(old_pod, Remove("1", generation)), kSuperseded);
  }
  EXPECT_EQ(Get("1"), "1:new");
}

TEST_F(StateTest, LowerRankIsSupersededWhenTheSuccessorHasExpired) {
  const std::string old_pod = Open("old");
  const std::string successor = Open("new");
  Apply(successor, Put("1", "1:new", 1));
  Expire(successor);
  EXPECT_EQ(Get("1"), "-");
  ExpectReason(Apply(old_pod, Put("1", "1:old", 9)), kSuperseded);
}

TEST_F(StateTest, RepeatedIntentChangesNothing) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  const auto again = Apply(a, Put("1", "1:x", 5));
  EXPECT_TRUE(again.status.ok());
  EXPECT_EQ(again.generation, 5u);
  EXPECT_FALSE(committed_);
  Apply(a, Remove("1", 6));
  EXPECT_TRUE(Apply(a, Remove("1", 6)).status.ok());
  EXPECT_FALSE(committed_);
  EXPECT_EQ(state_.revision(), 2u);
}

TEST_F(StateTest, RepeatedIntentIsAppliedAgainAfterItsSessionWent) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Expire(a);
  EXPECT_EQ(Get("1"), "-");
  const std::string again = Open("a");
  EXPECT_EQ(last_rank_, 1u);
  EXPECT_TRUE(Apply(again, Put("1", "1:x", 5)).status.ok());
  EXPECT_EQ(Get("1"), "1:x");
}

TEST_F(StateTest, RepeatedIntentIsAppliedAgainAfterAnotherHand) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Apply("", Put("1", "1:other"));
  EXPECT_EQ(Get("1"), "1:other");
  EXPECT_TRUE(Apply(a, Put("1", "1:x", 5)).status.ok());
  EXPECT_EQ(Get("1"), "1:x");
  Apply("", Remove("1"));
  EXPECT_EQ(Get("1"), "-");
  EXPECT_TRUE(Apply(a, Put("1", "1:x", 5)).status.ok());
  EXPECT_EQ(Get("1"), "1:x");
  // Removed by its owner and put back by a concurrent writer: the owner's repeated removal removes
  // it again.
  Apply(a, Remove("1", 6));
  Apply("", Put("1", "1:other"));
  EXPECT_EQ(Get("1"), "1:other");
  EXPECT_TRUE(Apply(a, Remove("1", 6)).status.ok());
  EXPECT_EQ(Get("1"), "-");
}

TEST_F(StateTest, SameGenerationOfAnotherContentIsReused) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  for (Intent other : {Put("1", "1:y", 5), Remove("1", 5)}) {
    const auto outcome = Apply(a, std::move(other));
    ExpectReason(outcome, kReused);
    EXPECT_EQ(ReasonMetadata(outcome.status, "generation").value_or(""), "5");
  }
  EXPECT_EQ(Get("1"), "1:x");
  Apply(a, Remove("1", 6));
  ExpectReason(Apply(a, Put("1", "1:x", 6)), kReused);
}

TEST_F(StateTest, GenerationIsReusedAlsoAfterExpiry) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Expire(a);
  ExpectReason(Apply(Open("a"), Put("1", "1:y", 5)), kReused);
}

TEST_F(StateTest, UnfencedIntentTakesTheFencesGeneration) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  const auto outcome = Apply(a, Put("1", "1:y"));
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.generation, 5u);
  EXPECT_EQ(Get("1"), "1:y");
  EXPECT_TRUE(Apply(a, Put("1", "1:y")).status.ok());
  EXPECT_FALSE(committed_);
  EXPECT_EQ(Apply(a, Remove("1")).generation, 5u);
  EXPECT_EQ(Get("1"), "-");
  // Under a higher rank it starts at zero.
  EXPECT_EQ(Apply(Open("b"), Put("1", "1:b")).generation, 0u);
  EXPECT_EQ(Get("1"), "1:b");
}

TEST_F(StateTest, UnregisterOfTheUnknownIsOk) {
  const std::string a = Open("a");
  EXPECT_TRUE(Apply(a, Remove("1")).status.ok());
  EXPECT_FALSE(committed_) << "without a generation there is nothing to fence";
  EXPECT_TRUE(Apply("", Remove("1")).status.ok());
  EXPECT_FALSE(committed_);
  EXPECT_TRUE(Apply(a, Remove("1", 1)).status.ok());
  EXPECT_TRUE(committed_);
}

TEST_F(StateTest, DetachedIntentsLeaveTheFenceAndLiveOn) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:a", 5));
  EXPECT_EQ(Apply("", Put("1", "1:hand", 77)).generation, 0u);
  Expire(a);
  EXPECT_EQ(Get("1"), "1:hand") << "it has no owner any more";
  const std::string again = Open("a");
  ExpectReason(Apply(again, Put("1", "1:late", 4)), kSuperseded);
  EXPECT_TRUE(Apply("", Remove("1")).status.ok());
  EXPECT_EQ(Get("1"), "-");
  EXPECT_EQ(state_.tombstones(), 1) << "the owner's fence stays";
  Apply("", Put("2", "2:hand"));
  Apply("", Remove("2"));
  EXPECT_EQ(state_.records(), 1) << "without a fence nothing stays";
}

TEST_F(StateTest, DetachedAgainChangesNothing) {
  Apply("", Put("1", "1:x"));
  EXPECT_TRUE(Apply("", Put("1", "1:x")).status.ok());
  EXPECT_FALSE(committed_);
}

// ---- Sessions.

TEST_F(StateTest, ExpiryTakesAllInOneRevisionAndLeavesFences) {
  const std::string a = Open("a");
  const std::string b = Open("b");
  for (int i = 0; i < 10; ++i) {
    Apply(a, Put(std::to_string(i), std::to_string(i) + ":a", 1, i % 2 == 0));
  }
  Apply(b, Put("x", "x:b", 1));
  const uint64_t before = state_.revision();
  Expire(a);
  EXPECT_EQ(state_.revision(), before + 1);
  ASSERT_EQ(result_.services.size(), 1u);
  EXPECT_EQ(result_.services[0].instances.size(), 5u);
  EXPECT_THAT(result_.ended_sessions, ElementsAre(a));
  EXPECT_EQ(state_.instances(), 6);
  EXPECT_EQ(state_.tombstones(), 5);
  EXPECT_EQ(state_.FindSession(a), nullptr);
}

TEST_F(StateTest, CloseLeavesNoFence) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Apply(a, Put("2", "2:x", 5));
  Apply(a, Remove("2", 6));
  Close(a);
  EXPECT_EQ(Get("1"), "-");
  // The same incarnation comes back with a generation it had, or a lower one.
  const std::string again = Open("a");
  EXPECT_TRUE(Apply(again, Put("1", "1:y", 5)).status.ok());
  // What it had unregistered itself stays fenced.
  ExpectReason(Apply(again, Put("2", "2:x", 5)), kSuperseded);
}

TEST_F(StateTest, PersistentInstancesOutliveTheSessionAndAreAdoptedByTheNext) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5, true));
  Close(a);
  EXPECT_EQ(Get("1"), "1:x");
  const std::string again = Open("a");
  EXPECT_TRUE(Apply(again, Put("1", "1:x", 5, true)).status.ok());
  EXPECT_TRUE(committed_);
  EXPECT_THAT(result_.services, IsEmpty()) << "nothing that a subscriber sees";
  EXPECT_TRUE(Apply(again, Put("1", "1:x", 5, true)).status.ok());
  EXPECT_FALSE(committed_);
}

TEST_F(StateTest, OpenAgainResumesOrKeepsTheRank) {
  const std::string a = Open("a");
  EXPECT_EQ(last_rank_, 1u);
  EXPECT_EQ(Open("a"), a);
  Open("b");
  EXPECT_EQ(last_rank_, 2u);
  Expire(a);
  EXPECT_NE(Open("a"), a);
  EXPECT_EQ(last_rank_, 1u);
}

TEST_F(StateTest, OpenTwiceInOneTransactionIsOneSession) {
  State::Transaction transaction(&state_, Now());
  State::Transaction::Opening opening;
  opening.incarnation = "a";
  opening.ttl_ms = kTtlMs;
  opening.new_session_id = "one";
  EXPECT_EQ(transaction.OpenSession(opening).session_id, "one");
  opening.new_session_id = "two";
  const auto second = transaction.OpenSession(opening);
  EXPECT_EQ(second.session_id, "one");
  EXPECT_TRUE(second.resumed);
  opening.owner = "somebody-else";
  const auto stolen = transaction.OpenSession(opening);
  ExpectReason({stolen.status, 0}, registry::v1::ERROR_REASON_SESSION_NOT_OWNED);
  EXPECT_EQ(stolen.session_id, "");
  transaction.Commit();
  EXPECT_EQ(state_.sessions(), 1);
}

TEST_F(StateTest, ClaimedRankIsTakenOverUnlessItIsTakenOrAbsurd) {
  Open("a", 7);
  EXPECT_EQ(last_rank_, 7u);
  Open("b");
  EXPECT_EQ(last_rank_, 8u);
  Open("c", 7);
  EXPECT_EQ(last_rank_, 9u);
  Open("d", uint64_t{1} << 60);
  EXPECT_EQ(last_rank_, 10u);
  Open("e", 3);
  EXPECT_EQ(last_rank_, 3u);
}

// ---- Transactions.

TEST_F(StateTest, DroppedTransactionLeavesNoTrace) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  const uint64_t revision = state_.revision();
  {
    State::Transaction transaction(&state_, Now());
    EXPECT_TRUE(transaction.EndSession(a, State::Transaction::End::kExpired));
    EXPECT_EQ(transaction.FindSession(a), nullptr);
    State::Transaction::Opening opening;
    opening.incarnation = "b";
    opening.ttl_ms = kTtlMs;
    opening.new_session_id = "b-1";
    transaction.OpenSession(opening);
    EXPECT_TRUE(transaction.Apply(nullptr, Put("2", "2:x")).status.ok());
    EXPECT_TRUE(transaction.Apply(nullptr, Remove("1")).status.ok());
    EXPECT_FALSE(transaction.empty());
  }
  EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(state_.revision(), revision);
  EXPECT_EQ(Get("1"), "1:x");
  EXPECT_EQ(Get("2"), "-");
  EXPECT_NE(state_.FindSession(a), nullptr);
  EXPECT_TRUE(Apply(a, Put("1", "1:y", 6)).status.ok());
}

TEST_F(StateTest, OneTransactionIsOneRevisionAndSeesItself) {
  const std::string a = Open("a");
  State::Transaction transaction(&state_, Now());
  Session* const session = transaction.FindSession(a);
  EXPECT_TRUE(transaction.Apply(session, Put("1", "1:x", 1)).status.ok());
  EXPECT_TRUE(transaction.Apply(session, Remove("1", 2)).status.ok());
  ExpectReason(transaction.Apply(session, Put("1", "1:x", 1)), kSuperseded);
  EXPECT_TRUE(transaction.Apply(session, Put("2", "2:x", 1)).status.ok());
  EXPECT_TRUE(transaction.Apply(session, Put("2", "2:y", 2)).status.ok());
  const CommitResult result = transaction.Commit();
  EXPECT_EQ(result.revision, 1u);
  ASSERT_EQ(result.services.size(), 1u);
  ASSERT_EQ(result.services[0].instances.size(), 1u) << "the net effect";
  EXPECT_EQ(result.services[0].instances[0].after.view(), "2:y");
}

TEST_F(StateTest, SamePayloadWithANewGenerationIsACommitThatNobodySees) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 1));
  EXPECT_TRUE(Apply(a, Put("1", "1:x", 2)).status.ok());
  EXPECT_TRUE(committed_);
  EXPECT_EQ(state_.revision(), 2u);
  EXPECT_THAT(result_.services, IsEmpty());
}

TEST_F(StateTest, LimitsAreKeptAndCountWhatTheTransactionAdds) {
  State::Options options;
  options.max_instances = 3;
  options.max_instances_per_session = 2;
  options.max_sessions = 2;
  State state(options);
  const auto open = [&](const std::string& name) {
    State::Transaction transaction(&state, Now());
    State::Transaction::Opening opening;
    opening.incarnation = name;
    opening.ttl_ms = kTtlMs;
    opening.new_session_id = name;
    const auto opened = transaction.OpenSession(opening);
    if (!transaction.empty()) transaction.Commit();
    return opened.status;
  };
  EXPECT_TRUE(open("a").ok());
  EXPECT_TRUE(open("b").ok());
  EXPECT_EQ(ReasonOf(open("c")), kLimit);
  {
    // Within a group, sessions that end make room for those that open, one each.
    State::Transaction group(&state, Now());
    EXPECT_TRUE(group.EndSession("b", State::Transaction::End::kClosed));
    State::Transaction::Opening opening;
    opening.ttl_ms = kTtlMs;
    opening.incarnation = opening.new_session_id = "d";
    EXPECT_TRUE(group.OpenSession(opening).status.ok());
    opening.incarnation = opening.new_session_id = "e";
    EXPECT_EQ(ReasonOf(group.OpenSession(opening).status), kLimit);
  }
  State::Transaction transaction(&state, Now());
  Session* const a = transaction.FindSession("a");
  Session* const b = transaction.FindSession("b");
  EXPECT_TRUE(transaction.Apply(a, Put("1", "1:x")).status.ok());
  EXPECT_TRUE(transaction.Apply(a, Put("2", "2:x")).status.ok());
  ExpectReason(transaction.Apply(a, Put("3", "3:x")), kLimit);
  EXPECT_TRUE(transaction.Apply(a, Put("2", "2:y")).status.ok()) << "an update needs no room";
  EXPECT_TRUE(transaction.Apply(b, Put("3", "3:x")).status.ok());
  ExpectReason(transaction.Apply(b, Put("4", "4:x")), kLimit);
  EXPECT_TRUE(transaction.Apply(a, Remove("1")).status.ok());
  EXPECT_TRUE(transaction.Apply(b, Put("4", "4:x")).status.ok());
  transaction.Commit();
  EXPECT_EQ(state.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(state.instances(), 3);
}

}  // namespace
}  // namespace failback
