#include "agent/fork_guard.h"

#include <pthread.h>

#include <atomic>
#include <utility>
#include <vector>

namespace failback {
namespace {

// Forks between the first process of the line and this one.
std::atomic<int> generation{0};

int Generation() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : generation_(Generation()) {}

bool ForkGuard::inherited() const {
  return generation_ != generation.load(std::memory_order_relaxed);
}

void ForkGuard::Keep(std::shared_ptr<void> inherited) {
  static auto* const kept = new std::vector<std::shared_ptr<void>>();
  kept->push_back(std::move(inherited));
}

}  // namespace failback
