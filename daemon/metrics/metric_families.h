// Makes Prometheus families out of the plain numbers that a module's snapshot holds.
//
// A module counts in integers of its own and knows nothing of metrics
// (registry/server/call_stats.h, retry/histogram.h, the Statistics of StoreRegistry and
// FailbackRegistry). When it is scraped, one function for each module, as CollectServer of
// daemon/metrics/server_metrics.h, turns a snapshot into families.
//
//   MetricFamilies families;
//   families.Gauge("failback_registry_sessions", "Sessions that are alive.", stats.sessions);
//   families.Counter("failback_server_calls_total", "Calls that have ended.", n,
//                    {{"method", "Register"}, {"code", "OK"}});
//   std::vector<prometheus::MetricFamily> all = std::move(families).Take();
//
// Names follow Prometheus's conventions: base units (`_seconds`, `_bytes`), counters end in
// `_total`. Label values come from sets that are fixed, or small by configuration (upstreams):
// never from services, instances or clients.
//
// Thread safety: none.

#ifndef FAILBACK_DAEMON_METRICS_METRIC_FAMILIES_H_
#define FAILBACK_DAEMON_METRICS_METRIC_FAMILIES_H_

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "retry/histogram.h"

namespace failback {

class MetricFamilies {
 public:
  // Names and values, in the order to be shown.
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Each adds one series. The first of a family says what it is for; families keep the order in
  // which they came, and series of one family need not follow each other.
  void Gauge(const std::string& name, const char* help, double value, const Labels& labels = {});
  void Counter(const std::string& name, const char* help, double value, const Labels& labels = {});
  // `per_unit`: how many of the histogram's values make one of the family's unit.
  void Histogram(const std::string& name, const char* help, const failback::Histogram& histogram,
                 double per_unit, const Labels& labels = {});

  static constexpr double kNanosPerSecond = 1e9;
  static constexpr double kItems = 1;

  std::vector<prometheus::MetricFamily> Take() && { return std::move(families_); }

 private:
  // A new series of the family, which is made if it is new.
  prometheus::ClientMetric& Add(const std::string& name, const char* help,
                                prometheus::MetricType type, const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
  std::unordered_map<std::string, size_t> places_;  // in families_, by name
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_METRICS_METRIC_FAMILIES_H_
