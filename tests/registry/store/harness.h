// A StoreRegistry on simulated time.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_HARNESS_H_
#define FAILBACK_TESTS_REGISTRY_STORE_HARNESS_H_

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/timers.h"

namespace failback {

class StoreHarness : public RegistryCalls {
 public:
  explicit StoreHarness(StoreRegistry::Options options = {}) : options_(std::move(options)) {
    timer_ = NewTimer(&clock_, absl::Milliseconds(10));
    options_.timer = timer_.get();
    options_.commit_inline = true;
    Open();
  }
  ~StoreHarness() override {
    if (registry_ != nullptr) {
      EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
    }
  }

  void Open() {
    auto registry = StoreRegistry::Open(options_);
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
  }
  void Close() { registry_.reset(); }
  void Reopen() {
    Close();
    Open();
  }

  StoreRegistry& operator*() { return *registry_; }
  StoreRegistry* operator->() { return registry_.get(); }
  StoreRegistry::Options& options() { return options_; }
  SimulatedClock& clock() { return clock_; }

 private:
  Registry& registry() override { return *registry_; }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  StoreRegistry::Options options_;
  std::unique_ptr<StoreRegistry> registry_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_HARNESS_H_
