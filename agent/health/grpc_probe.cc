#include "agent/health/grpc_probe.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/errors.h"
#include "registry/grpc_threads.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// What a call needs until it has ended, whoever is gone by then.
struct Call {
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  Probe::Done done;
};

class GrpcProbe final : public Probe {
 public:
  GrpcProbe(const Address& address, const std::string& service)
      : target_(address.ToString()), service_(service) {
    KeepGrpcCallbackThreads();  // a probe may be destroyed in its own callback
    grpc::ChannelArguments arguments;
    // The check's interval is the only rhythm.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Two checks of one server do not share what one of them has found out.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = Health::NewStub(
        grpc::CreateCustomChannel(target_, grpc::InsecureChannelCredentials(), arguments));
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
    stub_->async()->Check(&call->context, &call->request, &call->response,
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
  std::unique_ptr<Health::Stub> stub_;
  Mutex mu_;
  std::weak_ptr<Call> last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Probe> NewGrpcProbe(const Address& address, const std::string& service) {
  return std::make_unique<GrpcProbe>(address, service);
}

}  // namespace failback
