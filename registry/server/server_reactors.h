// The kinds of call that RegistryServer serves, each as one gRPC reactor: unary calls, the
// KeepAlive stream, Subscribe streams; registry/server/register_stream.h has one more. Internal to
// the server.
//
// A reactor belongs to gRPC and goes at OnDone; what outlives it, because the registry still holds
// a callback or a listener, is its state, which it shares. A state's lock is never held while the
// registry is called.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_
#define FAILBACK_REGISTRY_SERVER_SERVER_REACTORS_H_

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "registry/model/errors.h"
#include "registry/registry.h"
#include "registry/server/call_stats.h"
#include "registry/server/event_cache.h"
#include "registry/server/exchange_reactor.h"
#include "registry/server/stream_sessions.h"
#include "registry/watch/conflator.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {

// Runs `call`, which calls the registry. INTERNAL when it throws.
template <typename Function>
absl::Status Guarded(Function call) {
  try {
    call();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the registry failed: ", e.what()));
  } catch (...) {
    return absl::InternalError("the registry failed");
  }
  return absl::OkStatus();
}

// Where the end of a call is counted, which is alive as long as the call.
struct CountedCall {
  CallStats* stats;
  CallStats::Method method;
};

// Puts a response where gRPC takes it from: a message, or bytes.
template <typename Response>
void PutResponse(Response from, Response* to) {
  *to = std::move(from);
}
template <typename Response>
void PutResponse(Response from, grpc::ByteBuffer* to) {
  bool own_buffer;
  grpc::SerializationTraits<Response>::Serialize(from, to, &own_buffer);
}
// An encoded one.
inline void PutResponse(const std::string& from, grpc::ByteBuffer* to) {
  const grpc::Slice slice(from);
  *to = grpc::ByteBuffer(&slice, 1);
}

// A unary call, whose response gRPC takes as `Wire`. It is finished by the first of: the registry's
// answer, the client's cancelling, the registry throwing or dropping the callback.
template <typename Response, typename Wire = Response>
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  using Hook = std::function<void(const Response&)>;

  UnaryReactor(Wire* response, CountedCall counted, std::function<void()> on_cancel)
      : state_(std::make_shared<State>(this, response, counted)),
        on_cancel_(std::move(on_cancel)) {}

  // Calls `start` with the callback to give to the registry. `on_success`, if given, sees the
  // response before the client. `token` is kept until the registry has answered. `on_cancel`, if
  // given, runs when the client has gone and the call is finished, after what made the call has
  // returned: it may drop the callback if the registry has not been called yet.
  template <typename Start>
  static UnaryReactor* Run(Wire* response, std::shared_ptr<void> token, CountedCall counted,
                           Start start, Hook on_success = nullptr,
                           std::function<void()> on_cancel = nullptr) {
    auto* reactor = new UnaryReactor(response, counted, std::move(on_cancel));
    const std::shared_ptr<State> state = reactor->state_;
    auto answer = std::make_unique<Answer>(state, std::move(token), std::move(on_success));
    const absl::Status status = Guarded([&] {
      start([answer = std::move(answer)](absl::StatusOr<Response> response) mutable {
        const std::unique_ptr<Answer> answered = std::move(answer);
        if (response.ok() && answered->on_success) answered->on_success(*response);
        std::exchange(answered->state, nullptr)->Finish(std::move(response));
      });
    });
    state->Started(status);
    return reactor;
  }

 private:
  // Shared with the callback.
  struct State {
    State(UnaryReactor* reactor, Wire* response, CountedCall counted)
        : counted(counted), reactor(reactor), response(response) {}

    void Finish(absl::StatusOr<Response> result) {
      MutexLock lock(&mu);
      if (reactor == nullptr) return;
      counted.stats->Ended(counted.method, result.status().code(),
                           Clock::Real()->NowNanos() - begin_nanos);
      if (result.ok()) PutResponse(*std::move(result), response);
      // After Finish gRPC may be done with both at any time.
      std::exchange(reactor, nullptr)
          ->grpc::ServerUnaryReactor::Finish(StatusToGrpc(result.status()));
    }

    // The registry has let go of the callback without running it. While it is being called it may
    // be about to say why.
    void Drop() {
      {
        MutexLock lock(&mu);
        dropped = true;
        if (starting) return;
      }
      Finish(absl::InternalError("the registry dropped the call"));
    }

    void Started(const absl::Status& status) {
      bool lost;
      {
        MutexLock lock(&mu);
        starting = false;
        lost = dropped;
      }
      if (!status.ok()) {
        Finish(status);
      } else if (lost) {
        Drop();
      }
    }

    const CountedCall counted;
    const int64_t begin_nanos = Clock::Real()->NowNanos();
    Mutex mu;
    bool starting ABSL_GUARDED_BY(mu) = true;
    bool dropped ABSL_GUARDED_BY(mu) = false;
    UnaryReactor* reactor ABSL_GUARDED_BY(mu);  // null once finished
    Wire* response ABSL_GUARDED_BY(mu);
  };

  // Finishes the call if the registry lets go of the callback without running it.
  struct Answer {
    Answer(std::shared_ptr<State> state, std::shared_ptr<void> token, Hook on_success)
        : state(std::move(state)), token(std::move(token)), on_success(std::move(on_success)) {}
    Answer(const Answer&) = delete;
    ~Answer() {
      if (state != nullptr) state->Drop();
    }

    std::shared_ptr<State> state;  // null once answered
    const std::shared_ptr<void> token;
    const Hook on_success;
  };

  void OnCancel() override {
    state_->Finish(absl::CancelledError("the client cancelled the call"));
    if (on_cancel_) on_cancel_();  // OnDone comes after the return
  }
  void OnDone() override { delete this; }

  const std::shared_ptr<State> state_;
  const std::function<void()> on_cancel_;
};

// A stream of renewals. Answers come in the order in which the registry gives them.
// A message that is no KeepAliveRequest ends it.
class RenewalReactor final : public ExchangeReactor {
 public:
  // Called at the end of the stream with the sessions that end with it.
  using OnStreamEnd = std::function<void(StreamSessions::StreamId)>;

  RenewalReactor(grpc::CallbackServerContext* context, std::shared_ptr<Registry> registry,
                 std::shared_ptr<StreamSessions> sessions, CallStats* stats,
                 std::shared_ptr<void> silent, StreamSessions::StreamId id, OnStreamEnd on_end);

 private:
  void OnRequest(grpc::ByteBuffer* request, const Ticket& ticket) override;
  void OnEnd() override { on_end_(id_); }

  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<StreamSessions> sessions_;
  const StreamSessions::StreamId id_;
  const OnStreamEnd on_end_;
};

// A Subscribe stream, on encoded messages.
class SubscribeReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // `withdraw` is called when the client has gone: true means that Start will not be called any
  // more. `on_done` runs when gRPC is done with the stream.
  SubscribeReactor(grpc::CallbackServerContext* context, const SubscribeRequest& request,
                   std::shared_ptr<EventCache> cache, CallStats* stats,
                   std::function<bool()> withdraw, std::function<void()> on_done);

  // Subscribes at `registry`, unless the stream has ended meanwhile. To be called once, on any
  // thread, or State::Started in its place, unless it is withdrawn. The reactor may be gone when it
  // returns.
  void Start(Registry* registry, const SubscribeRequest& request);

  class State;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const std::shared_ptr<State> state_;
  const std::function<bool()> withdraw_;
  const std::function<void()> on_done_;
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
