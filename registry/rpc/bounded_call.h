// Unary calls of the services beside RegistryService, in the order that every call of a server has:
// who calls is judged, what came is counted, then it is parsed, then carried out.
//
//   grpc::ServerUnaryReactor* Greeter::Greet(grpc::CallbackServerContext* context,
//                                            const grpc::ByteBuffer* request,
//                                            grpc::ByteBuffer* response) {
//     return BoundedCall<GreetRequest, GreetResponse>(
//         context, *request, response, MayGreet(*context),
//         [this](const GreetRequest& request, Callback<GreetResponse> done) {
//           GreetWhenAwake(request, std::move(done));
//         });
//   }
//
// Thread safety: from any thread.

#ifndef FAILBACK_REGISTRY_RPC_BOUNDED_CALL_H_
#define FAILBACK_REGISTRY_RPC_BOUNDED_CALL_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "registry/registry.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"

namespace failback {

// Ends the call with `judged` if that is no OK, else with what is wrong with `bytes`, else with
// what `carry_out(request, done)` makes of them. `done` runs once, on any thread; the request lives
// as long as it.
template <typename Request, typename Response, typename CarryOut>
grpc::ServerUnaryReactor* BoundedCall(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& bytes, grpc::ByteBuffer* response,
                                      absl::Status judged, CarryOut carry_out) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  auto request = std::make_shared<Request>();
  if (judged.ok()) judged = ParseWithin(kSmallRequest, bytes, request.get());
  if (!judged.ok()) {
    reactor->Finish(StatusToGrpc(judged));
    return reactor;
  }
  const Request& parsed = *request;
  carry_out(parsed, Callback<Response>([reactor, response, request = std::move(request)](
                                           absl::StatusOr<Response> result) {
              if (result.ok()) *response = EncodedMessage(*result);
              // It may free the reactor and the response, so it comes last.
              reactor->Finish(StatusToGrpc(result.status()));
            }));
  return reactor;
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_BOUNDED_CALL_H_
