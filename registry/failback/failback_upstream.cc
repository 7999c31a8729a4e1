// The upstream session as FailbackRegistry's records see it: lost and found, lapsed and renewed;
// and the resync that follows.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/failback/failback_core.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

// A registry that is unavailable for less is not worth a line.
constexpr absl::Duration kBriefAbsence = absl::Milliseconds(500);

}  // namespace

void FailbackRegistry::Core::OnSessionChange() {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    Effects effects;
    {
      MutexLock lock(&mu_);
      const UpstreamSession::State state = session_->state();
      if (state.phase == UpstreamSession::Phase::kClosed && draining_ && !drained_.has_value()) {
        FinishDrain(&effects);
      }
      if (state.incarnation != incarnation_) TakeIncarnation(state, &effects);
      if (state.contested && !std::exchange(told_contested_, state.contested)) {
        effects.Log(LogLevel::kWarning,
                    "another process has opened this agent's session: is its state directory, or "
                    "its incarnation, in use elsewhere?",
                    {{"upstream", options_.upstream_name}, {"incarnation", incarnation_}});
      }
      told_contested_ = state.contested;
      const bool lost = state.session_serial != seen_session_serial_;
      const bool down = state.phase == UpstreamSession::Phase::kDown;
      if (down || state.phase == UpstreamSession::Phase::kUp) {
        LogSession(state, lost, &effects);
        WatchSession(down, lost, &effects);
      }
      if (lost || state.connection_serial != seen_connection_serial_) {
        seen_session_serial_ = state.session_serial;
        seen_connection_serial_ = state.connection_serial;
        if (lost && !state.info.resumed()) ForgetHeldBefore(state.session_serial);
        Resync(lost, &effects);
      }
      FollowLapse(state, lost, &effects);
      AskAboutDoubted(&effects);
    }
    CarryOut(std::move(effects));
  }
  Pump();
}

void FailbackRegistry::Core::TakeIncarnation(const UpstreamSession::State& state,
                                             Effects* effects) {
  const bool twin = std::exchange(seen_twins_, state.twins) != state.twins;
  effects->Log(
      LogLevel::kError,
      twin ? "another process runs under this agent's incarnation, and a new one is taken: find "
             "the copy of its state directory, or who else is configured so"
           : "the registry keeps this agent's incarnation for another caller, and a new one is "
             "taken: find out who has opened a session under it",
      {{"upstream", options_.upstream_name},
       {"former", incarnation_},
       {"incarnation", state.incarnation},
       {"message", std::string(state.last_error.message())}});
  incarnation_ = state.incarnation;
  if (journal_ != nullptr && !closed_) {
    journal_gate_.Queued(journal_->ReplaceIncarnation(options_.incarnation, incarnation_));
  }
}

void FailbackRegistry::Core::LogSession(const UpstreamSession::State& state, bool lost,
                                        Effects* effects) {
  const int64_t now = NowNanos();
  LogFields fields = {{"upstream", options_.upstream_name}};
  if (state.phase == UpstreamSession::Phase::kDown) {
    if (!session_down_) down_since_nanos_ = now;
    const absl::Duration away = absl::Nanoseconds(now - down_since_nanos_);
    if (away < kBriefAbsence || std::exchange(told_away_, true)) return;
    fields.emplace_back("code", absl::StatusCodeToString(state.last_error.code()));
    fields.emplace_back("message", std::string(SessionError(state).message()));
    effects->Log(LogLevel::kWarning,
                 state.refused() ? "registry refuses this agent" : "registry away",
                 std::move(fields));
    return;
  }
  const bool back = std::exchange(told_away_, false);
  if (!back && !lost) return;
  fields.emplace_back("session", lost && !state.info.resumed() ? "new" : "resumed");
  fields.emplace_back("store_id", state.info.store_id());
  fields.emplace_back("epoch", absl::StrCat(state.info.epoch()));
  if (back) {
    const absl::Duration away = absl::Nanoseconds(now - down_since_nanos_);
    fields.emplace_back("away", absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(1))));
  }
  effects->Log(LogLevel::kInfo, back ? "registry back" : "session open", std::move(fields));
}

std::optional<absl::Time> FailbackRegistry::Core::LapsedSince(
    const UpstreamSession::State& session) const {
  // Another session is open, and what was acknowledged in the one before is about to be queued.
  const bool changing = seen_session_serial_ != 0 && session.session_serial != seen_session_serial_;
  return changing ? session.since : session.lapsed_since;
}

absl::Status FailbackRegistry::Core::NoSession(const UpstreamSession::State& session) const {
  return absl::Status(session.last_error.code(),
                      absl::StrCat("no session at ", options_.upstream_name, ": ",
                                   std::string(SessionError(session).message())));
}

