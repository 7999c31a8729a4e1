#include "registry/failback/upstream_session.h"

#include <algorithm>
#include <utility>

#include "registry/model/canonical.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

UpstreamMachine::Options MachineOptions(const UpstreamSession::Options& options) {
  const uint64_t process = Digest64(RandomId()) | 1;
  return {options.incarnation, options.client_name,      options.ttl, options.reconnect, process,
          options.random,      [] { return RandomId(); }};
}

}  // namespace

std::shared_ptr<UpstreamSession> UpstreamSession::Create(std::shared_ptr<Registry> upstream,
                                                         Options options,
                                                         std::function<void()> on_change) {
  return std::shared_ptr<UpstreamSession>(
      new UpstreamSession(std::move(upstream), std::move(options), std::move(on_change)));
}

UpstreamSession::UpstreamSession(std::shared_ptr<Registry> upstream, Options options,
                                 std::function<void()> on_change)
    : options_(std::move(options)),
      on_change_(std::move(on_change)),
      upstream_(std::move(upstream)),
      machine_(MachineOptions(options_), Now()) {}

void UpstreamSession::Start() {
  // A connection that breaks while nothing is asked of it is noticed now, not at the next renewal.
  upstream()->SetDisconnectListener([weak = weak_from_this()](const absl::Status& status) {
    if (auto self = weak.lock()) self->ReportFailure(status);
  });
  Do([](UpstreamMachine* machine, UpstreamMachine::Now now) { return machine->Start(now); });
}

UpstreamSession::State UpstreamSession::state() const {
  MutexLock lock(&mu_);
  return machine_.state(Now());
}

void UpstreamSession::ReportFailure(const absl::Status& status) {
  Do([&](UpstreamMachine* machine, UpstreamMachine::Now now) {
    return machine->ReportFailure(now, status);
  });
}

void UpstreamSession::ReportLost(const std::string& session_id) {
  Do([&](UpstreamMachine* machine, UpstreamMachine::Now now) {
    return machine->ReportLost(now, session_id);
  });
}

void UpstreamSession::Close() {
  Do([](UpstreamMachine* machine, UpstreamMachine::Now now) { return machine->Close(now); });
}

void UpstreamSession::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    due_.Cancel();
  }
  gate_.Close();
}

std::shared_ptr<Registry> UpstreamSession::upstream() const {
  MutexLock lock(&mu_);
  return upstream_;
}

void UpstreamSession::ReleaseUpstream() {
  std::shared_ptr<Registry> released;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  released.swap(upstream_);
}

void UpstreamSession::Do(const Step& step) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  UpstreamMachine::Effects effects;
  std::shared_ptr<Registry> upstream;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    effects = step(&machine_, Now());
    Arm();
    upstream = upstream_;
  }
  if (effects.changed) on_change_();
  Make(std::move(effects.call), upstream);
}

void UpstreamSession::Make(UpstreamMachine::Call call, const std::shared_ptr<Registry>& upstream) {
  const auto self = shared_from_this();
  switch (call.kind) {
    case UpstreamMachine::Call::Kind::kNone:
      return;
    case UpstreamMachine::Call::Kind::kOpen:
      upstream->OpenSession(call.open, [self](absl::StatusOr<OpenSessionResponse> response) {
        self->Do([&](UpstreamMachine* machine, UpstreamMachine::Now now) {
          return machine->Opened(now, std::move(response));
        });
      });
      return;
    case UpstreamMachine::Call::Kind::kRenew:
      Renew(call.session_id, upstream);
      return;
    case UpstreamMachine::Call::Kind::kClose: {
      CloseSessionRequest request;
      request.set_session_id(call.session_id);
      upstream->CloseSession(request, [self](const absl::StatusOr<CloseSessionResponse>& response) {
        self->Do([&](UpstreamMachine* machine, UpstreamMachine::Now now) {
          return machine->Closed(now, response.status());
        });
      });
      return;
    }
  }
}

void UpstreamSession::Renew(const std::string& session_id,
                            const std::shared_ptr<Registry>& upstream) {
  KeepAliveRequest request;
  request.set_session_id(session_id);
  registry::v1::AgentReport report;
  if (options_.report != nullptr) report = options_.report();
  {
    MutexLock lock(&mu_);
    request.set_process(machine_.process());
    if (options_.report != nullptr && machine_.TakesReport(report)) {
      *request.mutable_report() = std::move(report);
    }
  }
  upstream->KeepAlive(
      request, [self = shared_from_this(), session_id](absl::StatusOr<KeepAliveResponse> response) {
        self->Do([&](UpstreamMachine* machine, UpstreamMachine::Now now) {
          return machine->Renewed(now, session_id, std::move(response));
        });
      });
}

UpstreamMachine::Now UpstreamSession::Now() const {
  return {options_.timer->clock()->NowNanos(), options_.timer->clock()->WallNow()};
}

void UpstreamSession::Arm() {
  const int64_t due = machine_.due_nanos();
  if (due == armed_for_nanos_) return;
  armed_for_nanos_ = due;
  if (due == UpstreamMachine::kNever) {
    due_.Cancel();
    return;
  }
  const absl::Duration left = std::max(absl::ZeroDuration(), absl::Nanoseconds(due - Now().nanos));
  if (due_.Reschedule(left)) return;
  auto timeout = options_.timer->ScheduleUnbounded(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->OnDue();
      },
      left);
  // Refused only by a wheel that was stopped; then nothing is due any more.
  if (timeout.ok()) due_ = *std::move(timeout);
}

void UpstreamSession::OnDue() {
  {
    MutexLock lock(&mu_);
    armed_for_nanos_ = UpstreamMachine::kNever;
  }
  Do([](UpstreamMachine* machine, UpstreamMachine::Now now) { return machine->Tick(now); });
}

}  // namespace failback
