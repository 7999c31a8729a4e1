// What State forgets, and when; what of it is stored.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/store/transaction.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/registry/store/state_fixture.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace failback
