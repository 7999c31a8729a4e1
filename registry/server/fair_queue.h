// What waits for its turn, owner by owner: one who asks for much waits for itself.
//
// With one queue for all, a caller's thousand slow reads are in front of all others' next ones.
// Here each owner has a queue of its own. Owners of whom no task is under way come first, in the
// order in which they came to wait. So such an owner's next task waits for one task of each other
// owner at most, however many these have and on however many threads they run. Threads that would
// be idle are for the others, who take turns (round robin).
//
//   FairQueue<Task> queue;
//   queue.Push("alice", a);
//   queue.Push("alice", b);
//   auto slot = queue.Push("bob", c);
//   auto next = queue.Pop();       // a, of alice
//   queue.Pop();                   // c, of bob
//   queue.Remove(slot);           // too late: nullopt
//   queue.Done(next.owner);        // a is over
//
// It has no bound of its own: an owner's permits are counted where it is admitted
// (registry/rpc/call_gauge.h).
//
// Thread safety: thread-compatible. Pop and Done take constant time, Push and Remove that of a map
// of what its owner has waiting.
//
// Invariants:
// 1. Tasks of one owner come out in the order in which they went in.
// 2. While an owner waits and none of its tasks is under way, at most one task of each other owner
//    comes out.
// 3. An owner without a task that waits or is under way takes no memory.

#ifndef FAILBACK_REGISTRY_SERVER_FAIR_QUEUE_H_
#define FAILBACK_REGISTRY_SERVER_FAIR_QUEUE_H_

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace failback {

template <typename Task>
class FairQueue {
 public:
  // Where a task waits. One that is default-made is nowhere.
  struct Slot {
    std::string owner;
    int64_t number = 0;
  };

  struct Taken {
    std::string owner;
    Task task;
  };

  Slot Push(const std::string& name, Task task) {
    Owner& owner = owners_[name];
    if (owner.waiting.empty()) {
      Line& line = LineOf(owner);
      owner.turn = line.insert(line.end(), name);
    }
    owner.waiting.emplace(++last_, std::move(task));
    ++size_;
    return {name, last_};
  }

  // The task whose turn it is, which is under way until Done. The queue is not empty.
  Taken Pop() {
    Line& line = unserved_.empty() ? served_ : unserved_;
    const auto it = owners_.find(line.front());
    Owner& owner = it->second;
    Taken taken = {it->first, std::move(owner.waiting.begin()->second)};
    owner.waiting.erase(owner.waiting.begin());
    --size_;
    ++owner.under_way;
    if (owner.waiting.empty()) {
      line.erase(owner.turn);
    } else {
      served_.splice(served_.end(), line, owner.turn);
    }
    return taken;
  }

  // A task of `name` that came out is over.
  void Done(const std::string& name) {
    const auto it = owners_.find(name);
    Owner& owner = it->second;
    if (--owner.under_way > 0) return;
    if (owner.waiting.empty()) {
      owners_.erase(it);
    } else {
      unserved_.splice(unserved_.end(), served_, owner.turn);
    }
  }

  // The task, which does not come out any more; nullopt if it has.
  std::optional<Task> Remove(const Slot& slot) {
    const auto it = owners_.find(slot.owner);
    if (it == owners_.end()) return std::nullopt;
    Owner& owner = it->second;
    const auto found = owner.waiting.find(slot.number);
    if (found == owner.waiting.end()) return std::nullopt;
    std::optional<Task> task(std::move(found->second));
    owner.waiting.erase(found);
    --size_;
    if (owner.waiting.empty()) {
      LineOf(owner).erase(owner.turn);
      if (owner.under_way == 0) owners_.erase(it);
    }
    return task;
  }

  // Tasks that wait.
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  using Line = std::list<std::string>;

  struct Owner {
    std::map<int64_t, Task> waiting;  // by number: in the order in which they came
    int under_way = 0;
    Line::iterator turn;  // in its line, while something waits
  };

  Line& LineOf(const Owner& owner) { return owner.under_way == 0 ? unserved_ : served_; }

  absl::flat_hash_map<std::string, Owner> owners_;
  // Owners with something waiting, each once: those with nothing under way, and the others.
  Line unserved_;
  Line served_;
  int64_t size_ = 0;
  int64_t last_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_FAIR_QUEUE_H_
