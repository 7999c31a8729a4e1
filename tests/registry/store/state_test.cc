#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/store/transaction.h"
#include "tests/registry/store/fake_storage.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kTtlMs = 10000;
constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;

std::string Key(const std::string& id, const std::string& service = "orders") {
  return "default" + std::string(1, '\0') + service + std::string(1, '\0') + id;
}

Intent Put(const std::string& id, const std::string& bytes, uint64_t generation = 0,
           bool persistent = false) {
  Intent intent;
  intent.registers = true;
  intent.persistent = persistent;
  intent.key = Key(id);
  intent.instance = Blob(bytes);
  intent.digest = Digest64(bytes);
  intent.generation = generation;
  return intent;
}

// An instance that has nothing but this address: what is read from a store has to parse.
std::string Address(const std::string& text) {
  registry::v1::ServiceInstance instance;
  instance.set_address(text);
  return instance.SerializeAsString();
}

Intent Remove(const std::string& id, uint64_t generation = 0) {
  Intent intent;
  intent.key = Key(id);
  intent.generation = generation;
  return intent;
}

// A state, and one transaction per word.
class StateTest : public ::testing::Test {
 protected:
  ~StateTest() override { EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus()); }

  Moment Now() const { return {1700000000000 + now_ms_, now_ms_}; }

  std::string Open(const std::string& incarnation, uint64_t claimed_rank = 0,
                   int64_t ttl_ms = kTtlMs) {
    State::Transaction transaction(&state_, Now());
    State::Transaction::Opening opening;
    opening.incarnation = incarnation;
    opening.ttl_ms = ttl_ms;
    opening.claimed_rank = claimed_rank;
    opening.new_session_id = incarnation + "-" + std::to_string(++session_ids_);
    const auto opened = transaction.OpenSession(std::move(opening));
    EXPECT_TRUE(opened.status.ok()) << opened.status;
    last_rank_ = opened.rank;
    Commit(transaction);
    return opened.session_id;
  }
  void End(const std::string& session, State::Transaction::End end) {
    State::Transaction transaction(&state_, Now());
    EXPECT_TRUE(transaction.EndSession(session, end));
    Commit(transaction);
  }
  void Expire(const std::string& session) { End(session, State::Transaction::End::kExpired); }
  void Close(const std::string& session) { End(session, State::Transaction::End::kClosed); }
  void Purge(bool incarnations = false) {
    State::Transaction transaction(&state_, Now());
    transaction.Purge();
    if (incarnations) transaction.PurgeIncarnations();
    Commit(transaction);
  }

  // In a session, or detached where the id is empty.
  IntentOutcome Apply(const std::string& session, Intent intent) {
    State::Transaction transaction(&state_, Now());
    Session* const found = session.empty() ? nullptr : transaction.FindSession(session);
    EXPECT_EQ(found == nullptr, session.empty());
    IntentOutcome outcome = transaction.Apply(found, std::move(intent));
    Commit(transaction);
    return outcome;
  }
  void Mark(const std::string& id, bool offline = true) {
    State::Transaction transaction(&state_, Now());
    registry::v1::OfflineMark mark;
    mark.set_reason("disk");
    EXPECT_TRUE(transaction.SetOffline(Key(id), offline ? &mark : nullptr).changed);
    Commit(transaction);
  }
  void Commit(State::Transaction& transaction) {
    committed_ = !transaction.empty();
    result_ = CommitResult();
    if (committed_) result_ = transaction.Commit();
  }

  // The payload of an instance, or "-" when it is absent.
  std::string Get(const std::string& id) const {
    for (const auto& item : Items()) {
      if (item.first == id) return item.second;
    }
    return "-";
  }
  std::vector<std::pair<std::string, std::string>> Items() const {
    std::vector<std::pair<std::string, std::string>> items;
    ListQuery query;
    for (;;) {
      ListPage page = state_.List(query);
      EXPECT_LE(page.items.size(), query.max_items);
      for (size_t i = 0; i < page.items.size(); ++i) {
        items.emplace_back("", std::string(page.items[i].instance.view()));
      }
      if (page.next_after.empty()) break;
      query.after = page.next_after;
    }
    // The id is the part of the payload before the colon.
    for (auto& [id, bytes] : items) id = bytes.substr(0, bytes.find(':'));
    return items;
  }

  static void ExpectReason(const IntentOutcome& outcome, registry::v1::ErrorReason reason) {
    EXPECT_EQ(ReasonOf(outcome.status), reason) << outcome.status;
  }

  State state_{State::Options()};
  int64_t now_ms_ = 1000;
  int session_ids_ = 0;
  uint64_t last_rank_ = 0;
  bool committed_ = false;
  CommitResult result_;
};

