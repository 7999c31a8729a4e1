#include "agent/agent_metrics.h"

#include <map>
#include <string>
#include <utility>

#include "daemon/metrics/server_metrics.h"

namespace failback {
namespace {

constexpr std::pair<agent::v1::CheckState, const char*> kCheckStates[] = {
    {agent::v1::CHECK_STATE_UNKNOWN, "unknown"},
    {agent::v1::CHECK_STATE_PASSING, "passing"},
    {agent::v1::CHECK_STATE_CRITICAL, "critical"},
};

}  // namespace

void CollectAgent(const AgentSnapshot& agent, MetricFamilies* out) {
  out->Gauge("failback_agent_local_sessions", "Sessions that local clients hold with this agent.",
             agent.local_sessions);
  out->Gauge("failback_agent_draining", "1 from when a drain has begun.", agent.draining ? 1 : 0);
  std::map<agent::v1::CheckState, int> services;
  int unregistered = 0;
  for (const agent::v1::StaticServiceStatus& service : agent.services) {
    ++services[service.state()];
    if (!service.registered()) ++unregistered;
  }
  for (const auto& [state, name] : kCheckStates) {
    out->Gauge("failback_agent_checked_services",
               "Services of the configuration that have health checks, by their state.",
               services[state], {{"state", name}});
  }
  out->Gauge("failback_agent_checked_services_unregistered",
             "Those of them that are not registered, for want of health.", unregistered);
  for (const auto& [kind, count] : agent.checks) {
    const char* const help = "Health checks that have ended, by kind and result.";
    out->Counter("failback_agent_health_checks_total", help, count.passes,
                 {{"kind", kind}, {"result", "pass"}});
    out->Counter("failback_agent_health_checks_total", help, count.failures,
                 {{"kind", kind}, {"result", "fail"}});
  }
  CollectReloads("config", agent.config.reloads(), agent.config.refused(), out);
  out->Gauge("failback_config_file_refused",
             "1 while the configuration file as it is now is refused, and an earlier one in force.",
             agent.config.error().empty() ? 0 : 1);
  if (agent.certificate_not_after == absl::InfiniteFuture()) return;
  out->Gauge("failback_agent_certificate_not_after_timestamp_seconds",
             "When the certificate that the agent shows its registries ends, as Unix time.",
             absl::ToDoubleSeconds(agent.certificate_not_after - absl::UnixEpoch()));
}

}  // namespace failback
