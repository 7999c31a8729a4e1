#include "registry/failback/upstream_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/failback/status_policy.h"
#include "registry/model/errors.h"

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

bool UpstreamMachine::State::refused() const {
  // A session that is another's is no word about this agent: it opens one of its own.
  return (absl::IsUnauthenticated(last_error) || absl::IsPermissionDenied(last_error)) &&
         ReasonOf(last_error) != registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
}

UpstreamMachine::UpstreamMachine(Options options, Now now) : options_(std::move(options)) {
  state_.since = now.wall;
  state_.incarnation = options_.incarnation;
}

UpstreamMachine::Lapse UpstreamMachine::lapse(Now now) const {
  Lapse lapse;
  if (state_.session_serial == 0 || state_.phase == Phase::kClosed) return lapse;
  lapse.overdue = now.nanos >= LeaseEnd();
  const bool lost = state_.session_id.empty();
  if (lapse.overdue || lost) {
    const int64_t since = lost ? std::min(lost_nanos_, LeaseEnd()) : LeaseEnd();
    lapse.since = now.wall - absl::Nanoseconds(now.nanos - since);
  }
  return lapse;
}

int64_t UpstreamMachine::due_nanos() const { return std::min(next_nanos_, lapse_nanos_); }

UpstreamMachine::Effects UpstreamMachine::Start(Now now) {
  Effects effects;
  NextCall(now, &effects);
  return effects;
}

UpstreamMachine::Effects UpstreamMachine::Tick(Now now) {
  Effects effects;
  if (next_nanos_ <= now.nanos) NextCall(now, &effects);
  if (lapse_nanos_ <= now.nanos) {
    lapse_nanos_ = kNever;
    effects.changed = true;
  }
  return effects;
}

UpstreamMachine::Effects UpstreamMachine::ReportFailure(Now now, const absl::Status& status) {
  Effects effects;
  if (state_.phase != Phase::kUp) return effects;
  effects.changed = true;
  state_.last_error = status;
  SetPhase(now, Phase::kSuspect);
  // The call in flight, if any, answers the question too.
  if (!busy_) {
    const absl::Duration since = absl::Nanoseconds(now.nanos - probed_nanos_);
    Schedule(now, std::max(absl::ZeroDuration(), options_.reconnect.initial - since));
  }
  return effects;
}

UpstreamMachine::Effects UpstreamMachine::ReportLost(Now now, const std::string& session_id) {
  Effects effects;
  if (session_id.empty() || state_.session_id != session_id) return effects;
  if (state_.phase == Phase::kClosing || state_.phase == Phase::kClosed) return effects;
  Lost(now);
  effects.changed = true;
  return effects;
}

UpstreamMachine::Effects UpstreamMachine::Close(Now now) {
  Effects effects;
  if (state_.phase == Phase::kClosing || state_.phase == Phase::kClosed) return effects;
  SetPhase(now, Phase::kClosing);
  NextCall(now, &effects);
  return effects;
}

bool UpstreamMachine::TakesReport(const registry::v1::AgentReport& report) {
  std::string bytes = report.SerializeAsString();
  if (bytes == reported_) return false;
  reported_ = std::move(bytes);
  return true;
}

void UpstreamMachine::NextCall(Now now, Effects* effects) {
  // The end of the call in flight leads to the next one.
  if (state_.phase == Phase::kClosed || busy_) return;
  next_nanos_ = kNever;
  if (state_.phase == Phase::kClosing && state_.session_id.empty()) {
    SetPhase(now, Phase::kClosed);
    effects->changed = true;
    return;
  }
  busy_ = true;
  probed_nanos_ = now.nanos;
  Call& call = effects->call;
  call.session_id = state_.session_id;
  if (state_.phase == Phase::kClosing) {
    call.kind = Call::Kind::kClose;
  } else if (state_.session_id.empty() || state_.phase == Phase::kDown || reopen_) {
    call.kind = Call::Kind::kOpen;
  } else {
    call.kind = Call::Kind::kRenew;
  }
}

OpenSessionRequest UpstreamMachine::OpenRequest() const {
  OpenSessionRequest open;
  open.set_incarnation(state_.incarnation);
  open.set_client_name(options_.client_name);
  *open.mutable_ttl() = ToProto(options_.ttl);
  open.set_rank(state_.info.rank());
  open.set_store_id(state_.info.store_id());
  open.set_process(options_.process);
  return open;
}

absl::Status UpstreamMachine::CheckStore(const OpenSessionResponse& opened) {
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

UpstreamMachine::Effects UpstreamMachine::Opened(Now now,
                                                 absl::StatusOr<OpenSessionResponse> response) {
  Effects effects;
  effects.changed = true;
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
    opened_nanos_ = now.nanos;
    Succeeded(now);
  } else {
    if (ReasonOf(status) == registry::v1::ERROR_REASON_SESSION_NOT_OWNED) {
      TakeIncarnation(now);
    }
    Failed(now, status);
  }
  return effects;
}

