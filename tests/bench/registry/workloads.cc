#include "tests/bench/registry/workloads.h"

#include <utility>

#include "tests/bench/registry/workload_groups.h"

namespace failback {

const std::vector<Workload>& Workloads() {
  static const auto* const kAll = [] {
    auto* const all = new std::vector<Workload>;
    for (const auto group : {RegisterWorkloads, SessionWorkloads, SubscriberWorkloads,
                             StoreWorkloads, RateWorkloads, CapacityWorkloads}) {
      for (Workload& workload : group()) all->push_back(std::move(workload));
    }
    return all;
  }();
  return *kAll;
}

}  // namespace failback
