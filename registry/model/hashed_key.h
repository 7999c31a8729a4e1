// A canonical key and its hash, which is taken once.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_MODEL_HASHED_KEY_H_
#define FAILBACK_REGISTRY_MODEL_HASHED_KEY_H_

#include <cstddef>
#include <string_view>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace failback {

struct HashedKey {
  explicit HashedKey(std::string_view text)
      : HashedKey(text, absl::HashOf(absl::string_view(text.data(), text.size()))) {}
  // `hash` is what the constructor above took of the same text.
  HashedKey(std::string_view text, size_t hash) : text(text), hash(hash) {}

  std::string_view text;
  size_t hash;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_HASHED_KEY_H_
