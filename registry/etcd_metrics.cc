#include "registry/etcd_metrics.h"

#include "absl/status/status.h"

namespace failback {

void CollectEtcd(const EtcdRegistry::Statistics& stats, MetricFamilies* out) {
  if (stats.epoch != 0) {
    out->Gauge("failback_registry_epoch", "The store's epoch; a change means that it was put back.",
               static_cast<double>(stats.epoch));
  }
  out->Gauge("failback_etcd_watched_services", "Services that are followed at etcd.",
             static_cast<double>(stats.watched_services));
  for (size_t code = 0; code < stats.calls.ended.size(); ++code) {
    if (stats.calls.ended[code] == 0 && code != 0) continue;
    out->Counter("failback_etcd_calls_total",
                 "Calls to etcd that have ended, through all members that were tried.",
                 static_cast<double>(stats.calls.ended[code]),
                 {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
  }
  out->Counter("failback_etcd_tokens_total",
               "Tokens that the cluster has given for user and password.",
               static_cast<double>(stats.calls.tokens));
  out->Histogram("failback_etcd_call_duration_seconds", "How long calls to etcd took.",
                 stats.calls.duration_nanos, MetricFamilies::kNanosPerSecond);
}

}  // namespace failback
