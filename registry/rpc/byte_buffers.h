// Bytes and messages as gRPC sends them.
//
//   *response = ToByteBuffer(EncodeResponse(result, nullptr));
//   *response = EncodedMessage(refusal);
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_RPC_BYTE_BUFFERS_H_
#define FAILBACK_REGISTRY_RPC_BYTE_BUFFERS_H_

#include <string>
#include <utility>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace failback {

// `bytes` themselves, not a copy: they are freed with the last copy of the slice.
inline grpc::Slice ToSlice(std::string bytes) {
  auto* const owned = new std::string(std::move(bytes));
  return grpc::Slice(
      owned->data(), owned->size(), [](void* string) { delete static_cast<std::string*>(string); },
      owned);
}

// The same of a buffer.
inline grpc::ByteBuffer ToByteBuffer(std::string bytes) {
  const grpc::Slice slice = ToSlice(std::move(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

// Where it is used, the generated header of the service, with gRPC, is included too.
template <typename Message>
grpc::ByteBuffer EncodedMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer;
  // Fails for a message of more than 2 GiB only; then the buffer stays empty.
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer).IgnoreError();
  return bytes;
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_BYTE_BUFFERS_H_