constexpr auto kSuperseded = registry::v1::ERROR_REASON_SUPERSEDED;
constexpr auto kReused = registry::v1::ERROR_REASON_GENERATION_REUSED;
constexpr auto kLimit = registry::v1::ERROR_REASON_LIMIT_REACHED;

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
  // Removed by its owner and put back by another hand: the owner's repeated removal removes it
  // again.
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

// ---- What is forgotten, and when.

TEST_F(StateTest, TombstonesStayForTheirTime) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Apply(a, Remove("1", 6));
  EXPECT_EQ(state_.NextPurgeMs(), now_ms_ + 60000) << "60 s, as the TTL is shorter";
  now_ms_ += 59999;
  Purge();
  EXPECT_EQ(state_.tombstones(), 1);
  ExpectReason(Apply(a, Put("1", "1:x", 5)), kSuperseded);
  const uint64_t revision = state_.revision();
  now_ms_ += 1;
  Purge();
  EXPECT_EQ(state_.tombstones(), 0);
  EXPECT_EQ(state_.records(), 0);
  EXPECT_EQ(state_.revision(), revision) << "forgetting is no commit";
}

TEST_F(StateTest, TombstonesStayAsLongAsTheSessionsTtl) {
  constexpr int64_t kLongTtlMs = int64_t{10} * 60 * 1000;
  const std::string a = Open("a", 0, kLongTtlMs);
  Apply(a, Put("1", "1:x", 5));
  Apply(a, Remove("1", 6));
  now_ms_ += kLongTtlMs - 1;
  Purge();
  ExpectReason(Apply(a, Put("1", "1:x", 5)), kSuperseded);
  now_ms_ += 1;
  Purge();
  EXPECT_EQ(state_.tombstones(), 0);
}

TEST_F(StateTest, AMarkStaysForADayAndTheFenceOfItsInstanceDoesNot) {
  const std::string old_pod = Open("old");
  const std::string successor = Open("new");
  Apply(successor, Put("1", "1:new", 5));
  Mark("1");
  Expire(successor);
  const int64_t expired_ms = now_ms_;
  EXPECT_EQ(state_.NextPurgeMs(), expired_ms + 60000);
  now_ms_ += 59999;
  Purge();
  ExpectReason(Apply(old_pod, Put("1", "1:old", 9)), kSuperseded);
  now_ms_ += 1;
  const uint64_t revision = state_.revision();
  Purge();
  EXPECT_EQ(state_.revision(), revision);
  EXPECT_THAT(result_.services, IsEmpty()) << "nothing that is listed has changed";
  EXPECT_EQ(state_.records(), 1) << "the mark";
  EXPECT_EQ(state_.NextPurgeMs(), expired_ms + kDayMs);
  ASSERT_TRUE(Apply(old_pod, Put("1", "1:old", 1)).status.ok());
  EXPECT_TRUE(state_.FindInstance(Key("1"))->version.offline);

  // Without a new instance it ends a day after the one that it was on.
  Expire(old_pod);
  now_ms_ += 60000;
  Purge();
  now_ms_ += kDayMs - 60001;
  Purge();
  EXPECT_EQ(state_.records(), 1);
  now_ms_ += 1;
  Purge();
  EXPECT_EQ(state_.records(), 0);
}

