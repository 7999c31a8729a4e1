// A stream of requests, each answered by one message, as the client has it: what renewals and
// streamed Registers have in common. Internal to GrpcRegistry.
//
//   class Doubler : public ClientExchange<Question, Number, Number> {
//    public:
//     void Start(Stub* stub) {
//       stub->async()->Double(context(), this);
//       Begin(shared_from_this(), absl::OkStatus());
//     }
//    private:
//     void OnAnswer(const std::shared_ptr<Question>& question, Number answer) override { … }
//     void OnOver() override { … }
//     void OnEnd(End end) override { … }
//   };
//
// What is sent when, and which request an answer belongs to, is said by an AskFlow
// (registry/client/ask_flow.h); by default an answer may be for any, so that answers are in the order
// of the requests.
//
// Ask is what waits for an answer. It has the `request`, and lives until that has been written.
//
// Thread safety: all methods from any thread. The stream keeps itself alive from Begin until gRPC
// has ended it.

#ifndef FAILBACK_REGISTRY_CLIENT_CLIENT_EXCHANGE_H_
#define FAILBACK_REGISTRY_CLIENT_CLIENT_EXCHANGE_H_

#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "registry/client/ask_flow.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback {

template <typename Ask, typename Request, typename Response>
class ClientExchange : public grpc::ClientBidiReactor<Request, Response> {
 public:
  using AskType = Ask;
  using AskPtr = std::shared_ptr<Ask>;

  explicit ClientExchange(WhenIdle when_idle) : flow_(when_idle) {}

  // False when the stream takes no more: take another.
  bool Send(const AskPtr& ask) {
    MutexLock lock(&mu_);
    if (!flow_.Send(ask)) return false;
    Write();
    return true;
  }

  bool HasWaiting(const Ask* ask) {
    MutexLock lock(&mu_);
    return flow_.HasWaiting([&](const Ask& waiting) { return &waiting == ask; });
  }

  // Takes no more; ends when what it has taken is answered.
  void Retire() {
    {
      MutexLock lock(&mu_);
      flow_.Retire();
      Write();
    }
    OnOver();
  }

  // Ends the stream; what waits ends with `status`.
  void Abandon(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (reason_.ok()) reason_ = status;
    }
    OnOver();
    context_.TryCancel();
  }

 protected:
  struct End {
    absl::Status status;         // why it has ended: gRPC's, or what it was abandoned with
    absl::Status reported;       // gRPC's
    std::deque<AskPtr> waiting;  // in the order of the requests
    bool abandoned = false;
  };

  grpc::ClientContext* context() { return &context_; }

  // To be called when the call has been prepared on context(). An error of `ready` is its end.
  void Begin(std::shared_ptr<ClientExchange> self, const absl::Status& ready) {
    self_ = std::move(self);
    this->AddHold();  // for Send; removed when the stream is over
    this->StartRead(&response_);
    if (!ready.ok()) {
      MutexLock lock(&mu_);
      reason_ = ready;
      context_.TryCancel();
    }
    this->StartCall();
  }

  // Whether `response` may be the answer to `ask`.
  virtual bool Answers(const Response& /*response*/, const Ask& /*ask*/) const { return true; }
  // The next answer is read meanwhile, and may be delivered by another thread before this returns.
  virtual void OnAnswer(const AskPtr& ask, Response response) = 0;
  // It takes no more. May be called again.
  virtual void OnOver() = 0;
  // gRPC has ended it; once, at the end.
  virtual void OnEnd(End end) = 0;

 private:
  void OnWriteDone(bool ok) final {
    MutexLock lock(&mu_);
    flow_.EndWrite();
    if (ok) Write();  // if not, the read fails too
  }

  void OnReadDone(bool ok) final {
    if (!ok) {
      {
        MutexLock lock(&mu_);
        flow_.Break();
      }
      OnOver();
      this->RemoveHold();
      return;
    }
    Response response = std::move(response_);
    response_ = Response();
    // Matched before the next is read, which another thread may receive.
    bool idle = false;
    const AskPtr ask = Answered(response, &idle);
    if (idle) OnOver();
    this->StartRead(&response_);
    if (ask != nullptr) OnAnswer(ask, std::move(response));
  }

  void OnDone(const grpc::Status& status) final {
    const std::shared_ptr<ClientExchange> self = std::move(self_);
    End end;
    end.reported = StatusFromGrpc(status);
    {
      MutexLock lock(&mu_);
      end.waiting = flow_.TakeWaiting();
      end.abandoned = !reason_.ok();
      end.status = end.abandoned ? reason_ : end.reported;
    }
    OnEnd(std::move(end));
  }

  AskPtr Answered(const Response& response, bool* idle) {
    MutexLock lock(&mu_);
    const bool before = flow_.over();
    AskPtr ask = flow_.Answered([&](const Ask& asked) { return Answers(response, asked); });
    *idle = !before && flow_.over();
    if (*idle) Write();
    return ask;
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (Ask* const next = flow_.StartWrite()) {
      this->StartWrite(&next->request);
    } else if (flow_.Close()) {
      this->StartWritesDone();
    }
  }

  std::shared_ptr<ClientExchange> self_;
  grpc::ClientContext context_;
  Response response_;

  Mutex mu_;
  AskFlow<Ask> flow_ ABSL_GUARDED_BY(mu_);
  absl::Status reason_ ABSL_GUARDED_BY(mu_);  // why it was abandoned
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_CLIENT_EXCHANGE_H_
