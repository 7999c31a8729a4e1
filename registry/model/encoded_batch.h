// The intents of a RegisterRequest straight from its bytes, and the answer straight to bytes: the
// way of nearly all registrations into the store, at a fifth of what it costs to parse them.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_ENCODED_BATCH_H_
#define FAILBACK_REGISTRY_MODEL_ENCODED_BATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/model/batch.h"

namespace failback {

struct EncodedBatch {
  std::string session_id;
  IntentBatch batch;
};

// As ValidateRegister and SpellBatch of the parsed request, provided that they find nothing to
// refuse. nullopt when they might, or when the request is not in the canonical encoding: parse it.
std::optional<EncodedBatch> SpellEncodedRegister(std::string_view request, uint32_t max_batch);

// The bytes of BatchResponse<RegisterResponse>, without a message for each result.
std::string EncodedRegisterResponse(const std::vector<IntentOutcome>& outcomes, uint64_t epoch,
                                    uint64_t revision);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_ENCODED_BATCH_H_
