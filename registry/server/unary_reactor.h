// A unary call that RegistryServer serves, on encoded messages, as a gRPC reactor. Internal to the
// server.
//
//   return UnaryReactor<ListResponse>::Run(
//       response, std::move(permit.slot), {&stats, CallStats::Method::kList},
//       {&unread, context, "alice"},
//       [&](Callback<ListResponse> done) { registry->List(request, std::move(done)); });
//
// The reactor belongs to gRPC and is deleted at OnDone. Its state may outlive it, as the registry
// may still hold the callback. The state's lock is never held while the registry is called.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_UNARY_REACTOR_H_
#define FAILBACK_REGISTRY_SERVER_UNARY_REACTOR_H_

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "registry/model/errors.h"
#include "registry/registry.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/call_stats.h"
#include "registry/server/refusals.h"
#include "registry/server/unread_answers.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {

// Where the end of a call is counted. It lives as long as the call.
struct CountedCall {
  CallStats* stats;
  CallStats::Method method;
};

// `Response` is a message, or std::string: the bytes of one. The call is finished by the first of:
// the registry's answer, the client's cancelling, the registry throwing or dropping the callback.
template <typename Response>
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  using Hook = std::function<void(const Response&)>;

  // Calls `start` with the callback to give to the registry. `on_success`, if given, sees the
  // response before the client. `slot` is kept until the registry has answered, room for the answer
  // until gRPC is done with it: `reader` is refused where there is none. `on_cancel`, if
  // given, runs when the client has disconnected and the call is finished, after what made the call
  // has returned: it may drop the callback if the registry has not been called yet.
  template <typename Start>
  static UnaryReactor* Run(grpc::ByteBuffer* response, std::shared_ptr<void> slot,
                           CountedCall counted, UnreadAnswers::Reader reader, Start start,
                           Hook on_success = nullptr, std::function<void()> on_cancel = nullptr) {
    auto* reactor = new UnaryReactor(response, counted, std::move(reader), std::move(on_cancel));
    const std::shared_ptr<State> state = reactor->state_;
    auto answer = std::make_unique<Answer>(state, std::move(slot), std::move(on_success));
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
    State(UnaryReactor* reactor, grpc::ByteBuffer* response, CountedCall counted,
          UnreadAnswers::Reader reader)
        : counted(counted), reader(std::move(reader)), reactor(reactor), response(response) {}

    void Finish(absl::StatusOr<Response> result) {
      absl::Status status = result.status();
      MutexLock lock(&mu);
      if (reactor == nullptr) return;
      if constexpr (std::is_same_v<Response, std::string>) {
        if (status.ok()) *response = ToByteBuffer(*std::move(result));
      } else {
        if (status.ok()) *response = EncodedMessage(*result);
      }
      if (status.ok()) status = reader.Admit(response->Length(), &reactor->room_);
      if (!status.ok()) response->Clear();
      counted.stats->Ended(counted.method, status.code(), Clock::Real()->NowNanos() - begin_nanos);
      // After Finish gRPC may be done with both at any time.
      std::exchange(reactor, nullptr)->grpc::ServerUnaryReactor::Finish(StatusToGrpc(status));
    }

    // The registry has destroyed the callback without running it. While it is being called it may
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
    const UnreadAnswers::Reader reader;
    const int64_t begin_nanos = Clock::Real()->NowNanos();
    Mutex mu;
    bool starting ABSL_GUARDED_BY(mu) = true;
    bool dropped ABSL_GUARDED_BY(mu) = false;
    UnaryReactor* reactor ABSL_GUARDED_BY(mu);  // null once finished
    grpc::ByteBuffer* response ABSL_GUARDED_BY(mu);
  };

  // Finishes the call if the registry destroys the callback without running it.
  struct Answer {
    Answer(std::shared_ptr<State> state, std::shared_ptr<void> slot, Hook on_success)
        : state(std::move(state)), slot(std::move(slot)), on_success(std::move(on_success)) {}
    Answer(const Answer&) = delete;
    ~Answer() {
      if (state != nullptr) state->Drop();
    }

    std::shared_ptr<State> state;  // null once answered
    const std::shared_ptr<void> slot;
    const Hook on_success;
  };

  UnaryReactor(grpc::ByteBuffer* response, CountedCall counted, UnreadAnswers::Reader reader,
               std::function<void()> on_cancel)
      : state_(std::make_shared<State>(this, response, counted, std::move(reader))),
        on_cancel_(std::move(on_cancel)) {}

  void OnCancel() override {
    state_->Finish(absl::CancelledError("the client cancelled the call"));
    if (on_cancel_) on_cancel_();  // OnDone comes after the return
  }
  void OnDone() override { delete this; }

  const std::shared_ptr<State> state_;
  const std::function<void()> on_cancel_;
  std::shared_ptr<void> room_;  // of the answer, until OnDone
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_UNARY_REACTOR_H_
