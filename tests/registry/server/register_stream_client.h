// A client of RegisterStream, in bytes, so that a test may send what is no request.
//
// Thread safety: one thread.

#ifndef FAILBACK_TESTS_REGISTRY_SERVER_REGISTER_STREAM_CLIENT_H_
#define FAILBACK_TESTS_REGISTRY_SERVER_REGISTER_STREAM_CLIENT_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback {

class RegisterStreamClient : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using Response = registry::v1::RegisterStreamResponse;

  // What is waited for comes within this, or the test has failed.
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  explicit RegisterStreamClient(const std::shared_ptr<grpc::Channel>& channel,
                                const std::map<std::string, std::string>& metadata = {})
      : stub_(channel) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    context_.set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(
        &context_, "/failback.registry.v1.RegistryService/RegisterStream", {}, this);
    AddHold();
    StartCall();
  }
  explicit RegisterStreamClient(const std::string& address,
                                const std::map<std::string, std::string>& metadata = {})
      : RegisterStreamClient(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
                             metadata) {}
  ~RegisterStreamClient() override {
    Cancel();
    Finish().IgnoreError();
  }

  // Sends when what was sent before has left.
  void Send(const registry::v1::RegisterRequest& request) {
    SendBytes(request.SerializeAsString());
  }
  void SendBytes(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    MutexLock lock(&mu_);
    unsent_.emplace_back(&slice, 1);
    Write();
  }

  // Waits until all has left, as far as gRPC's windows allow. False: it has not.
  bool WaitSent() {
    MutexLock lock(&mu_);
    return Wait([this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return unsent_.empty() && !writing_; });
  }

  // Nothing more will be sent.
  void SendNoMore() {
    MutexLock lock(&mu_);
    last_sent_ = true;
    Write();
  }

  // The next answer; nullopt when the stream has ended, or none comes.
  std::optional<Response> Read() {
    MutexLock lock(&mu_);
    reading_ = true;
    StartRead(&answer_);
    if (!Wait([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reading_; }) || !read_ok_)
      return std::nullopt;
    Response response;
    grpc::ByteBuffer bytes = answer_;
    if (!grpc::SerializationTraits<Response>::Deserialize(&bytes, &response).ok()) {
      return std::nullopt;
    }
    return response;
  }

  void Cancel() { context_.TryCancel(); }

  // Waits for the end of the stream; DATA_LOSS when it does not come.
  absl::Status Finish() {
    MutexLock lock(&mu_);
    if (std::exchange(held_, false)) RemoveHold();
    if (!Wait([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return status_.has_value(); })) {
      return absl::DataLossError("no end came");
    }
    return *status_;
  }

 private:
  template <typename Condition>
  bool Wait(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!condition()) {
      if (absl::Now() >= deadline) return false;
      changed_.WaitFor(&mu_, deadline - absl::Now());
    }
    return true;
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || broken_) return;
    if (!unsent_.empty()) {
      writing_ = true;
      written_ = unsent_.front();
      unsent_.pop_front();
      StartWrite(&written_);
    } else if (std::exchange(last_sent_, false)) {
      StartWritesDone();
    }
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) broken_ = true;
    Write();
    changed_.SignalAll();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(&mu_);
    reading_ = false;
    read_ok_ = ok;
    changed_.SignalAll();
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mu_);
    status_ = StatusFromGrpc(status);
    changed_.SignalAll();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer answer_;
  grpc::ByteBuffer written_;
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool last_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool read_ok_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SERVER_REGISTER_STREAM_CLIENT_H_
