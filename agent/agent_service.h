// AgentService over gRPC: what an operator sees of a FailbackGroup, and does to it.
//
// Everything but Drain, and a Retry that waits, is answered from memory at once. One drain waits at
// a time: a caller who asks meanwhile, or stops the daemon, is answered by the same one, and so is
// every later one once nothing remains. If something does, the next one waits for it again.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_AGENT_AGENT_SERVICE_H_
#define FAILBACK_AGENT_AGENT_SERVICE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/retry_wait.h"
#include "agent/static_services.h"
#include "failback/agent/v1/agent.grpc.pb.h"
#include "registry/failback/failback_group.h"
#include "registry/security/access_control.h"
#include "retry/mutex.h"

namespace failback {

// All are served on encoded messages: registry/rpc/bounded_call.h.
using AgentServiceBase = agent::v1::AgentService::WithRawCallbackMethod_GetStatus<
    agent::v1::AgentService::WithRawCallbackMethod_ListPending<
        agent::v1::AgentService::WithRawCallbackMethod_ListIntents<
            agent::v1::AgentService::WithRawCallbackMethod_Retry<
                agent::v1::AgentService::WithRawCallbackMethod_Cancel<
                    agent::v1::AgentService::WithRawCallbackMethod_Drain<
                        agent::v1::AgentService::WithRawCallbackMethod_ReportHealth<
                            agent::v1::AgentService::Service>>>>>>>;

class AgentService final : public AgentServiceBase {
 public:
  // For RegistryServer::Options::extra_services.
  static constexpr char kName[] = "failback.agent.v1.AgentService";

  // Fills in the status of what else the agent serves. From any thread; must not block.
  using AddStatus = std::function<void(agent::v1::GetStatusResponse*)>;

  // `registry` and `timer` outlive the service. `start_time` is the agent's. `access`, unless null,
  // says who may ask: for the status every caller who may do anything here, for the rest who may
  // administer it. Who may not administer it sees in the status only services that it may read or
  // register.
  AgentService(FailbackGroup* registry, HashedWheelTimer* timer, absl::Time start_time,
               std::shared_ptr<AccessControl> access = nullptr, AddStatus add_status = nullptr);
  ~AgentService() override;

  using DrainCallback = std::function<void(const absl::StatusOr<agent::v1::DrainResponse>&)>;

  // Drains within `deadline`, or joins the drain that is under way or complete. `done` runs once,
  // possibly before this returns. What came of it is logged, with `by`, who asked for it.
  void DrainOnce(absl::Duration deadline, const std::string& by, const DrainCallback& done);

  // What reports static services and takes reports of their health; null: nothing does. Outlives
  // the calls under way.
  void SetStaticServices(StaticServiceSet* services);

  // Reports the state of the configuration file; set before the first call.
  void SetConfigStatus(std::function<agent::v1::ConfigStatus()> status);

  // Runs once when a drain begins; set before the first call.
  void OnDrain(std::function<void()> on_drain);

  // Sessions of local programs; that of the static services is none.
  int64_t local_sessions() const;

  // The calls themselves, for code that has checked that the caller may make them.
  agent::v1::GetStatusResponse Status() const;
  absl::StatusOr<agent::v1::ListPendingResponse> Pending(
      const agent::v1::ListPendingRequest& request) const;
  absl::StatusOr<agent::v1::ListIntentsResponse> Intents(
      const agent::v1::ListIntentsRequest& request) const;
  void RetryNow(const agent::v1::RetryRequest& request, Callback<agent::v1::RetryResponse> done);
  void GiveUp(const agent::v1::CancelRequest& request, Callback<agent::v1::CancelResponse> done);
  // As DrainOnce; INVALID_ARGUMENT for a deadline out of bounds.
  void DrainWithin(const agent::v1::DrainRequest& request, const std::string& by,
                   const DrainCallback& done);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListPending(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListIntents(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Retry(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ReportHealth(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;

 private:
  // The one drain. Shared with its completion, which may come after the service is destroyed.
  struct DrainState {
    Mutex mu;
    bool begun ABSL_GUARDED_BY(mu) = false;
    bool under_way ABSL_GUARDED_BY(mu) = false;
    // Once nothing remains.
    std::optional<agent::v1::DrainResponse> complete ABSL_GUARDED_BY(mu);
    std::vector<DrainCallback> waiting ABSL_GUARDED_BY(mu);
  };

  absl::Status MayAsk(const grpc::CallbackServerContext& context, const char* call) const;
  absl::Status MayAdminister(const grpc::CallbackServerContext& context, const char* call) const;
  // Who makes the call, as far as it is known: for the log.
  std::string CallerName(const grpc::CallbackServerContext& context, const char* call) const;
  // As Status(), without what names services that the caller may neither read nor register.
  absl::StatusOr<agent::v1::GetStatusResponse> StatusFor(
      const grpc::CallbackServerContext& context) const;
  // A report is for who may register the service. The answer to others is the same whether it is
  // configured or not.
  absl::StatusOr<agent::v1::CheckState> Report(const grpc::CallbackServerContext& context,
                                               const agent::v1::ReportHealthRequest& request) const;

  FailbackGroup* const registry_;
  const absl::Time start_time_;
  const std::shared_ptr<AccessControl> access_;
  const AddStatus add_status_;
  std::atomic<StaticServiceSet*> static_services_ = nullptr;
  std::function<agent::v1::ConfigStatus()> config_status_;
  std::function<void()> on_drain_;
  RetryWaits retries_;
  const std::shared_ptr<DrainState> drain_ = std::make_shared<DrainState>();
};

}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_SERVICE_H_
