#include "registry/store/encoded_batch.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "registry/canonical.h"
#include "registry/instance_view.h"
#include "registry/validation.h"

namespace failback {
namespace {

Intent SpellIntent(const EncodedRegistration& item) {
  const InstanceView& view = item.instance.view;
  Intent intent;
  intent.registers = true;
  intent.persistent = view.persistent;
  intent.key = CanonicalKey(view.name_space, view.service, view.instance_id);
  intent.instance = Blob(item.instance.CanonicalSize(),
                         [&](char* bytes) { item.instance.WriteCanonical(bytes); });
  intent.digest = Digest64(intent.instance.data(), intent.instance.size());
  intent.generation = item.generation;
  return intent;
}

}  // namespace

std::optional<EncodedBatch> SpellEncodedRegister(std::string_view request, uint32_t max_batch) {
  RegisterReader reader(request);
  if (!reader.ok() || !ValidateRegister(reader, max_batch).ok()) return std::nullopt;
  EncodedBatch encoded;
  encoded.session_id = std::string(reader.session_id());
  std::vector<Intent>& intents = encoded.batch.intents;
  intents.reserve(reader.size());  // from here on keys stay where they are
  absl::flat_hash_set<std::string_view> keys;
  if (reader.size() > 1) keys.reserve(reader.size());
  const FieldPath path("registrations");
  EncodedRegistration item;
  for (int i = 0; i < reader.size(); ++i) {
    if (!reader.Next(&item) || !ValidateInstance(path, item.instance.view).ok()) {
      return std::nullopt;
    }
    intents.push_back(SpellIntent(item));
    if (reader.size() > 1 && !keys.insert(intents.back().key).second) return std::nullopt;
  }
  encoded.batch.outcomes.resize(intents.size());
  return encoded;
}

}  // namespace failback
