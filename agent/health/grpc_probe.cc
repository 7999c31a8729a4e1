#include "agent/health/grpc_probe.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "registry/rpc/grpc_threads.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// What a call needs until it has ended, even if its owner is destroyed by then.
struct Call {
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  Probe::Done done;
  std::unique_ptr<Health::Stub> stub;
};

class GrpcProbe final : public Probe {
 public:
  GrpcProbe(const Address& address, const std::string& service)
      : target_(address.ToString()), service_(service) {
    KeepGrpcCallbackThreads();  // a probe may be destroyed in its own callback
  }

  ~GrpcProbe() override { Cancel(); }

  void Run(Done done) override {
    auto call = std::make_shared<Call>();
    call->request.set_service(service_);
    call->done = std::move(done);
    {
      MutexLock lock(&mu_);
      last_ = call;
    }
    // The check's interval is the only rhythm: a channel that waits to connect again fails each
    // call until then, and connects in between only when it is polled. A fresh one connects for the
    // call.
    if (channel_ == nullptr || channel_->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      channel_ = NewChannel();
    }
    call->stub = Health::NewStub(channel_);
    call->stub->async()->Check(&call->context, &call->request, &call->response,
                               [call, target = target_](const grpc::Status& status) {
                                 std::move(call->done)(Judge(target, status, call->response));
                               });
  }

  void Cancel() override {
    std::shared_ptr<Call> call;
    {
      MutexLock lock(&mu_);
      call = last_.lock();
    }
    if (call != nullptr) call->context.TryCancel();
  }

 private:
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Two checks of one server do not share what one of them has found out.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(target_, grpc::InsecureChannelCredentials(), arguments);
  }

  static absl::Status Judge(const std::string& target, const grpc::Status& status,
                            const HealthCheckResponse& response) {
    if (!status.ok()) {
      return absl::UnavailableError(absl::StrCat(
          target, ": ",
          StatusFromGrpc(status).ToString(absl::StatusToStringMode::kWithNoExtraData)));
    }
    if (response.status() == HealthCheckResponse::SERVING) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(target, ": ", HealthCheckResponse::ServingStatus_Name(response.status())));
  }

  const std::string target_;
  const std::string service_;
  std::shared_ptr<grpc::Channel> channel_;  // of Run() alone, one call at a time
  Mutex mu_;
  std::weak_ptr<Call> last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Probe> NewGrpcProbe(const Address& address, const std::string& service) {
  return std::make_unique<GrpcProbe>(address, service);
}

}  // namespace failback
