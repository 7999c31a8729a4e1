// A bidirectional stream to one member of etcd, with its queue of writes.
//
// It opens with the token that calls carry, hands over each message, and reports its end once. It
// keeps itself alive until then. Its owner opens the next one: at the next member, as the end has
// been reported to the client.
//
// Thread safety: all methods from any thread. OnMessage and OnEnd come one at a time, OnEnd last.

#ifndef FAILBACK_REGISTRY_ETCD_GRPC_STREAM_H_
#define FAILBACK_REGISTRY_ETCD_GRPC_STREAM_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "grpcpp/support/client_callback.h"
#include "registry/etcd/error.h"
#include "registry/etcd/grpc_client.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

template <typename Request, typename Response>
class GrpcStream final : public Client::Stream<Request>,
                         public grpc::ClientBidiReactor<Request, Response>,
                         public std::enable_shared_from_this<GrpcStream<Request, Response>> {
 public:
  using Events = Client::StreamEvents<Response>;
  using Reactor = grpc::ClientBidiReactor<Request, Response>;
  // Starts the call of a stream on a member's stub.
  using Open = std::function<void(const GrpcClient::Member&, grpc::ClientContext*, Reactor*)>;

  // A stream to be opened by Start; what is sent before is sent then.
  static std::shared_ptr<GrpcStream> Make(GrpcClient* client, Events events, Open open) {
    return std::shared_ptr<GrpcStream>(new GrpcStream(client, std::move(events), std::move(open)));
  }

  void Start() override {
    client_->GetToken([self = this->shared_from_this()](absl::StatusOr<std::string> token) {
      self->StartWith(std::move(token));
    });
  }

  void Send(Request request) override {
    MutexLock lock(&mu_);
    queue_.push_back(std::move(request));
    Write();
  }

  void Abandon(const absl::Status& reason) override {
    {
      MutexLock lock(&mu_);
      if (reason_.ok()) reason_ = reason;
    }
    context_.TryCancel();
  }

 private:
  GrpcStream(GrpcClient* client, Events events, Open open)
      : client_(client), events_(std::move(events)), open_(std::move(open)) {}

  void StartWith(absl::StatusOr<std::string> token) {
    if (!token.ok()) return events_.on_end(token.status());
    token_ = *std::move(token);
    GrpcClient::Prepare(token_, &context_);
    member_ = client_->Pick();
    if (!client_->Enter(&context_)) {
      return events_.on_end(absl::CancelledError("the etcd client is closed"));
    }
    self_ = this->shared_from_this();
    open_(*member_, &context_, this);
    this->AddHold();  // for Send; removed when the stream is over
    this->StartRead(&response_);
    this->StartCall();
    MutexLock lock(&mu_);
    started_ = true;
    Write();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) Write();  // if not, the read fails too
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(&mu_);
        over_ = true;
      }
      this->RemoveHold();
      return;
    }
    Response response = std::move(response_);
    response_.Clear();
    {
      const GrpcClient::Frame frame(client_);
      events_.on_message(std::move(response));
    }
    this->StartRead(&response_);
  }

  void OnDone(const grpc::Status& grpc_status) override {
    const std::shared_ptr<GrpcStream> self = std::move(self_);
    absl::Status status = FromEtcd(grpc_status);
    if (status.ok()) status = absl::UnavailableError("etcd has ended the stream");
    {
      MutexLock lock(&mu_);
      if (!reason_.ok()) status = reason_;
    }
    client_->Report(*member_, status);
    if (ErrorOf(status) == Error::kInvalidToken) client_->DropToken(token_);
    GrpcClient* const client = client_;
    {
      const GrpcClient::Frame frame(client);
      events_.on_end(status);
    }
    client->Leave(&context_);
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!started_ || writing_ || over_ || queue_.empty()) return;
    written_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    this->StartWrite(&written_);
  }

  GrpcClient* const client_;
  const Events events_;
  const Open open_;
  std::string token_;
  std::shared_ptr<const GrpcClient::Member> member_;
  std::shared_ptr<GrpcStream> self_;
  grpc::ClientContext context_;
  Response response_;

  Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  std::deque<Request> queue_ ABSL_GUARDED_BY(mu_);
  Request written_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_GRPC_STREAM_H_
