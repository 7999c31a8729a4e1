// What journal_child states, step by step; the same for the same seed.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_JOURNAL_STORY_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_JOURNAL_STORY_H_

#include <cstdint>
#include <random>
#include <string>

#include "registry/registry.h"

namespace failback {

struct JournalStep {
  std::string id;
  uint32_t port = 0;  // 0: unregister

  RegisterRequest Register() const {
    RegisterRequest request;
    auto* instance = request.add_registrations()->mutable_instance();
    instance->mutable_key()->set_service("orders");
    instance->mutable_key()->set_instance_id(id);
    instance->set_address("10.0.0.1");
    instance->set_port(port);
    return request;
  }
  UnregisterRequest Unregister() const {
    UnregisterRequest request;
    auto* key = request.add_deregistrations()->mutable_key();
    key->set_service("orders");
    key->set_instance_id(id);
    return request;
  }
};

inline JournalStep MakeJournalStep(uint32_t seed, int index) {
  std::seed_seq seeds{seed, static_cast<uint32_t>(index)};
  std::mt19937 random(seeds);
  JournalStep step;
  step.id = "i" + std::to_string(random() % 20);
  // The port tells which step it was.
  if (random() % 3 != 0) step.port = 1 + static_cast<uint32_t>(index) % 65000;
  return step;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_JOURNAL_STORY_H_
