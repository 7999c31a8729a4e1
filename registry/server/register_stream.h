// The RegisterStream that RegistryServer serves: each message is a Register on its own, and the
// answers come in the order of the requests. Internal to the server.
//
// What a stream spares is a call's machinery for each message (31 us at the server); what it adds
// is a window: as many messages and bytes are open at once as kRegisterStreamLimits says.
//
// Messages are carried out as unary calls are, large ones on the threads for bulk unless there is
// only one; a message that is refused as a whole is answered by its status, and the stream goes on.
//
// Thread safety: as ExchangeReactor.

#ifndef FAILBACK_REGISTRY_SERVER_REGISTER_STREAM_H_
#define FAILBACK_REGISTRY_SERVER_REGISTER_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "registry/registry.h"
#include "registry/server/exchange_reactor.h"

namespace failback {

class RegisterStreamReactor final : public ExchangeReactor {
 public:
  // Carries out one encoded RegisterRequest. The answer is the bytes of a RegisterResponse, whose
  // results may be left out as RegisterStreamResponse says.
  using CarryOut = std::function<void(const grpc::ByteBuffer& request, Callback<std::string> done)>;

  using OnStreamEnd = std::function<void(const std::shared_ptr<State>& state)>;

  // `on_end` runs when gRPC is done with the stream.
  RegisterStreamReactor(grpc::CallbackServerContext* context, CallStats* stats,
                        std::shared_ptr<void> silent, CarryOut carry_out, OnStreamEnd on_end);

 private:
  void OnRequest(grpc::ByteBuffer* request, const Slot& slot) override;
  void OnEnd() override { on_end_(state()); }

  const CarryOut carry_out_;
  const OnStreamEnd on_end_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_REGISTER_STREAM_H_