TEST_F(StateTest, AMarkOfAClosedSessionStaysForADayToo) {
  const std::string a = Open("a", 0, 2 * kDayMs);
  Apply(a, Put("1", "1:x", 5));
  Mark("1");
  Close(a);
  EXPECT_EQ(state_.NextPurgeMs(), now_ms_ + kDayMs);
}

TEST_F(StateTest, AMarkGoesWithAFenceThatStaysLonger) {
  const std::string a = Open("a", 0, 2 * kDayMs);
  Apply(a, Put("1", "1:x", 5));
  Mark("1");
  Expire(a);
  EXPECT_EQ(state_.NextPurgeMs(), now_ms_ + 2 * kDayMs);
  now_ms_ += 2 * kDayMs;
  Purge();
  EXPECT_EQ(state_.records(), 0);
}

TEST_F(StateTest, LiftingTheMarkOfWhatHasGoneLeavesTheFenceItsTime) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Mark("1");
  Expire(a);
  const int64_t expired_ms = now_ms_;
  now_ms_ += 20000;
  Mark("1", /*offline=*/false);
  EXPECT_EQ(state_.NextPurgeMs(), expired_ms + 60000);
  now_ms_ += 40000;
  Purge();
  EXPECT_EQ(state_.records(), 0);
}

// An incarnation that is due to be forgotten is needed again in the same group of calls.
TEST_F(StateTest, AnIncarnationThatIsNeededAgainIsNotForgotten) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5));
  Close(a);
  now_ms_ += int64_t{24} * 3600 * 1000;
  Purge();
  State::Transaction transaction(&state_, Now());
  State::Transaction::Opening opening;
  opening.incarnation = "a";
  opening.ttl_ms = kTtlMs;
  opening.new_session_id = "again";
  EXPECT_EQ(transaction.OpenSession(opening).rank, last_rank_);
  transaction.Purge();
  transaction.PurgeIncarnations();
  transaction.Commit();
  EXPECT_EQ(state_.incarnations(), 1);
  EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  EXPECT_TRUE(Apply("again", Put("1", "1:x", 5)).status.ok());
}

TEST_F(StateTest, IncarnationsAreRememberedForADayAndAsLongAsTheyFence) {
  const std::string a = Open("a");
  Apply(a, Put("1", "1:x", 5, true));
  Close(a);
  Close(Open("b"));
  now_ms_ += int64_t{24} * 3600 * 1000 - 1;
  Purge(true);
  EXPECT_EQ(state_.incarnations(), 2);
  now_ms_ += 1;
  Purge(true);
  EXPECT_EQ(state_.incarnations(), 1) << "a still owns an instance";
  Apply("", Remove("1"));
  now_ms_ += 60000;
  Purge(true);
  Purge(true);
  EXPECT_EQ(state_.incarnations(), 0);
  Open("a");
  EXPECT_EQ(last_rank_, 3u) << "no rank is given twice";
}

constexpr int64_t kHourMs = int64_t{3600} * 1000;

// Many sessions that end at once need not rewrite as many incarnations.
TEST_F(StateTest, WhenAnIncarnationWasSeenIsStoredOnceAnHour) {
  const auto rows_at_end_of = [&](const std::string& session) {
    State::Transaction transaction(&state_, Now());
    EXPECT_TRUE(transaction.EndSession(session, State::Transaction::End::kExpired));
    const WriteSet writes = transaction.MakeWrites();
    transaction.Commit();
    EXPECT_EQ(writes.removed_sessions.size(), 1u);
    return writes.incarnations.size();
  };
  const std::string first = Open("a");
  now_ms_ += kHourMs - 1;
  EXPECT_EQ(rows_at_end_of(first), 0u);
  const std::string second = Open("a");
  now_ms_ += kHourMs;
  EXPECT_EQ(rows_at_end_of(second), 1u);
}

