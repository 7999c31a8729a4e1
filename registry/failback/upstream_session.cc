#include "registry/failback/upstream_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

// Answers of a store that was there before, in a row, until it is accepted to be back for good.
constexpr int kStoreIsBack = 5;

// Renewals of a session that was opened again after which no other process is taken to be in it:
// the other one renews every third of a TTL.
constexpr int kUndisturbed = 6;

// When neither side names a TTL.
constexpr absl::Duration kDefaultTtl = absl::Seconds(10);

// The session is not there, or is no longer ours since our own name has changed.
bool IsSessionLost(const absl::Status& status) {
  const ErrorReason reason = ReasonOf(status);
  return reason == registry::v1::ERROR_REASON_SESSION_UNKNOWN ||
         reason == registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
}

}  // namespace

bool UpstreamSession::State::refused() const {
  // A session that is another's is no word about this agent: it opens one of its own.
  return (absl::IsUnauthenticated(last_error) || absl::IsPermissionDenied(last_error)) &&
         ReasonOf(last_error) != registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
}

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
      process_(Digest64(RandomId()) | 1),
      upstream_(std::move(upstream)) {
  state_.since = options_.timer->clock()->WallNow();
  state_.incarnation = options_.incarnation;
}

void UpstreamSession::Start() {
  // A connection that breaks while nothing is asked of it is noticed now, not at the next renewal.
  upstream()->SetDisconnectListener([weak = weak_from_this()](const absl::Status& status) {
    if (auto self = weak.lock()) self->ReportFailure(status);
  });
  Step();
}

UpstreamSession::State UpstreamSession::state() const {
  MutexLock lock(&mu_);
  State state = state_;
  if (state.session_serial == 0 || state.phase == Phase::kClosed) return state;
  const int64_t now = options_.timer->clock()->NowNanos();
  state.overdue = now >= LeaseEnd();
  const bool lost = state.session_id.empty();
  if (state.overdue || lost) {
    const int64_t since = lost ? std::min(lost_nanos_, LeaseEnd()) : LeaseEnd();
    state.lapsed_since = options_.timer->clock()->WallNow() - absl::Nanoseconds(now - since);
  }
  return state;
}

void UpstreamSession::ReportFailure(const absl::Status& status) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  {
    MutexLock lock(&mu_);
    if (stopped_ || state_.phase != Phase::kUp) return;
    state_.last_error = status;
    SetPhase(Phase::kSuspect);
    // The call in flight, if any, answers the question too.
    if (!busy_) {
      const int64_t since = options_.timer->clock()->NowNanos() - probed_nanos_;
      Schedule(
          std::max(absl::ZeroDuration(), options_.reconnect.initial - absl::Nanoseconds(since)));
    }
  }
  on_change_();
}

void UpstreamSession::ReportLost(const std::string& session_id) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  {
    MutexLock lock(&mu_);
    if (stopped_ || session_id.empty() || state_.session_id != session_id) return;
    if (state_.phase == Phase::kClosing || state_.phase == Phase::kClosed) return;
    Lost();
  }
  on_change_();
}

void UpstreamSession::Close() {
  {
    MutexLock lock(&mu_);
    if (stopped_ || state_.phase == Phase::kClosing || state_.phase == Phase::kClosed) return;
    SetPhase(Phase::kClosing);
  }
  Step();
}

void UpstreamSession::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    next_.Cancel();
    lapse_.Cancel();
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

void UpstreamSession::Step() {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  Phase phase;
  std::shared_ptr<Registry> upstream;
  std::string session_id;
  OpenSessionRequest open;
  bool opens = false;
  {
    MutexLock lock(&mu_);
    if (stopped_ || state_.phase == Phase::kClosed) return;
    if (busy_) return;  // the end of the call in flight leads to the next step
    if (state_.phase == Phase::kClosing && state_.session_id.empty()) SetPhase(Phase::kClosed);
    upstream = upstream_;
    phase = state_.phase;
    busy_ = phase != Phase::kClosed;
    probed_nanos_ = options_.timer->clock()->NowNanos();
    next_.Cancel();
    session_id = state_.session_id;
    opens = session_id.empty() || phase == Phase::kDown || reopen_;
    if (opens) {
      open.set_incarnation(state_.incarnation);
      open.set_client_name(options_.client_name);
      *open.mutable_ttl() = ToProto(options_.ttl);
      open.set_rank(state_.info.rank());
      open.set_store_id(state_.info.store_id());
      open.set_process(process_);
    }
  }
  auto self = shared_from_this();
  if (phase == Phase::kClosed) {
    on_change_();
  } else if (phase == Phase::kClosing) {
    CloseSessionRequest request;
    request.set_session_id(session_id);
    upstream->CloseSession(request, [self](const absl::StatusOr<CloseSessionResponse>& response) {
      self->OnClosed(response.status());
    });
  } else if (opens) {
    upstream->OpenSession(open, [self](absl::StatusOr<OpenSessionResponse> response) {
      self->OnOpened(std::move(response));
    });
  } else {
    Renew(upstream, session_id);
  }
}

