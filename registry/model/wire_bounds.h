// What an encoded message may be made of, found out before it is parsed.
//
// A field takes two bytes on the wire and may take a hundred once it is parsed: a map's entry, a
// text, a message of its own. So a message is first walked over, which allocates nothing and takes
// a few instructions for each field, and refused when it has more of them than any that is valid.
//
//   if (absl::Status status = CheckWire(*ListRequest::descriptor(), bytes, kSmallRequest);
//       !status.ok()) {
//     return status;
//   }
//   request.ParseFromArray(bytes.data(), bytes.size());
//
// What is no protobuf at all is left to the parser to refuse.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_WIRE_BOUNDS_H_
#define FAILBACK_REGISTRY_MODEL_WIRE_BOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"

namespace failback {

struct WireBounds {
  size_t max_bytes = 0;
  // In the message and in all messages inside of it, those that are not known and each value of a
  // packed field included.
  size_t max_fields = 0;
};

// A request that names a few things: the largest valid selector is a quarter of it.
inline constexpr WireBounds kSmallRequest{128 << 10, 1024};

// A request of many items: the largest valid instance has some 210 fields.
inline WireBounds BatchRequest(size_t max_bytes, uint32_t max_items) {
  return {max_bytes, 1024 + size_t{256} * max_items};
}

// Whether a message of so many bytes may be: else as below.
absl::Status CheckWireSize(const google::protobuf::Descriptor& type, size_t bytes,
                           const WireBounds& bounds);

// Whether `bytes`, a message of this type, is within the bounds: else INVALID_ARGUMENT, TOO_LARGE.
absl::Status CheckWire(const google::protobuf::Descriptor& type, std::string_view bytes,
                       const WireBounds& bounds);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_WIRE_BOUNDS_H_
