// Drain: owed unregisters come to their end, then the session does.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {

void Machine::On(input::Drain in) {
  if (drained_.has_value()) return Answer(in.ticket, *drained_);
  if (drain_.has_value()) {
    return Answer(in.ticket,
                  Refusal(registry::v1::ERROR_REASON_DRAINING, "the agent is draining already"));
  }
  drain_ = machine::DrainWaiter{
      in.ticket, After(in.deadline, [this] { AnswerDrain(CountDrained(/*closed=*/false)); })};
  if (!std::exchange(draining_, true)) BeginDrain();
}

void Machine::BeginDrain() {
  superseded_alarm_.Cancel();
  // Subscribers receive the end now; their subscriptions go with the session.
  const auto watches = watches_;
  for (const auto& [selector, record] : watches) {
    CloseStream(record->watch.get());
    const auto subscribers = record->watch->subscribers;
    const absl::Status end =
        Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the agent is draining");
    Erase(record, end);
    for (const auto& [id, subscriber] : subscribers) EndSubscription(subscriber, end);
  }
  // Registrations that are only on their way need not arrive any more, and go back to the owner who
  // waits for them.
  for (const auto& [key, record] : records_) {
    if (!record->present) continue;
    record->retry.reset();
    Resolve(record, Refusal(registry::v1::ERROR_REASON_DRAINING,
                            "the agent is draining, and the intent was not acknowledged before"));
    if (record->in_flight == 0 &&
        (record->stage == Stage::kQueued || record->stage == Stage::kWaiting ||
         record->stage == Stage::kParked)) {
      Move(record.get(), Stage::kHeldBack);
    } else if (record->in_flight == 0 && record->superseded()) {
      Move(record.get(), Stage::kSuperseded);
    }
  }
}

void Machine::AdvanceDrain() {
  if (!draining_ || drain_closing_ || calls_in_flight_ > 0) return;
  if (totals_.waiting()[static_cast<size_t>(OperationKind::kUnregister)] > 0) return;
  // What an earlier process has registered lies in the session that is yet to be opened.
  if (restored_ && seen_session_serial_ == 0) return;
  drain_closing_ = true;
  Follow(upstream_.Close(now_));
}

Machine::Drained Machine::DrainedAs(const Record& record, bool closed) {
  if (record.superseded()) return Drained::kNothing;  // nothing of ours is there
  const bool owed = !record.present && record.pending();
  const bool held = record.held_in != Record::kNotHeld;
  if (!held && record.in_flight == 0) return owed ? Drained::kRemaining : Drained::kNothing;
  const bool stays = held ? record.outlives : record.persistent;
  if (stays) return owed ? Drained::kRemaining : Drained::kPersistent;
  return closed ? Drained::kUnregistered : Drained::kRemaining;
}

absl::Status Machine::WhyRemaining(const Record& record) const {
  const bool failed = record.pending() && !record.last_status.ok();
  return failed ? record.last_status : SessionError();
}

agent::v1::DrainResponse Machine::CountDrained(bool closed) const {
  agent::v1::DrainResponse response;
  std::vector<const Record*> left;
  for (const auto& [key, record] : records_) {
    switch (DrainedAs(*record, closed)) {
      case Drained::kNothing:
        break;
      case Drained::kUnregistered:
        response.set_unregistered(response.unregistered() + 1);
        break;
      case Drained::kRemaining:
        response.set_remaining(response.remaining() + 1);
        left.push_back(record.get());
        break;
      case Drained::kPersistent:
        response.set_persistent(response.persistent() + 1);
        break;
    }
  }
  const auto named = left.begin() + static_cast<ptrdiff_t>(std::min(left.size(), kMaxDrainLeft));
  std::partial_sort(left.begin(), named, left.end(), [](const Record* a, const Record* b) {
    return std::make_tuple(a->last_status.ok(), std::cref(a->key)) <
           std::make_tuple(b->last_status.ok(), std::cref(b->key));
  });
  for (auto it = left.begin(); it != named; ++it) {
    agent::v1::DrainRemainder* const remainder = response.add_left();
    ParseCanonicalKey((*it)->key, remainder->mutable_key());
    remainder->set_upstream(options_.upstream_name);
    const absl::Status why = WhyRemaining(**it);
    if (!why.ok()) *remainder->mutable_last_status() = StatusToProto(why);
  }
  return response;
}

void Machine::AnswerDrain(const agent::v1::DrainResponse& response) {
  if (!drain_.has_value()) return;
  Answer(drain_->ticket, response);
  drain_.reset();
}

void Machine::FinishDrain() {
  drained_ = CountDrained(/*closed=*/true);
  if (!drain_.has_value()) {
    Log(LogLevel::kInfo, "drained after its deadline",
        {{"upstream", options_.upstream_name},
         {"unregistered", absl::StrCat(drained_->unregistered())},
         {"remaining", absl::StrCat(drained_->remaining())},
         {"persistent", absl::StrCat(drained_->persistent())}});
  }
  AnswerDrain(*drained_);
  const auto records = records_;
  for (const auto& [key, record] : records) {
    // The journal keeps what is present, which the next life registers again, and the unregisters
    // that are still owed.
    const Drained as = DrainedAs(*record, /*closed=*/true);
    if (record->present || as == Drained::kRemaining || as == Drained::kPersistent) record->row = 0;
    Erase(record, absl::CancelledError("drained"));
  }
}

}  // namespace failback
