#include "registry/etcd/renewing_agents.h"

#include <utility>

#include "registry/base/proto_time.h"

namespace failback {
namespace etcd {

void RenewingAgents::Renewed(const Session& session, const KeepAliveRequest& request) {
  const bool reported =
      request.has_report() && reports_.Take(session.id, request.report(), clock_->WallNow());
  MutexLock lock(&mu_);
  auto it = renewals_.find(session.id);
  if (it == renewals_.end()) {
    if (!reported) return;
    it = renewals_.try_emplace(session.id).first;
    admin::v1::SessionSummary& summary = it->second.session;
    summary.set_incarnation(session.incarnation);
    summary.set_client_name(session.client_name);
    summary.set_rank(session.rank);
  }
  // A session that is resumed may have another.
  it->second.ttl = session.ttl();
  *it->second.session.mutable_ttl() = ToProto(it->second.ttl);
  it->second.time = Now();
}

void RenewingAgents::Drop(const std::string& session_id) {
  reports_.Drop(session_id);
  MutexLock lock(&mu_);
  renewals_.erase(session_id);
}

std::vector<admin::v1::AgentSummary> RenewingAgents::All() const {
  const SteadyTime now = Now();
  const absl::Time wall_now = clock_->WallNow();
  std::vector<admin::v1::AgentSummary> agents;
  for (AgentReports::Entry& entry : reports_.All()) {
    MutexLock lock(&mu_);
    const auto it = renewals_.find(entry.session_id);
    if (it == renewals_.end() || now - it->second.time > it->second.ttl) continue;
    admin::v1::AgentSummary& agent = agents.emplace_back();
    *agent.mutable_session() = it->second.session;
    *agent.mutable_session()->mutable_expire_time() =
        ToProto(wall_now + it->second.ttl - (now - it->second.time));
    *agent.mutable_report() = std::move(entry.report);
    *agent.mutable_report_time() = ToProto(entry.time);
  }
  return agents;
}

void RenewingAgents::Sweep() {
  const SteadyTime now = Now();
  std::vector<std::string> gone;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, renewal] : renewals_) {
      if (now - renewal.time > 2 * renewal.ttl) gone.push_back(id);
    }
  }
  for (const std::string& id : gone) Drop(id);
}

}  // namespace etcd
}  // namespace failback
