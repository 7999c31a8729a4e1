#include "registry/upstream_session.h"

#include <utility>

#include "registry/errors.h"

namespace failback {
namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace

std::shared_ptr<UpstreamSession> UpstreamSession::Create(std::shared_ptr<Registry> upstream, Options options,
                                                         std::function<void()> on_change) {
  return std::shared_ptr<UpstreamSession>(
      new UpstreamSession(std::move(upstream), std::move(options), std::move(on_change)));
}

UpstreamSession::UpstreamSession(std::shared_ptr<Registry> upstream, Options options,
                                 std::function<void()> on_change)
    : options_(std::move(options)),
      on_change_(std::move(on_change)),
      upstream_(std::move(upstream)) {
  state_.since = options_.timer->clock()->WallNow();
}

void UpstreamSession::Start() { Step(); }

UpstreamSession::State UpstreamSession::state() const {
  MutexLock lock(&mu_);
  return state_;
}

void UpstreamSession::ReportFailure(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (stopped_ || state_.phase != Phase::kUp) return;
    state_.last_error = status;
    SetPhase(Phase::kDown);
    // The call in flight, if any, answers the question too.
    if (!busy_) Schedule(absl::ZeroDuration());
  }
  on_change_();
}

void UpstreamSession::ReportLost(const std::string& session_id) {
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
    failures_ = 0;
  }
  Step();
}

void UpstreamSession::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  next_.Cancel();
}

std::shared_ptr<Registry> UpstreamSession::upstream() const {
  MutexLock lock(&mu_);
  return upstream_;
}

void UpstreamSession::ReleaseUpstream() {
  std::shared_ptr<Registry> released;
  MutexLock lock(&mu_);
  released.swap(upstream_);
}

void UpstreamSession::Step() {
  Phase phase;
  std::shared_ptr<Registry> upstream;
  std::string session_id;
  OpenSessionRequest open;
  {
    MutexLock lock(&mu_);
    if (stopped_ || state_.phase == Phase::kClosed) return;
    if (busy_) {
      step_again_ = true;
      return;
    }
    if (state_.phase == Phase::kClosing && state_.session_id.empty()) SetPhase(Phase::kClosed);
    upstream = upstream_;
    phase = state_.phase;
    busy_ = phase != Phase::kClosed;
    next_.Cancel();
    session_id = state_.session_id;
    if (session_id.empty()) {
      open.set_incarnation(options_.incarnation);
      open.set_client_name(options_.client_name);
      const int64_t nanos = absl::ToInt64Nanoseconds(options_.ttl);
      open.mutable_ttl()->set_seconds(nanos / 1000000000);
      open.mutable_ttl()->set_nanos(static_cast<int32_t>(nanos % 1000000000));
      open.set_rank(state_.info.rank());
      open.set_store_id(state_.info.store_id());
    }
  }
  auto self = shared_from_this();
  if (phase == Phase::kClosed) {
    on_change_();
  } else if (phase == Phase::kClosing) {
    CloseSessionRequest request;
    request.set_session_id(session_id);
    upstream->CloseSession(request, [self](absl::StatusOr<CloseSessionResponse> response) {
      self->OnClosed(response.status());
    });
  } else if (session_id.empty()) {
    upstream->OpenSession(open, [self](absl::StatusOr<OpenSessionResponse> response) {
      self->OnOpened(std::move(response));
    });
  } else {
    KeepAliveRequest request;
    request.set_session_id(session_id);
    upstream->KeepAlive(request, [self, session_id](absl::StatusOr<KeepAliveResponse> response) {
      self->OnRenewed(session_id, std::move(response));
    });
  }
}

void UpstreamSession::OnOpened(absl::StatusOr<OpenSessionResponse> response) {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (response.ok()) {
      // A resumed session of the same epoch still has everything, unless this process has
      // not registered it: sending all again costs little and is always right.
      ++state_.session_serial;
      state_.info = *std::move(response);
      state_.session_id = state_.info.session_id();
      opened_nanos_ = options_.timer->clock()->NowNanos();
      Succeeded();
    } else {
      Failed(response.status());
    }
  }
  on_change_();
}

void UpstreamSession::OnRenewed(const std::string& session_id,
                                absl::StatusOr<KeepAliveResponse> response) {
  if (ReasonOf(response.status()) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
      busy_ = false;
      if (state_.phase == Phase::kClosing) {
        SetPhase(Phase::kClosed);
      } else if (state_.session_id == session_id) {
        Lost();
      } else {
        Schedule(absl::ZeroDuration());
      }
    }
    on_change_();
    return;
  }
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (response.ok()) {
      if (response->epoch() != state_.info.epoch()) {
        state_.info.set_epoch(response->epoch());
        ++state_.session_serial;
      }
      Succeeded();
    } else {
      Failed(response.status());
    }
  }
  on_change_();
}

void UpstreamSession::OnClosed(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (status.ok() || ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
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
  if (state_.phase != Phase::kClosing) {
    if (state_.phase != Phase::kUp) {
      ++state_.connection_serial;
      SetPhase(Phase::kUp);
    }
    Schedule(RenewalPeriod());
  } else {
    Schedule(absl::ZeroDuration());
  }
}

void UpstreamSession::Failed(const absl::Status& status) {
  state_.last_error = status;
  if (state_.phase != Phase::kClosing) SetPhase(Phase::kDown);
  ++failures_;
  Schedule(BackoffDelay(options_.reconnect, failures_, options_.random()));
}

void UpstreamSession::Lost() {
  state_.session_id.clear();
  SetPhase(Phase::kConnecting);
  if (busy_) {
    step_again_ = true;
    return;
  }
  const int64_t age = options_.timer->clock()->NowNanos() - opened_nanos_;
  failures_ = absl::Nanoseconds(age) < absl::Seconds(1) ? failures_ + 1 : 0;
  Schedule(failures_ == 0 ? absl::ZeroDuration()
                          : BackoffDelay(options_.reconnect, failures_, options_.random()));
}

void UpstreamSession::Schedule(absl::Duration delay) {
  busy_ = false;
  if (std::exchange(step_again_, false)) delay = absl::ZeroDuration();
  next_.Cancel();
  auto timeout = options_.timer->NewTimeout(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->Step();
      },
      delay);
  // The wheel refuses only after it was stopped; then nothing is due any more.
  if (timeout.ok()) next_ = *std::move(timeout);
}

void UpstreamSession::SetPhase(Phase phase) {
  if (state_.phase == phase) return;
  state_.phase = phase;
  state_.since = options_.timer->clock()->WallNow();
}

absl::Duration UpstreamSession::RenewalPeriod() const {
  return FromProto(state_.info.ttl()) / 3;
}

}  // namespace failback
