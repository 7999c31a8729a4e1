#include "retry/simulated_clock.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace failback {
namespace {

int64_t SaturatingAdd(int64_t now, absl::Duration duration) {
  const int64_t nanos = std::max<int64_t>(absl::ToInt64Nanoseconds(duration), 0);
  return nanos > std::numeric_limits<int64_t>::max() - now ? std::numeric_limits<int64_t>::max()
                                                           : now + nanos;
}

}  // namespace

SimulatedClock::SimulatedClock(int64_t start_nanos, absl::Time wall)
    : start_nanos_(start_nanos), wall_start_(wall), now_(start_nanos) {}

absl::Time SimulatedClock::WallNow() const {
  return wall_start_ + absl::Nanoseconds(NowNanos() - start_nanos_);
}

void SimulatedClock::Attach(const std::shared_ptr<ClockDriven>& driven) {
  MutexLock lock(&mu_);
  AttachedList more = *attached_;
  more.push_back(std::make_shared<Attached>(Attached{driven, std::nullopt}));
  attached_ = std::make_shared<const AttachedList>(std::move(more));
}

void SimulatedClock::Detach(const ClockDriven* driven) {
  MutexLock lock(&mu_);
  AttachedList fewer;
  std::copy_if(attached_->begin(), attached_->end(), std::back_inserter(fewer),
               [&](const auto& each) { return each->driven.get() != driven; });
  attached_ = std::make_shared<const AttachedList>(std::move(fewer));
}

std::shared_ptr<ClockDriven> SimulatedClock::Earliest(int64_t* due_nanos) {
  std::shared_ptr<const AttachedList> attached;
  {
    MutexLock lock(&mu_);
    attached = attached_;
  }
  const Attached* earliest = nullptr;
  for (const std::shared_ptr<Attached>& candidate : *attached) {
    if (candidate->driven->TakeSooner()) candidate->due_nanos = candidate->driven->NextDueNanos();
    const std::optional<int64_t>& due = candidate->due_nanos;
    if (due.has_value() && (earliest == nullptr || *due < *due_nanos)) {
      earliest = candidate.get();
      *due_nanos = *due;
    }
  }
  return earliest == nullptr ? nullptr : earliest->driven;
}

void SimulatedClock::Advance(absl::Duration duration) {
  const int64_t end = SaturatingAdd(NowNanos(), duration);
  int64_t due = 0;
  for (auto next = Earliest(&due); next != nullptr && due <= end; next = Earliest(&due)) {
    now_.store(std::max(due, NowNanos()), std::memory_order_release);
    next->RunDue();
  }
  now_.store(std::max(end, NowNanos()), std::memory_order_release);
}

bool SimulatedClock::AdvanceToNextTimer() {
  int64_t due = 0;
  const std::shared_ptr<ClockDriven> next = Earliest(&due);
  if (next == nullptr) return false;
  now_.store(std::max(due, NowNanos()), std::memory_order_release);
  next->RunDue();
  return true;
}

void SimulatedClock::Jump(absl::Duration duration) {
  now_.store(SaturatingAdd(NowNanos(), duration), std::memory_order_release);
}

std::optional<int64_t> SimulatedClock::NextDeadlineNanos() {
  int64_t due = 0;
  if (Earliest(&due) == nullptr) return std::nullopt;
  return due;
}

}  // namespace failback
