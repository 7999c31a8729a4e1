// The stages of a record of the failback machine, and lists of the records in one stage.
//
// A record has exactly one stage: where its intent is on its way to the registry. The diagram in
// docs/design.md draws the way of most; MayFollow() has every arrow. The call in flight, which the
// diagram draws too, is a second axis and not a stage: it may be of an older intent than the one
// that the record holds now.
//
//   kHeldBack   not to be sent: its write to the journal was not tried yet, or the registry has not
//               said yet what it holds of a journal that was put back, or the agent drains
//   kQueued     to be sent: in the queue, or, while a call of the key is in flight, with that call.
//               An acknowledged one that is sent again is queued too
//   kWaiting    an attempt failed; the next one is on the wheel
//   kParked     out of retries, or refused for good
//   kSuperseded a later incarnation holds the key, or held it until lately; tried again with the
//               others, slowly, and that also while it is in the queue or in flight
//   kSettled    acknowledged and present; of a subscription: its stream is open
//   kTombstone  acknowledged and to be absent; kept while a late call of its owner may come
//   kGivenUp    cancelled by an operator
//   kNone       not in the table: just made, or erased
//
// Example:
//
//   struct Record : StageLink { Stage stage = Stage::kNone; };
//   StageList<Record> queued;
//   queued.PushBack(&record);
//   while (Record* next = queued.PopFront()) Send(next);
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_STAGE_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_STAGE_H_

#include <cstdint>
#include <vector>

namespace failback {

enum class Stage : uint8_t {
  kNone,
  kHeldBack,
  kQueued,
  kWaiting,
  kParked,
  kSuperseded,
  kSettled,
  kTombstone,
  kGivenUp,
};

// For error texts and tests.
inline const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kNone:
      return "none";
    case Stage::kHeldBack:
      return "held back";
    case Stage::kQueued:
      return "queued";
    case Stage::kWaiting:
      return "waiting";
    case Stage::kParked:
      return "parked";
    case Stage::kSuperseded:
      return "superseded";
    case Stage::kSettled:
      return "settled";
    case Stage::kTombstone:
      return "tombstone";
    case Stage::kGivenUp:
      return "given up";
  }
  return "?";
}

// Whether a record may go from one stage to the other in one step. A new intent first holds the
// record back, whatever its stage, unless it is queued already.
inline bool MayFollow(Stage from, Stage to) {
  switch (to) {
    case Stage::kNone:
      return from != Stage::kNone;
    case Stage::kHeldBack:
      return true;
    case Stage::kQueued:
      // A tombstone and what was given up are sent only as a new intent. What is superseded goes
      // as that, or is held back first.
      return from != Stage::kNone && from != Stage::kTombstone && from != Stage::kGivenUp &&
             from != Stage::kSuperseded;
    case Stage::kWaiting:
      // Settled: a stream has ended. Waiting: for a token.
      return from == Stage::kQueued || from == Stage::kHeldBack || from == Stage::kSettled ||
             from == Stage::kWaiting;
    case Stage::kParked:
      // Held back: the registry does not hold what a journal that was put back has.
      return from == Stage::kQueued || from == Stage::kHeldBack || from == Stage::kSettled ||
             from == Stage::kWaiting || from == Stage::kParked || from == Stage::kSuperseded;
    case Stage::kSuperseded:
      return from == Stage::kQueued || from == Stage::kSuperseded;
    case Stage::kSettled:
      return from == Stage::kQueued || from == Stage::kSuperseded || from == Stage::kGivenUp;
    case Stage::kTombstone:
      // Given up: its call had been sent before, and took effect.
      return from == Stage::kQueued || from == Stage::kGivenUp;
    case Stage::kGivenUp:
      // What is done needs no cancel.
      return from != Stage::kNone && from != Stage::kSettled && from != Stage::kTombstone &&
             from != Stage::kGivenUp;
  }
  return false;
}

// What a record inherits to be in one list at a time. It does not leave the list by itself when it
// is destroyed.
class StageLink {
 public:
  StageLink() = default;
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  bool linked() const { return next_ != nullptr; }
  // Leaves the list that it is in, if any.
  void Unlink() {
    if (!linked()) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

 private:
  template <typename Record>
  friend class StageList;
  StageLink* previous_ = nullptr;
  StageLink* next_ = nullptr;
};

// A list of records that it does not own, in the order in which they came. Nothing is allocated.
template <typename Record>
class StageList {
 public:
  StageList() { ends_.previous_ = ends_.next_ = &ends_; }
  ~StageList() { Clear(); }

  bool empty() const { return ends_.next_ == &ends_; }
  // Null when empty.
  Record* front() const { return empty() ? nullptr : static_cast<Record*>(ends_.next_); }

  // `record` is in no list.
  void PushBack(StageLink* record) {
    record->previous_ = ends_.previous_;
    record->next_ = &ends_;
    record->previous_->next_ = ends_.previous_ = record;
  }

  // Null when empty.
  Record* PopFront() {
    Record* const first = front();
    if (first != nullptr) first->Unlink();
    return first;
  }

  // None may leave meanwhile.
  template <typename Each>
  void ForEach(Each each) const {
    for (StageLink* at = ends_.next_; at != &ends_; at = at->next_) each(static_cast<Record*>(at));
  }
  // All that are in the list now, to be walked while they leave it.
  std::vector<Record*> All() const {
    std::vector<Record*> all;
    ForEach([&](Record* record) { all.push_back(record); });
    return all;
  }

  void Clear() {
    while (PopFront() != nullptr) {
    }
  }

 private:
  StageLink ends_;  // before the first and after the last
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_STAGE_H_
