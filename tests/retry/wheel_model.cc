#include "tests/retry/wheel_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "retry/spin_lock.h"
#include "retry/timer_slab.h"
#include "retry/wheel.h"

namespace failback {
namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return at_ >= size_; }
  uint8_t Next() { return done() ? 0 : data_[at_++]; }

  // Small, middling, huge: each size of distance is as likely as any other.
  uint64_t Distance() {
    const int bits = Next() % 64;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Next();
    return bits == 0 ? 0 : value >> (64 - bits);
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

// What should be pending: the order of the multimap's equal keys is that of insertion.
class Model {
 public:
  struct Entry {
    uint64_t deadline = 0;
    bool pending = false;
    std::multimap<uint64_t, size_t>::iterator at;
  };

  size_t Add(uint64_t deadline) {
    entries_.push_back({deadline, true, queue_.emplace(deadline, entries_.size())});
    return entries_.size() - 1;
  }
  // These two return whether the entry was pending.
  bool Remove(size_t entry) {
    if (!entries_[entry].pending) return false;
    queue_.erase(entries_[entry].at);
    entries_[entry].pending = false;
    return true;
  }
  bool Move(size_t entry, uint64_t deadline) {
    if (!Remove(entry)) return false;
    entries_[entry] = {deadline, true, queue_.emplace(deadline, entry)};
    return true;
  }
  const Entry& At(size_t entry) const { return entries_[entry]; }
  size_t entries() const { return entries_.size(); }
  size_t pending() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }
  uint64_t first_deadline() const { return queue_.begin()->first; }
  size_t first() const { return queue_.begin()->second; }

 private:
  std::multimap<uint64_t, size_t> queue_;
  std::vector<Entry> entries_;
};

class WheelPlayer {
 public:
  WheelPlayer(const uint8_t* data, size_t size)
      : bytes_(data, size), ordered_(bytes_.Next() & 1), wheel_(MakeOptions(), &slab_) {}

  std::string Play() {
    for (int step = 0; !bytes_.done() && error_.empty(); ++step) {
      switch (bytes_.Next() % 8) {
        case 6:
          Advance(Saturated(wheel_.now(), bytes_.Distance()), bytes_.Next());
          break;
        case 7:
          StepByStep();
          break;
        default:
          Operate();
      }
      if (static_cast<size_t>(wheel_.pending()) != model_.pending()) {
        Fail("pending: ", wheel_.pending(), ", expected ", model_.pending());
      }
      const std::string violated = wheel_.CheckInvariants();
      if (!violated.empty()) Fail("invariant: ", violated);
    }
    return error_;
  }

