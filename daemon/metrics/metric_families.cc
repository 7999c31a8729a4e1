#include "daemon/metrics/metric_families.h"

#include <cstdint>

namespace failback {

prometheus::ClientMetric& MetricFamilies::Add(const std::string& name, const char* help,
                                              prometheus::MetricType type, const Labels& labels) {
  const auto [place, is_new] = places_.try_emplace(name, families_.size());
  if (is_new) {
    prometheus::MetricFamily& family = families_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
  }
  prometheus::ClientMetric& metric = families_[place->second].metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  return metric;
}

void MetricFamilies::Gauge(const std::string& name, const char* help, double value,
                           const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricFamilies::Counter(const std::string& name, const char* help, double value,
                             const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricFamilies::Histogram(const std::string& name, const char* help,
                               const failback::Histogram& histogram, double per_unit,
                               const Labels& labels) {
  prometheus::ClientMetric::Histogram& out =
      Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.upper_bounds().size(); ++i) {
    cumulative += static_cast<uint64_t>(histogram.counts()[i]);
    out.bucket.push_back({cumulative, static_cast<double>(histogram.upper_bounds()[i]) / per_unit});
  }
  out.sample_count = cumulative + static_cast<uint64_t>(histogram.counts().back());
  out.sample_sum = static_cast<double>(histogram.sum()) / per_unit;
}

}  // namespace failback
