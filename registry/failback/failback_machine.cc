#include "registry/failback/failback_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

// Alarms that run in one step.
constexpr size_t kMaxAlarmsAtOnce = 1000;

absl::Status Cancelled() { return absl::CancelledError("the registry client was shut down"); }

UpstreamMachine::Options ProberOptions(const Machine::Setup& setup) {
  const FailbackOptions& options = setup.options;
  return {options.incarnation, options.client_name, options.session_ttl,  options.reconnect,
          setup.process,       options.random,      setup.new_incarnation};
}

// A call that is answered with a status alone, or with one where a response was to be, has failed.
absl::Status StatusOf(const Answer& answer) {
  const auto* const status = std::get_if<absl::Status>(&answer);
  return status == nullptr ? absl::OkStatus() : *status;
}
template <typename Response>
absl::StatusOr<Response> ResponseIn(Answer answer) {
  if (auto* const response = std::get_if<Response>(&answer)) return std::move(*response);
  const absl::Status status = StatusOf(answer);
  return status.ok() ? absl::InternalError("the answer is of another call") : status;
}

}  // namespace

Machine::Machine(Setup setup, Moment now)
    : setup_(std::move(setup)),
      now_(now),
      alarms_(now.nanos),
      upstream_(ProberOptions(setup_), now),
      incarnation_(options_.incarnation),
      former_owners_(static_cast<size_t>(options_.max_sessions),
                     absl::ToInt64Nanoseconds(kOwnersAreKept)),
      last_known_(static_cast<size_t>(options_.max_subscriptions), kMaxLastKnownBytes),
      retry_tokens_(options_.retries_per_second, options_.retry_burst) {}

void Machine::Step(Input&& input, Moment now, Effects* effects) {
  effects->more = false;
  effects->wake_nanos = Alarms::kNever;
  if (closed_) return;
  now_ = now;
  out_ = effects;
  std::visit([this](auto& in) { On(std::move(in)); }, input);
  if (closed_) return;
  Pump();
  AdvanceDrain();
  Settle();
  const int64_t next = alarms_.next_nanos();
  // A tick runs so many alarms, and leaves the rest to the next one.
  if (std::holds_alternative<input::Tick>(input) && next <= now_.nanos) out_->more = true;
  out_->wake_nanos = std::min(next, upstream_.due_nanos());
  out_ = nullptr;
}

// --- Its owner.

void Machine::On(input::Start&& in) {
  Restore(std::move(in));
  ArmAudit();
  Follow(upstream_.Start(now_));
}

void Machine::On(input::Made in) { making_ = false; }

void Machine::On(input::Tick in) {
  alarms_.Run(now_.nanos, kMaxAlarmsAtOnce);
  if (upstream_.due_nanos() <= now_.nanos) Follow(upstream_.Tick(now_));
}

void Machine::On(input::Closing in) {
  for (const auto& [selector, record] : watches_) WriteSnapshot(record->watch.get());
}

void Machine::On(const input::Closed& in) {
  closed_ = true;
  // What was accepted has become durable, and is answered so.
  journal_gate_.Tried(journal_gate_.last(), in.journal.ok());
  ReleaseReplies(in.journal);
  journal_gate_.ForgetRecords();
  for (const auto& [key, record] : records_) Resolve(record, Cancelled());
  for (const auto& [id, subscription] : subscriptions_) subscribers_->PostEnd(id, Cancelled());
  for (const auto& [selector, record] : watches_) CloseStream(record->watch.get());
  if (drain_.has_value()) Answer(drain_->ticket, Cancelled());
  for (const CallSlot& call : calls_) {
    const bool waits = call.listing != nullptr && !call.listing->answered;
    if (waits) Answer(call.listing->ticket, Cancelled());
  }
  Empty();
}

void Machine::Empty() {
  batcher_.Clear();
  superseded_.Clear();
  tombstones_.Clear();
  checked_.clear();
  calls_.clear();
  free_calls_.clear();
  streams_.clear();
  subscriptions_.clear();
  for (const auto& [selector, record] : watches_) record->watch->subscribers.clear();
  watches_.clear();
  records_ = Records();
  sessions_.clear();
  drain_.reset();
  for (Alarm* const alarm : {&superseded_alarm_, &heartbeat_, &ask_alarm_, &audit_alarm_}) {
    alarm->Cancel();
  }
  totals_ = RecordTotals();
  ended_names_ = 0;
  calls_in_flight_ = 0;
}

void Machine::On(const input::Journalled& in) {
  journal_error_ = in.status;
  journal_gate_.Tried(in.sequence, in.status.ok());
  ReleaseReplies(in.status);
  while (const RecordPtr record = journal_gate_.TakeRecord()) {
    // Also when it could not be written: the registry is to know, even if the disk does not.
    if (record->stage == Stage::kHeldBack) Enqueue(record.get());
  }
}

// --- The upstream.

CallId Machine::NewCall(CallSlot slot) {
  CallId id = calls_.size();
  if (free_calls_.empty()) {
    calls_.emplace_back();
  } else {
    id = free_calls_.back();
    free_calls_.pop_back();
  }
  calls_[id] = std::move(slot);
  return id;
}

void Machine::On(input::Answered&& in) {
  CallSlot call = std::exchange(calls_[in.call], CallSlot());
  if (call.kind == CallSlot::Kind::kFree) return;  // answered already
  free_calls_.push_back(in.call);
  const bool shows_credentials =
      call.kind == CallSlot::Kind::kIntents || call.kind == CallSlot::Kind::kAudit;
  if (shows_credentials) NoteCredentials(StatusOf(in.answer));
  switch (call.kind) {
    case CallSlot::Kind::kFree:
      return;
    case CallSlot::Kind::kIntents:
      return Completed(call, in.answer);
    case CallSlot::Kind::kOpen:
      return Follow(upstream_.Opened(now_, ResponseIn<OpenSessionResponse>(std::move(in.answer))));
    case CallSlot::Kind::kRenew:
      return Follow(upstream_.Renewed(now_, call.session_id,
                                      ResponseIn<KeepAliveResponse>(std::move(in.answer))));
    case CallSlot::Kind::kClose:
      return Follow(upstream_.Closed(now_, StatusOf(in.answer)));
    case CallSlot::Kind::kAudit:
      return OnPage(std::move(call.audit), in.answer);
    case CallSlot::Kind::kListing:
      return OnListed(std::move(call.listing), std::move(in.answer));
  }
}

void Machine::On(const input::Streamed& in) {
  const auto it = streams_.find(in.stream);
  if (it == streams_.end()) return;
  const WatchPtr watch = it->second;
  const RecordPtr record = watch->record.lock();
  if (record == nullptr || record->stage == Stage::kNone) return;
  if (in.event != nullptr) return OnWatchEvent(watch, *in.event);
  OnWatchEnd(watch, in.end);
}

void Machine::On(const input::Disconnected& in) {
  Follow(upstream_.ReportFailure(now_, in.status));
}

// --- Answers.

void Machine::Answer(const ReplyPtr& reply) {
  switch (reply->as) {
    case BatchReply::As::kBatch:
      return Answer(reply->ticket, BatchResult{std::move(reply->results)});
    case BatchReply::As::kDurable:
    case BatchReply::As::kCloseSession:
      return Answer(reply->ticket, StatusFromProto(reply->results.front().status()));
  }
}

}  // namespace failback
