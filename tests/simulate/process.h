// A process of a simulated machine: its clock, its timer, and whether it runs.
//
// All processes share one SimulatedClock. A stopped process (SIGSTOP, a long pause of a garbage
// collector) runs none of its timeouts and reads nothing: what arrives waits in its sockets. When it
// continues all that is due happens at once, late; which comes first, what waits or its timeouts, is
// the story's to say. What a process has scheduled goes with it.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_PROCESS_H_
#define FAILBACK_TESTS_SIMULATE_PROCESS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "retry/clock.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"

namespace failback::simulate {

// The clock of one process. Its wall clock may be set; its timers stand still while it is stopped.
class ProcessClock final : public Clock {
 public:
  explicit ProcessClock(SimulatedClock* world) : world_(world) {}

  int64_t NowNanos() const override { return world_->NowNanos(); }
  absl::Time WallNow() const override { return world_->WallNow() + wall_offset_; }
  bool DrivesTimers() const override { return true; }
  void Attach(const std::shared_ptr<ClockDriven>& driven) override {
    auto gate = std::make_shared<Gate>(driven, &stopped_);
    gates_[driven.get()] = gate;
    world_->Attach(gate);
  }
  void Detach(const ClockDriven* driven) override {
    const auto it = gates_.find(driven);
    if (it == gates_.end()) return;
    world_->Detach(it->second.get());
    gates_.erase(it);
  }

  void set_stopped(bool stopped) { stopped_ = stopped; }
  bool stopped() const { return stopped_; }
  void SetWall(absl::Duration offset) { wall_offset_ = offset; }

 private:
  class Gate final : public ClockDriven {
   public:
    Gate(std::shared_ptr<ClockDriven> driven, const bool* stopped)
        : driven_(std::move(driven)), stopped_(stopped) {}
    std::optional<int64_t> NextDueNanos() override {
      return *stopped_ ? std::nullopt : driven_->NextDueNanos();
    }
    int64_t RunDue() override { return *stopped_ ? 0 : driven_->RunDue(); }
    bool TakeSooner() override {
      const bool turned = std::exchange(was_stopped_, *stopped_) != *stopped_;
      return driven_->TakeSooner() || turned;
    }

   private:
    const std::shared_ptr<ClockDriven> driven_;
    const bool* const stopped_;
    bool was_stopped_ = false;
  };

  SimulatedClock* const world_;
  absl::Duration wall_offset_ = absl::ZeroDuration();
  bool stopped_ = false;
  std::map<const ClockDriven*, std::shared_ptr<Gate>> gates_;
};

class Process {
 public:
  Process(std::string name, SimulatedClock* world) : name_(std::move(name)), clock_(world) {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    options.tick_duration = absl::Milliseconds(1);
    options.ticks_per_wheel = 64;
    timer_ = HashedWheelTimer::Create(std::move(options)).value();
  }

  const std::string& name() const { return name_; }
  ProcessClock& clock() { return clock_; }
  HashedWheelTimer* timer() { return timer_.get(); }
  bool stopped() const { return clock_.stopped(); }

  void After(absl::Duration delay, TimerTask work) {
    timer_->ScheduleUnbounded(std::move(work), delay).IgnoreError();
  }
  // Now, or when it continues.
  void Run(std::function<void()> work) {
    if (!stopped()) return work();
    waiting_.push_back(std::move(work));
  }

  void Stop() { clock_.set_stopped(true); }
  // `reads_first`: what has arrived meanwhile comes before the timeouts that are due, else after
  // them.
  void Continue(bool reads_first) {
    if (!stopped()) return;
    while (reads_first && !waiting_.empty()) {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      work();
    }
    clock_.set_stopped(false);
    for (std::function<void()>& work : std::exchange(waiting_, {})) {
      After(absl::ZeroDuration(), std::move(work));
    }
  }

 private:
  const std::string name_;
  ProcessClock clock_;
  std::deque<std::function<void()>> waiting_;
  std::unique_ptr<HashedWheelTimer> timer_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_PROCESS_H_
