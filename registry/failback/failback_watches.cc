// The selectors that local subscribers follow at the upstream, and their streams.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/errors.h"
#include "registry/model/event_reader.h"
#include "registry/model/selector.h"

namespace failback {
namespace {

// How long a stream may take with its first message and count as a call in flight.
constexpr absl::Duration kOpeningPatience = absl::Seconds(2);

}  // namespace

Machine::RecordPtr Machine::FindOrCreateWatch(const Selector& selector) {
  const std::string key = CanonicalSelector(selector);
  auto& record = watches_[key];
  if (record == nullptr) {
    record = std::make_shared<Record>();
    auto watch = std::make_shared<Watch>(options_.empty_snapshot_hold > absl::ZeroDuration());
    watch->selector = selector;
    watch->name = absl::StrCat(selector.namespace_(), "/", selector.service(), "#", ++last_watch_);
    watch->record = record;
    watch->canonical_selector = key;
    record->key = watch->name;
    record->watch = std::move(watch);
  }
  if (!record->present) {
    // A registry that is there says within moments what is so now.
    if (upstream_.state().phase != UpstreamMachine::Phase::kUp)
      RestoreLastKnown(record->watch.get());
    ArmStale(record->watch.get());
    record->present = true;
    NewGeneration(record);
  }
  return record;
}

void Machine::KeepLastKnown(const Watch& watch, const std::string& owner) {
  if (!watch.set.known()) return;
  DropFromJournal(last_known_.Put(watch.canonical_selector, watch.set.Whole(), owner));
}

bool Machine::RestoreLastKnown(Watch* watch) {
  const LastKnownSets::Set set = last_known_.Take(watch->canonical_selector);
  if (set == nullptr) return false;
  const absl::StatusOr<EventPtr> event = EventReader().Read(*set);
  if (!event.ok() || *event == nullptr || !(*event)->is_snapshot()) return false;
  watch->set.Restore(**event);
  return true;
}

void Machine::Abandon(Watch* watch, const std::string& owner) {
  const RecordPtr record = watch->record.lock();
  if (record == nullptr || record->stage == Stage::kNone || !record->present) return;
  const bool never_sent = record->acknowledged == 0 && record->in_flight == 0 &&
                          record->retry == nullptr && record->stage == Stage::kQueued;
  CloseStream(watch);
  watch->stale.Cancel();
  watch->hold.Cancel();
  WriteSnapshot(watch);
  KeepLastKnown(*watch, owner);
  watch->set = WatchedSet(options_.empty_snapshot_hold > absl::ZeroDuration());
  record->present = false;
  if (never_sent) return Erase(record, absl::OkStatus());
  // It is now to be gone.
  NewGeneration(record);
}

// --- The upstream's streams.

void Machine::OnWatchEvent(const WatchPtr& watch, const Event& event) {
  const RecordPtr record = watch->record.lock();
  if (watch->phase != Watch::Phase::kStreaming) {
    watch->opening.Cancel();
    if (watch->phase == Watch::Phase::kOpening) --calls_in_flight_;
    watch->phase = Watch::Phase::kStreaming;
    CountAttempt(OperationKind::kSubscribe, absl::OkStatus());
    AttemptDone(record, record->in_flight, absl::OkStatus(), /*sent=*/true);
  }
  Publish(watch.get(), watch->set.Apply(event));
  if (watch->set.gap()) {
    CloseStream(watch.get());
    ArmStale(watch.get());
    AttemptDone(record, record->generation,
                absl::AbortedError("an event of the stream was lost: starting over"),
                /*sent=*/true);
  } else {
    watch->silenced = false;
    watch->stale.Cancel();
    ArmHold(watch.get());
  }
}

void Machine::OnWatchEnd(const WatchPtr& watch, const absl::Status& end) {
  const RecordPtr record = watch->record.lock();
  // While the subscription is wanted, any end of its stream is a failure.
  absl::Status status = end.ok() ? absl::UnavailableError("the registry ended the stream") : end;
  const std::string session_id = watch->session_id;
  if (watch->phase != Watch::Phase::kStreaming) CountAttempt(OperationKind::kSubscribe, status);
  const bool lost = ReasonOf(status) == registry::v1::ERROR_REASON_POSITION_LOST;
  if ((lost || IsTooLargeToReceive(status)) && watch->set.epoch() != 0) {
    // What is followed began again; or a delta is too large, where a snapshot comes in parts.
    watch->set.DropPosition();
    status = absl::AbortedError(
        absl::StrCat("subscribing again without a position: ", std::string(status.message())));
  }
  CloseStream(watch.get());
  ArmStale(watch.get());
  AttemptDone(record, record->generation, status, /*sent=*/true);
  EndRefused(record);
  if (!end.ok() && IsConnectionFailure(end)) Follow(upstream_.ReportFailure(now_, end));
  if (DecideNextStep(OperationKind::kSubscribe, status) == NextStep::kResync) {
    Follow(upstream_.ReportLost(now_, session_id));
  }
}

void Machine::ArmStale(Watch* watch) {
  if (watch->stale.armed()) return;
  const bool known = watch->set.known();
  const bool resumed = std::any_of(watch->subscribers.begin(), watch->subscribers.end(),
                                   [](const auto& subscriber) { return subscriber.second->apart; });
  if (known ? watch->set.stale() : !resumed && !last_known_.Contains(watch->canonical_selector)) {
    return;
  }
  watch->stale = After(options_.stale_grace, [this, watch] { OnStale(watch); });
}

void Machine::OnStale(Watch* watch) {
  const bool streaming = watch->phase == Watch::Phase::kStreaming;
  if (streaming && !session_down_) return;
  if (!watch->set.known()) {
    // The registry has not said anything in time: what was known last is better than nothing.
    if (RestoreLastKnown(watch)) Publish(watch, watch->set.Current());
    TellApart(*watch);
    return;
  }
  watch->silenced = streaming;
  Publish(watch, watch->set.MarkStale());
}

void Machine::WatchSession(bool down, bool lost) {
  if (std::exchange(session_down_, down) == down) return;
  for (const auto& [selector, record] : watches_) {
    Watch* const watch = record->watch.get();
    if (down) {
      ArmStale(watch);
    } else if (std::exchange(watch->silenced, false) && !lost) {
      // The stream has outlived the trouble, so nothing of it was lost. (In a new session it is
      // opened again, and its first message has it.)
      Publish(watch, watch->set.MarkFresh());
    }
  }
}

void Machine::ArmHold(Watch* watch) {
  if (!watch->set.holding()) return watch->hold.Cancel();
  if (watch->hold.armed()) return;
  watch->hold = After(options_.empty_snapshot_hold, [this, watch] {
    // While the registry is unavailable its silence confirms nothing; its next message arms this
    // again.
    if (watch->phase == Watch::Phase::kStreaming) Publish(watch, watch->set.Release());
  });
}

void Machine::ArmOpening(Watch* watch) {
  watch->opening = After(kOpeningPatience, [this, watch] {
    watch->phase = Watch::Phase::kQuiet;
    --calls_in_flight_;
  });
}

void Machine::CloseStream(Watch* watch) {
  if (watch->phase == Watch::Phase::kOpening) --calls_in_flight_;
  if (watch->phase == Watch::Phase::kOpening || watch->phase == Watch::Phase::kQuiet) {
    watch->opening.Cancel();
    if (const RecordPtr record = watch->record.lock(); record != nullptr) record->in_flight = 0;
  }
  watch->silenced = false;
  if (watch->phase == Watch::Phase::kClosed) return;
  watch->phase = Watch::Phase::kClosed;
  streams_.erase(watch->stream);
  out_->ended.push_back(std::exchange(watch->stream, 0));
}

}  // namespace failback
