// The page that Prometheus scrapes: what a number of collectors say now, in its text format.
//
//   MetricsPage page;
//   page.Add([&](MetricFamilies* out) { CollectWheel(timer->Stats(), out); });
//   admin.Handle("GET", "/metrics", … page.Render() as MetricsPage::kContentType …);
//
// A collector runs at each scrape, on the scraper's thread; it must not wait for a disk or the
// network, as a page that hangs shows nothing just when it is needed.
//
// Thread safety: Add before the first scrape; then all methods from any thread.

#ifndef FAILBACK_DAEMON_METRICS_METRICS_PAGE_H_
#define FAILBACK_DAEMON_METRICS_METRICS_PAGE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/metrics/metric_families.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace failback {

class MetricsPage final : public prometheus::Collectable {
 public:
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

  using Collector = std::function<void(MetricFamilies* out)>;
  void Add(Collector collector) { collectors_.push_back(std::move(collector)); }

  std::vector<prometheus::MetricFamily> Collect() const override;

  std::string Render() const;

 private:
  std::vector<Collector> collectors_;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_METRICS_METRICS_PAGE_H_
