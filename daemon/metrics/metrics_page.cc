#include "daemon/metrics/metrics_page.h"

#include "prometheus/text_serializer.h"

namespace failback {

std::vector<prometheus::MetricFamily> MetricsPage::Collect() const {
  MetricFamilies families;
  for (const Collector& collect : collectors_) collect(&families);
  return std::move(families).Take();
}

std::string MetricsPage::Render() const {
  const prometheus::TextSerializer serializer;
  return static_cast<const prometheus::Serializer&>(serializer).Serialize(Collect());
}

}  // namespace failback