UpstreamMachine::Effects UpstreamMachine::Renewed(Now now, const std::string& session_id,
                                                  absl::StatusOr<KeepAliveResponse> response) {
  Effects effects;
  effects.changed = true;
  const bool unknown = IsSessionLost(response.status());
  if (unknown && state_.phase == Phase::kClosing) {
    busy_ = false;
    SetPhase(now, Phase::kClosed);
  } else if (state_.session_id != session_id) {
    // The answer for a session that was found lost meanwhile says nothing of the next one.
    Schedule(now, ReopenDelay());
  } else if (unknown) {
    busy_ = false;
    Lost(now);
  } else if (response.ok()) {
    if (response->epoch() != 0 && response->epoch() != state_.info.epoch()) {
      state_.info.set_epoch(response->epoch());
      ++state_.session_serial;
    }
    if (FromProto(response->ttl()) > absl::ZeroDuration()) {
      *state_.info.mutable_ttl() = response->ttl();
    }
    Succeeded(now);
    LookForTwin(now, response->process());
  } else {
    Failed(now, response.status());
  }
  return effects;
}

void UpstreamMachine::LookForTwin(Now now, uint64_t process) {
  if (process == 0 || process == options_.process) {
    if (state_.contested && ++undisturbed_ >= kUndisturbed) state_.contested = false;
    return;
  }
  if (state_.phase != Phase::kUp) return;
  undisturbed_ = 0;
  if (!std::exchange(state_.contested, true)) {
    reopen_ = true;
    Schedule(now, absl::ZeroDuration());
    return;
  }
  state_.contested = false;
  ++state_.twins;
  state_.twin_time = now.wall;
  TakeIncarnation(now);
  state_.last_error = absl::FailedPreconditionError(
      "another process runs under this agent's incarnation: a copy of its state directory, or one "
      "incarnation configured twice");
  SetPhase(now, Phase::kConnecting);
  Schedule(now, absl::ZeroDuration());
}

void UpstreamMachine::TakeIncarnation(Now now) {
  state_.incarnation = options_.new_incarnation();
  if (!state_.session_id.empty()) lost_nanos_ = now.nanos;
  state_.session_id.clear();
  state_.info.clear_rank();
}

UpstreamMachine::Effects UpstreamMachine::Closed(Now now, const absl::Status& status) {
  Effects effects;
  effects.changed = true;
  if (status.ok() || IsSessionLost(status)) {
    busy_ = false;
    SetPhase(now, Phase::kClosed);
  } else {
    Failed(now, status);
  }
  return effects;
}

void UpstreamMachine::Succeeded(Now now) {
  failures_ = 0;
  refusals_ = 0;
  state_.last_error = absl::OkStatus();
  confirmed_nanos_ = probed_nanos_;
  lapse_nanos_ = std::max(now.nanos, LeaseEnd());
  if (state_.phase == Phase::kClosing) {
    Schedule(now, absl::ZeroDuration());
    return;
  }
  if (state_.phase != Phase::kUp) {
    if (state_.phase != Phase::kSuspect) ++state_.connection_serial;
    SetPhase(now, Phase::kUp);
  }
  Schedule(now, UntilRenewal(now));
}

void UpstreamMachine::Failed(Now now, const absl::Status& status) {
  state_.last_error = status;
  reported_.clear();  // who answers next may be another process
  ++failures_;
  if (state_.phase != Phase::kClosing) {
    // A renewal that was slow once is not an outage; one that got no answer is.
    const bool once = state_.phase == Phase::kUp && !IsConnectionFailure(status);
    SetPhase(now, once ? Phase::kSuspect : Phase::kDown);
  }
  const std::optional<absl::Duration> asked = RetryDelayOf(status);
  const double random = options_.random();
  if (asked.has_value()) {
    Schedule(now, StretchedDelay(*asked, refusals_++, random));
  } else {
    refusals_ = 0;
    Schedule(now, BackoffDelay(options_.reconnect, failures_, random));
  }
}

void UpstreamMachine::Lost(Now now) {
  state_.session_id.clear();
  state_.last_error = absl::FailedPreconditionError("the registry does not know the session");
  lost_nanos_ = now.nanos;
  SetPhase(now, Phase::kConnecting);
  const absl::Duration age = absl::Nanoseconds(now.nanos - opened_nanos_);
  losses_ = age < absl::Seconds(1) ? losses_ + 1 : 0;
  // A call in flight goes on to the next step when it ends.
  if (busy_) return;
  Schedule(now, ReopenDelay());
}

absl::Duration UpstreamMachine::ReopenDelay() const {
  if (losses_ == 0) return absl::ZeroDuration();
  return BackoffDelay(options_.reconnect, losses_, options_.random());
}

void UpstreamMachine::Schedule(Now now, absl::Duration delay) {
  busy_ = false;
  next_nanos_ = now.nanos + absl::ToInt64Nanoseconds(delay);
}

void UpstreamMachine::SetPhase(Now now, Phase phase) {
  if (state_.phase == phase) return;
  const auto is_away = [](Phase one) {
    return one == Phase::kConnecting || one == Phase::kSuspect || one == Phase::kDown;
  };
  const bool same_outage = is_away(state_.phase) && is_away(phase);
  state_.phase = phase;
  if (same_outage) return;
  state_.since = now.wall;
}

absl::Duration UpstreamMachine::Ttl() const {
  const absl::Duration granted = FromProto(state_.info.ttl());
  if (granted > absl::ZeroDuration()) return granted;
  return options_.ttl > absl::ZeroDuration() ? options_.ttl : kDefaultTtl;
}

absl::Duration UpstreamMachine::UntilRenewal(Now now) const {
  const int64_t since = now.nanos - probed_nanos_;
  return std::max(absl::ZeroDuration(), Ttl() / 3 - absl::Nanoseconds(since));
}

int64_t UpstreamMachine::LeaseEnd() const {
  return confirmed_nanos_ + absl::ToInt64Nanoseconds(Ttl());
}

}  // namespace failback
