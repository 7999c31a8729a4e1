#include "agent/health/health_checker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback {

class HealthChecker::State : public std::enable_shared_from_this<State> {
 public:
  State(HashedWheelTimer* timer, std::unique_ptr<Probe> probe, const Options& options,
        std::function<void()> on_change)
      : timer_(timer),
        options_(options),
        on_change_(std::move(on_change)),
        probe_(std::move(probe)),
        counter_(options.rise, options.fall) {
    snapshot_.since = timer->clock()->WallNow();
  }

  void Start() {
    if (probe_ == nullptr) return Extend();
    auto tries =
        PeriodicTask::Start(timer_, options_.first_delay, options_.interval, [this] { Try(); });
    // The wheel refuses only when it is stopped, as the process ends.
    if (tries.ok()) tries_ = *std::move(tries);
  }

  void Stop() {
    tries_.reset();
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      timeout_.Cancel();
      while (busy_ > 0) idle_.Wait(&mu_);
    }
    // Now, and not when the last late answer lets go of this.
    probe_.reset();
  }

  Snapshot snapshot() const {
    MutexLock lock(&mu_);
    return snapshot_;
  }

  void Report(const absl::Status& status) {
    if (status.ok()) Extend();
    Ended(status);
  }

 private:
  // One try, with its timeout.
  void Try() {
    // Where timeout and interval are the same, this may come first.
    TimedOut(current_try());
    uint64_t number;
    {
      MutexLock lock(&mu_);
      number = ++try_;
      under_way_ = true;
      Rearm(options_.timeout, [weak = weak_from_this(), number] {
        if (auto self = weak.lock()) self->TimedOut(number);
      });
    }
    probe_->Run([weak = weak_from_this(), number](const absl::Status& status) {
      if (auto self = weak.lock()) self->Answered(number, status);
    });
  }

  // The answer of try `number`; one that comes after its timeout is of no interest.
  bool Take(uint64_t number) {
    MutexLock lock(&mu_);
    if (number != try_ || !under_way_) return false;
    under_way_ = false;
    timeout_.Cancel();
    return true;
  }

  void Answered(uint64_t number, const absl::Status& status) {
    if (Take(number)) Ended(status);
  }

  void TimedOut(uint64_t number) {
    if (!Enter()) return;
    if (Take(number)) {
      probe_->Cancel();
      Ended(absl::DeadlineExceededError(
          absl::StrCat("no answer within ", absl::FormatDuration(options_.timeout))));
    }
    Leave();
  }

  uint64_t current_try() const {
    MutexLock lock(&mu_);
    return try_;
  }

  // Keeps Stop() waiting until Leave().
  bool Enter() {
    MutexLock lock(&mu_);
    if (!stopped_) ++busy_;
    return !stopped_;
  }

  void Leave() {
    MutexLock lock(&mu_);
    if (--busy_ == 0) idle_.SignalAll();
  }

  // A report holds for one interval from now on.
  void Extend() {
    MutexLock lock(&mu_);
    if (timeout_.Reschedule(options_.interval)) return;
    Rearm(options_.interval, [weak = weak_from_this(), number = ++try_] {
      if (auto self = weak.lock()) self->Silent(number);
    });
  }

  void Silent(uint64_t number) {
    {
      MutexLock lock(&mu_);
      if (number != try_) return;
    }
    Ended(absl::DeadlineExceededError(
        absl::StrCat("nothing was reported for ", absl::FormatDuration(options_.interval))));
  }

  void Rearm(absl::Duration delay, TimerTask task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (stopped_) return;
    auto timeout = timer_->NewTimeout(std::move(task), delay);
    if (timeout.ok()) timeout_ = *std::move(timeout);
  }

  void Ended(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
      ++(status.ok() ? snapshot_.passes : snapshot_.failures);
      snapshot_.last_error = std::string(status.message());
      if (!counter_.Count(status.ok())) return;
      snapshot_.state = counter_.state();
      snapshot_.since = timer_->clock()->WallNow();
      ++busy_;
    }
    on_change_();
    Leave();
  }

  HashedWheelTimer* const timer_;
  const Options options_;
  const std::function<void()> on_change_;
  // Null: the program reports.
  std::unique_ptr<Probe> probe_;
  std::unique_ptr<PeriodicTask> tries_;

  mutable Mutex mu_;
  CondVar idle_;
  CheckCounter counter_ ABSL_GUARDED_BY(mu_);
  Snapshot snapshot_ ABSL_GUARDED_BY(mu_);
  Timeout timeout_ ABSL_GUARDED_BY(mu_);
  uint64_t try_ ABSL_GUARDED_BY(mu_) = 0;
  bool under_way_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // Uses of on_change_ and probe_ that the destructor waits for.
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
};

std::unique_ptr<HealthChecker> HealthChecker::Start(HashedWheelTimer* timer,
                                                    std::unique_ptr<Probe> probe,
                                                    const Options& options,
                                                    std::function<void()> on_change) {
  auto state = std::make_shared<State>(timer, std::move(probe), options, std::move(on_change));
  state->Start();
  return std::unique_ptr<HealthChecker>(new HealthChecker(std::move(state)));
}

HealthChecker::HealthChecker(std::shared_ptr<State> state) : state_(std::move(state)) {}

HealthChecker::~HealthChecker() { state_->Stop(); }

CheckState HealthChecker::state() const { return state_->snapshot().state; }

HealthChecker::Snapshot HealthChecker::snapshot() const { return state_->snapshot(); }

void HealthChecker::Report(const absl::Status& status) { state_->Report(status); }

}  // namespace failback
