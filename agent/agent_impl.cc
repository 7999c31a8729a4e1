#include "agent/agent_impl.h"

#include <thread>
#include <vector>

#include "agent/upstreams.h"
#include "registry/security/client_security.h"

namespace failback {
namespace internal_agent {
namespace {

// Fine enough for retries and renewals of seconds.
constexpr absl::Duration kTick = absl::Milliseconds(10);

}  // namespace

absl::Status Inherited() {
  return absl::FailedPreconditionError(
      "the agent was created before this process was forked: create one after the fork");
}

absl::Status AgentImpl::Start() {
  HashedWheelTimer::Options timer_options;
  timer_options.tick_duration = kTick;
  timer_options.name = "failback-agent";
  auto timer = HashedWheelTimer::Create(timer_options);
  if (!timer.ok()) return timer.status();
  timer_ = *std::move(timer);
  ClientSecurity::Options security_options;
  security_options.tls = {options_.tls_ca, options_.tls_cert, options_.tls_key};
  security_options.server_name = options_.tls_server_name;
  security_options.token_file = options_.token_file;
  auto security = ClientSecurity::Create(std::move(security_options));
  if (!security.ok()) return security.status();
  UpstreamOptions upstream_options;
  upstream_options.grpc.channel.security = *std::move(security);
  auto upstreams =
      NewUpstreams(options_.registries.empty() ? std::vector<std::string>{options_.registry}
                                               : options_.registries,
                   timer_.get(), options_.schemes, upstream_options);
  if (!upstreams.ok()) return upstreams.status();
  if (options_.executor == nullptr) own_executor_ = std::make_unique<ThreadPool>(1);
  FailbackRegistry::Options failback;
  failback.client_name = options_.client_name;
  failback.incarnation = options_.incarnation;
  failback.session_ttl = options_.session_ttl;
  failback.retry = options_.retry;
  failback.superseded_period = options_.superseded_period;
  failback.timer = timer_.get();
  failback.on_event = [weak = weak_from_this()](const IntentEvent& event) {
    if (auto self = weak.lock()) self->OnEvent(event);
  };
  auto registry = FailbackGroup::Create(*std::move(upstreams), failback);
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);
  return absl::OkStatus();
}

void AgentImpl::Stop() {
  if (options_.drain_deadline > absl::ZeroDuration() && !in_callback) DrainAndWait();
  std::unique_ptr<FailbackGroup> registry;
  {
    std::unique_lock<std::shared_mutex> lock(registry_mu_);
    registry.swap(registry_);
  }
  registry.reset();
  timer_.reset();
  // A pool cannot join itself: from a callback of its own another thread does, after it.
  if (in_callback && own_executor_ != nullptr) {
    std::thread([pool = std::move(own_executor_)] {}).detach();
  }
  own_executor_.reset();
}

void AgentImpl::OnEvent(const IntentEvent& event) {
  if (event.operation != OperationKind::kRegister) return;
  std::shared_ptr<KeyOwner> owner;
  {
    MutexLock lock(&mu_);
    const auto it = owners_.find(event.id.substr(event.id.find(' ') + 1));
    if (it != owners_.end()) owner = it->second;
  }
  if (owner != nullptr) owner->OnEvent(event);
}

void AgentImpl::DrainAndWait() {
  struct Drained {
    Mutex mu;
    CondVar cv;
    bool done ABSL_GUARDED_BY(mu) = false;
  };
  auto drained = std::make_shared<Drained>();
  WithRegistry([&](FailbackGroup& registry) {
    registry.Drain(options_.drain_deadline,
                   [drained](const absl::StatusOr<agent::v1::DrainResponse>&) {
                     MutexLock lock(&drained->mu);
                     drained->done = true;
                     drained->cv.SignalAll();
                   });
  });
  MutexLock lock(&drained->mu);
  while (!drained->done) drained->cv.Wait(&drained->mu);
}

}  // namespace internal_agent
}  // namespace failback
