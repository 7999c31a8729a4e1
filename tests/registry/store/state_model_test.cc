// The state against a model so simple that it can be read: random sessions, intents, marks, ends,
// purges, dropped transactions and restarts; after each step both must agree.
//
// FAILBACK_TEST_SEED=n replays a run.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/store/transaction.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

constexpr int64_t kTtlMs = 5000;
constexpr int64_t kRetentionMs = 60000;
constexpr int64_t kMarkMs = 90000;

// What one key holds, as the protocol page says it.
struct ModelKey {
  std::optional<std::string> payload;
  std::string owner;    // incarnation; empty: detached
  std::string session;  // id
  bool persistent = false;
  uint64_t fence_rank = 0;
  uint64_t fence_generation = 0;
  bool fence_registers = false;
  std::string fence_payload;
  bool offline = false;
  // Of what is left when there is no payload.
  int64_t fence_end = 0;
  int64_t mark_end = 0;

  void Gone(int64_t now) {
    fence_end = now + kRetentionMs;
    mark_end = now + kMarkMs;
  }
  void DropFence() { fence_rank = fence_generation = 0; }
};

struct Model {
  std::map<std::string, ModelKey> keys;
  std::map<std::string, uint64_t> ranks;          // by incarnation
  std::map<std::string, std::string> session_of;  // incarnation -> session id
  uint64_t next_rank = 1;

  std::string IncarnationOf(const std::string& session) const {
    for (const auto& [incarnation, id] : session_of) {
      if (id == session) return incarnation;
    }
    return "";
  }

  void Open(const std::string& incarnation, const std::string& id) {
    if (session_of.count(incarnation) > 0) return;
    if (ranks.count(incarnation) == 0) ranks[incarnation] = next_rank++;
    session_of[incarnation] = id;
  }

  void End(const std::string& session, bool expired, int64_t now) {
    const std::string incarnation = IncarnationOf(session);
    session_of.erase(incarnation);
    for (auto it = keys.begin(); it != keys.end();) {
      ModelKey& key = it->second;
      if (key.payload && key.owner == incarnation && !key.persistent) {
        key.payload.reset();
        key.owner.clear();
        if (!expired) key.DropFence();
        key.Gone(now);
      }
      it = Keep(key) ? std::next(it) : keys.erase(it);
    }
  }

  static bool Keep(const ModelKey& key) {
    return key.payload || key.fence_rank != 0 || key.offline;
  }

  void Purge(int64_t now) {
    for (auto it = keys.begin(); it != keys.end();) {
      ModelKey& key = it->second;
      if (!key.payload && key.fence_end <= now) key.DropFence();
      if (!key.payload && key.mark_end <= now) key.offline = false;
      it = Keep(key) ? std::next(it) : keys.erase(it);
    }
  }

  // The reason of the refusal, or UNSPECIFIED.
  registry::v1::ErrorReason Apply(const std::string& session, const std::string& name,
                                  std::optional<std::string> payload, bool persistent,
                                  uint64_t generation, int64_t now) {
    ModelKey key;
    if (const auto it = keys.find(name); it != keys.end()) key = it->second;
    if (session.empty()) {
      if (!payload && !key.payload) return registry::v1::ERROR_REASON_UNSPECIFIED;
      key.payload = payload;
      key.owner.clear();
      key.session.clear();
      key.persistent = payload && persistent;
    } else {
      const std::string incarnation = IncarnationOf(session);
      const uint64_t rank = ranks.at(incarnation);
      const bool same_kind =
          key.fence_registers == payload.has_value() && key.fence_payload == payload.value_or("");
      if (rank < key.fence_rank) return registry::v1::ERROR_REASON_SUPERSEDED;
      if (rank == key.fence_rank) {
        if (generation == 0) {
          generation = key.fence_generation;
        } else if (generation < key.fence_generation) {
          return registry::v1::ERROR_REASON_SUPERSEDED;
        } else if (generation == key.fence_generation && !same_kind) {
          return registry::v1::ERROR_REASON_GENERATION_REUSED;
        }
      } else if (key.fence_rank == 0 && generation == 0 && !payload && !key.payload) {
        return registry::v1::ERROR_REASON_UNSPECIFIED;
      }
      // Absent already, by this very intent: nothing changes, its time included.
      if (!payload && !key.payload && rank == key.fence_rank &&
          generation == key.fence_generation && same_kind) {
        return registry::v1::ERROR_REASON_UNSPECIFIED;
      }
      key.fence_rank = rank;
      key.fence_generation = generation;
      key.fence_registers = payload.has_value();
      key.fence_payload = payload.value_or("");
      key.payload = payload;
      key.owner = payload ? incarnation : "";
      key.session = payload ? session : "";
      key.persistent = payload && persistent;
    }
    if (!key.payload) {
      key.Gone(now);
      key.offline = false;
    }
    if (Keep(key)) {
      keys[name] = key;
    } else {
      keys.erase(name);
    }
    return registry::v1::ERROR_REASON_UNSPECIFIED;
  }