absl::Status FailbackRegistry::Core::UnsentCheck(const absl::Status& no_session) {
  if (ReasonOf(no_session) != registry::v1::ERROR_REASON_UNSPECIFIED ||
      !(absl::IsUnavailable(no_session) || absl::IsDeadlineExceeded(no_session))) {
    return no_session;
  }
  return Refusal(registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE,
                 std::string(no_session.message()));
}

void FailbackRegistry::Core::FollowLapse(const UpstreamSession::State& session, bool lost,
                                         Effects* effects) {
  const auto emit = [&](IntentEvent::Kind kind, const absl::Status& status) {
    if (options_.on_event == nullptr) return;
    IntentEvent event;
    event.kind = kind;
    event.operation = OperationKind::kRegister;
    event.upstream = options_.upstream_name;
    event.status = status;
    effects->Emit(std::move(event));
  };
  LogFields fields = {{"upstream", options_.upstream_name}};
  if (session.overdue) {
    if (told_lapsed_.has_value()) return;
    told_lapsed_ = session.lapsed_since;
    const absl::Status why = LapseReason(session);
    fields.emplace_back("code", absl::StatusCodeToString(why.code()));
    fields.emplace_back("message", std::string(why.message()));
    effects->Log(LogLevel::kWarning, "lease lapsed", std::move(fields));
    emit(IntentEvent::Kind::kLapsed, why);
    return;
  }
  if (session.lapsed_since.has_value()) return;  // lost, and about to be opened
  if (told_lapsed_.has_value()) {
    const absl::Duration lapsed = options_.timer->clock()->WallNow() - *told_lapsed_;
    told_lapsed_.reset();
    fields.emplace_back("session", lost ? "new" : "the same");
    fields.emplace_back("lapsed", absl::FormatDuration(absl::Trunc(lapsed, absl::Milliseconds(1))));
    effects->Log(LogLevel::kInfo, "lease renewed", std::move(fields));
    emit(IntentEvent::Kind::kRenewed, absl::OkStatus());
  }
  if (!std::exchange(lapse_waiters_, false)) return;
  for (const auto& [key, record] : records_) {
    if (!record->pending()) Resolve(record, absl::OkStatus(), effects);
  }
}

absl::Status FailbackRegistry::Core::SessionError(const UpstreamSession::State& session) {
  const absl::Status& error = session.last_error;
  if (!session.refused()) return error;
  absl::Status explained(
      error.code(), absl::StrCat(error.message(),
                                 "; the registry refuses this agent: look at its token_file and "
                                 "registry_tls, and at the registry's tokens and policy"));
  error.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    explained.SetPayload(url, payload);
  });
  return explained;
}

absl::Status FailbackRegistry::Core::LapseReason(const UpstreamSession::State& session) {
  if (!session.last_error.ok()) return SessionError(session);
  return absl::DeadlineExceededError("no renewal was answered within the session's TTL");
}

void FailbackRegistry::Core::ForgetHeldBefore(uint64_t serial) {
  for (const auto& [key, record] : records_) {
    if (record->held_in < static_cast<int64_t>(serial) && !record->outlives) {
      record->held_in = Record::kNotHeld;
    }
  }
}

void FailbackRegistry::Core::Resync(bool lost, Effects* effects) {
  resyncing_ = resyncing_ || lost;
  std::vector<RecordPtr> forgotten;
  const auto again = [&](const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (record->stage == Stage::kGivenUp || record->stage == Stage::kTombstone ||
        record->doubt != Doubt::kNone) {
      return;
    }
    const bool streams =
        record->watch != nullptr && record->watch->phase == Watch::Phase::kStreaming;
    if (!lost && streams && record->stage == Stage::kSettled) return;
    if (record->watch != nullptr && (record->watch->phase == Watch::Phase::kOpening ||
                                     record->watch->phase == Watch::Phase::kQuiet)) {
      CloseStream(record->watch, effects);  // a stream that may never say anything
    }
    if (lost && record->watch != nullptr && !record->present) {
      forgotten.push_back(record);  // the old session's end has unsubscribed it
      return;
    }
    // What was refused before says nothing of what is there now.
    if (lost && record->superseded()) Move(record.get(), Stage::kHeldBack);
    if (lost && !record->pending()) record->acknowledged = 0;
    record->retry.reset();
    Enqueue(record.get());
  };
  // Deregistrations first: they are few, and free what registrations may need.
  batcher_.Prefer(OperationKind::kUnregister);
  // In the order in which they were stated: neighbours in the registry's memory, and in ours, go
  // together.
  std::vector<RecordPtr> ordered;
  ordered.reserve(records_.size());
  for (const auto& [key, record] : records_) ordered.push_back(record);
  std::sort(ordered.begin(), ordered.end(),
            [](const RecordPtr& a, const RecordPtr& b) { return a->generation < b->generation; });
  for (const RecordPtr& record : ordered) again(record);
  for (const auto& [selector, record] : watches_) again(record);
  for (const RecordPtr& record : forgotten) Erase(record, absl::OkStatus(), effects);
}

}  // namespace failback
