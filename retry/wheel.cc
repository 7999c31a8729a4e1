#include "retry/wheel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace failback {
namespace {

int Level0Bits(int ticks_per_wheel) {
  return absl::bit_width(static_cast<uint32_t>(std::max(ticks_per_wheel, 1)) - 1);
}

}  // namespace

Wheel::Wheel(const Options& options, TimerSlab* slab)
    : level0_bits_(Level0Bits(options.ticks_per_wheel)),
      level0_mask_((Tick{1} << level0_bits_) - 1),
      level0_room_(std::max<uint32_t>(1u << level0_bits_, 64)),
      lane_bits_(options.small ? 0 : 4),
      lane_mask_((1u << lane_bits_) - 1),
      keep_insertion_order_(options.keep_insertion_order),
      first_generation_(std::max<uint32_t>(options.first_generation, 1)),
      own_slab_(slab == nullptr ? std::make_unique<TimerSlab>() : nullptr),
      slab_(slab == nullptr ? own_slab_.get() : slab) {
  const uint32_t slots = level0_room_ + (levels() - 1) * kLevelSlots;
  // calloc: pages of slots that are never used cost nothing.
  heads_.reset(static_cast<uint32_t*>(std::calloc(slots * lanes(), sizeof(uint32_t))));
  if (heads_ == nullptr) throw std::bad_alloc();
  occupied_.resize(slots / 64);
  due_.reserve(kDueBuffer);
}

Wheel::~Wheel() {
  for (uint32_t index = 1; index < used_; ++index) {
    TimerEntry* const entry = slab_->At(index);
    if (entry->state != State::kFree) entry->task().~TimerTask();
  }
  if (own_slab_ == nullptr) slab_->Clear(used_);
}

uint32_t Wheel::NextGeneration() const {
  uint32_t greatest = first_generation_;
  for (uint32_t index = 1; index < used_; ++index) {
    const uint32_t generation = slab_->At(index)->generation();
    if (generation == 0 || generation == UINT32_MAX) return 0;
    greatest = std::max(greatest, generation);
  }
  return greatest + 1;
}

bool Wheel::Grow() {
  if (used_ == slab_->room() && !slab_->Grow()) return false;
  if (free_.capacity() < slab_->room()) {
    free_.reserve(std::max<size_t>(slab_->room(), 2 * free_.capacity()));
  }
  used_ = std::max<uint32_t>(used_, 1);  // the null entry, which is all zero
  return true;
}

Wheel::Tick Wheel::NextEvent() {
  if (next_due_ < due_.size() || opening_ > 0) return now_;
  for (int level = 0; level < levels(); ++level) {
    // Nothing lies before the present slot of a level; at level 0 the present one may be in use.
    const uint32_t end = FirstSlotOf(level) + SlotsOf(level);
    for (uint32_t word = SlotAt(level, now_) / 64; word < end / 64; ++word) {
      while (occupied_[word] != 0) {
        const uint32_t slot = word * 64 + absl::countr_zero(occupied_[word]);
        if (!IsEmpty(slot)) {
          return BaseOf(level) | (Tick{slot - FirstSlotOf(level)} << ShiftOf(level));
        }
        occupied_[word] &= occupied_[word] - 1;
      }
    }
  }
  return kNever;
}

void Wheel::MoveTo(Tick event) {
  now_ = event;
  // A slot opens when every bit below its level's is zero.
  while (opening_ + 1 < levels() && (now_ & ((Tick{1} << ShiftOf(opening_ + 1)) - 1)) == 0) {
    ++opening_;
  }
}

// Takes up to `max` entries out of `slot`, in turn from each lane so that their memory is on its
// way while others are dealt with, and hands them to `each`.
template <typename Each>
void Wheel::Drain(uint32_t slot, size_t max, Each each) {
  uint32_t* const heads = &heads_[LaneOf(slot)];
  const uint32_t lanes = this->lanes();
  size_t taken = 0;
  for (bool more = true; more && taken < max;) {
    more = false;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const uint32_t index = heads[lane];
      if (index == 0) continue;
      TimerEntry* const entry = slab_->At(index);
      heads[lane] = entry->next;
      __builtin_prefetch(slab_->At(entry->next), 1);
      more = true;
      ++taken;
      each(index, entry);
    }
  }
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    slab_->At(heads[lane])->prev = kHead | (LaneOf(slot) + lane);
  }
}

void Wheel::FillDue(int* budget) {
  for (; opening_ > 0; --opening_) {
    const uint32_t slot = SlotAt(opening_, now_);
    if (IsEmpty(slot)) continue;
    Drain(slot, std::max(*budget, 1), [&](uint32_t index, TimerEntry* entry) {
      --*budget;
      if (ABSL_PREDICT_FALSE(!entry->Settle())) {
        entry->state = State::kPopped;  // its canceller's
      } else {
        Link(index, entry);
      }
    });
    if (!IsEmpty(slot)) return;
  }
  due_.clear();
  next_due_ = 0;
  const uint32_t slot = SlotAt(0, now_);
  if (IsEmpty(slot)) return;
  Drain(slot, keep_insertion_order_ ? SIZE_MAX : kDueBuffer - lanes() + 1,
        [&](uint32_t index, TimerEntry* entry) {
          if (ABSL_PREDICT_FALSE(!entry->Settle())) {  // its canceller's
            --*budget;
            entry->state = State::kPopped;
            return;
          }
          if (ABSL_PREDICT_FALSE(entry->linked_deadline() > now_)) {  // put off since
            --*budget;
            Link(index, entry);
            return;
          }
          entry->state = State::kDue;
          Id& due = due_.emplace_back();  // by halves: a pair joined in memory waits for itself
          due.index = index;
          due.generation = entry->generation();
        });
  if (keep_insertion_order_) {
    std::sort(due_.begin(), due_.end(), [this](const Id& a, const Id& b) {
      return slab_->At(a.index)->order < slab_->At(b.index)->order;
    });
  }
}

