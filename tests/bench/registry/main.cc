// `./dev bench registry`: the registry and bare gRPC side by side. workloads.h has what is
// measured; docs/performance.md what came out.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "tests/bench/load.h"
#include "tests/bench/registry/workloads.h"
#include "tests/bench/report.h"
#include "tests/bench/secured.h"

namespace failback {
namespace {

// The same with less: shows that it works and not how fast.
Scale QuickScale() {
  Scale scale;
  scale.unary_calls = 300;
  scale.serial_calls = 30;
  scale.batch_instances = 2000;
  scale.many_instances = 2000;
  scale.sessions = 200;
  scale.renewal_streams = 4;
  scale.renewal_connections = 2;
  scale.renewal_time = absl::Milliseconds(200);
  scale.fanout_small = 20;
  scale.fanout_large = 50;
  scale.changes_small = 2;
  scale.changes_large = 2;
  scale.expiring = 50;
  scale.expiry_ttl_seconds = 1;
  scale.expiring_at_once = 200;
  scale.at_once_ttl_seconds = 4;
  scale.restarted = 500;
  scale.remembered = 1000;
  scale.idle_subscribers = 20;
  scale.paced_time = absl::Milliseconds(200);
  scale.capacity_sessions = 200;
  scale.capacity_connections = 20;
  scale.growth = {100};
  return scale;
}

// Whether `name` is asked for; nothing asked for means everything.
bool Among(const std::vector<std::string>& wanted, const std::string& name) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "registry";
  int rounds = 5;
  bool quick = false;
  std::vector<std::string> only;
  std::vector<std::string> subjects;
  CLI::App app("Measures failback-registry against bare gRPC.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--workload", only, "only these; several with commas")->delimiter(',');
  app.add_option("--subject", subjects, "only these; several with commas")->delimiter(',');
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& name : only) {
    if (std::none_of(Workloads().begin(), Workloads().end(),
                     [&](const Workload& workload) { return workload.name == name; })) {
      std::string known;
      for (const Workload& workload : Workloads()) known += " " + workload.name;
      std::fprintf(stderr, "no workload '%s'; there are:%s\n", name.c_str(), known.c_str());
      return 2;
    }
  }

  Report report(options);
  const Scale scale = quick ? QuickScale() : Scale();
  for (const Workload& workload : Workloads()) {
    if (!Among(only, workload.name)) continue;
    const double began = NowSeconds();
    const int most = quick ? 1 : std::min(rounds, workload.most_rounds);
    for (int round = 0; round < most; ++round) {
      // Each round in another order, so that none profits from its place.
      for (size_t i = 0; i < workload.subjects.size(); ++i) {
        const std::string& subject = workload.subjects[(i + round) % workload.subjects.size()];
        if (Among(subjects, subject)) workload.run(scale, subject, &report);
      }
    }
    for (const std::string& metric : workload.ratios) {
      for (const std::string& subject : workload.subjects) {
        if (subject != "bare-grpc") report.Ratio(workload.name, metric, subject, "bare-grpc");
      }
    }
    std::fprintf(stderr, "%s: %d rounds in %.0f s\n", workload.name.c_str(), most,
                 NowSeconds() - began);
  }
  for (const char* subject : {"failback-sqlite-full", "bare-grpc-fdatasync"}) {
    for (const char* reference : {"fdatasync", "fdatasync-append", "fsync-append"}) {
      report.Ratio("register-serial", "p50_us", subject, reference);
    }
  }
  report.Ratio("register-serial", "p50_us", "failback-sqlite-full", "bare-grpc-fdatasync");
  report.Ratio("register-unary-secured", "calls_per_s", kFailbackPolicy, kFailbackTokens);
  report.Ratio("register-batch-secured", "instances_per_s", kFailbackPolicy, kFailbackTokens);
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