// Earlier versions had the owner in the session's id only.
TEST(StateLoadTest, AnOwnerThatOnlyTheSessionNamesIsKept) {
  const Moment now = {1700000000000, 0};
  FakeRows rows;
  rows.incarnations[1] = {1, "agent", "", now.unix_ms};
  rows.sessions[1] = {1, "id.alice", 1, kTtlMs, false};
  rows.identity.next_rank = 2;
  for (int life = 0; life < 2; ++life) {
    SCOPED_TRACE(life);
    FakeStorage storage(&rows);
    State state((State::Options()));
    ASSERT_EQ(state.Load(&storage, now), absl::OkStatus());
    EXPECT_EQ(state.CheckInvariants(), absl::OkStatus());
    State::Transaction transaction(&state, now);
    if (life == 0) {
      EXPECT_TRUE(transaction.EndSession("id.alice", State::Transaction::End::kClosed));
    }
    State::Transaction::Opening opening;
    opening.incarnation = "agent";
    opening.ttl_ms = kTtlMs;
    opening.new_session_id = "other.mallory";
    opening.owner = "mallory";
    EXPECT_EQ(ReasonOf(transaction.OpenSession(std::move(opening)).status),
              registry::v1::ERROR_REASON_SESSION_NOT_OWNED);
    ASSERT_EQ(storage.Write(transaction.MakeWrites()), absl::OkStatus());
    transaction.Commit();
  }
  EXPECT_EQ(rows.incarnations[1].owner, "alice");
}

TEST_F(StateTest, IncarnationsArePurgedInSlices) {
  for (int i = 0; i < 5; ++i) {
    Close(Open(std::to_string(i)));
    now_ms_ += 1;
  }
  now_ms_ += 25 * kHourMs;
  const std::string alive = Open("0");
  State::EndedPlace place = {std::numeric_limits<int64_t>::min(), 0};
  std::vector<int64_t> left;
  for (bool more = true; more;) {
    State::Transaction transaction(&state_, Now());
    const auto next = transaction.PurgeIncarnations(place, 3);
    more = next.has_value();
    if (more) place = *next;
    Commit(transaction);
    left.push_back(state_.incarnations());
  }
  EXPECT_THAT(left, ElementsAre(2, 1)) << "three, then the other one; who is back stays";
}

TEST(StateLoadTest, ARestartDoesNotForgetAnIncarnationEarly) {
  const int64_t stored_ms = 1700000000000;
  FakeRows rows;
  rows.incarnations[1] = {1, "a", "", stored_ms};
  FakeStorage storage(&rows);
  State state((State::Options()));
  // It may have been seen up to an hour after that was stored.
  const int64_t until = stored_ms + 25 * kHourMs;
  ASSERT_EQ(state.Load(&storage, {until - 1, 0}), absl::OkStatus());
  const auto purge = [&](int64_t unix_ms) {
    State::Transaction transaction(&state, {unix_ms, 0});
    transaction.Purge();
    transaction.PurgeIncarnations();
    transaction.Commit();
    return state.incarnations();
  };
  EXPECT_EQ(purge(until - 1), 1);
  EXPECT_EQ(purge(until), 0);
}

// A state with rows behind it.
class StoredStateTest : public ::testing::Test {
 protected:
  StoredStateTest() { Restart(); }

  void Restart() {
    state_ = std::make_unique<State>(State::Options());
    ASSERT_EQ(state_->Load(&storage_, Now()), absl::OkStatus());
    ASSERT_EQ(state_->CheckInvariants(), absl::OkStatus());
  }
  Moment Now() const { return {1700000000000 + now_ms_, now_ms_}; }

