// A stream of requests, each answered by one message: what KeepAlive and RegisterStream have in
// common. Internal to the server.
//
//   class Doubler : public ExchangeReactor<Number, Number> {
//    public:
//     explicit Doubler(Options options) : ExchangeReactor(std::move(options)) { Begin(); }
//
//    private:
//     void OnRequest(Number* request, const Ticket& ticket) override {
//       later_([state = state(), ticket, n = request->n()] { state->Answer(ticket, Made(2 * n));
//       });
//     }
//     void OnEnd() override {}
//   };
//
// Flow: what has been read and not been answered, or not been taken by the client, is open. While
// too much is open nothing more is read, and gRPC's flow control stops the client: a client that
// takes no answers costs a bounded amount of memory.
//
// The reactor belongs to gRPC and goes at OnDone; its state may live on, for answers still to come.
//
// Thread safety: all methods of the state from any thread. OnRequest is called by one thread at a
// time, in the order of the requests: the next is read when it has returned.

#ifndef FAILBACK_REGISTRY_EXCHANGE_REACTOR_H_
#define FAILBACK_REGISTRY_EXCHANGE_REACTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "registry/call_stats.h"
#include "registry/errors.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {

inline size_t WireSize(const grpc::ByteBuffer& message) { return message.Length(); }
template <typename Message>
size_t WireSize(const Message& message) {
  return message.ByteSizeLong();
}

template <typename Request, typename Response>
class ExchangeReactor : public grpc::ServerBidiReactor<Request, Response> {
 public:
  enum class Order { kAsAnswered, kAsAsked };

  struct Options {
    // As long-lived as the reactor.
    grpc::CallbackServerContext* context = nullptr;
    CallStats* stats = nullptr;
    // What the stream is counted as when it ends, and each message when it has been answered.
    CallStats::Method method = CallStats::Method::kKeepAlive;
    std::optional<CallStats::Method> message_method;
    // In which order answers are written.
    Order order = Order::kAsAnswered;
    // What may be open at once: messages, and bytes, of requests or of the answers in their places.
    // The last message read may go beyond the bytes.
    size_t max_open = 1024;
    size_t max_open_bytes = size_t{4} << 20;
  };

  // A message that has been read, for its answer.
  struct Ticket {
    uint64_t number = 0;  // from 0
    size_t bytes = 0;
    int64_t begin_nanos = 0;
  };

  class State;
  const std::shared_ptr<State>& state() const { return state_; }

 protected:
  explicit ExchangeReactor(Options options)
      : state_(std::make_shared<State>(this, std::move(options))) {}

  // Starts reading: at the end of the derived class's constructor.
  void Begin() {
    MutexLock lock(&state_->mu_);
    state_->Advance();
  }

  // A message has come. Sees to it that state()->Answer is called once, now or later. It may take
  // the message out of `*request`.
  virtual void OnRequest(Request* request, const Ticket& ticket) = 0;

  // gRPC is done with the stream; the reactor goes.
  virtual void OnEnd() = 0;

 private:
  void OnReadDone(bool ok) final {
    Ticket ticket;
    {
      MutexLock lock(&state_->mu_);
      if (!ok || !state_->MayRead()) {
        state_->reading_ = false;
        if (!state_->last_words_.has_value()) state_->last_words_ = absl::OkStatus();
        return state_->Advance();
      }
      ticket = state_->Take(WireSize(request_));
    }
    OnRequest(&request_, ticket);
    MutexLock lock(&state_->mu_);
    state_->reading_ = false;
    state_->Advance();
  }

  void OnWriteDone(bool ok) final {
    MutexLock lock(&state_->mu_);
    state_->writing_ = false;
    if (!ok) state_->SetEnd(absl::CancelledError("the client has gone"));
    state_->Advance();
  }

  void OnCancel() final { state_->End(absl::CancelledError("the client has gone")); }

  void OnDone() final {
    OnEnd();
    delete this;
  }

  Request request_;
  const std::shared_ptr<State> state_;
};

template <typename Request, typename Response>
class ExchangeReactor<Request, Response>::State {
 public:
  State(ExchangeReactor* reactor, Options options)
      : options_(std::move(options)), reactor_(reactor) {}

