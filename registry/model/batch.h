// Between the requests and answers of the wire and the intents of a store.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_BATCH_H_
#define FAILBACK_REGISTRY_MODEL_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/fencing.h"
#include "registry/model/messages.h"
#include "registry/model/validation.h"

namespace failback {

// The intents of one call, and what has come of each: not OK from the start where it is refused by
// validation, and then without an intent.
struct IntentBatch {
  std::vector<Intent> intents;
  std::vector<IntentOutcome> outcomes;
};

inline Intent SpellIntent(const registry::v1::Registration& item) {
  const std::string bytes = CanonicalRegistration(item.instance());
  Intent intent;
  intent.registers = true;
  intent.persistent = item.instance().persistent();
  intent.key = CanonicalKey(item.instance().key());
  intent.instance = Blob(bytes);
  intent.digest = Digest64(bytes);
  intent.generation = item.generation();
  return intent;
}

inline Intent SpellIntent(const registry::v1::Deregistration& item) {
  Intent intent;
  intent.key = CanonicalKey(item.key());
  intent.generation = item.generation();
  return intent;
}

template <typename Items>
IntentBatch SpellItems(const Items& items, std::vector<absl::Status> statuses) {
  IntentBatch batch;
  batch.intents.resize(statuses.size());
  batch.outcomes.resize(statuses.size());
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i].ok()) batch.intents[i] = SpellIntent(items[static_cast<int>(i)]);
    batch.outcomes[i].status = std::move(statuses[i]);
  }
  return batch;
}

// Call after ValidateRegister, ValidateUnregister.
inline IntentBatch SpellBatch(const RegisterRequest& request) {
  return SpellItems(request.registrations(), ValidateRegistrations(request));
}
inline IntentBatch SpellBatch(const UnregisterRequest& request) {
  return SpellItems(request.deregistrations(), ValidateDeregistrations(request));
}

// RegisterResponse or UnregisterResponse.
template <typename Response>
Response BatchResponse(const std::vector<IntentOutcome>& outcomes, uint64_t epoch,
                       uint64_t revision) {
  Response response;
  response.mutable_results()->Reserve(static_cast<int>(outcomes.size()));
  for (const IntentOutcome& outcome : outcomes) {
    auto* result = response.add_results();
    if (outcome.status.ok()) {
      result->set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
      result->set_generation(outcome.generation);
    } else {
      *result->mutable_status() = StatusToProto(outcome.status);
    }
  }
  response.set_epoch(epoch);
  response.set_revision(revision);
  return response;
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_BATCH_H_
