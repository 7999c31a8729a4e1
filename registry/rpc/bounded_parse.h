// Requests out of their bytes, within bounds. For the server, the client and xDS.
//
// gRPC would parse whatever comes, before it is known whose it is. Here a method takes bytes, and
// parses them when the caller is known and what they hold has been counted
// (registry/model/wire_bounds.h).
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_RPC_BOUNDED_PARSE_H_
#define FAILBACK_REGISTRY_RPC_BOUNDED_PARSE_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/byte_buffer.h"
#include "registry/model/errors.h"
#include "registry/model/wire_bounds.h"

namespace failback {

// The bytes of a message in one piece.
class Contiguous {
 public:
  explicit Contiguous(const grpc::ByteBuffer& bytes) {
    if (!bytes.TrySingleSlice(&slice_).ok()) bytes.DumpToSingleSlice(&slice_).IgnoreError();
  }
  std::string_view view() const {
    return {reinterpret_cast<const char*>(slice_.begin()), slice_.size()};
  }

 private:
  grpc::Slice slice_;
};

template <typename Request>
absl::Status ParseWithin(const WireBounds& bounds, const grpc::ByteBuffer& bytes,
                         Request* request) {
  const auto& type = *Request::descriptor();
  if (auto status = CheckWireSize(type, bytes.Length(), bounds); !status.ok()) return status;
  const Contiguous whole(bytes);
  if (auto status = CheckWire(type, whole.view(), bounds); !status.ok()) return status;
  if (request->ParseFromArray(whole.view().data(), static_cast<int>(whole.view().size()))) {
    return absl::OkStatus();
  }
  return Refusal(registry::v1::ERROR_REASON_INVALID_FIELD,
                 absl::StrCat("the request is no ", type.name()));
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_BOUNDED_PARSE_H_
