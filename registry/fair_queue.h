// What waits for its turn, owner by owner: one who asks for much waits for itself.
//
// With one queue for all, a caller's thousand slow reads are in front of all others' next ones.
// Here each owner has a queue of its own, and the owners with something waiting take turns (round
// robin): one of each, in the order in which they came. So an owner's next task waits for one task
// of each other owner at most, however many these have.
//
//   FairQueue<Task> queue;
//   queue.Push("alice", a);
//   queue.Push("alice", b);
//   queue.Push("bob", c);
//   while (!queue.empty()) Run(queue.Pop());   // a, c, b
//
// It has no bound of its own: an owner's places are counted where it is admitted
// (registry/call_gauge.h).
//
// Thread safety: thread-compatible. Push and Pop take constant time.
//
// Invariants:
// 1. Tasks of one owner come out in the order in which they went in.
// 2. Between two tasks of an owner comes one of every other that waited from the first on.
// 3. An owner without a task takes no memory.

#ifndef FAILBACK_REGISTRY_FAIR_QUEUE_H_
#define FAILBACK_REGISTRY_FAIR_QUEUE_H_

#include <list>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace failback {

template <typename Task>
class FairQueue {
 public:
  void Push(const std::string& owner, Task task) {
    std::list<Task>& tasks = by_owner_[owner];
    if (tasks.empty()) turns_.push_back(owner);
    tasks.push_back(std::move(task));
  }

  // The queue is not empty.
  Task Pop() {
    const auto it = by_owner_.find(turns_.front());
    Task task = std::move(it->second.front());
    it->second.pop_front();
    if (it->second.empty()) {
      by_owner_.erase(it);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    return task;
  }

  bool empty() const { return turns_.empty(); }

 private:
  absl::flat_hash_map<std::string, std::list<Task>> by_owner_;  // none is empty
  std::list<std::string> turns_;                                // each of those once
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAIR_QUEUE_H_