 private:
  Wheel::Options MakeOptions() {
    Wheel::Options options;
    options.keep_insertion_order = ordered_;
    options.small = ordered_;
    options.ticks_per_wheel = 1 << bytes_.Next() % 11;
    options.first_generation = bytes_.Next() & 1 ? 1 : UINT32_MAX - 2;  // nodes that wear out
    return options;
  }

  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (error_.empty()) error_ = absl::StrCat("at tick ", wheel_.now(), ": ", parts...);
  }

  static uint64_t Saturated(uint64_t now, uint64_t distance) {
    return std::min(Wheel::kNever - 1, now + std::min(distance, Wheel::kNever - 1 - now));
  }
  uint64_t Clamped(uint64_t deadline) const {
    return std::min(std::max(deadline, wheel_.now() + 1), Wheel::kNever);
  }

  // One operation of a caller or of a task.
  void Operate() {
    const uint8_t what = bytes_.Next() % 4;
    if (what < 2 || ids_.empty()) {
      const uint64_t deadline = wheel_.now() + bytes_.Distance();
      const size_t entry = model_.Add(Clamped(deadline));
      ids_.push_back(wheel_.Schedule(deadline, [this, entry] { Run(entry); }));
      if (ids_.back().generation == 0) Fail("no memory");
      return;
    }
    const size_t entry = (bytes_.Next() << 8 | bytes_.Next()) % ids_.size();
    if (what == 2) {
      const bool cancelled = wheel_.Cancel(ids_[entry]);
      if (cancelled != model_.Remove(entry)) Fail("cancel of ", entry, " returned ", cancelled);
    } else if (!ordered_ && bytes_.Next() % 2 == 0) {
      PutOff(entry, Clamped(wheel_.now() + bytes_.Distance()));
    } else {
      const uint64_t deadline = wheel_.now() + bytes_.Distance();
      const bool moved = wheel_.Reschedule(ids_[entry], deadline);
      if (moved != model_.Move(entry, Clamped(deadline))) {
        Fail("reschedule of ", entry, " returned ", moved);
      }
    }
  }

  // May refuse, for the caller to ask the wheel; never for an entry that is over or started.
  void PutOff(size_t entry, uint64_t deadline) {
    const Wheel::Id id = ids_[entry];
    if (!slab_.At(id.index)->PutOff(id.generation, deadline, SpinLock())) return;
    if (!model_.Move(entry, deadline)) Fail(entry, " is over and was put off");
  }

  void Run(size_t entry) {
    ++runs_;
    if (!model_.At(entry).pending) return Fail(entry, " runs and is not pending");
    if (model_.At(entry).deadline != wheel_.now()) {
      Fail(entry, " runs, is due at ", model_.At(entry).deadline);
    }
    if (model_.first_deadline() != wheel_.now()) {
      Fail(entry, " runs before one due at ", model_.first_deadline());
    }
    if (ordered_ && model_.first() != entry) Fail(entry, " runs before ", model_.first());
    model_.Remove(entry);
    // At most two, and of finite length, as the bytes run out.
    for (int operations = bytes_.Next() % 3; operations > 0 && !bytes_.done(); --operations) {
      Operate();
    }
  }

  void Advance(uint64_t to, size_t max_tasks) {
    runs_ = 0;
    const size_t ran = wheel_.Advance(to, max_tasks);
    if (ran != runs_) Fail("advance returned ", ran, ", ran ", runs_);
    if (ran < max_tasks) {
      if (!model_.empty() && model_.first_deadline() <= to) Fail(model_.first(), " did not run");
      if (wheel_.now() != to) Fail("advanced to ", to);
    }
  }

  // As a caller with a lock does it: little at a time, with others' operations in between.
  void StepByStep() {
    const uint64_t to = Saturated(wheel_.now(), bytes_.Distance());
    for (int steps = bytes_.Next(); steps > 0 && error_.empty(); --steps) {
      const Wheel::Tick event = wheel_.NextEvent();
      if (!model_.empty() && event > model_.first_deadline()) {
        Fail("next event at ", event, ", due at ", model_.first_deadline());
      }
      int budget = bytes_.Next() % 16;
      const Wheel::Id id = wheel_.PopDue(to, &budget);
      if (id.generation == 0) {
        if (budget > 0) break;
      } else {
        if (bytes_.Next() % 2 == 0) Operate();  // may cancel or reschedule what was popped
        if (TimerTask* const task = wheel_.Start(id)) {
          RunTimerTask(*task);
          task->~TimerTask();
          wheel_.Finish(id);
        }
      }
      if (bytes_.done()) break;
    }
  }

  Bytes bytes_;
  const bool ordered_;
  TimerSlab slab_;
  Wheel wheel_;
  Model model_;
  std::vector<Wheel::Id> ids_;  // by entry of the model
  size_t runs_ = 0;
  std::string error_;
};

class TimerPlayer {
 public:
  TimerPlayer(const uint8_t* data, size_t size) : bytes_(data, size), bound_(bytes_.Next() % 32) {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.tick_duration = absl::Nanoseconds(kTick);
    options.ticks_per_wheel = 1 << bytes_.Next() % 11;
    options.max_pending_timeouts = bound_;
    timer_ = HashedWheelTimer::Create(options).value();
  }

