// What SpellEncodedRegister must agree with: the parsed request, checked and spelled.

#ifndef FAILBACK_TESTS_REGISTRY_MODEL_ENCODED_BATCH_CHECK_H_
#define FAILBACK_TESTS_REGISTRY_MODEL_ENCODED_BATCH_CHECK_H_

#include <algorithm>
#include <optional>
#include <string>

#include "registry/model/batch.h"
#include "registry/model/encoded_batch.h"

namespace failback {

inline constexpr uint32_t kCheckedMaxBatch = 20;

// The intents of `bytes` as the parsed request has them; nullopt when anything is refused.
inline std::optional<EncodedBatch> SpellParsed(const std::string& bytes) {
  RegisterRequest request;
  if (!request.ParseFromString(bytes)) return std::nullopt;
  if (!ValidateRegister(request, kCheckedMaxBatch).ok()) return std::nullopt;
  EncodedBatch spelled{request.session_id(), SpellBatch(request)};
  const auto& outcomes = spelled.batch.outcomes;
  const bool fine = std::all_of(outcomes.begin(), outcomes.end(),
                                [](const IntentOutcome& outcome) { return outcome.status.ok(); });
  return fine ? std::optional<EncodedBatch>(std::move(spelled)) : std::nullopt;
}

inline bool SameIntent(const Intent& a, const Intent& b) {
  return a.registers == b.registers && a.persistent == b.persistent && a.key == b.key &&
         a.instance == b.instance && a.digest == b.digest && a.generation == b.generation;
}

// Empty, or how the two ways differ.
inline std::string DifferenceFromParsed(const std::string& bytes) {
  const std::optional<EncodedBatch> encoded = SpellEncodedRegister(bytes, kCheckedMaxBatch);
  if (!encoded.has_value()) return "";
  const std::optional<EncodedBatch> parsed = SpellParsed(bytes);
  if (!parsed.has_value()) return "was taken, and is refused when it is parsed";
  if (encoded->session_id != parsed->session_id) return "another session";
  const auto& ours = encoded->batch.intents;
  const auto& theirs = parsed->batch.intents;
  if (!std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), SameIntent)) {
    return "other intents";
  }
  if (encoded->batch.outcomes.size() != ours.size()) return "outcomes are missing";
  return "";
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_MODEL_ENCODED_BATCH_CHECK_H_
