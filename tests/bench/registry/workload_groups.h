// The workloads by what they load.

#ifndef FAILBACK_TESTS_BENCH_REGISTRY_WORKLOAD_GROUPS_H_
#define FAILBACK_TESTS_BENCH_REGISTRY_WORKLOAD_GROUPS_H_

#include <vector>

#include "tests/bench/registry/workloads.h"

namespace failback {

std::vector<Workload> RegisterWorkloads();
std::vector<Workload> SessionWorkloads();
std::vector<Workload> SubscriberWorkloads();
std::vector<Workload> StoreWorkloads();
std::vector<Workload> RateWorkloads();
std::vector<Workload> CapacityWorkloads();

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_REGISTRY_WORKLOAD_GROUPS_H_