  // Commits what `decide` does, and returns what was written.
  WriteSet Write(const std::function<void(State::Transaction*)>& decide) {
    State::Transaction transaction(state_.get(), Now());
    decide(&transaction);
    WriteSet writes = transaction.MakeWrites();
    EXPECT_EQ(storage_.Write(writes), absl::OkStatus());
    transaction.Commit();
    EXPECT_EQ(writes.session_count, state_->sessions());
    return writes;
  }
  void Open(const std::string& id, int64_t ttl_ms = kTtlMs) {
    Write([&](State::Transaction* transaction) {
      State::Transaction::Opening opening;
      opening.incarnation = "a";
      opening.ttl_ms = ttl_ms;
      opening.new_session_id = id;
      EXPECT_TRUE(transaction->OpenSession(opening).status.ok());
    });
  }
  absl::Status Apply(const std::string& session, const Intent& intent) {
    absl::Status status;
    Write([&](State::Transaction* transaction) {
      status = transaction->Apply(transaction->FindSession(session), intent).status;
    });
    return status;
  }
  WriteSet Expire(const std::string& session) {
    return Write([&](State::Transaction* transaction) {
      EXPECT_TRUE(transaction->EndSession(session, State::Transaction::End::kExpired));
    });
  }
  bool IsPresent(const std::string& id) const { return state_->FindInstance(Key(id)) != nullptr; }
  bool IsMarked(const std::string& id) {
    const State::Transaction transaction(state_.get(), {1700000000000 + now_ms_, now_ms_});
    return static_cast<bool>(transaction.Find(Key(id))->version.offline);
  }

  int64_t now_ms_ = 1;
  FakeRows rows_;
  FakeStorage storage_{&rows_};
  std::unique_ptr<State> state_;
};

// A hundred thousand sessions that end together would be as many records to write.
TEST_F(StoredStateTest, InstancesGoWithTheRowOfTheirSession) {
  Open("a-1");
  ASSERT_EQ(Apply("a-1", Put("1", Address("1:x"), 5)), absl::OkStatus());
  ASSERT_EQ(Apply("a-1", Put("2", Address("2:x"), 5, true)), absl::OkStatus());
  const WriteSet writes = Expire("a-1");
  EXPECT_THAT(writes.records, IsEmpty());
  EXPECT_THAT(writes.removed_records, IsEmpty());
  EXPECT_THAT(writes.removed_sessions, ElementsAre(1));
  for (int life = 0; life < 2; ++life) {
    SCOPED_TRACE(life);
    EXPECT_FALSE(IsPresent("1"));
    EXPECT_TRUE(IsPresent("2"));
    EXPECT_EQ(state_->tombstones(), 1);
    Restart();
  }
  Open("a-2");
  EXPECT_EQ(ReasonOf(Apply("a-2", Put("1", Address("1:x"), 4))), kSuperseded);
  EXPECT_FALSE(IsPresent("1")) << "another session of the same incarnation";
  EXPECT_EQ(Apply("a-2", Put("1", Address("1:x"), 5)), absl::OkStatus());
  EXPECT_TRUE(IsPresent("1"));
}

