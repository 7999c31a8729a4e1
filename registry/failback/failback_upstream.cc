// The upstream session as the machine's records see it: lost and found, lapsed and renewed;
// and the resync that follows.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

// A registry that is unavailable for less is not worth a line.
constexpr absl::Duration kBriefAbsence = absl::Milliseconds(500);

}  // namespace

void Machine::Follow(UpstreamMachine::Effects step) {
  if (step.changed) OnSessionChange();
  Probe(std::move(step.call));
}

void Machine::Probe(UpstreamMachine::Call call) {
  if (call.kind == UpstreamMachine::Call::Kind::kNone) return;
  CallSlot slot;
  slot.session_id = call.session_id;
  Effects::Call& made = out_->calls.emplace_back();
  switch (call.kind) {
    case UpstreamMachine::Call::Kind::kNone:
      return;
    case UpstreamMachine::Call::Kind::kOpen:
      slot.kind = CallSlot::Kind::kOpen;
      made.request = upstream_.OpenRequest();
      break;
    case UpstreamMachine::Call::Kind::kRenew: {
      slot.kind = CallSlot::Kind::kRenew;
      KeepAliveRequest& request = made.request.emplace<KeepAliveRequest>();
      request.set_session_id(call.session_id);
      request.set_process(upstream_.process());
      registry::v1::AgentReport report = Report();
      if (upstream_.TakesReport(report)) *request.mutable_report() = std::move(report);
      break;
    }
    case UpstreamMachine::Call::Kind::kClose:
      slot.kind = CallSlot::Kind::kClose;
      made.request.emplace<CloseSessionRequest>().set_session_id(call.session_id);
      break;
  }
  made.id = NewCall(std::move(slot));
}

void Machine::OnSessionChange() {
  no_session_ = absl::OkStatus();
  const UpstreamMachine::State& state = upstream_.state();
  if (state.phase == UpstreamMachine::Phase::kClosed && draining_ && !drained_.has_value()) {
    FinishDrain();
  }
  if (state.incarnation != incarnation_) TakeIncarnation();
  if (state.contested && !told_contested_) {
    Log(LogLevel::kWarning,
        "another process has opened this agent's session: is its state directory, or its "
        "incarnation, in use elsewhere?",
        {{"upstream", options_.upstream_name}, {"incarnation", incarnation_}});
  }
  told_contested_ = state.contested;
  const bool lost = state.session_serial != seen_session_serial_;
  const bool down = state.phase == UpstreamMachine::Phase::kDown;
  if (down || state.phase == UpstreamMachine::Phase::kUp) {
    LogSession(lost);
    WatchSession(down, lost);
  }
  if (lost || state.connection_serial != seen_connection_serial_) {
    seen_session_serial_ = state.session_serial;
    seen_connection_serial_ = state.connection_serial;
    if (lost && !state.info.resumed()) ForgetHeldBefore(state.session_serial);
    Resync(lost);
  }
  FollowLapse(lost);
  AskAboutDoubted();
}

void Machine::TakeIncarnation() {
  const UpstreamMachine::State& state = upstream_.state();
  const bool twin = std::exchange(seen_twins_, state.twins) != state.twins;
  Log(LogLevel::kError,
      twin ? "another process runs under this agent's incarnation, and a new one is taken: find "
             "the copy of its state directory, or who else is configured so"
           : "the registry keeps this agent's incarnation for another caller, and a new one is "
             "taken: find out who has opened a session under it",
      {{"upstream", options_.upstream_name},
       {"former", incarnation_},
       {"incarnation", state.incarnation},
       {"message", std::string(state.last_error.message())}});
  incarnation_ = state.incarnation;
  if (journal_ != nullptr) {
    journal_gate_.Queued(journal_->ReplaceIncarnation(options_.incarnation, incarnation_));
  }
}

void Machine::LogSession(bool lost) {
  const UpstreamMachine::State& state = upstream_.state();
  const int64_t now = now_.nanos;
  if (state.phase == UpstreamMachine::Phase::kDown) {
    if (!session_down_) down_since_nanos_ = now;
    const absl::Duration away = absl::Nanoseconds(now - down_since_nanos_);
    if (away < kBriefAbsence || std::exchange(told_away_, true)) return;
    Log(LogLevel::kWarning, state.refused() ? "registry refuses this agent" : "registry away",
        {{"upstream", options_.upstream_name},
         {"code", absl::StatusCodeToString(state.last_error.code())},
         {"message", std::string(SessionError().message())}});
    return;
  }
  const bool back = std::exchange(told_away_, false);
  if (!back && !lost) return;
  LogFields fields = {{"upstream", options_.upstream_name},
                      {"session", lost && !state.info.resumed() ? "new" : "resumed"},
                      {"store_id", state.info.store_id()},
                      {"epoch", absl::StrCat(state.info.epoch())}};
  if (back) {
    const absl::Duration away = absl::Nanoseconds(now - down_since_nanos_);
    fields.emplace_back("away", absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(1))));
  }
  Log(LogLevel::kInfo, back ? "registry back" : "session open", std::move(fields));
}

std::optional<absl::Time> Machine::LapsedSince(Moment now) const {
  // Another session is open, and what was acknowledged in the one before is about to be queued.
  const UpstreamMachine::State& session = upstream_.state();
  const bool changing = seen_session_serial_ != 0 && session.session_serial != seen_session_serial_;
  return changing ? session.since : upstream_.lapse(now).since;
}

