// `./dev bench storm`: agents lose and regain their registry, on simulated time. simulation.h has
// the model; docs/performance.md argues the project's defaults from what comes out.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/report.h"
#include "tests/bench/storm/plot.h"
#include "tests/bench/storm/simulation.h"

namespace failback {
namespace {

constexpr double kPlottedSeconds = 40;

void Measure(const World& world, const std::string& workload, const Strategy& strategy, int seeds,
             Report* report, Series* load, Series* share) {
  for (int seed = 1; seed <= seeds; ++seed) {
    const StormResult result = Simulate(world, strategy, static_cast<uint64_t>(seed));
    const auto add = [&](const char* metric, double value, const char* unit) {
      report->Add(workload, strategy.name, metric, value, unit);
    };
    add("attempts_per_agent_and_second", result.attempts_per_agent_and_second, "1/s");
    add("peak_load", result.peak_load, "x of capacity");
    add("half_back_s", result.half_s, "s");
    add("p99_back_s", result.p99_s, "s");
    add("all_back_s", result.all_s, "s");
    add("refused", static_cast<double>(result.refused), "calls");
    add("given_up", static_cast<double>(result.given_up), "calls");
    if (seed > 1) continue;
    *load = {strategy.name, {}};
    *share = {strategy.name, {}};
    const auto steps = static_cast<size_t>(kPlottedSeconds / absl::ToDoubleSeconds(kBucket));
    for (size_t i = 0; i < steps; ++i) {
      const bool over = i >= result.arrivals.size();
      load->values.push_back(
          over ? 0 : static_cast<double>(result.arrivals[i]) / absl::ToDoubleSeconds(kBucket));
      share->values.push_back(
          static_cast<double>(over ? result.registered.back() : result.registered[i]) * 100 /
          static_cast<double>(world.agents));
    }
  }
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "storm (simulated)";
  World world;
  int seeds = 3;
  double outage = absl::ToDoubleSeconds(world.outage);
  bool quick = false;
  std::string svg;
  CLI::App app("Simulates agents that lose and regain their registry.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--svg", svg, "file for the plot");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--agents", world.agents)->check(CLI::Range(1, 10000000))->capture_default_str();
  app.add_option("--capacity", world.capacity, "calls that the registry serves in a second")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--outage", outage, "in seconds")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--seeds", seeds, "runs of each; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--quick", quick, "a small world: shows that it works");
  CLI11_PARSE(app, argc, argv);
  world.outage = absl::Seconds(outage);
  if (quick) {
    seeds = 1;
    world.agents /= 100;
    world.capacity /= 100;
    world.queue /= 100;
    world.outage = absl::Seconds(5);
  }

  Report report(options);
  report.Note(absl::StrFormat(
      "%d agents, two calls each; a registry of %.0f calls/s, away for %g s; simulated time, so "
      "the machine does not matter",
      world.agents, world.capacity, absl::ToDoubleSeconds(world.outage)));
  std::vector<Panel> panels;
  for (const bool refuses : {true, false}) {
    World here = world;
    if (!refuses) here.queue = 0;
    const std::string workload = refuses ? "storm" : "storm-without-refusals";
    Panel load{absl::StrCat(refuses ? "Registry that refuses early" : "Registry that queues all",
                            ": calls per second"),
               {},
               here.capacity,
               "capacity"};
    Panel share{"Agents registered, percent", {}, 0, ""};
    for (const Strategy& strategy :
         {FixedPeriodStrategy(), ExponentialStrategy(), ExponentialJitterStrategy(),
          FailbackStrategy(), FailbackExactStrategy()}) {
      load.series.emplace_back();
      share.series.emplace_back();
      Measure(here, workload, strategy, seeds, &report, &load.series.back(), &share.series.back());
    }
    panels.push_back(std::move(load));
    panels.push_back(std::move(share));
  }
  const double step = absl::ToDoubleSeconds(kBucket);
  const int steps = static_cast<int>(kPlottedSeconds / step);
  std::printf("calls per second after the registry's return, highest of each column\n\n");
  for (const Series& series : panels[0].series) {
    constexpr int kWidth = 80;
    constexpr int kHeight = 8;
    std::printf(
        "%s\n",
        TextPlot(series, steps, step, kWidth, kHeight, world.capacity * 8, world.capacity).c_str());
  }
  if (!svg.empty()) {
    std::ofstream out(CallersPath(svg));
    out << SvgPlot(absl::StrFormat("%d agents regain a registry of %.0f calls/s", world.agents,
                                   world.capacity),
                   panels, steps, step);
    out.flush();
    if (!out) {
      std::fprintf(stderr, "cannot write %s\n", svg.c_str());
      return 1;
    }
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
