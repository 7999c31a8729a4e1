// A stream of requests, each answered by one message: what KeepAlive and RegisterStream have in
// common. Internal to the server.
//
//   class Doubler : public ExchangeReactor {
//    public:
//     explicit Doubler(Options options) : ExchangeReactor(std::move(options)) { Begin(); }
//
//    private:
//     void OnRequest(grpc::ByteBuffer* request, const Slot& slot) override {
//       auto answer = std::make_unique<PendingAnswer<EncodeNumber>>(state(), slot, EncodeNumber());
//       later_([answer = std::move(answer), n = Parsed(*request)] { answer->Give(2 * n); });
//     }
//     void OnEnd() override {}
//   };
//
// Messages are bytes: gRPC ends a stream of parsed ones without a reason when one cannot be parsed.
//
// Flow: what is read and written when is said by an AnswerFlow (registry/server/answer_flow.h).
// While too much is open nothing more is read, and gRPC's flow control stops the client: a client
// that takes no answers costs a bounded amount of memory.
//
// The reactor belongs to gRPC and is deleted at OnDone; its state may outlive it, for answers still
// to come.
//
// Thread safety: all methods of the state from any thread. OnRequest is called by one thread at a
// time, in the order of the requests: the next is read when it has returned.

#ifndef FAILBACK_REGISTRY_SERVER_EXCHANGE_REACTOR_H_
#define FAILBACK_REGISTRY_SERVER_EXCHANGE_REACTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "registry/server/answer_flow.h"
#include "registry/server/call_stats.h"
#include "retry/mutex.h"

namespace failback {

// The end of a stream that has been open for long, so that its client connects with the
// certificates of today.
absl::Status StreamIsOld();

class ExchangeReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Options {
    // As long-lived as the reactor.
    grpc::CallbackServerContext* context = nullptr;
    CallStats* stats = nullptr;
    // What the stream is counted as when it ends, and each message when it has been answered.
    CallStats::Method method = CallStats::Method::kKeepAlive;
    std::optional<CallStats::Method> message_method;
    AnswerLimits limits;
    // Let go when the first message is answered with OK.
    std::shared_ptr<void> silent;
  };

  // A message that has been read, for its answer.
  struct Slot {
    AnswerSlot of_flow;
    int64_t begin_nanos = 0;  // where messages are counted
  };

  class State;
  const std::shared_ptr<State>& state() const { return state_; }

 protected:
  explicit ExchangeReactor(Options options);

  // Starts reading: at the end of the derived class's constructor.
  void Begin();

  // A message has come. Sees to it that state()->Answer is called once, now or later, or ends the
  // stream. It may take the message out of `*request`.
  virtual void OnRequest(grpc::ByteBuffer* request, const Slot& slot) = 0;

  // gRPC is done with the stream; the reactor is deleted after.
  virtual void OnEnd() = 0;

 private:
  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  grpc::ByteBuffer request_;
  std::shared_ptr<State> state_;  // the same from the beginning on
};

class ExchangeReactor::State {
 public:
  State(ExchangeReactor* reactor, Options options, std::shared_ptr<void> silent)
      : options_(std::move(options)),
        silent_(std::move(silent)),
        reactor_(reactor),
        flow_(options_.limits) {}

  // Answers a message: once. `code` is what it is counted as.
  void Answer(const Slot& slot, const grpc::ByteBuffer& response, absl::StatusCode code);

  // Ends the stream when the write under way is done; what is open is dropped.
  void End(const absl::Status& status);

  // Reads no more, and ends the stream when what is open has been answered.
  void Drain(const absl::Status& status);

  // Called at intervals: ends the stream when nothing has come for `silent` of them and no answer
  // is still to be given, or, after the answers under way, when it has been open for `oldest` of
  // them; cancels it when one write has been under way for `stalled` of them.
  void Sweep(int stalled, int silent, int oldest);

  // Whether Sweep has ended it.
  bool swept();

 private:
  friend class ExchangeReactor;
  // A ByteBuffer can be copied and swapped, and not moved.
  struct Answered {
    Answered() = default;
    explicit Answered(const grpc::ByteBuffer& bytes) : bytes(bytes) {}
    Answered(Answered&& other) noexcept { bytes.Swap(&other.bytes); }
    Answered& operator=(Answered&& other) noexcept {
      bytes.Swap(&other.bytes);
      return *this;
    }
    grpc::ByteBuffer bytes;
  };
  using Flow = AnswerFlow<Answered>;

  Slot Take(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;  // pointers in it: as long as there is a reactor_
  std::shared_ptr<void> silent_ ABSL_GUARDED_BY(mu_);  // null once it was not
  Mutex mu_;
  ExchangeReactor* reactor_ ABSL_GUARDED_BY(mu_);  // null once finished
  Flow flow_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);
  bool swept_ ABSL_GUARDED_BY(mu_) = false;
};

// A message to be answered, once. One that is let go, as by a registry that throws or drops its
// callback, is answered INTERNAL.
//
// `Encode` makes the answer's bytes of an absl::StatusOr<Encode::Response>.
template <typename Encode>
class PendingAnswer {
 public:
  using Result = absl::StatusOr<typename Encode::Response>;

  PendingAnswer(std::shared_ptr<ExchangeReactor::State> state, const ExchangeReactor::Slot& slot,
                Encode encode)
      : state_(std::move(state)), slot_(slot), encode_(std::move(encode)) {}
  PendingAnswer(const PendingAnswer&) = delete;
  ~PendingAnswer() {
    if (state_ != nullptr) Give(absl::InternalError("the registry dropped the call"));
  }

  const Encode& encode() const { return encode_; }

  void Give(Result result) {
    const absl::StatusCode code = result.status().code();
    const grpc::ByteBuffer bytes = encode_(std::move(result));
    std::exchange(state_, nullptr)->Answer(slot_, bytes, code);
  }

 private:
  std::shared_ptr<ExchangeReactor::State> state_;  // null once answered
  const ExchangeReactor::Slot slot_;
  const Encode encode_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_EXCHANGE_REACTOR_H_
