// The registrations that FailbackRegistry carries, and how far each has come.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "registry/failback/failback_core.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"

namespace failback {

using agent::v1::CarriedIntent;

std::vector<CarriedIntent> FailbackRegistry::Core::Carried(const std::string& begins) const {
  struct Found {
    std::string key;
    Blob instance;
    registry::v1::IntentState state;
    uint64_t generation;
    absl::Status last_status;
  };
  std::vector<Found> found;
  {
    MutexLock lock(&mu_);
    const UpstreamSession::State session = session_->state();
    const bool lapsed = LapsedSince(session).has_value();
    for (const auto& [key, record] : records_) {
      if (!record->present || record->stage == Stage::kGivenUp ||
          !absl::StartsWith(record->key, begins))
        continue;
      const registry::v1::IntentState state = StateOf(*record, lapsed);
      absl::Status why = record->last_status;
      if (state == registry::v1::INTENT_STATE_ACKNOWLEDGED) why = absl::OkStatus();
      if (state == registry::v1::INTENT_STATE_LAPSED) why = LapseReason(session);
      found.push_back({record->key, record->instance, state, record->generation, std::move(why)});
    }
  }
  std::vector<CarriedIntent> intents;
  intents.reserve(found.size());
  for (const Found& one : found) {
    CarriedIntent& intent = intents.emplace_back();
    *intent.mutable_instance() = ParseInstance(one.instance);
    ParseCanonicalKey(one.key, intent.mutable_instance()->mutable_key());
    intent.set_state(one.state);
    intent.set_generation(one.generation);
    intent.set_upstream(options_.upstream_name);
    if (!one.last_status.ok()) *intent.mutable_last_status() = StatusToProto(one.last_status);
  }
  return intents;
}

}  // namespace failback
