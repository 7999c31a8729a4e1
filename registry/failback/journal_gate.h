// What the failback machine may send and answer, by what its journal has written.
//
// The journal numbers its writes and reports them in that order: tried, and durable or not. A
// record is not sent before its newest write was tried, and a caller is not answered before all
// that was queued until then is durable. A write that failed holds up nothing: the registry is to
// know, even if the disk does not, and the caller is answered with the error.
//
//   JournalGate<RecordPtr, ReplyPtr> gate;
//   gate.Queued(journal->Put(intent), record);
//   if (!gate.Await(reply)) Answer(reply);               // all is durable already
//   …
//   gate.Tried(sequence, status.ok());                   // the journal reports
//   while (ReplyPtr reply = gate.TakeReply()) Answer(reply, status);
//   while (RecordPtr record = gate.TakeRecord()) Send(record);
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_JOURNAL_GATE_H_
#define FAILBACK_REGISTRY_FAILBACK_JOURNAL_GATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

namespace failback {

// Both are pointers of some kind; none that is kept is null.
template <typename Record, typename Reply>
class JournalGate {
 public:
  // `sequence` is the number of the newest write.
  void Queued(uint64_t sequence) { last_ = sequence; }
  // It is of `record`.
  void Queued(uint64_t sequence, Record record) {
    last_ = sequence;
    records_.emplace_back(sequence, std::move(record));
  }
  uint64_t last() const { return last_; }

  // Whether a record may be sent whose newest write is `sequence`; 0: it has none.
  bool MaySend(uint64_t sequence) const { return sequence <= tried_; }

  // Keeps `reply` until all that is queued was tried (again). False, and it is not kept, when all
  // of that is durable.
  bool Await(Reply reply) {
    if (last_ <= durable_) return false;
    replies_.emplace_back(last_, std::move(reply));
    return true;
  }

  // The journal has tried the writes up to `sequence`.
  void Tried(uint64_t sequence, bool durable) {
    reported_ = sequence;
    tried_ = std::max(tried_, sequence);
    if (durable) durable_ = std::max(durable_, sequence);
  }

  // One of those who wait for what Tried() has reported, in order; null: none does.
  Reply TakeReply() { return Take(&replies_); }
  // One of the records whose writes Tried() has reported, in order; null: there is none. A record
  // that was written several times comes as often.
  Record TakeRecord() { return Take(&records_); }

  // Nothing is sent any more.
  void ForgetRecords() { records_.clear(); }

 private:
  template <typename Pointer>
  Pointer Take(std::deque<std::pair<uint64_t, Pointer>>* queue) {
    if (queue->empty() || queue->front().first > reported_) return nullptr;
    Pointer first = std::move(queue->front().second);
    queue->pop_front();
    return first;
  }

  uint64_t last_ = 0;
  uint64_t reported_ = 0;
  uint64_t tried_ = 0;
  uint64_t durable_ = 0;
  std::deque<std::pair<uint64_t, Record>> records_;
  std::deque<std::pair<uint64_t, Reply>> replies_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_JOURNAL_GATE_H_
