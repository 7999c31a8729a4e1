#include "retry/failback_invoker.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "retry/mutex.h"

namespace failback {

class FailbackInvoker::Core : public std::enable_shared_from_this<FailbackInvoker::Core> {
 public:
  struct Invocation {
    Call call;
    std::function<void(const absl::Status&)> finished;
    // Guarded by the core's lock, as is `attempt`; null until the first attempt has failed.
    std::unique_ptr<RetryTask> retry;
    // Counts attempts, so that a `done` that comes twice or late is known as such.
    uint64_t attempt = 0;
  };
  using InvocationPtr = std::shared_ptr<Invocation>;

  Core(Options options, std::unique_ptr<HashedWheelTimer> own_timer)
      : options_(std::move(options)), own_timer_(std::move(own_timer)) {}

  void Invoke(Call call, std::function<void(const absl::Status&)> finished) {
    auto invocation = std::make_shared<Invocation>();
    invocation->call = std::move(call);
    invocation->finished = std::move(finished);
    {
      MutexLock lock(&mu_);
      if (!closed_) {
        running_.insert(invocation);
        invocation->attempt = 1;
      }
    }
    if (invocation->attempt == 0) {
      Finish(invocation, absl::CancelledError("the invoker was shut down"));
      return;
    }
    Attempt(invocation, 1);
  }

  int64_t pending() const {
    MutexLock lock(&mu_);
    return pending_;
  }

  void Shutdown() {
    absl::flat_hash_set<InvocationPtr> cancelled;
    {
      MutexLock lock(&mu_);
      closed_ = true;
      cancelled.swap(running_);
      pending_ = 0;
      for (const InvocationPtr& invocation : cancelled) {
        ++invocation->attempt;
        invocation->retry.reset();
      }
    }
    for (const InvocationPtr& invocation : cancelled) {
      Finish(invocation, absl::CancelledError("the invoker was shut down"));
    }
    own_timer_.reset();
  }

 private:
  static void Finish(const InvocationPtr& invocation, const absl::Status& status) {
    if (invocation->finished != nullptr) invocation->finished(status);
  }

  void Attempt(const InvocationPtr& invocation, uint64_t attempt) {
    invocation->call([weak = weak_from_this(), invocation, attempt](const absl::Status& status) {
      if (auto self = weak.lock()) self->Ended(invocation, attempt, status);
    });
  }

  void Ended(const InvocationPtr& invocation, uint64_t attempt, absl::Status status) {
    {
      MutexLock lock(&mu_);
      if (invocation->attempt != attempt) return;
      ++invocation->attempt;
      if (!status.ok() && (options_.retryable == nullptr || options_.retryable(status))) {
        if (ScheduleRetry(invocation, &status)) return;
      }
      if (invocation->retry != nullptr) --pending_;
      invocation->retry.reset();
      running_.erase(invocation);
    }
    Finish(invocation, status);
  }

  // False, with the status for the caller, when there is no further attempt.
  bool ScheduleRetry(const InvocationPtr& invocation, absl::Status* status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (invocation->retry == nullptr) {
      if (pending_ >= options_.max_pending) {
        *status = absl::ResourceExhaustedError(
            absl::StrCat(pending_,
                         " calls wait for a retry already, the most allowed; not "
                         "retried: ",
                         status->ToString()));
        return false;
      }
      ++pending_;
      invocation->retry =
          std::make_unique<RetryTask>(options_.timer, &options_.retry, &options_.random);
    }
    const auto state =
        invocation->retry->Failed(std::nullopt, [weak = weak_from_this(), invocation] {
          if (auto self = weak.lock()) self->Due(invocation);
        });
    return state == RetryTask::State::kWaiting;
  }

  void Due(const InvocationPtr& invocation) {
    uint64_t attempt;
    {
      MutexLock lock(&mu_);
      if (invocation->retry == nullptr || !invocation->retry->Begin()) return;
      attempt = invocation->attempt;
    }
    Attempt(invocation, attempt);
  }

  const Options options_;
  std::unique_ptr<HashedWheelTimer> own_timer_;
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<InvocationPtr> running_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<FailbackInvoker>> FailbackInvoker::Create(Options options) {
  if (absl::Status status = ValidateRetryPolicy("retry", options.retry); !status.ok()) {
    return status;
  }
  if (options.max_pending < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pending: ", options.max_pending, " is not 1 or more"));
  }
  if (options.random == nullptr) options.random = EntropyRandom();
  std::unique_ptr<HashedWheelTimer> own_timer;
  if (options.timer == nullptr) {
    HashedWheelTimer::Options timer_options;
    timer_options.tick_duration = absl::Seconds(1);
    timer_options.ticks_per_wheel = 32;
    timer_options.name = "failback-cluster-timer";
    auto timer = HashedWheelTimer::Create(timer_options);
    if (!timer.ok()) return timer.status();
    own_timer = *std::move(timer);
    options.timer = own_timer.get();
  }
  return std::unique_ptr<FailbackInvoker>(
      new FailbackInvoker(std::make_shared<Core>(std::move(options), std::move(own_timer))));
}

FailbackInvoker::FailbackInvoker(std::shared_ptr<Core> core) : core_(std::move(core)) {}

FailbackInvoker::~FailbackInvoker() { core_->Shutdown(); }

void FailbackInvoker::Invoke(Call call, std::function<void(const absl::Status&)> finished) {
  core_->Invoke(std::move(call), std::move(finished));
}

int64_t FailbackInvoker::pending() const { return core_->pending(); }

}  // namespace failback