size_t Wheel::Advance(Tick to, size_t max_tasks) {
  size_t ran = 0;
  while (ran < max_tasks) {
    int budget = 1 << 20;
    const Id id = PopDue(to, &budget);
    if (id.generation == 0) {
      if (budget > 0) break;
      continue;
    }
    TimerTask* const task = Start(id);
    ++ran;
    RunTimerTask(*task);
    task->~TimerTask();
    Finish(id);
  }
  return ran;
}

bool Wheel::TakePending(uint32_t* from, uint32_t max, std::vector<TimerTask>* tasks) {
  for (; *from < used_ && max > 0; ++*from, --max) {
    TimerEntry* const entry = slab_->At(*from);
    if (entry->state == State::kFree || entry->state == State::kStarted) continue;
    if (!entry->Withhold(entry->generation())) continue;  // comes back by Reclaim
    tasks->push_back(std::move(entry->task()));
    entry->task().~TimerTask();
    Release(*from, entry);
  }
  return *from < used_;
}

int Wheel::Reclaim(CancelledEntries* cancelled, int most) {
  for (int lane = 0; lane < CancelledEntries::kLanes; ++lane) {
    if (reclaimed_[lane] == 0) reclaimed_[lane] = cancelled->Take(lane);
    __builtin_prefetch(slab_->At(reclaimed_[lane]), 1);
  }
  int count = 0;
  for (bool more = true; more && count < most;) {
    more = false;
    for (uint32_t& lane : reclaimed_) {
      const uint32_t index = lane;
      if (index == 0) continue;
      TimerEntry* const entry = slab_->At(index);
      lane = entry->link();
      __builtin_prefetch(slab_->At(lane), 1);
      Release(index, entry);
      more = true;
      ++count;
    }
  }
  return count;
}

std::string Wheel::CheckInvariants() const {
  std::vector<uint8_t> seen(used_, 0);
  int64_t pending = 0;
  for (int level = 0; level < levels(); ++level) {
    const uint32_t present = SlotAt(level, now_);
    for (uint32_t slot = FirstSlotOf(level); slot < FirstSlotOf(level) + SlotsOf(level); ++slot) {
      if (IsEmpty(slot)) continue;
      if ((occupied_[slot / 64] >> (slot % 64) & 1) == 0) {
        return absl::StrCat("slot ", slot, " holds entries and has no bit");
      }
      if (slot < present || (slot == present && level > opening_)) {
        return absl::StrCat("level ", level, ": entries in slot ", slot, ", present is ", present);
      }
      const Tick opens = BaseOf(level) | (Tick{slot - FirstSlotOf(level)} << ShiftOf(level));
      for (uint32_t lane = 0; lane < lanes(); ++lane) {
        uint32_t prev = kHead | (LaneOf(slot) + lane);
        for (uint32_t index = heads_[LaneOf(slot) + lane]; index != 0;
             index = slab_->At(index)->next) {
          const TimerEntry* const entry = slab_->At(index);
          if (index >= used_ || seen[index]++) return absl::StrCat("entry ", index, " twice");
          if (entry->prev != prev) return absl::StrCat("entry ", index, ": bad link back");
          if (entry->state != State::kPending) {
            return absl::StrCat("entry ", index, " is in a slot and not pending");
          }
          if (entry->linked_deadline() < opens) {
            return absl::StrCat("entry ", index, " is due at ", entry->linked_deadline(),
                                ", its slot opens at ", opens);
          }
          ++pending;
          prev = index;
        }
      }
    }
  }
  for (const uint32_t index : free_) {
    if (seen[index]++) return absl::StrCat("entry ", index, " is free and in use");
    if (slab_->At(index)->state != State::kFree) {
      return absl::StrCat("entry ", index, " is in the free stack and not free");
    }
  }
  for (size_t i = next_due_; i < due_.size(); ++i) {
    if (due_[i].index >= used_) return absl::StrCat("due entry ", due_[i].index, " is unknown");
    const TimerEntry* const entry = slab_->At(due_[i].index);
    if (entry->state != State::kDue || entry->generation() != due_[i].generation) continue;
    if (entry->linked_deadline() > now_)
      return absl::StrCat("entry ", due_[i].index, " due too early");
    if (seen[due_[i].index]++) return absl::StrCat("entry ", due_[i].index, " twice");
    ++pending;
  }
  for (uint32_t index = 1; index < used_; ++index) {
    const State state = slab_->At(index)->state;
    if (!seen[index] && (state == State::kPending || state == State::kDue)) {
      return absl::StrCat("entry ", index, " is lost");
    }
    if (state == State::kPopped) ++pending;
  }
  if (pending != pending_) return absl::StrCat(pending, " are pending, ", pending_, " counted");
  return "";
}

}  // namespace failback
