// The canonical form of a key and of an instance, for where two of them are compared or stored.
//
// Two messages that mean the same may serialize differently (maps have no order, an empty namespace
// means `default`). The bytes made here are the same for the same meaning, in every process and on
// every machine, so that they can be compared, hashed, and kept on disk.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_CANONICAL_H_
#define FAILBACK_REGISTRY_MODEL_CANONICAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "failback/registry/v1/registry.pb.h"

namespace failback {

// `namespace NUL service NUL instance_id`, an empty namespace written as `default`. Valid names
// hold no NUL, so different keys differ here, and these strings sort as (namespace, service,
// instance_id).
std::string CanonicalKey(const registry::v1::InstanceKey& key);
std::string CanonicalKey(std::string_view name_space, std::string_view service,
                         std::string_view instance_id);

// The key whose canonical form `canonical` is; false when it is none.
bool ParseCanonicalKey(const std::string& canonical, registry::v1::InstanceKey* key);
// Whether it could be parsed.
bool IsCanonicalKey(std::string_view canonical);

// The names that a canonical key holds, where they are in it.
struct KeyNames {
  std::string_view name_space;
  std::string_view service;
  std::string_view instance_id;
};
KeyNames SplitCanonicalKey(std::string_view canonical);

// The InstanceKey whose canonical form `canonical` is, serialized: its size, and its bytes.
size_t EncodedKeySize(std::string_view canonical);
void AppendEncodedKey(std::string_view canonical, std::string* out);

// The key of the service that a canonical key belongs to: `namespace NUL service`.
std::string_view ServiceKeyOf(std::string_view canonical);

// `namespace/service/instance_id`, for people; of a key, and of its canonical spelling.
std::string KeyText(const registry::v1::InstanceKey& key);
std::string CanonicalKeyText(std::string_view canonical);

// The instance serialized with sorted maps and its namespace filled in. Parses as a
// ServiceInstance.
std::string CanonicalInstance(const registry::v1::ServiceInstance& instance);

// The same of what its owner said: without what a registry adds (an operator's mark). Registrations
// are compared, and kept, so.
std::string CanonicalRegistration(const registry::v1::ServiceInstance& instance);

// Distinguishes two contents: the same for the same bytes ever after (it is kept on disk). Not
// cryptographic.
uint64_t Digest64(const char* data, size_t size);
inline uint64_t Digest64(const std::string& bytes) { return Digest64(bytes.data(), bytes.size()); }

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_CANONICAL_H_
