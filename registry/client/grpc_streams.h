// The streams of a GrpcRegistry on which each message is answered by one: renewals, and what an
// agent has much of to register. registry/client/watch_stream.h has the third. Internal to
// GrpcRegistry.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_
#define FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_

#include <memory>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "registry/client/client_exchange.h"
#include "registry/client/grpc_core.h"

namespace failback {

// The KeepAlive stream.
class GrpcRegistry::KeepAliveStream
    : public ClientExchange<Renewal, KeepAliveRequest, KeepAliveResponse>,
      public std::enable_shared_from_this<KeepAliveStream> {
 public:
  static constexpr char kAsked[] = "renewal";

  explicit KeepAliveStream(std::shared_ptr<Core> core);
  void Start();

 private:
  bool Answers(const KeepAliveResponse& response, const Renewal& renewal) const override;
  void OnAnswer(const std::shared_ptr<Renewal>& renewal, KeepAliveResponse response) override;
  void OnOver() override;
  void OnEnd(End end) override;

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
};

// A RegisterStream. It ends when nothing waits: who holds no stream costs the registry nothing, and
// the next one shows the credentials of its day.
class GrpcRegistry::RegisterStream : public ClientExchange<StreamedRegister, grpc::ByteBuffer,
                                                           registry::v1::RegisterStreamResponse>,
                                     public std::enable_shared_from_this<RegisterStream> {
 public:
  static constexpr char kAsked[] = "Register";

  explicit RegisterStream(std::shared_ptr<Core> core);
  void Start();

 private:
  void OnAnswer(const std::shared_ptr<StreamedRegister>& asked,
                registry::v1::RegisterStreamResponse response) override;
  void OnOver() override;
  void OnEnd(End end) override;

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, registry::v1::RegisterStreamResponse> stub_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_
