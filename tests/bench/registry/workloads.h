// What `./dev bench registry` measures, each as one round of one subject.
//
// Sizes are in Scale, so that a quick run does the same with less. Every workload checks that its
// work was done, and ends the process when it was not.

#ifndef FAILBACK_TESTS_BENCH_REGISTRY_WORKLOADS_H_
#define FAILBACK_TESTS_BENCH_REGISTRY_WORKLOADS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/bench/report.h"

namespace failback {

struct Scale {
  int64_t unary_calls = 30000;
  int64_t serial_calls = 1000;
  int64_t batch_instances = 200000;
  int64_t many_instances = 1000000;
  int batch = 100;
  int agent_batch = 250;
  int unary_in_flight = 100;
  int batches_in_flight = 16;
  int64_t sessions = 100000;
  int renewal_streams = 100;
  int renewal_connections = 10;
  absl::Duration renewal_time = absl::Seconds(3);
  int fanout_connections = 8;
  int64_t fanout_small = 1000;
  int64_t fanout_large = 10000;
  int changes_small = 30;
  int changes_large = 8;
  int64_t expiring = 10000;
  int64_t expiry_ttl_seconds = 6;
  int64_t expiring_at_once = 100000;
  int64_t at_once_ttl_seconds = 40;
  int64_t restarted = 100000;
  int64_t remembered = 200000;
  int64_t idle_subscribers = 2000;
  absl::Duration paced_time = absl::Seconds(2);
  int64_t capacity_sessions = 100000;
  int capacity_instances_each = 10;
  int capacity_connections = 2000;
  std::vector<int64_t> growth = {1000, 10000, 100000, 1000000};
};

struct Workload {
  std::string name;
  std::vector<std::string> subjects;
  void (*run)(const Scale& scale, const std::string& subject, Report* report);
  // Metrics to set against bare-grpc.
  std::vector<std::string> ratios;
  // Rounds, when fewer than asked for are enough.
  int most_rounds = 1000;
};

// In the order to run them.
const std::vector<Workload>& Workloads();

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_REGISTRY_WORKLOADS_H_
