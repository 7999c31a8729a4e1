// What has happened, and whether it may: what the registry held at each revision, what clients
// wanted and when, and what each subscriber was shown.
//
// Truth follows the store from inside its process, without a network: it has every revision that
// was published. Wishes is what clients were told is accepted. Viewer checks one subscription as
// its events come.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_HISTORY_H_
#define FAILBACK_TESTS_SIMULATE_HISTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "registry/registry.h"
#include "tests/simulate/world.h"

namespace failback::simulate {

// An instance as subscribers have it. There is one for the same bytes, so that instances are
// compared by their addresses.
struct Shown {
  std::string key;  // canonical
  std::string zone;
  uint32_t port = 0;
  bool offline = false;
};

class ShownInstances {
 public:
  const Shown* Of(std::string_view bytes);

 private:
  std::map<std::string, Shown, std::less<>> all_;  // by their bytes
};

// Instances, sorted by their keys.
class Set {
 public:
  void Put(const Shown* shown);
  // False: there is none with that key.
  bool Erase(std::string_view key);
  void Clear() { all_.clear(); }
  // Null: it is not there.
  const Shown* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // Those of one zone; of all, if it is empty.
  Set In(const std::string& zone) const;

  bool empty() const { return all_.empty(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  friend bool operator==(const Set& a, const Set& b) { return a.all_ == b.all_; }
  friend bool operator!=(const Set& a, const Set& b) { return !(a == b); }

 private:
  std::vector<const Shown*> all_;
};

// Applies an event; says what is wrong with it. `resumed`: of a stream that went on from a position,
// whose source does not know what the subscriber has: it may remove what was never sent.
std::string Apply(const Event& event, bool resumed, ShownInstances* instances, Set* set);
std::string TextOf(const Set& set);

// What clients of one agent want of one key.
struct Wish {
  bool present = false;
  uint32_t port = 0;
  int client = -1;  // that owns it; -1: none does
  int64_t since = 0;
  bool open = false;           // whether it was accepted is not known
  bool any = false;            // after a disk went back: either is right
  bool removal_acked = false;  // the registry has acknowledged that it is gone
  int64_t acked_at = -1;       // or that it is there; -1: not yet
};

class Wishes {
 public:
  // By agent and canonical key.
  std::map<std::pair<int, std::string>, Wish> all;

  // Whether a client has wanted this instance at any time.
  void Wanted(const std::string& key, uint32_t port) {
    wanted_.insert_or_assign({key, port}, true);
  }
  bool WasWanted(const std::string& key, uint32_t port) const {
    return wanted_.count({key, port}) > 0;
  }

 private:
  std::map<std::pair<std::string, uint32_t>, bool> wanted_;
};

// What the registry held.
class Truth {
 public:
  Truth(World* world, Wishes* wishes, int services);

  // A new life of the store. The epoch may be the one before.
  void Attach(Registry* registry);
  void Detach() { streams_.clear(); }
  // A service has changed at a registry that this is not attached to.
  void OnChange(const std::string& service, uint64_t epoch, uint64_t revision, const Set& set);

  static std::string Service(int index) { return absl::StrCat("s", index); }
  ShownInstances* instances() const { return &instances_; }

  // The instances of a service at a revision; null when none is known for that epoch.
  const Set* At(const std::string& service, uint64_t epoch, uint64_t revision) const;
  const Set& Now(std::string_view service) const;
  // Whether it held such a set at any time from `since` on.
  bool WasEver(std::string_view service, int64_t since,
               absl::FunctionRef<bool(const Set&)> is) const;
  // Of the instance with this key; null: it is not there.
  const Shown* Find(std::string_view key) const;
  uint64_t epoch() const { return epoch_; }
  int64_t commits() const { return commits_; }
  // Called with a key that has appeared.
  std::function<void(const std::string& key)> on_appeared;
  // With one that is not there any more.
  std::function<void(const std::string& key)> on_removed;

 private:
  class Listener;

  World* const world_;
  Wishes* const wishes_;
  const int services_;
  uint64_t epoch_ = 0;
  int64_t commits_ = 0;
  mutable ShownInstances instances_;
  std::map<std::string, Set, std::less<>> now_;
  // Of a service, with when each set began.
  std::map<std::string, std::vector<std::pair<int64_t, Set>>, std::less<>> sets_;
  // By service and epoch, by revision.
  std::map<std::pair<std::string, uint64_t>, std::map<uint64_t, Set>> history_;
  std::vector<std::unique_ptr<SubscribeStream>> streams_;
};

// A subscriber. Its properties, as those of etcd's robustness suite: ordered, unique, atomic and
// reliable (what it has after an event is what the registry held at that revision), resumable,
// filtered; and never empty while an instance was there throughout.
class Viewer final : public NotifyListener {
 public:
  // `zone`: of a selector; empty: all. `merged`: by an agent, which sends no state twice.
  Viewer(World* world, const Truth* truth, std::string name, std::string service, std::string zone,
         bool at_agent);

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;

  // Another stream begins; with `resumed` it goes on from its position. `anew`: of an agent that
  // knows no more of what it has sent before, over registries of which one may be behind.
  void Begin(bool resumed, bool anew);
  // The subscriber has closed it.
  void Close() { closed_ = true; }

  bool known() const { return known_; }
  bool stale() const { return stale_; }
  bool ended() const { return ended_; }
  const absl::Status& end_status() const { return end_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  const Set& set() const { return set_; }
  const std::string& service() const { return service_; }
  const std::string& name() const { return name_; }
  // What of the truth it is to see.
  Set Filter(const Set& set) const { return set.In(zone_); }
  // Asked when it is shown an empty set after another, by a delta that names what has gone or by a
  // snapshot: why it may not.
  std::function<std::string(bool named)> may_be_empty;

 private:
  World* const world_;
  const Truth* const truth_;
  const std::string name_, service_, zone_;
  const bool at_agent_;
  bool known_ = false, stale_ = false, held_ = false, ended_ = false, closed_ = false;
  bool fresh_stream_ = true;
  bool unsaid_ = true;  // nothing has come but that what it has is stale
  bool anew_ = false;
  bool resumed_ = false;  // and there was no snapshot since
  absl::Status end_;
  uint64_t epoch_ = 0, revision_ = 0;
  Set set_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_HISTORY_H_
