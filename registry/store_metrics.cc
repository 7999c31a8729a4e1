#include "registry/store_metrics.h"

namespace failback {

void CollectStore(const StoreRegistry::Statistics& stats, MetricFamilies* out) {
  out->Gauge("failback_registry_epoch", "The store's epoch; a change means that it was put back.",
             static_cast<double>(stats.epoch));
  out->Gauge("failback_registry_revision", "Commits in this epoch.",
             static_cast<double>(stats.revision));
  out->Gauge("failback_registry_instances", "Instances that are listed.", stats.instances);
  out->Gauge("failback_registry_services", "Services that have instances.", stats.services);
  out->Gauge("failback_registry_tombstones", "Keys kept against late calls.", stats.tombstones);
  out->Gauge("failback_registry_incarnations", "Incarnations whose rank is remembered.",
             stats.incarnations);
  out->Gauge("failback_registry_subscribers", "Subscriptions that are followed.",
             stats.subscribers);

  out->Gauge("failback_registry_sessions", "Sessions that are alive.", stats.sessions);
  out->Counter("failback_registry_renewals_total", "Renewals of sessions.", stats.leases.renewals);
  out->Counter("failback_registry_sessions_expired_total",
               "Sessions that ended because they were not renewed.", stats.expired_sessions);
  out->Gauge("failback_registry_sessions_held",
             "Sessions that have run out and are kept by the eviction guard.", stats.leases.held);
  out->Counter("failback_registry_sessions_held_total",
               "How often the eviction guard has begun to keep a session.", stats.leases.holds);
  out->Gauge("failback_registry_eviction_guard_enabled", "1 while the eviction guard is on.",
             stats.leases.guard ? 1 : 0);
  out->Gauge("failback_registry_eviction_guard_active",
             "1 while the eviction guard keeps sessions that have run out.",
             stats.leases.held > 0 ? 1 : 0);
  out->Counter("failback_registry_pauses_total",
               "Pauses of this process after which all leases were extended.", stats.leases.pauses);

  out->Counter("failback_store_groups_total", "Groups of calls that were decided together.",
               stats.groups);
  out->Counter("failback_store_intents_total", "Intents that were decided.", stats.intents);
  out->Histogram("failback_store_group_intents", "Intents in a group that changed something.",
                 stats.group_intents, MetricFamilies::kItems);
  out->Histogram("failback_store_write_duration_seconds",
                 "How long the store took to make a group durable.", stats.write_nanos,
                 MetricFamilies::kNanosPerSecond);
  out->Gauge("failback_store_writable",
             "1, or 0 when the store could last not be written: disk full, read-only, locked.",
             stats.write_status.ok() ? 1 : 0);
  for (const Storage::File& file : stats.files) {
    out->Gauge("failback_store_size_bytes", "Size of the store's files.", file.bytes,
               {{"file", file.name}});
  }
}

void CollectAgents(const StoreRegistry::AgentCounts& agents, MetricFamilies* out) {
  out->Gauge("failback_registry_agents", "Agents that report with their renewals.", agents.agents);
  out->Gauge("failback_registry_agents_in_trouble",
             "Of those: with something parked or superseded, pending for a minute, or overdue.",
             agents.in_trouble);
}

}  // namespace failback
