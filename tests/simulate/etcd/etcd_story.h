// One story of agents that use etcd without a registry in between: FailbackRegistry on
// EtcdRegistry, the real code of both, over a model of etcd and a network that delays, loses,
// repeats and breaks. Time is simulated, there is one thread, and the seed decides everything.
//
// What must hold: a subscriber's set after each event is what etcd held at that revision; within a
// bound after the faults have stopped etcd has what is wanted and nothing else, each instance on a
// lease, and subscribers have it and are not stale; what expires then leaves a fence.

#ifndef FAILBACK_TESTS_SIMULATE_ETCD_ETCD_STORY_H_
#define FAILBACK_TESTS_SIMULATE_ETCD_ETCD_STORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace failback::simulate {

struct EtcdStoryResult {
  std::string violation;  // empty: none
  std::vector<std::string> told;
  int64_t revisions = 0;
  int64_t events = 0;
};

EtcdStoryResult TellEtcdStory(uint64_t seed);

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_ETCD_ETCD_STORY_H_
