// Registrations of FailbackRegistry whose key a later incarnation holds: kept, shown, and tried
// again all together, slowly. The registry's fencing decides, so a winner that lives is never
// displaced; when it has gone, and its fence, the next attempt claims the key.

#include <utility>

#include "registry/errors.h"
#include "registry/failback_core.h"

namespace failback {
namespace {

// The part of the period that is random: agents that lost to the same winner claim its keys one
// after the other.
constexpr double kJitter = 0.3;

}  // namespace

void FailbackRegistry::Core::SetSuperseded(const RecordPtr& record, bool superseded) {
  if (record->superseded == superseded) return;
  record->superseded = superseded;
  record->superseded_times = 0;
  if (superseded) {
    superseded_.emplace(record->key, record);
  } else {
    superseded_.erase(record->key);
  }
  Count(record.get());
}

void FailbackRegistry::Core::Superseded(const RecordPtr& record, const absl::Status& status,
                                        Deferred* deferred) {
  record->retry.reset();
  record->acknowledged = 0;
  record->held_in = Record::kNotHeld;
  record->failing_since_nanos = Record::kNotFailing;
  record->renumbered = false;
  record->alone = false;
  record->last_status = status;
  if (!record->superseded) {
    record->since_nanos = NowNanos();
    SetSuperseded(record, true);
    record->superseded_times = 1;
    Emit(IntentEvent::Kind::kSuperseded, *record, status, deferred);
    record->trace.reset();
  } else {
    ++record->superseded_times;
  }
  // Without the winner's rank, which is the registry's: a caller of this agent would take it for
  // one of the agent's own.
  Resolve(record,
          Refusal(registry::v1::ERROR_REASON_SUPERSEDED, std::string(status.message()),
                  {{"generation", ReasonMetadata(status, "generation").value_or("0")}}),
          deferred);
  ArmSuperseded();
}

void FailbackRegistry::Core::ArmSuperseded() {
  if (options_.superseded_period <= absl::ZeroDuration() || superseded_.empty() || closed_ ||
      draining_ || IsArmed(superseded_timer_)) {
    return;
  }
  const absl::Duration wait =
      options_.superseded_period * (1 - kJitter / 2 + kJitter * options_.random());
  superseded_due_nanos_ = NowNanos() + absl::ToInt64Nanoseconds(wait);
  superseded_timer_ = After(wait, [](Core* core, Deferred*) {
    core->mu_.AssertHeld();
    for (const auto& [key, record] : core->superseded_) core->Enqueue(record);
    core->ArmSuperseded();
  });
}

}  // namespace failback
