// How a store on a disk compares commits with filters: on threads of its own.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/store/compare_world.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/eventually.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

// On a disk: it has threads that compare.
class FakeDisk final : public FakeStorage {
 public:
  using FakeStorage::FakeStorage;
  bool blocks() const override { return true; }
};

class CompareThreads : public ::testing::Test {
 protected:
  CompareThreads() {
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.subscriptions.looks_per_turn = 3;
    options.subscriptions.max_waiting = 50;
    registry_ = StoreRegistry::OpenOn(options, std::make_unique<FakeDisk>(&rows_)).value();
  }

  struct Follower {
    SubscribeRequest request;
    std::shared_ptr<FakeSubscriber> subscriber = std::make_shared<FakeSubscriber>();
    std::unique_ptr<SubscribeStream> stream;
  };
  Follower Follow(SubscribeRequest request) {
    Follower follower;
    follower.request = std::move(request);
    follower.stream = registry_->Subscribe(follower.request, follower.subscriber);
    return follower;
  }

  void Register(const ServiceInstance& instance) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = instance;
    EXPECT_TRUE(CallAndWait(*registry_, &Registry::Register, request).ok());
  }

  // Whether it comes to have what one has who begins now.
  bool CatchesUp(const Follower& follower) {
    SubscribeRequest request;  // without a position
    *request.mutable_selector() = follower.request.selector();
    const auto fresh = std::make_shared<FakeSubscriber>();
    const auto stream = registry_->Subscribe(request, fresh);
    return Eventually([&] { return follower.subscriber->instances() == fresh->instances(); });
  }

  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer();
  FakeRows rows_;
  std::unique_ptr<StoreRegistry> registry_;
};

TEST_F(CompareThreads, AllCatchUpWithCommitsOfSeveralServices) {
  std::vector<Follower> steady;
  for (const char* const service : {"orders", "users"}) {
    for (const char* const zone : {"a", "b", "c", ""})
      steady.push_back(Follow(Following(service, zone)));
  }
  std::vector<std::thread> threads;
  for (const char* const service : {"orders", "users"}) {
    threads.emplace_back([this, service] {
      for (int i = 0; i < 400; ++i) {
        Register(Orders(service, std::to_string(i % 7), std::string(1, "abc"[i % 3]), 1 + i));
      }
    });
    threads.emplace_back([this, service] {
      Follower follower;
      follower.request = Following(service, "b");
      for (int i = 0; i < 200; ++i) {
        follower.stream.reset();
        follower.subscriber->BeginAgain();
        follower.request.set_epoch(follower.subscriber->epoch());
        follower.request.set_revision(follower.subscriber->revision());
        follower.stream = registry_->Subscribe(follower.request, follower.subscriber);
        std::this_thread::yield();
      }
      EXPECT_TRUE(CatchesUp(follower));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Follower& follower : steady) {
    EXPECT_TRUE(CatchesUp(follower)) << follower.request.ShortDebugString();
  }
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

TEST_F(CompareThreads, EndsAmidComparisons) {
  std::vector<Follower> followers;
  for (int i = 0; i < 50; ++i) {
    SubscribeRequest request = Following("orders", "a");
    request.mutable_selector()->add_zones(std::to_string(i));
    followers.push_back(Follow(std::move(request)));
  }
  for (int i = 0; i < 100; ++i) Register(Orders("orders", std::to_string(i), "a"));
  registry_.reset();
  for (const Follower& follower : followers) {
    ASSERT_TRUE(follower.subscriber->ended().has_value());
    EXPECT_EQ(follower.subscriber->ended()->code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace failback
