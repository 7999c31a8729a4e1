// Any asynchronous call, tried again in the background until it succeeds.
//
// Choose it for calls that have to arrive but whose caller does not wait: notifications, audit
// records, cache invalidations. It is Dubbo's FailbackClusterInvoker: the first attempt is made at
// once; one that fails goes on a timing wheel (tick 1 s, 32 slots) and is tried again every 5 s, 3
// times by default, with at most 100 calls waiting. Two things are different: a call that fails
// later, in its callback, is retried like one that fails at once; and when too many wait, the call
// fails with RESOURCE_EXHAUSTED instead of being dropped.
//
// Example:
//
//   auto invoker = FailbackInvoker::Create(FailbackInvoker::Options());
//   (*invoker)->Invoke(
//       [this](FailbackInvoker::Done done) { stub->AsyncNotify(request, std::move(done)); },
//       [](const absl::Status& status) { if (!status.ok()) Alert(status); });
//
// examples/orders_notifier.cc is a whole program.
//
// Thread safety: all methods from any thread, also from within a call or its `done`.
//
// Invariants:
// 1. One attempt of an invocation is under way at a time.
// 2. `finished` runs exactly once for each invocation: OK, the last failure, or CANCELLED at
//    destruction.
// 3. pending() never exceeds max_pending.

#ifndef FAILBACK_RETRY_FAILBACK_INVOKER_H_
#define FAILBACK_RETRY_FAILBACK_INVOKER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "retry/backoff.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/retry_task.h"

namespace failback {

class FailbackInvoker {
 public:
  // Ends one attempt; to be called once, from any thread. A second call does nothing.
  using Done = std::function<void(const absl::Status&)>;
  // Makes one attempt. Called again for each retry, on the wheel's thread: must not block.
  using Call = std::function<void(Done done)>;

  struct Options {
    // retry_times 3, retry_period 5 s: as Dubbo's.
    RetryPolicy retry{3, absl::Seconds(5), BackoffOptions()};
    // Invocations that wait for a retry at once; at least 1.
    int64_t max_pending = 100;
    // Optional; outlives the invoker. Default: a wheel of its own, 32 slots of 1 s.
    HashedWheelTimer* timer = nullptr;
    // For jitter, where `retry` uses backoff. Default: EntropyRandom().
    Random random;
    // Whether a failure is worth another attempt. Default: every one is.
    std::function<bool(const absl::Status&)> retryable;
  };

  // INVALID_ARGUMENT names the option and what is allowed.
  static absl::StatusOr<std::unique_ptr<FailbackInvoker>> Create(Options options);

  // Runs every `finished` not yet run with CANCELLED. The result of an attempt that is under way is
  // ignored.
  ~FailbackInvoker();
  FailbackInvoker(const FailbackInvoker&) = delete;
  FailbackInvoker& operator=(const FailbackInvoker&) = delete;

  // Makes the first attempt before it returns. `finished` (optional) gets OK after the attempt that
  // succeeded; the last status when retries have run out or it is not retryable; or
  // RESOURCE_EXHAUSTED, naming the failure, when it failed and `max_pending` others wait already:
  // then the call is the caller's again.
  void Invoke(Call call, std::function<void(const absl::Status&)> finished = nullptr);

  // Invocations that wait for a retry, or are being retried.
  int64_t pending() const;

 private:
  class Core;
  explicit FailbackInvoker(std::shared_ptr<Core> core);
  const std::shared_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_RETRY_FAILBACK_INVOKER_H_
