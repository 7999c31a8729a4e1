#include "retry/wheel.h"

#include <sys/mman.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace failback {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

int Level0Bits(int ticks_per_wheel) {
  return absl::bit_width(static_cast<uint32_t>(std::max(ticks_per_wheel, 1)) - 1);
}

}  // namespace

Wheel::Wheel(const Options& options)
    : level0_bits_(Level0Bits(options.ticks_per_wheel)),
      level0_mask_((Tick{1} << level0_bits_) - 1),
      level0_room_(std::max<uint32_t>(1u << level0_bits_, 64)),
      keep_insertion_order_(options.keep_insertion_order),
      first_generation_(std::max<uint32_t>(options.first_generation, 1)),
      greatest_generation_(first_generation_) {
  const uint32_t slots = level0_room_ + (levels() - 1) * kLevelSlots;
  // calloc: pages of slots that are never used cost nothing.
  heads_.reset(static_cast<uint32_t*>(std::calloc(slots * kLanes, sizeof(uint32_t))));
  if (heads_ == nullptr) throw std::bad_alloc();
  occupied_.resize(slots / 64);
  chunks_.resize(slots * kLanes / kChunkNodes + 1);
  due_.reserve(kDueBuffer);
}

Wheel::~Wheel() {
  for (uint32_t index = 1; index < used_; ++index) {
    Node* const node = NodeAt(index);
    if (node->state != State::kFree) node->task().~TimerTask();
  }
}

bool Wheel::Grow() {
  if (room_ >= kMaxNodes) return false;
  // The first chunk alone, for small wheels; then huge pages, which spare a large wheel most of
  // its address translation misses.
  constexpr size_t kChunkBytes = kChunkNodes * sizeof(Node);
  const bool first = room_ == 0;
  const size_t bytes = first ? kChunkBytes : kHugePage;
  Memory memory(std::aligned_alloc(first ? alignof(Node) : kHugePage, bytes));
  if (memory == nullptr) return false;
  if (!first) madvise(memory.get(), bytes, MADV_HUGEPAGE);
  const uint32_t grown = room_ + bytes / sizeof(Node);
  for (uint32_t index = room_; index < grown; index += kChunkNodes) {
    const uint32_t chunk = index / kChunkNodes;
    if (chunk == chunks_.size()) chunks_.push_back(nullptr);
    chunks_[chunk] = static_cast<Node*>(memory.get()) + (index - room_);
  }
  memory_.push_back(std::move(memory));
  if (free_.capacity() < grown) free_.reserve(std::max<size_t>(grown, 2 * free_.capacity()));
  if (first) {
    Node* const nobody = NodeAt(0);
    nobody->generation = 0;
    nobody->state = State::kFree;
    used_ = 1;
  }
  room_ = grown;
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
  uint32_t* const heads = &heads_[slot * kLanes];
  size_t taken = 0;
  for (bool more = true; more && taken < max;) {
    more = false;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t index = heads[lane];
      if (index == 0) continue;
      Node* const node = NodeAt(index);
      heads[lane] = node->next;
      __builtin_prefetch(NodeAt(node->next), 1);
      more = true;
      ++taken;
      each(index, node);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    NodeAt(heads[lane])->prev = kHead | (slot * kLanes + lane);
  }
}

void Wheel::FillDue(int* budget) {
  for (; opening_ > 0; --opening_) {
    const uint32_t slot = SlotAt(opening_, now_);
    if (IsEmpty(slot)) continue;
    Drain(slot, std::max(*budget, 1), [&](uint32_t index, Node* node) {
      --*budget;
      Link(index, node);
    });
    if (!IsEmpty(slot)) return;
  }
  due_.clear();
  next_due_ = 0;
  const uint32_t slot = SlotAt(0, now_);
  if (IsEmpty(slot)) return;
  Drain(slot, keep_insertion_order_ ? SIZE_MAX : kDueBuffer - kLanes + 1,
        [&](uint32_t index, Node* node) {
          if (ABSL_PREDICT_FALSE(node->deadline > now_)) {  // rescheduled since
            --*budget;
            Link(index, node);
            return;
          }
          node->state = State::kDue;
          due_.push_back(Id{index, node->generation});
        });
  if (keep_insertion_order_) {
    std::sort(due_.begin(), due_.end(), [this](const Id& a, const Id& b) {
      return NodeAt(a.index)->order < NodeAt(b.index)->order;
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
    Start(id);
    ++ran;
    TimerTask& task = TaskOf(id);
    std::move(task)();
    task.~TimerTask();
    Finish(id);
  }
  return ran;
}

bool Wheel::TakePending(uint32_t* from, uint32_t max, std::vector<TimerTask>* tasks) {
  for (; *from < used_ && max > 0; ++*from, --max) {
    TimerTask task = Cancel(Id{*from, NodeAt(*from)->generation});
    if (task != nullptr) tasks->push_back(std::move(task));
  }
  return *from < used_;
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
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t prev = kHead | (slot * kLanes + lane);
        for (uint32_t index = heads_[slot * kLanes + lane]; index != 0;
             index = NodeAt(index)->next) {
          const Node* const node = NodeAt(index);
          if (index >= used_ || seen[index]++) return absl::StrCat("entry ", index, " twice");
          if (node->prev != prev) return absl::StrCat("entry ", index, ": bad link back");
          if (node->state != State::kPending) {
            return absl::StrCat("entry ", index, " is in a slot and not pending");
          }
          if (node->deadline < opens) {
            return absl::StrCat("entry ", index, " is due at ", node->deadline,
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
    if (NodeAt(index)->state != State::kFree) {
      return absl::StrCat("entry ", index, " is in the free stack and not free");
    }
  }
  for (size_t i = next_due_; i < due_.size(); ++i) {
    if (due_[i].index >= used_) return absl::StrCat("due entry ", due_[i].index, " is unknown");
    const Node* const node = NodeAt(due_[i].index);
    if (node->state != State::kDue || node->generation != due_[i].generation) continue;
    if (node->deadline > now_) return absl::StrCat("entry ", due_[i].index, " due too early");
    if (seen[due_[i].index]++) return absl::StrCat("entry ", due_[i].index, " twice");
    ++pending;
  }
  for (uint32_t index = 1; index < used_; ++index) {
    const State state = NodeAt(index)->state;
    if (!seen[index] && (state == State::kPending || state == State::kDue)) {
      return absl::StrCat("entry ", index, " is lost");
    }
    if (state == State::kPopped) ++pending;
  }
  if (pending != pending_) return absl::StrCat(pending, " are pending, ", pending_, " counted");
  return "";
}

}  // namespace failback
