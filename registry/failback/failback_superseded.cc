// Registrations of the machine whose key a later incarnation holds: kept, shown, and tried
// again all together, slowly. The registry's fencing decides, so a winner that lives is never
// displaced; when it has gone, and its fence, the next attempt claims the key.

#include <utility>

#include "registry/failback/failback_machine.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

// The part of the period that is random: agents that lost to the same winner claim its keys one
// after the other.
constexpr double kJitter = 0.3;

}  // namespace

void Machine::Superseded(const RecordPtr& record, const absl::Status& status) {
  record->held_in = Record::kNotHeld;
  record->failing_since_nanos = Record::kNotFailing;
  record->renumbered = false;
  record->alone = false;
  record->last_status = status;
  const bool first = !record->superseded();
  if (first) record->since_nanos = now_.nanos;
  ++record->superseded_times;
  Move(record.get(), Stage::kSuperseded);
  if (first) {
    Emit(IntentEvent::Kind::kSuperseded, *record, status);
    record->trace.reset();
  }
  // Without the winner's rank, which is the registry's: a caller of this agent would take it for
  // one of the agent's own.
  Resolve(record, Refusal(registry::v1::ERROR_REASON_SUPERSEDED, std::string(status.message()),
                          {{"generation", ReasonMetadata(status, "generation").value_or("0")}}));
  ArmSuperseded();
}

void Machine::ArmSuperseded() {
  if (options_.superseded_period <= absl::ZeroDuration() || totals_.superseded() == 0 || closed_ ||
      draining_ || superseded_alarm_.armed()) {
    return;
  }
  const absl::Duration wait =
      options_.superseded_period * (1 - kJitter / 2 + kJitter * options_.random());
  superseded_alarm_ = After(wait, [this] {
    for (Record* record : superseded_.All()) Enqueue(record);
    ArmSuperseded();
  });
}

}  // namespace failback
