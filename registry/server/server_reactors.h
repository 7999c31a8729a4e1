// The stream of renewals that RegistryServer serves, as a gRPC reactor; register_stream.h and
// event_stream.h have the others, unary_reactor.h the calls. Internal to the server.
//
// A reactor belongs to gRPC and is deleted at OnDone. Its state may outlive it, as the registry may
// still hold a callback or a listener. A state's lock is never held while the registry is called.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_
#define FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_

#include <functional>
#include <memory>
#include <string>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "registry/registry.h"
#include "registry/server/call_stats.h"
#include "registry/server/exchange_reactor.h"
#include "registry/server/stream_sessions.h"

namespace failback {

// A stream of renewals. Answers come in the order in which the registry gives them.
// A message that is no KeepAliveRequest ends it.
class RenewalReactor final : public ExchangeReactor {
 public:
  // Called when gRPC is done with the stream.
  using OnStreamEnd =
      std::function<void(StreamSessions::StreamId, const std::shared_ptr<State>& state)>;

  RenewalReactor(grpc::CallbackServerContext* context, std::shared_ptr<Registry> registry,
                 std::shared_ptr<StreamSessions> sessions, CallStats* stats,
                 std::shared_ptr<void> silent, StreamSessions::StreamId id, OnStreamEnd on_end);

 private:
  void OnRequest(grpc::ByteBuffer* request, const Slot& slot) override;
  void OnEnd() override { on_end_(id_, state()); }

  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<StreamSessions> sessions_;
  const StreamSessions::StreamId id_;
  const OnStreamEnd on_end_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_