  // Whether there is something to put the mark on, or a mark to take off.
  bool Mark(const std::string& name, bool offline) {
    const auto it = keys.find(name);
    if (it == keys.end() || (offline ? !it->second.payload : !it->second.offline)) return false;
    it->second.offline = offline;
    if (!Keep(it->second)) keys.erase(it);
    return true;
  }

  std::map<std::string, std::string> Present() const {
    std::map<std::string, std::string> present;
    for (const auto& [name, key] : keys) {
      if (key.payload) present[name] = *key.payload + (key.offline ? "!" : "") + "|" + key.owner;
    }
    return present;
  }
};

class StateModelTest : public ::testing::TestWithParam<int> {};

// A payload as an instance's bytes: what is read from a store has to parse.
std::string Encoded(const std::string& payload) {
  registry::v1::ServiceInstance instance;
  instance.set_address(payload);
  return instance.SerializeAsString();
}

std::string Decoded(const Blob& bytes) {
  registry::v1::ServiceInstance instance;
  EXPECT_TRUE(instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  return instance.address() + (instance.has_offline() ? "!" : "");
}

std::map<std::string, std::string> Present(const State& state) {
  std::map<std::string, std::string> present;
  ListQuery query;
  query.max_items = 7;
  for (;;) {
    const ListPage page = state.List(query);
    for (const ListItem& item : page.items) {
      const std::string payload = Decoded(item.instance);
      const std::string key = payload.substr(0, payload.find('='));
      present[key] = payload + "|" + item.incarnation;
    }
    if (page.next_after.empty()) return present;
    query.after = page.next_after;
  }
}

// What followers of the changes have: the sum of all that was published.
void Follow(const CommitResult& result, std::map<std::string, std::string>* followed) {
  for (const ServiceChange& service : result.services) {
    for (const InstanceChange& change : service.instances) {
      const std::string payload = Decoded(change.after ? change.after : change.before);
      const std::string key = payload.substr(0, payload.find('='));
      const auto it = followed->find(key);
      ASSERT_EQ(it != followed->end(), static_cast<bool>(change.before)) << key;
      if (change.before) {
        ASSERT_EQ(it->second, Decoded(change.before));
      }
      ASSERT_NE(change.before, change.after);
      if (change.after) {
        (*followed)[key] = payload;
      } else {
        followed->erase(key);
      }
    }
  }
}

TEST_P(StateModelTest, Agrees) {
  SeededRandom random;
  const auto pick = [&](int n) { return random.Pick(n); };

  FakeRows rows;
  FakeStorage storage(&rows);
  State::Options options;
  options.offline_memory_ms = kMarkMs;
  auto state = std::make_unique<State>(options);
  int64_t now = 1;
  ASSERT_EQ(state->Load(&storage, {now, now}), absl::OkStatus());
  Model model;
  std::map<std::string, std::string> followed;
  std::map<std::string, uint64_t> generations;  // by key: the highest given
  int sessions_opened = 0;

  for (int step = 0; step < 1500; ++step) {
    now += pick(500);
    const Moment moment{now, now};
    const uint64_t revision_before = state->revision();
    Model next = model;
    auto transaction = std::make_unique<State::Transaction>(state.get(), moment);
    const bool drop = pick(8) == 0;

    // Sessions end, sessions open, then old fences go.
    for (int i = pick(4) == 0 ? pick(3) : 0; i > 0; --i) {
      if (next.session_of.empty()) break;
      auto it = next.session_of.begin();
      std::advance(it, pick(static_cast<int>(next.session_of.size())));
      const std::string id = it->second;
      const bool expired = pick(2) == 0;
      ASSERT_TRUE(transaction->EndSession(
          id, expired ? State::Transaction::End::kExpired : State::Transaction::End::kClosed));
      ASSERT_FALSE(transaction->EndSession(id, State::Transaction::End::kExpired));
      next.End(id, expired, now);
    }
    for (int i = pick(3) == 0 ? 1 + pick(2) : 0; i > 0; --i) {
      State::Transaction::Opening opening;
      opening.incarnation = "incarnation-" + std::to_string(pick(4));
      opening.ttl_ms = kTtlMs;
      opening.new_session_id = "session-" + std::to_string(++sessions_opened);
      const std::string id = opening.new_session_id;
      const std::string incarnation = opening.incarnation;
      const auto opened = transaction->OpenSession(std::move(opening));
      ASSERT_TRUE(opened.status.ok());
      ASSERT_EQ(opened.resumed, next.session_of.count(incarnation) == 1);
      next.Open(incarnation, id);
      ASSERT_EQ(opened.session_id, next.session_of.at(incarnation));
      ASSERT_EQ(opened.rank, next.ranks.at(incarnation));
    }
    if (pick(4) == 0) {
      transaction->Purge();
      next.Purge(now);
    }
    for (int i = pick(4); i > 0; --i) {
      // A session that was opened in this very transaction is not known to anyone yet.
      std::string session;
      if (pick(5) != 0 && !model.session_of.empty()) {
        auto it = model.session_of.begin();
        std::advance(it, pick(static_cast<int>(model.session_of.size())));
        session = it->second;
        if (next.IncarnationOf(session).empty()) {
          ASSERT_EQ(transaction->FindSession(session), nullptr);
          continue;
        }
      }
      Intent intent;
      intent.registers = pick(3) != 0;
      const std::string service = "s" + std::to_string(pick(3));
      const std::string id = std::to_string(pick(4));
      intent.key = "default" + std::string(1, '\0') + service + std::string(1, '\0') + id;
      const std::string name = service + "/" + id;
      std::optional<std::string> payload;
      if (intent.registers) {
        intent.persistent = pick(4) == 0;
        payload = name + "=" + std::to_string(pick(3)) + (intent.persistent ? "p" : "");
        intent.instance = Blob(Encoded(*payload));
        intent.digest = Digest64(Encoded(*payload));
      }
      uint64_t& highest = generations[name];
      switch (pick(4)) {
        case 0:
          intent.generation = 0;
          break;
        case 1:
          intent.generation = highest > 0 ? 1 + pick(static_cast<int>(highest)) : 1;
          break;
        case 2:
          intent.generation = highest;
          break;
        default:
          intent.generation = ++highest;
      }
      const uint64_t generation = intent.generation;
      const bool persistent = intent.persistent;
      Session* const found = session.empty() ? nullptr : transaction->FindSession(session);
      ASSERT_EQ(found == nullptr, session.empty());
      const IntentOutcome outcome = transaction->Apply(found, std::move(intent));
      const auto expected = next.Apply(session, name, payload, persistent, generation, now);
      ASSERT_EQ(ReasonOf(outcome.status), expected) << outcome.status << " " << name;
      ASSERT_EQ(outcome.status.ok(), expected == registry::v1::ERROR_REASON_UNSPECIFIED);
      if (outcome.status.ok() && found != nullptr && next.keys.count(name) > 0) {
        ASSERT_EQ(outcome.generation, next.keys.at(name).fence_generation);
      }
    }
    for (int i = pick(3) == 0 ? 1 + pick(2) : 0; i > 0; --i) {
      const std::string service = "s" + std::to_string(pick(3));
      const std::string id = std::to_string(pick(4));
      registry::v1::OfflineMark mark;
      mark.set_reason(std::to_string(step));
      const bool offline = pick(2) == 0;
      const auto known = next.keys.find(service + "/" + id);
      const bool there = known != next.keys.end() && known->second.payload;
      const bool changes = next.Mark(service + "/" + id, offline);
      const auto marked = transaction->SetOffline(
          "default" + std::string(1, '\0') + service + std::string(1, '\0') + id,
          offline ? &mark : nullptr);
      ASSERT_EQ(marked.status.ok(), changes || there) << marked.status;
    }

    if (drop) {
      transaction.reset();
      ASSERT_EQ(state->revision(), revision_before);
    } else {
      if (!transaction->empty()) {
        ASSERT_EQ(storage.Write(transaction->MakeWrites()), absl::OkStatus());
        const CommitResult result = transaction->Commit();
        ASSERT_LE(result.revision, revision_before + 1);
        if (!result.services.empty()) {
          ASSERT_EQ(result.revision, revision_before + 1);
        }
        Follow(result, &followed);
      }
      transaction.reset();
      model = next;
    }
    if (pick(20) == 0) {
      // A restart: the state as it is read back.
      state = std::make_unique<State>(options);
      ASSERT_EQ(state->Load(&storage, moment), absl::OkStatus());
      for (auto& [name, key] : model.keys) {
        if (!key.payload) key.Gone(now);
      }
    }
    ASSERT_EQ(state->CheckInvariants(), absl::OkStatus()) << "step " << step;
    ASSERT_EQ(Present(*state), model.Present()) << "step " << step;
    ASSERT_EQ(state->records(), static_cast<int64_t>(model.keys.size())) << "step " << step;
    ASSERT_EQ(state->sessions(), static_cast<int64_t>(model.session_of.size()));
    ASSERT_EQ(rows.records.size(), model.keys.size()) << "step " << step;
    ASSERT_EQ(rows.identity.revision, state->revision());
    std::map<std::string, std::string> seen;
    for (const auto& [key, value] : Present(*state)) {
      seen[key] = value.substr(0, value.find('|'));
    }
    ASSERT_EQ(followed, seen) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StateModelTest, ::testing::Range(0, 20));

}  // namespace
}  // namespace failback
