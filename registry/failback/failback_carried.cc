// The registrations that FailbackRegistry carries, and how far each has come.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "registry/failback/failback_machine.h"

namespace failback {

std::vector<CarriedRecord> Machine::Carried(Moment now, const std::string& begins) const {
  std::vector<CarriedRecord> found;
  const bool lapsed = LapsedSince(now).has_value();
  for (const auto& [key, record] : records_) {
    if (!record->present || record->stage == Stage::kGivenUp ||
        !absl::StartsWith(record->key, begins)) {
      continue;
    }
    const registry::v1::IntentState state = StateOf(*record, lapsed);
    absl::Status why = record->last_status;
    if (state == registry::v1::INTENT_STATE_ACKNOWLEDGED) why = absl::OkStatus();
    if (state == registry::v1::INTENT_STATE_LAPSED) why = LapseReason();
    found.push_back({record->key, record->instance, state, record->generation,
                     options_.upstream_name, std::move(why)});
  }
  return found;
}

}  // namespace failback
