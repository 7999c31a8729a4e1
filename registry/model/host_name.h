// Host names as addresses of instances. Beside registry/model/validation.h, as instances that were
// taken before this rule are read, from journals and stores, for as long as they are there.
//
// Thread safety: pure.

#ifndef FAILBACK_REGISTRY_MODEL_HOST_NAME_H_
#define FAILBACK_REGISTRY_MODEL_HOST_NAME_H_

#include <string_view>

#include "absl/status/status.h"
#include "registry/model/validation.h"

namespace failback {

inline constexpr size_t kMaxHostLabel = 63;

// Of a valid address: no part between its dots is empty or too long. Else INVALID_FIELD.
absl::Status ValidateHostName(const FieldPath& path, std::string_view address);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_HOST_NAME_H_
