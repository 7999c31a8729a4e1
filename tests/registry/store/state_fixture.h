// A State, and one transaction per word.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_STATE_FIXTURE_H_
#define FAILBACK_TESTS_REGISTRY_STORE_STATE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/store/transaction.h"

namespace failback {

constexpr int64_t kTtlMs = 10000;
constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;

inline std::string Key(const std::string& id, const std::string& service = "orders") {
  return "default" + std::string(1, '\0') + service + std::string(1, '\0') + id;
}

inline Intent Put(const std::string& id, const std::string& bytes, uint64_t generation = 0,
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
inline std::string Address(const std::string& text) {
  registry::v1::ServiceInstance instance;
  instance.set_address(text);
  return instance.SerializeAsString();
}

inline Intent Remove(const std::string& id, uint64_t generation = 0) {
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

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_STATE_FIXTURE_H_