// What the row does not say is written.
TEST_F(StoredStateTest, RecordsThatAreLeftOtherwiseThanTheirRowsSayAreWritten) {
  constexpr int64_t kLongTtlMs = int64_t{10} * 60 * 1000;
  registry::v1::OfflineMark mark;
  mark.set_reason("disk");
  Open("a-1");
  ASSERT_EQ(Apply("a-1", Put("1", Address("1:x"), 5)), absl::OkStatus());
  Write([&](State::Transaction* transaction) { transaction->SetOffline(Key("1"), &mark); });
  EXPECT_EQ(Expire("a-1").records.size(), 0u) << "a mark has a time of its own, which no row says";
  Restart();
  EXPECT_TRUE(IsMarked("1"));
  now_ms_ += kLongTtlMs;
  Write([](State::Transaction* transaction) { transaction->Purge(); });
  EXPECT_EQ(state_->tombstones(), 1);

  Open("a-2");
  ASSERT_EQ(Apply("a-2", Put("1", Address("1:x"), 6)), absl::OkStatus());
  const WriteSet unmarked = Write([](State::Transaction* transaction) {
    EXPECT_TRUE(transaction->EndSession("a-2", State::Transaction::End::kExpired));
    transaction->SetOffline(Key("1"), nullptr);
  });
  EXPECT_EQ(unmarked.records.size(), 1u) << "the mark goes in the same group";
  Restart();
  EXPECT_FALSE(IsMarked("1"));

  Open("a-2");
  ASSERT_EQ(Apply("a-2", Put("2", Address("2:x"), 5)), absl::OkStatus());
  Open("a-2", kLongTtlMs);
  EXPECT_EQ(Expire("a-2").records.size(), 1u) << "a longer TTL, a longer retention";
  Restart();
  now_ms_ += kLongTtlMs - 1;
  Write([](State::Transaction* transaction) { transaction->Purge(); });
  Open("a-3");
  EXPECT_EQ(ReasonOf(Apply("a-3", Put("2", Address("2:x"), 4))), kSuperseded);

  ASSERT_EQ(Apply("a-3", Put("3", Address("3:x"), 5)), absl::OkStatus());
  const WriteSet closed = Write([](State::Transaction* transaction) {
    EXPECT_TRUE(transaction->EndSession("a-3", State::Transaction::End::kClosed));
  });
  EXPECT_EQ(closed.removed_records.size(), 1u) << "no fence is left";

  Open("a-4");
  ASSERT_EQ(Apply("a-4", Put("4", Address("4:x"), 5)), absl::OkStatus());
  const WriteSet taken = Write([](State::Transaction* transaction) {
    EXPECT_TRUE(transaction->EndSession("a-4", State::Transaction::End::kExpired));
    EXPECT_TRUE(transaction->Apply(nullptr, Put("4", Address("4:y"))).status.ok());
  });
  EXPECT_EQ(taken.records.size(), 1u) << "taken over in the same group";
  Restart();
  EXPECT_TRUE(IsPresent("4"));
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

TEST_F(StateTest, ListIsSortedAndPaged) {
  const std::string a = Open("a");
  for (const char* id : {"10", "1", "2", "1-x", "9"}) Apply(a, Put(id, std::string(id) + ":"));
  ListQuery query;
  query.max_items = 2;
  std::vector<std::string> seen;
  for (int page_number = 0; page_number < 10; ++page_number) {
    const ListPage page = state_.List(query);
    for (const auto& item : page.items) seen.emplace_back(item.instance.view());
    if (page.next_after.empty()) break;
    query.after = page.next_after;
  }
  EXPECT_THAT(seen, ElementsAre("1:", "1-x:", "10:", "2:", "9:"));
}

TEST_F(StateTest, ListChoosesByServiceNamespaceAndIncarnation) {
  const std::string a = Open("a");
  const std::string b = Open("b");
  const auto put = [&](const std::string& session, const std::string& name_space,
                       const std::string& service, const std::string& payload) {
    Intent intent = Put("1", payload);
    intent.key = name_space + std::string(1, '\0') + service + std::string(1, '\0') + payload;
    EXPECT_TRUE(Apply(session, std::move(intent)).status.ok());
  };
  put(a, "default", "orders", "o1");
  put(b, "default", "orders", "o2");
  put(a, "default", "orders-2", "p1");
  put(a, "defaults", "orders", "q1");
  put(b, "prod", "orders", "r1");
  const auto list = [&](ListQuery query) {
    std::string seen;
    for (int pages = 0; pages < 10; ++pages) {
      const ListPage page = state_.List(query);
      for (const auto& item : page.items) seen += std::string(item.instance.view()) + " ";
      if (page.next_after.empty()) break;
      query.after = page.next_after;
    }
    return seen;
  };
  for (const size_t max_items : {1, 2, 1000}) {
    ListQuery query;
    query.max_items = max_items;
    EXPECT_EQ(list(query), "o1 o2 p1 q1 r1 ");
    query.ranges = {ServiceRange::Namespace("default")};
    EXPECT_EQ(list(query), "o1 o2 p1 ");
    query.incarnation = "a";
    EXPECT_EQ(list(query), "o1 p1 ");
    query.ranges = {ServiceRange::All()};
    EXPECT_EQ(list(query), "o1 p1 q1 ");
    query.incarnation = "";
    query.ranges = {ServiceRange::Service("default", "orders")};
    EXPECT_EQ(list(query), "o1 o2 ");
    query.incarnation = "b";
    EXPECT_EQ(list(query), "o2 ");
    query.ranges = {ServiceRange::Service("default", "none")};
    EXPECT_EQ(list(query), "");
    query.incarnation = "nobody";
    EXPECT_EQ(list(query), "");
  }
}

// What an incarnation has is sorted in parts, while others come and go.
TEST_F(StateTest, ListingsOfAnIncarnationArePreparedInParts) {
  const std::string a = Open("a");
  for (int i = 0; i < 100; ++i) {
    Apply(a, Put(std::to_string(1000 + i), std::to_string(1000 + i) + ":"));
  }
  int parts = 1;
  for (int i = 0; !state_.PrepareList("a", 10); ++i, ++parts) {
    ASSERT_LT(parts, 100);
    Apply(a, Remove(std::to_string(1089 - 11 * i)));
    Apply(a, Put(std::to_string(2000 + i), std::to_string(2000 + i) + ":"));
    EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  }
  EXPECT_GT(parts, 8);
  EXPECT_EQ(state_.CheckInvariants(), absl::OkStatus());
  ListQuery query;
  query.incarnation = "a";
  EXPECT_EQ(state_.List(query).items.size(), 100u);
  EXPECT_THAT(state_.ServicesOwned("a", "", 10), ElementsAre(state_.ListedServices("", 10)[0]));
}

// Services outside of the ranges cost nothing: the work of a page is bounded by what it has and by
// what is asked for, however many there are.
TEST_F(StateTest, AListingLooksAtItsRangesOnly) {
  const std::string a = Open("a");
  const auto put = [&](const std::string& service, const std::string& id) {
    Intent intent = Put(id, id);
    intent.key = std::string("default") + '\0' + service + '\0' + id;
    EXPECT_TRUE(Apply(a, std::move(intent)).status.ok());
  };
  ListQuery query;
  query.ranges.clear();
  for (int i = 0; i < 20; ++i) {
    const std::string service = "s-" + std::to_string(100 + i);
    query.ranges.push_back(ServiceRange::Service("default", service));
    for (const char* id : {"1", "2", "3"}) put(service, id);
  }
  const auto looked = [&](size_t max_items, const std::string& incarnation) {
    query.max_items = max_items;
    query.incarnation = incarnation;
    query.after.clear();
    size_t items = 0;
    size_t looked = 0;
    for (int pages = 0; pages < 100; ++pages) {
      const ListPage page = state_.List(query);
      EXPECT_LE(page.looked, 2 * query.ranges.size() + page.items.size() + 1);
      items += page.items.size();
      looked += page.looked;
      if (page.next_after.empty()) break;
      query.after = page.next_after;
    }
    EXPECT_EQ(items, 60u);
    return looked;
  };
  std::vector<size_t> before;
  for (const size_t max_items : {1, 7, 1000}) {
    for (const char* incarnation : {"", "a"}) before.push_back(looked(max_items, incarnation));
  }
  // Around each of them, and more than all of them.
  for (int i = 0; i < 500; ++i)
    put("s-" + std::to_string(100 + i % 20) + "-" + std::to_string(i), "1");
  std::vector<size_t> after;
  for (const size_t max_items : {1, 7, 1000}) {
    for (const char* incarnation : {"", "a"}) after.push_back(looked(max_items, incarnation));
  }
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace failback
