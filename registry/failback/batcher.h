// What the failback machine sends next: the queued records, and how many of them share a call.
//
// A batch has records of one kind, in the order in which they were queued. The kinds have a queue
// each, so that a batch need not end where they alternate, and take turns, so that none waits for
// all of another. A record whose intent is of another kind than when it was queued goes to the end
// of its new queue when its turn comes.
//
//   Batcher<Record> batcher;
//   batcher.Push(record);
//   const std::vector<Record*> batch = batcher.Next({.max_items = 250, .max_bytes = 1 << 20});
//
// A Record is a StageLink (which takes it out of the queue), and has kind(), sent_bytes() and
// goes_alone().
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_BATCHER_H_
#define FAILBACK_REGISTRY_FAILBACK_BATCHER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "registry/failback/failback_stage.h"
#include "registry/failback/status_policy.h"

namespace failback {

template <typename Record>
class Batcher {
 public:
  struct Limits {
    size_t max_items = 0;  // 1 or more
    // One record goes whatever its size.
    size_t max_bytes = 0;
  };

  // `record` is in no queue.
  void Push(Record* record) { queues_[Index(record->kind())].PushBack(record); }

  bool empty() const {
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const auto& queue) { return queue.empty(); });
  }

  // The kind whose turn it is.
  void Prefer(OperationKind kind) { turn_ = Index(kind); }

  // The records of the next call, which leave the queue; then it is the next kind's turn. Empty:
  // nothing is queued.
  std::vector<Record*> Next(const Limits& limits) {
    std::vector<Record*> batch;
    Record* record = Front();
    if (record == nullptr) return batch;
    StageList<Record>& queue = queues_[Index(record->kind())];
    turn_ = (Index(record->kind()) + 1) % queues_.size();
    size_t bytes = 0;
    for (; record != nullptr; record = FrontOf(&queue)) {
      if (!batch.empty() && (batch.size() >= limits.max_items || record->goes_alone() ||
                             bytes + record->sent_bytes() > limits.max_bytes)) {
        break;
      }
      record->Unlink();
      batch.push_back(record);
      bytes += record->sent_bytes() + kOverhead;
      if (record->goes_alone()) break;
    }
    return batch;
  }

  // The next record, which leaves the queue; null: there is none.
  Record* Pop() {
    Record* const record = Front();
    if (record != nullptr) record->Unlink();
    return record;
  }

  // By kind. None may leave meanwhile.
  template <typename Each>
  void ForEach(Each each) const {
    for (const auto& queue : queues_) queue.ForEach(each);
  }

  void Clear() {
    for (auto& queue : queues_) queue.Clear();
  }

 private:
  // What each record adds to a message beside its own bytes.
  static constexpr size_t kOverhead = 16;

  static size_t Index(OperationKind kind) { return static_cast<size_t>(kind); }

  // The first of the kind whose turn it is, or of those after it.
  Record* Front() {
    // Those that go to another queue may go to one that was looked at already.
    while (!empty()) {
      for (size_t i = 0; i < queues_.size(); ++i) {
        Record* const record = FrontOf(&queues_[(turn_ + i) % queues_.size()]);
        if (record != nullptr) return record;
      }
    }
    return nullptr;
  }

  // The first that is of the queue's kind; those before it go to their own.
  Record* FrontOf(StageList<Record>* queue) {
    while (Record* const record = queue->front()) {
      StageList<Record>& own = queues_[Index(record->kind())];
      if (&own == queue) return record;
      record->Unlink();
      own.PushBack(record);
    }
    return nullptr;
  }

  std::array<StageList<Record>, 4> queues_;  // by OperationKind
  size_t turn_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_BATCHER_H_
