// What holds of the failback machine after every step.

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"

namespace failback {

std::string Machine::CheckInvariants() const {
  std::string wrong;
  CheckLists(&wrong);
  for (const auto& [key, record] : records_) CheckRecord(*record, &wrong);
  for (const auto& [selector, record] : watches_) {
    CheckRecord(*record, &wrong);
    CheckWatch(*record, &wrong);
  }
  CheckTotals(&wrong);
  CheckSessions(&wrong);
  return wrong;
}

// Each list has what it is to have, and nothing else. A record is in one list at most; so each that
// is in one is in one of these, if these have as many.
void Machine::CheckLists(std::string* wrong) const {
  size_t listed = 0;
  const auto list = [&](const StageList<Record>& records, Stage stage) {
    records.ForEach([&](const Record* record) {
      ++listed;
      if (record->stage == stage) return;
      absl::StrAppend(wrong, record->key, ": is listed as ", StageName(stage), "\n");
    });
  };
  list(superseded_, Stage::kSuperseded);
  list(tombstones_, Stage::kTombstone);
  batcher_.ForEach([&](const Record* record) {
    ++listed;
    if (record->stage != Stage::kQueued && !record->superseded()) {
      absl::StrAppend(wrong, record->key, ": is in the queue, and ", StageName(record->stage),
                      "\n");
    }
    if (!MayBeSent(*record)) absl::StrAppend(wrong, record->key, ": is sent too early\n");
  });
  size_t linked = 0;
  const auto check = [&](const Record& record) {
    const bool to_list =
        record.stage == Stage::kTombstone ||
        (record.in_flight == 0 && (record.stage == Stage::kQueued || record.superseded()));
    linked += record.linked() ? 1 : 0;
    if (to_list == record.linked()) return;
    absl::StrAppend(wrong, record.key, " (", StageName(record.stage),
                    "): is not in the list of its stage, or in one\n");
  };
  for (const auto& [key, record] : records_) check(*record);
  for (const auto& [selector, record] : watches_) check(*record);
  if (listed != linked) absl::StrAppend(wrong, listed, " records are in lists, not ", linked, "\n");
}

bool Machine::MayBeSent(const Record& record) const {
  return journal_gate_.MaySend(record.unwritten) && record.doubt == Doubt::kNone &&
         !Suspended(record);
}

void Machine::CheckRecord(const Record& record, std::string* wrong) const {
  const auto fail = [&](const char* what) {
    absl::StrAppend(wrong, PendingId(record), " (generation ", record.generation, ", ",
                    StageName(record.stage), "): ", what, "\n");
  };
  if (record.stage == Stage::kNone) fail("is in the table all the same");
  if (record.acknowledged > record.generation || record.in_flight > record.generation ||
      record.generation > last_generation_) {
    fail("has numbers out of order");
  }
  if (record.in_flight != 0 && record.stage != Stage::kQueued && !record.superseded() &&
      record.stage != Stage::kGivenUp) {
    fail("has a call in flight");
  }
  if (record.stage == Stage::kHeldBack && MayBeSent(record)) fail("waits for nothing");
  if (record.stage == Stage::kHeldBack && record.doubt != Doubt::kNone && !ask_ && !draining_) {
    fail("is in doubt, and the registry is not to be asked");
  }
  const bool waits = record.retry != nullptr && record.retry->due.armed();
  if ((record.stage == Stage::kWaiting) != waits) fail("has an alarm in another stage");
  const bool acknowledged = record.acknowledged == record.generation;
  const bool settled = record.stage == Stage::kSettled || record.stage == Stage::kTombstone;
  if (settled && (!acknowledged || record.present != (record.stage == Stage::kSettled))) {
    fail("is not acknowledged as that");
  }
  if (record.present && record.watch == nullptr && acknowledged &&
      record.stage != Stage::kGivenUp && record.held_in == Record::kNotHeld) {
    fail("is acknowledged and taken for not there");
  }
  if (!record.pending() && !record.waiters.empty() && !lapse_waiters_) {
    fail("is done, and has waiters");
  }
  if (record.stage == Stage::kParked && !record.waiters.empty()) fail("has waiters");
  if ((record.check != nullptr) != (checked_.count(record.key) > 0)) {
    fail("is a checked intent and not listed as one, or the other way round");
  }
  if (record.superseded() && (!record.present || record.watch != nullptr ||
                              record.check != nullptr || record.acknowledged != 0)) {
    fail("is superseded, and something else");
  }
  if (record.owner != nullptr && !record.owner->records.contains(&record)) {
    fail("is not listed by its owner");
  }
  if (!(record.standing == StandingOf(record))) fail("is counted as what it was before");
}

void Machine::CheckWatch(const Record& record, std::string* wrong) const {
  const Watch& watch = *record.watch;
  const bool opening = watch.phase == Watch::Phase::kOpening || watch.phase == Watch::Phase::kQuiet;
  // An Unsubscribe may still be in flight when the selector is wanted again.
  const bool call = record.in_flight != 0 && record.in_flight == record.generation;
  if (record.present && (opening ? record.in_flight == 0 : call)) {
    absl::StrAppend(wrong, watch.name, ": is opened without a call or the other way round\n");
  }
  if (record.present && !record.pending() && watch.phase != Watch::Phase::kStreaming) {
    absl::StrAppend(wrong, watch.name, ": is acknowledged without a stream\n");
  }
  const auto stream = streams_.find(watch.stream);
  const bool has_stream = stream != streams_.end() && stream->second.get() == &watch;
  if (has_stream != (watch.phase != Watch::Phase::kClosed)) {
    absl::StrAppend(wrong, watch.name, ": has a stream and none\n");
  }
}

void Machine::CheckTotals(std::string* wrong) const {
  RecordTotals totals;
  size_t listeners = 0;
  // CheckRecord has compared the records' standings with the records.
  for (const auto& [key, record] : records_) totals.Replace(Standing(), record->standing);
  for (const auto& [selector, record] : watches_) {
    totals.Replace(Standing(), record->standing);
    listeners += record->watch->subscribers.size();
  }
  if (!(totals == totals_)) {
    absl::StrAppend(wrong, "the sums over the records are wrong: ", totals_.pending(),
                    " pending are counted, not ", totals.pending(), "\n");
  }
  if (listeners != subscriptions_.size()) {
    absl::StrAppend(wrong, subscriptions_.size(), " listeners are counted, not ", listeners, "\n");
  }
  if (totals_.superseded() > 0 && !superseded_alarm_.armed() && !draining_ &&
      options_.superseded_period > absl::ZeroDuration()) {
    absl::StrAppend(wrong, totals_.superseded(), " are superseded, and not tried again\n");
  }
  if (calls_in_flight_ < 0 || calls_in_flight_ > options_.max_calls_in_flight) {
    absl::StrAppend(wrong, calls_in_flight_, " calls are in flight\n");
  }
}

void Machine::CheckSessions(std::string* wrong) const {
  size_t owned = 0;
  for (const auto& [key, record] : records_) owned += record->owner != nullptr ? 1 : 0;
  int64_t ended = 0;
  for (const auto& [id, session] : sessions_) {
    owned -= session->records.size();
    ended += static_cast<int64_t>(session->unsubscribed.size());
    if (!session->lease.armed()) absl::StrAppend(wrong, "session ", id, " has no end\n");
  }
  if (owned != 0) absl::StrAppend(wrong, "a session lists records that it does not own\n");
  if (ended != ended_names_) absl::StrAppend(wrong, ended_names_, " ended names are counted\n");
}

}  // namespace failback
