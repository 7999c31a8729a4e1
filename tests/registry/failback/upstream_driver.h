// Drives an UpstreamMachine against a Registry on simulated time, as the failback machine's shell
// does: one timeout, the calls, and the news for the owner.
//
// Thread safety: none; everything happens on the thread that advances the clock.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_UPSTREAM_DRIVER_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_UPSTREAM_DRIVER_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "registry/failback/upstream_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class UpstreamDriver : public std::enable_shared_from_this<UpstreamDriver> {
 public:
  struct Options {
    std::string incarnation;
    std::string client_name;
    absl::Duration ttl;
    BackoffOptions reconnect;
    HashedWheelTimer* timer;
    Random random;
    // Optional: goes with a renewal when it has changed.
    std::function<registry::v1::AgentReport()> report = nullptr;
  };
  using Phase = UpstreamMachine::Phase;
  using State = UpstreamMachine::State;

  UpstreamDriver(std::shared_ptr<Registry> upstream, Options options,
                 std::function<void()> on_change)
      : options_(std::move(options)),
        on_change_(std::move(on_change)),
        upstream_(std::move(upstream)),
        machine_({options_.incarnation, options_.client_name, options_.ttl, options_.reconnect,
                  Digest64(RandomId()) | 1, options_.random, [] { return RandomId(); }},
                 Now()) {}
  static std::shared_ptr<UpstreamDriver> Create(std::shared_ptr<Registry> upstream, Options options,
                                                std::function<void()> on_change) {
    return std::make_shared<UpstreamDriver>(std::move(upstream), std::move(options),
                                            std::move(on_change));
  }

  void Start() {
    upstream_->SetDisconnectListener([weak = weak_from_this()](const absl::Status& status) {
      if (auto self = weak.lock()) self->ReportFailure(status);
    });
    Follow(machine_.Start(Now()));
  }
  const State& state() const { return machine_.state(); }
  void ReportFailure(const absl::Status& status) { Follow(machine_.ReportFailure(Now(), status)); }
  void ReportLost(const std::string& session_id) { Follow(machine_.ReportLost(Now(), session_id)); }
  void Close() { Follow(machine_.Close(Now())); }
  // Calls under way change nothing any more.
  void Stop() {
    stopped_ = true;
    due_.Cancel();
  }

 private:
  void Follow(UpstreamMachine::Effects effects) {
    if (stopped_) return;
    Arm();
    if (effects.changed) on_change_();
    Make(effects.call);
  }

  void Make(const UpstreamMachine::Call& call) {
    const auto self = shared_from_this();
    switch (call.kind) {
      case UpstreamMachine::Call::Kind::kNone:
        return;
      case UpstreamMachine::Call::Kind::kOpen:
        upstream_->OpenSession(
            machine_.OpenRequest(), [self](absl::StatusOr<OpenSessionResponse> response) {
              self->Answered(
                  [&] { return self->machine_.Opened(self->Now(), std::move(response)); });
            });
        return;
      case UpstreamMachine::Call::Kind::kRenew: {
        KeepAliveRequest request;
        request.set_session_id(call.session_id);
        request.set_process(machine_.process());
        if (options_.report != nullptr && machine_.TakesReport(options_.report())) {
          *request.mutable_report() = options_.report();
        }
        upstream_->KeepAlive(
            request, [self, id = call.session_id](absl::StatusOr<KeepAliveResponse> response) {
              self->Answered(
                  [&] { return self->machine_.Renewed(self->Now(), id, std::move(response)); });
            });
        return;
      }
      case UpstreamMachine::Call::Kind::kClose: {
        CloseSessionRequest request;
        request.set_session_id(call.session_id);
        upstream_->CloseSession(
            request, [self](const absl::StatusOr<CloseSessionResponse>& response) {
              self->Answered([&] { return self->machine_.Closed(self->Now(), response.status()); });
            });
        return;
      }
    }
  }

  template <typename Step>
  void Answered(Step step) {
    if (!stopped_) Follow(step());
  }

  void Arm() {
    due_.Cancel();
    const int64_t due = machine_.due_nanos();
    if (due == UpstreamMachine::kNever) return;
    auto timeout = options_.timer->ScheduleUnbounded(
        [weak = weak_from_this()] {
          if (auto self = weak.lock()) self->Follow(self->machine_.Tick(self->Now()));
        },
        absl::Nanoseconds(std::max<int64_t>(due - Now().nanos, 0)));
    if (timeout.ok()) due_ = *std::move(timeout);
  }

  UpstreamMachine::Now Now() const {
    return {options_.timer->clock()->NowNanos(), options_.timer->clock()->WallNow()};
  }

  const Options options_;
  const std::function<void()> on_change_;
  const std::shared_ptr<Registry> upstream_;
  UpstreamMachine machine_;
  Timeout due_;
  bool stopped_ = false;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_UPSTREAM_DRIVER_H_