absl::Status Machine::NoSession() const {
  const absl::Status error = SessionError();
  return absl::Status(
      error.code(), absl::StrCat("no session at ", options_.upstream_name, ": ", error.message()));
}

absl::Status Machine::UnsentCheck(const absl::Status& no_session) {
  if (ReasonOf(no_session) != registry::v1::ERROR_REASON_UNSPECIFIED ||
      !(absl::IsUnavailable(no_session) || absl::IsDeadlineExceeded(no_session))) {
    return no_session;
  }
  return Refusal(registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE,
                 std::string(no_session.message()));
}

void Machine::EmitLapse(IntentEvent::Kind kind, const absl::Status& status) {
  if (!setup_.events) return;
  IntentEvent& event = out_->events.emplace_back();
  event.kind = kind;
  event.operation = OperationKind::kRegister;
  event.upstream = options_.upstream_name;
  event.status = status;
}

void Machine::FollowLapse(bool lost) {
  const UpstreamMachine::Lapse lapse = upstream_.lapse(now_);
  if (lapse.overdue) {
    if (told_lapsed_.has_value()) return;
    told_lapsed_ = lapse.since;
    const absl::Status why = LapseReason();
    Log(LogLevel::kWarning, "lease lapsed",
        {{"upstream", options_.upstream_name},
         {"code", absl::StatusCodeToString(why.code())},
         {"message", std::string(why.message())}});
    EmitLapse(IntentEvent::Kind::kLapsed, why);
    return;
  }
  if (lapse.since.has_value()) return;  // lost, and about to be opened
  if (told_lapsed_.has_value()) {
    const absl::Duration lapsed = now_.wall - *told_lapsed_;
    told_lapsed_.reset();
    Log(LogLevel::kInfo, "lease renewed",
        {{"upstream", options_.upstream_name},
         {"session", lost ? "new" : "the same"},
         {"lapsed", absl::FormatDuration(absl::Trunc(lapsed, absl::Milliseconds(1)))}});
    EmitLapse(IntentEvent::Kind::kRenewed, absl::OkStatus());
  }
  if (!std::exchange(lapse_waiters_, false)) return;
  for (const auto& [key, record] : records_) {
    if (!record->pending()) Resolve(record, absl::OkStatus());
  }
}

void Machine::NoteCredentials(const absl::Status& status) {
  if (status.ok()) {
    credentials_error_ = absl::OkStatus();
  } else if (absl::IsUnauthenticated(status)) {
    if (credentials_error_.ok()) {
      Log(LogLevel::kWarning, "registry refuses this agent",
          {{"upstream", options_.upstream_name},
           {"code", absl::StatusCodeToString(status.code())},
           {"message", std::string(status.message())}});
    }
    credentials_error_ = status;
  }
}

absl::Status Machine::SessionError() const {
  const absl::Status& last = upstream_.state().last_error;
  const absl::Status& error = last.ok() ? credentials_error_ : last;
  if (!IsAgentRefused()) return error;
  absl::Status explained(
      error.code(), absl::StrCat(error.message(),
                                 "; the registry refuses this agent: look at its token_file and "
                                 "registry_tls, and at the registry's tokens and policy"));
  error.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    explained.SetPayload(url, payload);
  });
  return explained;
}

absl::Status Machine::LapseReason() const {
  if (!upstream_.state().last_error.ok()) return SessionError();
  return absl::DeadlineExceededError("no renewal was answered within the session's TTL");
}

void Machine::ForgetHeldBefore(uint64_t serial) {
  for (const auto& [key, record] : records_) {
    if (record->held_in < static_cast<int64_t>(serial) && !record->outlives) {
      record->held_in = Record::kNotHeld;
    }
  }
}

void Machine::Resync(bool lost) {
  resyncing_ = resyncing_ || lost;
  // Deregistrations first: they are few, and free what registrations may need.
  batcher_.Prefer(OperationKind::kUnregister);
  // In the order in which they were stated: neighbours in the registry's memory, and in ours, go
  // together.
  std::vector<Record*> ordered;
  ordered.reserve(records_.size());
  for (const auto& [key, record] : records_) ordered.push_back(record.get());
  std::sort(ordered.begin(), ordered.end(),
            [](const Record* a, const Record* b) { return a->generation < b->generation; });
  for (Record* record : ordered) ResyncOne(record, lost);
  std::vector<RecordPtr> forgotten;
  for (const auto& [selector, record] : watches_) {
    if (!ResyncOne(record.get(), lost)) forgotten.push_back(record);
  }
  for (const RecordPtr& record : forgotten) Erase(record, absl::OkStatus());
}

bool Machine::ResyncOne(Record* record, bool lost) {
  if (record->stage == Stage::kGivenUp || record->stage == Stage::kTombstone ||
      record->doubt != Doubt::kNone) {
    return true;
  }
  if (Watch* const watch = record->watch.get(); watch != nullptr) {
    const bool streams = watch->phase == Watch::Phase::kStreaming;
    if (!lost && streams && record->stage == Stage::kSettled) return true;
    if (watch->phase == Watch::Phase::kOpening || watch->phase == Watch::Phase::kQuiet) {
      CloseStream(watch);  // a stream that may never say anything
    }
    if (lost && !record->present) return false;
  }
  // What was refused before says nothing of what is there now.
  if (lost && record->superseded()) Move(record, Stage::kHeldBack);
  if (lost && !record->pending()) record->acknowledged = 0;
  record->retry.reset();
  Enqueue(record);
  return true;
}

}  // namespace failback