  // Answers a message: once. `code` is what it is counted as.
  void Answer(const Ticket& ticket, Response response, absl::StatusCode code) {
    MutexLock lock(&mu_);
    if (reactor_ == nullptr) return;
    if (options_.message_method.has_value()) {
      options_.stats->Ended(*options_.message_method, code,
                            Clock::Real()->NowNanos() - ticket.begin_nanos);
    }
    if (end_.has_value()) return;
    open_bytes_ += WireSize(response) - ticket.bytes;
    if (options_.order == Order::kAsAnswered) {
      ready_.push_back(std::move(response));
    } else {
      waiting_[ticket.number - first_waiting_] = std::move(response);
      for (; !waiting_.empty() && waiting_.front().has_value(); ++first_waiting_) {
        ready_.push_back(*std::move(waiting_.front()));
        waiting_.pop_front();
      }
    }
    Advance();
  }

  // Ends the stream when the write under way is done; what is open is dropped.
  void End(const absl::Status& status) {
    MutexLock lock(&mu_);
    SetEnd(status);
    Advance();
  }

  // Reads no more, and ends the stream when what is open has been answered.
  void Drain(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (!last_words_.has_value()) last_words_ = status;
    Advance();
  }

  // Called at intervals: ends the stream when nothing has come for `silent` of them and no answer
  // is still to be given, and cancels it when one write has been under way for `stalled` of them.
  void Sweep(int stalled, int silent) {
    MutexLock lock(&mu_);
    if (reactor_ == nullptr) return;
    ++sweeps_since_read_;
    if (!end_.has_value() && open_ == ready_.size() && sweeps_since_read_ > silent) {
      swept_ = true;
      SetEnd(absl::UnavailableError("nothing has come for long: open the stream again"));
      Advance();
    } else if (writing_ && ++sweeps_since_write_ > stalled) {
      swept_ = true;
      SetEnd(absl::CancelledError("the client has stopped reading"));
      options_.context->TryCancel();  // OnWriteDone follows
    }
  }

  // Whether Sweep has ended it.
  bool swept() {
    MutexLock lock(&mu_);
    return swept_;
  }

 private:
  friend class ExchangeReactor;

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !end_.has_value() && !last_words_.has_value();
  }

  Ticket Take(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    sweeps_since_read_ = 0;
    ++open_;
    open_bytes_ += bytes;
    if (options_.order == Order::kAsAsked) waiting_.emplace_back();
    return {next_++, bytes, Clock::Real()->NowNanos()};
  }

  void SetEnd(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (end_.has_value()) return;
    end_ = status;
    waiting_.clear();
    ready_.clear();
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reactor_ == nullptr) return;
    if (!writing_ && !ready_.empty()) {
      written_ = std::move(ready_.front());
      ready_.pop_front();
      --open_;
      open_bytes_ -= WireSize(written_);
      writing_ = true;
      sweeps_since_write_ = 0;
      reactor_->StartWrite(&written_);
    }
    if (last_words_.has_value() && open_ == 0) SetEnd(*last_words_);
    if (!reading_ && MayRead() && open_ < options_.max_open &&
        open_bytes_ < options_.max_open_bytes) {
      reading_ = true;
      reactor_->StartRead(&reactor_->request_);
    }
    if (writing_ || !end_.has_value()) return;
    options_.stats->Ended(options_.method, end_->code());
    std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
  }

  const Options options_;  // pointers in it: as long as there is a reactor_
  Mutex mu_;
  ExchangeReactor* reactor_ ABSL_GUARDED_BY(mu_);  // null once finished
  bool reading_ ABSL_GUARDED_BY(mu_) = false;      // or a message is being handed over
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;
  size_t open_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Places for the answers from number first_waiting_ on; those in turn go to ready_.
  std::deque<std::optional<Response>> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t first_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Response> ready_ ABSL_GUARDED_BY(mu_);
  Response written_ ABSL_GUARDED_BY(mu_);
  int sweeps_since_read_ ABSL_GUARDED_BY(mu_) = 0;
  int sweeps_since_write_ ABSL_GUARDED_BY(mu_) = 0;  // since the write under way began
  bool swept_ ABSL_GUARDED_BY(mu_) = false;
  // Nothing more is read: the status when all is answered.
  std::optional<absl::Status> last_words_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_EXCHANGE_REACTOR_H_
