#include "tests/bench/instances.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "grpcpp/grpcpp.h"

namespace failback {

using registry::v1::RegisterRequest;
using registry::v1::ServiceInstance;

ServiceInstance NumberedInstance(const std::string& prefix, int64_t number, bool one_service) {
  constexpr int64_t kPerService = 100;
  ServiceInstance instance;
  registry::v1::InstanceKey& key = *instance.mutable_key();
  key.set_namespace_("default");
  key.set_service(absl::StrFormat("%s-%05d", prefix, one_service ? 0 : number / kPerService));
  key.set_instance_id(absl::StrFormat("%s-7c9f6d5b84-%07d", prefix, number));
  instance.set_address(
      absl::StrFormat("10.%d.%d.%d", number >> 16 & 255, number >> 8 & 255, number & 255));
  instance.set_port(8080);
  instance.set_zone("eu-west-1a");
  auto& metadata = *instance.mutable_metadata();
  metadata["version"] = "2.14.3";
  metadata["protocol"] = "grpc";
  metadata["team"] = "checkout-and-payment";
  metadata["build"] = "5f0c3b1e9d27";
  metadata["canary"] = "no";
  return instance;
}

std::vector<grpc::ByteBuffer> EncodedRegisters(const std::string& session_id,
                                               const std::string& prefix, int64_t count,
                                               int batch) {
  std::vector<grpc::ByteBuffer> out;
  out.reserve((count + batch - 1) / batch);
  for (int64_t begin = 0; begin < count; begin += batch) {
    RegisterRequest request;
    request.set_session_id(session_id);
    for (int64_t i = begin; i < std::min<int64_t>(count, begin + batch); ++i) {
      registry::v1::Registration& registration = *request.add_registrations();
      *registration.mutable_instance() = NumberedInstance(prefix, i);
      registration.set_generation(1);
    }
    out.push_back(Encode(request));
  }
  return out;
}

grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool Decode(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message) {
  grpc::Slice slice;
  if (!bytes.TrySingleSlice(&slice).ok() && !bytes.DumpToSingleSlice(&slice).ok()) return false;
  return message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

}  // namespace failback
