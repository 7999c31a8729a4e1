#include "registry/model/encoded_batch.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "registry/model/canonical.h"
#include "registry/model/hashed_key.h"
#include "registry/model/instance_view.h"
#include "registry/model/validation.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

Intent SpellIntent(const EncodedRegistration& item) {
  const InstanceView& view = item.instance.view;
  Intent intent;
  intent.registers = true;
  intent.persistent = view.persistent;
  intent.key = CanonicalKey(view.name_space, view.service, view.instance_id);
  intent.key_hash = HashedKey(intent.key).hash;
  intent.instance = Blob(item.instance.CanonicalSize(),
                         [&](char* bytes) { item.instance.WriteCanonical(bytes); });
  intent.digest = Digest64(intent.instance.data(), intent.instance.size());
  intent.generation = item.generation;
  return intent;
}

// Hashes seen so far: open addressing, linear probing, at most half full.
class SeenHashes {
 public:
  explicit SeenHashes(size_t most) {
    size_t slots = 2;
    while (slots < 2 * most) slots *= 2;
    slots_.resize(slots, 0);
  }

  // False if it was there. Zero counts as seen: it marks what is free.
  bool Add(size_t hash) {
    if (hash == 0) return false;
    size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot] == hash) return false;
    }
    slots_[slot] = hash;
    return true;
  }

 private:
  absl::InlinedVector<size_t, 8> slots_;
};

}  // namespace

std::optional<EncodedBatch> SpellEncodedRegister(std::string_view request, uint32_t max_batch) {
  RegisterReader reader(request);
  if (!reader.ok() || !ValidateRegister(reader, max_batch).ok()) return std::nullopt;
  EncodedBatch encoded;
  encoded.session_id = std::string(reader.session_id());
  std::vector<Intent>& intents = encoded.batch.intents;
  intents.reserve(reader.size());
  // A key that is there twice is refused by the parsed way, which also takes two keys that happen
  // to have the same hash.
  SeenHashes keys(reader.size());
  const FieldPath path("registrations");
  EncodedRegistration item;
  for (int i = 0; i < reader.size(); ++i) {
    if (!reader.Next(&item) || !ValidateInstance(path, item.instance.view).ok() ||
        item.generation > kMaxGeneration) {
      return std::nullopt;
    }
    intents.push_back(SpellIntent(item));
    if (!keys.Add(intents.back().key_hash)) return std::nullopt;
  }
  encoded.batch.outcomes.resize(intents.size());
  return encoded;
}

std::string EncodedRegisterResponse(const std::vector<IntentOutcome>& outcomes, uint64_t epoch,
                                    uint64_t revision) {
  using registry::v1::IntentResult;
  constexpr uint64_t kState = registry::v1::INTENT_STATE_ACKNOWLEDGED;
  std::string bytes;
  for (const IntentOutcome& outcome : outcomes) {
    if (!outcome.status.ok()) {
      IntentResult refused;
      *refused.mutable_status() = StatusToProto(outcome.status);
      wire::AppendBytes(RegisterResponse::kResultsFieldNumber, refused.SerializeAsString(), &bytes);
      continue;
    }
    const uint64_t generation = outcome.generation;
    wire::AppendHead(
        RegisterResponse::kResultsFieldNumber,
        wire::NumberSize(kState) + (generation == 0 ? 0 : wire::NumberSize(generation)), &bytes);
    wire::AppendNumber(IntentResult::kStateFieldNumber, kState, &bytes);
    if (generation != 0)
      wire::AppendNumber(IntentResult::kGenerationFieldNumber, generation, &bytes);
  }
  if (epoch != 0) wire::AppendNumber(RegisterResponse::kEpochFieldNumber, epoch, &bytes);
  if (revision != 0) wire::AppendNumber(RegisterResponse::kRevisionFieldNumber, revision, &bytes);
  return bytes;
}

}  // namespace failback