void UpstreamSession::Renew(const std::shared_ptr<Registry>& upstream,
                            const std::string& session_id) {
  KeepAliveRequest request;
  request.set_session_id(session_id);
  request.set_process(process_);
  if (options_.report != nullptr) {
    registry::v1::AgentReport report = options_.report();
    const std::string bytes = report.SerializeAsString();
    MutexLock lock(&mu_);
    if (bytes != reported_) {
      *request.mutable_report() = std::move(report);
      reported_ = bytes;
    }
  }
  upstream->KeepAlive(
      request, [self = shared_from_this(), session_id](absl::StatusOr<KeepAliveResponse> response) {
        self->OnRenewed(session_id, std::move(response));
      });
}

absl::Status UpstreamSession::CheckStore(const OpenSessionResponse& opened) {
  const std::string& known = state_.info.store_id();
  const std::string& store = opened.store_id();
  if (store == known || store.empty() || known.empty()) {
    refused_stores_ = 0;
    return absl::OkStatus();
  }
  if (former_stores_.count(store) > 0 && ++refused_stores_ < kStoreIsBack) {
    return absl::FailedPreconditionError(
        absl::StrCat("two registries answer at this address: store ", store, ", and before it ",
                     known, "; several addresses of one upstream must lead to one store"));
  }
  refused_stores_ = 0;
  former_stores_.insert(known);
  return absl::OkStatus();
}

void UpstreamSession::OnOpened(absl::StatusOr<OpenSessionResponse> response) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    absl::Status status = response.status();
    if (status.ok()) status = CheckStore(*response);
    if (status.ok() && response->session_id().empty()) {
      status = absl::InternalError("the registry opened a session without an id");
    }
    if (status.ok()) {
      // The session that this process had, in the same epoch, is only confirmed. One that is
      // resumed from an earlier process still has everything, unless this one has not registered
      // it: sending all again costs little and is always right.
      const bool confirmed = response->session_id() == state_.session_id &&
                             response->store_id() == state_.info.store_id() &&
                             response->epoch() == state_.info.epoch();
      if (!confirmed) ++state_.session_serial;
      reopen_ = false;
      state_.info = *std::move(response);
      state_.session_id = state_.info.session_id();
      reported_.clear();
      opened_nanos_ = options_.timer->clock()->NowNanos();
      Succeeded();
    } else {
      if (ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_NOT_OWNED) {
        TakeIncarnation();
      }
      Failed(status);
    }
  }
  on_change_();
}

void UpstreamSession::OnRenewed(const std::string& session_id,
                                absl::StatusOr<KeepAliveResponse> response) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    const bool unknown = IsSessionLost(response.status());
    if (unknown && state_.phase == Phase::kClosing) {
      busy_ = false;
      SetPhase(Phase::kClosed);
    } else if (state_.session_id != session_id) {
      // The answer for a session that was found lost meanwhile says nothing of the next one.
      Schedule(ReopenDelay());
    } else if (unknown) {
      busy_ = false;
      Lost();
    } else if (response.ok()) {
      if (response->epoch() != 0 && response->epoch() != state_.info.epoch()) {
        state_.info.set_epoch(response->epoch());
        ++state_.session_serial;
      }
      if (FromProto(response->ttl()) > absl::ZeroDuration()) {
        *state_.info.mutable_ttl() = response->ttl();
      }
      Succeeded();
      LookForTwin(response->process());
    } else {
      Failed(response.status());
    }
  }
  on_change_();
}

void UpstreamSession::LookForTwin(uint64_t process) {
  if (process == 0 || process == process_) {
    if (state_.contested && ++undisturbed_ >= kUndisturbed) state_.contested = false;
    return;
  }
  if (state_.phase != Phase::kUp) return;
  undisturbed_ = 0;
  if (!std::exchange(state_.contested, true)) {
    reopen_ = true;
    Schedule(absl::ZeroDuration());
    return;
  }
  state_.contested = false;
  ++state_.twins;
  state_.twin_time = options_.timer->clock()->WallNow();
  TakeIncarnation();
  state_.last_error = absl::FailedPreconditionError(
      "another process runs under this agent's incarnation: a copy of its state directory, or one "
      "incarnation configured twice");
  SetPhase(Phase::kConnecting);
  Schedule(absl::ZeroDuration());
}

