// A RegistryServer over the wire, and what it says of itself.

#ifndef FAILBACK_TESTS_REGISTRY_SERVER_SERVER_FIXTURE_H_
#define FAILBACK_TESTS_REGISTRY_SERVER_SERVER_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "registry/model/errors.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {

class ServerTest : public WireTest {
 protected:
  absl::StatusOr<ListResponse> List(Registry& client) {
    return CallAndWait(client, &Registry::List, ListRequest());
  }

  // Calls that the server has counted.
  int64_t Ended(CallStats::Method method, absl::StatusCode code) const {
    return server_->Stats().calls.methods[static_cast<size_t>(method)].ended[static_cast<int>(
        code)];
  }

  // What grpc.health.v1 answers for `service`: 1 serving, 2 not serving, -1 an error. In bytes, as
  // Debian's gRPC has no health.pb.h.
  int Health(const std::string& service) {
    const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    grpc::Slice slice(std::string("\x0a") + static_cast<char>(service.size()) + service);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    Answered<int> answer;
    stub.UnaryCall(
        &context, "/grpc.health.v1.Health/Check", {}, &request, &response,
        [answer](const grpc::Status& status) mutable {
          answer.Callback_()(status.ok() ? absl::StatusOr<int>(0) : StatusFromGrpc(status));
        });
    std::vector<grpc::Slice> slices;
    if (!answer.Get().ok() || !response.Dump(&slices).ok() || slices.empty()) return -1;
    return slices[0].size() == 2 ? slices[0].begin()[1] : 0;
  }
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SERVER_SERVER_FIXTURE_H_
