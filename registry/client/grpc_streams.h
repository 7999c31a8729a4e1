// The streams of a GrpcRegistry: renewals, what an agent has much of to register, subscriptions.
// Internal to GrpcRegistry.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_
#define FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "registry/client/client_exchange.h"
#include "registry/client/grpc_core.h"
#include "registry/model/event_reader.h"
#include "registry/watch/serial_notifier.h"

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

// A Subscribe stream. It takes bytes, and makes events of them. Keeps itself alive until gRPC has
// ended it.
//
// gRPC 1.51 has generic calls of bytes for streams in both directions only; on the wire a call with
// one request is the same.
class GrpcRegistry::Subscription
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<Subscription> {
 public:
  Subscription(std::shared_ptr<Core> core, const SubscribeRequest& request,
               std::shared_ptr<NotifyListener> listener);

  void Start();

  // The subscriber has gone: nothing is sent any more.
  void Unlisten();

  // The registry client goes: reports the end, and waits until it has been delivered.
  void Terminate(const absl::Status& status);

  void End(const absl::Status& status);

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& grpc_status) override;

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ByteBuffer request_;  // until it is written
  std::shared_ptr<Subscription> self_;
  grpc::ClientContext context_;
  // Used by one reaction at a time.
  grpc::ByteBuffer message_;
  EventReader reader_;
  SerialNotifier notifier_;
};

class GrpcRegistry::SubscriptionHandle : public SubscribeStream {
 public:
  explicit SubscriptionHandle(std::shared_ptr<Subscription> subscription)
      : subscription_(std::move(subscription)) {}
  ~SubscriptionHandle() override { subscription_->Unlisten(); }

 private:
  const std::shared_ptr<Subscription> subscription_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_GRPC_STREAMS_H_
