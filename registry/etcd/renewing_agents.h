// The agents that renew their sessions through this registry, by what each has reported of itself
// with a renewal.
//
// Reports are not written to etcd, which would cost a commit for each: so every registry knows
// those of its own callers, and no others. An agent that has not renewed here for its TTL is left
// out: it has stopped, or renews at another server by now.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_RENEWING_AGENTS_H_
#define FAILBACK_REGISTRY_ETCD_RENEWING_AGENTS_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/sessions.h"
#include "registry/model/agent_reports.h"
#include "registry/registry.h"
#include "retry/clock.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class RenewingAgents {
 public:
  // `clock` outlives this.
  explicit RenewingAgents(const Clock* clock) : clock_(clock) {}

  // `session` has just been renewed by `request`.
  void Renewed(const Session& session, const KeepAliveRequest& request);
  // The session is over.
  void Drop(const std::string& session_id);

  std::vector<admin::v1::AgentSummary> All() const;

  // Forgets those that have not renewed here for two TTLs.
  void Sweep();

 private:
  struct Renewal {
    admin::v1::SessionSummary session;
    absl::Duration ttl;
    SteadyTime time;
  };

  SteadyTime Now() const { return absl::Nanoseconds(clock_->NowNanos()); }

  const Clock* const clock_;
  AgentReports reports_;
  mutable Mutex mu_;
  // Of the sessions that have a report.
  absl::flat_hash_map<std::string, Renewal> renewals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_RENEWING_AGENTS_H_
