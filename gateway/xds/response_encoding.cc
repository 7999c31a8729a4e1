#include "gateway/xds/response_encoding.h"

#include <utility>
#include <vector>

#include "failback/xds/discovery.pb.h"
#include "grpcpp/support/slice.h"

namespace failback::xds {
namespace {

// Copying less than this is cheaper than sharing it.
constexpr size_t kShareFrom = 2048;

grpc::Slice Share(const ResourcePtr& resource) {
  // Slices are read only; the type of the pointer is the C API's.
  void* const bytes = const_cast<char*>(resource->encoded.data());
  return grpc::Slice(
      bytes, resource->encoded.size(), [](void* held) { delete static_cast<ResourcePtr*>(held); },
      new ResourcePtr(resource));
}

}  // namespace

grpc::ByteBuffer EncodeResponse(const StreamState::Response& response) {
  // The fields of a message may come in any order, and each resource is one.
  envoy::service::discovery::v3::DiscoveryResponse head;
  head.set_version_info(response.version);
  head.set_type_url(TypeUrl(response.type));
  head.set_nonce(response.nonce);
  std::string copied = head.SerializeAsString();
  std::vector<grpc::Slice> slices;
  for (const ResourcePtr& resource : response.resources) {
    if (resource->encoded.size() < kShareFrom) {
      copied += resource->encoded;
    } else {
      slices.push_back(Share(resource));
    }
  }
  slices.emplace_back(copied);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace failback::xds
