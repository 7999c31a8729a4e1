// What a pure state machine waits for: a timing wheel on the time of its steps.
//
// An alarm belongs to what it is for, and is cancelled when that goes; so what it runs may refer to
// its holder. The machine runs what is due within a step, and says when the next step is due; its
// owner has one timeout for that.
//
//   Alarms alarms(now_nanos);
//   Alarm retry = alarms.After(now_nanos, delay_nanos, [this] { Retry(); });
//   alarms.Run(now_nanos, 1000);                   // in a step
//   const int64_t next = alarms.next_nanos();      // of the next step
//
// Alarms of one millisecond run in the order in which they were set, or put off.
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_ALARMS_H_
#define FAILBACK_REGISTRY_FAILBACK_ALARMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "retry/wheel.h"

namespace failback {

class Alarms;

// One alarm, or none. Cancels it when it is destroyed or assigned to. Does not outlive its Alarms.
class Alarm {
 public:
  Alarm() = default;
  Alarm(Alarm&& other) noexcept
      : alarms_(std::exchange(other.alarms_, nullptr)),
        id_(other.id_),
        due_nanos_(other.due_nanos_) {}
  Alarm& operator=(Alarm&& other) noexcept {
    if (this == &other) return *this;
    Cancel();
    alarms_ = std::exchange(other.alarms_, nullptr);
    id_ = other.id_;
    due_nanos_ = other.due_nanos_;
    return *this;
  }
  ~Alarm() { Cancel(); }

  // Whether it is still to come: not while it runs.
  bool armed() const;
  // When it was set for.
  int64_t due_nanos() const { return due_nanos_; }

  void Cancel();

 private:
  friend class Alarms;
  Alarms* alarms_ = nullptr;
  Wheel::Id id_;
  int64_t due_nanos_ = 0;
};

class Alarms {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  explicit Alarms(int64_t now_nanos) : origin_nanos_(now_nanos), wheel_(WheelOptions()) {}

  // Runs `task` once, after `delay_nanos`, and in a later millisecond than now.
  template <typename Task>
  [[nodiscard]] Alarm After(int64_t now_nanos, int64_t delay_nanos, Task task) {
    Alarm alarm;
    changed_ = true;
    alarm.alarms_ = this;
    alarm.due_nanos_ = DueAt(now_nanos, delay_nanos);
    alarm.id_ = wheel_.Schedule(TickFor(now_nanos, alarm.due_nanos_), std::move(task));
    return alarm;
  }

  // The same alarm at another time. False: it is not to come.
  bool PutOff(Alarm* alarm, int64_t now_nanos, int64_t delay_nanos) {
    const int64_t due_nanos = DueAt(now_nanos, delay_nanos);
    if (!alarm->armed() || !wheel_.Reschedule(alarm->id_, TickFor(now_nanos, due_nanos))) {
      return false;
    }
    changed_ = true;
    alarm->due_nanos_ = due_nanos;
    return true;
  }

  // Runs what is due, at most `most`. Not from within an alarm.
  void Run(int64_t now_nanos, size_t most) {
    changed_ = true;
    wheel_.Advance(TickAt(now_nanos), most);
  }

  // When there is something to do, for Run() or for the wheel itself.
  int64_t next_nanos() {
    if (!std::exchange(changed_, false)) return next_nanos_;
    const Wheel::Tick next = wheel_.NextEvent();
    next_nanos_ =
        next >= kMostTicks ? kNever : origin_nanos_ + static_cast<int64_t>(next) * kNanosPerTick;
    return next_nanos_;
  }

 private:
  friend class Alarm;
  static constexpr int64_t kNanosPerTick = 1000000;
  static constexpr uint64_t kMostTicks = uint64_t{1} << 40;  // 35 years

  static Wheel::Options WheelOptions() {
    Wheel::Options options;
    options.keep_insertion_order = true;
    options.small = true;
    return options;
  }
  static int64_t DueAt(int64_t now_nanos, int64_t delay_nanos) {
    return delay_nanos < kNever - now_nanos ? now_nanos + std::max<int64_t>(delay_nanos, 0)
                                            : kNever;
  }
  Wheel::Tick TickAt(int64_t nanos) const {
    return static_cast<uint64_t>(std::max<int64_t>(nanos - origin_nanos_, 0)) / kNanosPerTick;
  }
  Wheel::Tick TickFor(int64_t now_nanos, int64_t due_nanos) const {
    const Wheel::Tick due =
        due_nanos == kNever ? kMostTicks : TickAt(due_nanos - 1 + kNanosPerTick);
    return std::min(std::max(due, TickAt(now_nanos) + 1), uint64_t{kMostTicks});
  }

  const int64_t origin_nanos_;
  Wheel wheel_;
  // What next_nanos() has found, and whether that may be another by now.
  int64_t next_nanos_ = kNever;
  bool changed_ = false;
};

inline bool Alarm::armed() const {
  if (alarms_ == nullptr) return false;
  const Wheel::State state = alarms_->wheel_.StateOf(id_);
  return state != Wheel::State::kFree && state != Wheel::State::kStarted;
}

inline void Alarm::Cancel() {
  if (alarms_ == nullptr) return;
  alarms_->changed_ = true;
  std::exchange(alarms_, nullptr)->wheel_.Cancel(id_);
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_ALARMS_H_