  std::string Play() {
    while (!bytes_.done() && error_.empty()) {
      if (bytes_.Next() % 8 != 7) {
        Operate();
      } else {
        const int64_t distance = bytes_.Distance() >> 24;
        const int64_t end = clock_.NowNanos() + distance;
        clock_.Advance(absl::Nanoseconds(distance));
        if (clock_.NowNanos() != end) Fail("the clock did not arrive");
        if (!model_.empty() && DueNanos(model_.first_deadline()) <= end) {
          Fail(model_.first(), " did not run");
        }
      }
      if (timer_->pending() != static_cast<int64_t>(model_.pending())) {
        Fail("pending: ", timer_->pending(), ", expected ", model_.pending());
      }
    }
    if (!error_.empty()) return error_;
    const HashedWheelTimer::Statistics stats = timer_->Stats();
    const size_t returned = timer_->Stop().value().size();
    if (returned != model_.pending()) Fail("Stop returned ", returned, " of ", model_.pending());
    if (stats.scheduled != static_cast<int64_t>(model_.entries()) || stats.fired != runs_ ||
        stats.cancelled + stats.fired + stats.pending != stats.scheduled) {
      Fail("statistics do not add up");
    }
    timer_.reset();
    for (Timeout& handle : handles_) {
      if (handle.Cancel() || handle.Reschedule(absl::Seconds(1)))
        Fail("a handle outlived its timer");
    }
    return error_;
  }

 private:
  static constexpr int64_t kTick = 1000000;

  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (error_.empty()) error_ = absl::StrCat("at ", clock_.NowNanos(), " ns: ", parts...);
  }

  static int64_t DueNanos(uint64_t tick) { return static_cast<int64_t>(tick) * kTick; }
  uint64_t TickOf(int64_t delay) const {
    const int64_t now = clock_.NowNanos();
    return std::max((now + std::max<int64_t>(delay, 0) + kTick - 1) / kTick, now / kTick + 1);
  }
  int64_t Delay() { return static_cast<int64_t>(bytes_.Distance() >> 20) - 5; }

  void Operate() {
    const uint8_t what = bytes_.Next() % 5;
    if (what < 2 || handles_.empty()) {
      const int64_t delay = Delay();
      const size_t entry = model_.entries();
      absl::StatusOr<Timeout> timeout =
          timer_->NewTimeout([this, entry] { Run(entry); }, absl::Nanoseconds(delay));
      const bool full = bound_ > 0 && model_.pending() >= static_cast<size_t>(bound_);
      if (timeout.ok() == full) Fail("NewTimeout returned ", timeout.status().ToString());
      if (!timeout.ok()) return;
      model_.Add(TickOf(delay));
      handles_.push_back(*std::move(timeout));
      return;
    }
    const size_t entry = (bytes_.Next() << 8 | bytes_.Next()) % handles_.size();
    Timeout& handle = handles_[entry];
    if (what == 2) {
      const bool cancelled = handle.Cancel();
      if (cancelled != model_.Remove(entry)) Fail("cancel of ", entry, " returned ", cancelled);
      if (cancelled && !handle.IsCancelled()) Fail(entry, " forgot that it was cancelled");
    } else if (what == 3) {
      const int64_t delay = Delay();
      const bool moved = handle.Reschedule(absl::Nanoseconds(delay));
      if (moved != model_.Move(entry, TickOf(delay))) Fail("reschedule returned ", moved);
    } else {
      const bool expired = !model_.At(entry).pending && !handle.IsCancelled();
      if (handle.IsExpired() != expired) Fail(entry, " is expired: ", !expired);
      handle.Wait();  // must not block: nothing runs but the caller
    }
  }

  void Run(size_t entry) {
    ++runs_;
    if (!model_.At(entry).pending) return Fail(entry, " runs and is not pending");
    if (model_.first() != entry) Fail(entry, " runs before ", model_.first());
    if (DueNanos(model_.At(entry).deadline) != clock_.NowNanos()) Fail(entry, " runs off its tick");
    model_.Remove(entry);
    for (int operations = bytes_.Next() % 3; operations > 0 && !bytes_.done(); --operations) {
      Operate();
    }
  }

  Bytes bytes_;
  const int bound_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  Model model_;
  std::vector<Timeout> handles_;  // by entry of the model
  int64_t runs_ = 0;
  std::string error_;
};

}  // namespace

std::string PlayOnWheel(const uint8_t* data, size_t size) { return WheelPlayer(data, size).Play(); }

std::string PlayOnTimer(const uint8_t* data, size_t size) { return TimerPlayer(data, size).Play(); }

}  // namespace failback
