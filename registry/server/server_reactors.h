// Two of the streams that RegistryServer serves, each as a gRPC reactor: KeepAlive and Subscribe;
// registry/server/register_stream.h has the third, unary_reactor.h the calls. Internal to the
// server.
//
// A reactor belongs to gRPC and is deleted at OnDone. Its state may outlive it, as the registry may
// still hold a callback or a listener. A state's lock is never held while the registry is called.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_
#define FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "registry/registry.h"
#include "registry/server/call_stats.h"
#include "registry/server/event_cache.h"
#include "registry/server/exchange_reactor.h"
#include "registry/server/stream_sessions.h"
#include "registry/watch/conflator.h"
#include "retry/mutex.h"

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

// A Subscribe stream, on encoded messages.
class SubscribeReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  class State;
  using OnStreamEnd = std::function<void(const std::shared_ptr<State>& state)>;

  // `withdraw` is called when the client has disconnected: true means that Start will not be called
  // any more. `on_end` runs when gRPC is done with the stream.
  SubscribeReactor(grpc::CallbackServerContext* context, const SubscribeRequest& request,
                   std::shared_ptr<EventCache> cache, CallStats* stats,
                   std::function<bool()> withdraw, OnStreamEnd on_end);

  // Subscribes at `registry`, unless the stream has ended meanwhile. To be called once, on any
  // thread, or State::Started in its place, unless it is withdrawn. The reactor may be deleted when
  // it returns.
  void Start(Registry* registry, const SubscribeRequest& request);

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const std::shared_ptr<State> state_;
  const std::function<bool()> withdraw_;
  const OnStreamEnd on_end_;
  std::unique_ptr<SubscribeStream> stream_;
};

class SubscribeReactor::State : public NotifyListener {
 public:
  State(SubscribeReactor* reactor, grpc::CallbackServerContext* context,
        const SubscribeRequest& request, std::shared_ptr<EventCache> cache, CallStats* stats)
      : cache_(std::move(cache)),
        stats_(stats),
        context_(context),
        reactor_(reactor),
        conflator_(std::in_place, request.epoch(), request.revision()) {}

  // Ends the stream when the write under way is done, without what is still to be sent.
  void Abort(const absl::Status& status);

  // The subscription has begun; with an error it has not, and the stream ends with that. Before
  // this the stream is not finished, whatever ends it, so that the reactor stays for Start.
  void Started(const absl::Status& status);

  void OnEvent(const EventPtr& event) override;
  // The subscriber receives what it has not been sent yet, then the end.
  void OnEnd(const absl::Status& status) override;

  // Called at intervals: cancels the stream when one write has been under way for `stalled` of
  // them, and ends it, after what is still to be sent, when it has been open for `oldest` of them.
  void Sweep(int stalled, int oldest);

 private:
  friend class SubscribeReactor;

  bool ended() ABSL_LOCKS_EXCLUDED(mu_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<EventCache> cache_;
  CallStats* const stats_;  // as long as there is a reactor_
  Mutex mu_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_);  // as reactor_
  SubscribeReactor* reactor_ ABSL_GUARDED_BY(mu_);             // null once finished
  int sweeps_ ABSL_GUARDED_BY(mu_) = 0;
  int idle_sweeps_ ABSL_GUARDED_BY(mu_) = 0;                 // since the write under way began
  std::optional<Conflator> conflator_ ABSL_GUARDED_BY(mu_);  // nullopt: nothing more is sent
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_