void UpstreamSession::TakeIncarnation() {
  state_.incarnation = RandomId();
  if (!state_.session_id.empty()) lost_nanos_ = options_.timer->clock()->NowNanos();
  state_.session_id.clear();
  state_.info.clear_rank();
}

void UpstreamSession::OnClosed(const absl::Status& status) {
  CallGate::Pass pass(&gate_);
  if (!pass.ok()) return;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (status.ok() || IsSessionLost(status)) {
      busy_ = false;
      SetPhase(Phase::kClosed);
    } else {
      Failed(status);
    }
  }
  on_change_();
}

void UpstreamSession::Succeeded() {
  failures_ = 0;
  refusals_ = 0;
  state_.last_error = absl::OkStatus();
  confirmed_nanos_ = probed_nanos_;
  ArmLapse();
  if (state_.phase == Phase::kClosing) {
    Schedule(absl::ZeroDuration());
    return;
  }
  if (state_.phase != Phase::kUp) {
    if (state_.phase != Phase::kSuspect) ++state_.connection_serial;
    SetPhase(Phase::kUp);
  }
  Schedule(UntilRenewal());
}

void UpstreamSession::Failed(const absl::Status& status) {
  state_.last_error = status;
  reported_.clear();  // who answers next may be another process
  ++failures_;
  if (state_.phase != Phase::kClosing) {
    // A renewal that was slow once is not an outage; one that got no answer is.
    const bool once = state_.phase == Phase::kUp && !IsConnectionFailure(status);
    SetPhase(once ? Phase::kSuspect : Phase::kDown);
  }
  const std::optional<absl::Duration> asked = RetryDelayOf(status);
  const double random = options_.random();
  if (asked.has_value()) {
    Schedule(StretchedDelay(*asked, refusals_++, random));
  } else {
    refusals_ = 0;
    Schedule(BackoffDelay(options_.reconnect, failures_, random));
  }
}

void UpstreamSession::Lost() {
  state_.session_id.clear();
  state_.last_error = absl::FailedPreconditionError("the registry does not know the session");
  lost_nanos_ = options_.timer->clock()->NowNanos();
  SetPhase(Phase::kConnecting);
  const absl::Duration age = absl::Nanoseconds(options_.timer->clock()->NowNanos() - opened_nanos_);
  losses_ = age < absl::Seconds(1) ? losses_ + 1 : 0;
  // A call in flight goes on to the next step when it ends.
  if (busy_) return;
  Schedule(ReopenDelay());
}

absl::Duration UpstreamSession::ReopenDelay() const {
  if (losses_ == 0) return absl::ZeroDuration();
  return BackoffDelay(options_.reconnect, losses_, options_.random());
}

void UpstreamSession::Schedule(absl::Duration delay) {
  busy_ = false;
  next_.Cancel();
  auto timeout = options_.timer->PutBack(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->Step();
      },
      delay);
  // Refused only by a wheel that was stopped; then nothing is due any more.
  if (timeout.ok()) next_ = *std::move(timeout);
}

void UpstreamSession::SetPhase(Phase phase) {
  if (state_.phase == phase) return;
  const auto is_away = [](Phase one) {
    return one == Phase::kConnecting || one == Phase::kSuspect || one == Phase::kDown;
  };
  const bool same_outage = is_away(state_.phase) && is_away(phase);
  state_.phase = phase;
  if (same_outage) return;
  state_.since = options_.timer->clock()->WallNow();
}

absl::Duration UpstreamSession::Ttl() const {
  const absl::Duration granted = FromProto(state_.info.ttl());
  if (granted > absl::ZeroDuration()) return granted;
  return options_.ttl > absl::ZeroDuration() ? options_.ttl : kDefaultTtl;
}

absl::Duration UpstreamSession::UntilRenewal() const {
  const int64_t since = options_.timer->clock()->NowNanos() - probed_nanos_;
  return std::max(absl::ZeroDuration(), Ttl() / 3 - absl::Nanoseconds(since));
}

int64_t UpstreamSession::LeaseEnd() const {
  return confirmed_nanos_ + absl::ToInt64Nanoseconds(Ttl());
}

void UpstreamSession::ArmLapse() {
  const absl::Duration left = std::max(
      absl::ZeroDuration(), absl::Nanoseconds(LeaseEnd() - options_.timer->clock()->NowNanos()));
  if (lapse_.Reschedule(left)) return;
  auto timeout = options_.timer->PutBack(
      [weak = weak_from_this()] {
        auto self = weak.lock();
        if (self == nullptr) return;
        CallGate::Pass pass(&self->gate_);
        if (pass.ok()) self->on_change_();
      },
      left);
  if (timeout.ok()) lapse_ = *std::move(timeout);
}

}  // namespace failback
