// Subscriptions of one agent that follow the same: how many streams they are, and what one more
// costs. The registry is a fake in this process, so that what is measured is the agent's.

#include "agent/shared_subscription.h"

#include <malloc.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "gtest/gtest.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/sanitized_build.h"

namespace failback {
namespace {

constexpr int kInstances = 10000;
constexpr int kSubscriptions = 100;
constexpr int64_t kMostBytes = 10 << 10;

class SharedSubscriptionTest : public testing::Test {
 protected:
  SharedSubscriptionTest() {
    Agent::Options options;
    options.registry = "fake:it";
    options.drain_deadline = absl::ZeroDuration();
    options.schemes.push_back([this](HashedWheelTimer*) {
      return UpstreamScheme{"fake", "fake:it", [this](const std::string&) {
                              auto fake = std::make_unique<FakeRegistry>();
                              fake_ = fake.get();
                              return absl::StatusOr<std::unique_ptr<Registry>>(std::move(fake));
                            }};
    });
    auto agent = Agent::Create(options);
    EXPECT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
  }

  Subscription Subscribe(Agent::SnapshotCallback callback = nullptr) {
    auto subscription = agent_->Subscribe("orders", std::move(callback));
    EXPECT_TRUE(subscription.ok()) << subscription.status();
    return *std::move(subscription);
  }

  // A snapshot of so many instances, as revision 1.
  static SubscribeResponse Snapshot(int count) {
    SubscribeResponse message;
    message.set_epoch(1);
    message.set_revision(1);
    for (int i = 0; i < count; ++i) {
      ServiceInstance& instance = *message.mutable_snapshot()->add_instances();
      instance = MakeInstance(absl::StrCat("orders-", 10000 + i));
      (*instance.mutable_metadata())["version"] = "2024.11.23-some-build-that-was-deployed";
    }
    return message;
  }

  // One instance changes.
  static SubscribeResponse Change(uint64_t revision, int instance, uint32_t port) {
    SubscribeResponse message;
    message.set_epoch(1);
    message.set_revision(revision);
    message.mutable_delta()->set_base_revision(revision - 1);
    *message.mutable_delta()->add_upserts() =
        MakeInstance(absl::StrCat("orders-", 10000 + instance), port);
    return message;
  }

  static bool Reaches(const Subscription& subscription, uint64_t revision) {
    return Eventually([&] { return subscription.Current().revision == revision; });
  }

  static size_t HeapBytes() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }

  FakeRegistry* fake_ = nullptr;
  std::unique_ptr<Agent> agent_;
};

TEST_F(SharedSubscriptionTest, AFurtherSubscriberOfALargeSetSharesIt) {
  if (!kMemoryIsMeasurable) GTEST_SKIP() << "the sanitizers allocate in their own way";
  const Subscription first = Subscribe();
  const auto upstream = fake_->WaitForSubscription(0);
  ASSERT_NE(upstream, nullptr);
  upstream->Push(Snapshot(kInstances));
  ASSERT_TRUE(Reaches(first, 1));

  // What a subscriber holds goes with it. The second time every run of the set has changed since
  // they joined.
  uint64_t revision = 1;
  for (const bool after_changes : {false, true}) {
    std::vector<Subscription> others;
    for (int i = 0; i < kSubscriptions; ++i) others.push_back(Subscribe());
    for (int i = 0; after_changes && i < kInstances; i += 20) {
      upstream->Push(Change(++revision, i, 9000));
    }
    ASSERT_TRUE(Reaches(others.front(), revision));
    ASSERT_TRUE(Reaches(others.back(), revision));
    const size_t with_all = HeapBytes();
    others.clear();
    const int64_t freed = static_cast<int64_t>(with_all - HeapBytes()) / kSubscriptions;
    RecordProperty(after_changes ? "bytes_after_changes" : "bytes", static_cast<int>(freed));
    EXPECT_LT(freed, kMostBytes);
    EXPECT_GT(freed, 0) << "what is measured is there";
  }
  EXPECT_EQ(first.Current().instances.size(), static_cast<size_t>(kInstances));
}

TEST_F(SharedSubscriptionTest, OneStreamServesAllAndEndsWithTheLast) {
  Subscription first = Subscribe();
  const auto upstream = fake_->WaitForSubscription(0);
  ASSERT_NE(upstream, nullptr);
  upstream->Push(Snapshot(2));
  ASSERT_TRUE(Reaches(first, 1));

  // A handle that comes later is notified of what is known, and of what comes.
  std::atomic<uint64_t> seen{0};
  Subscription second = Subscribe([&](const ServiceSnapshot& now) {
    if (now.instances.size() == 2) seen = now.revision;
  });
  EXPECT_TRUE(Eventually([&] { return seen == 1; }));
  upstream->Push(Change(2, 0, 9000));
  EXPECT_TRUE(Eventually([&] { return seen == 2; }));
  EXPECT_EQ(fake_->subscriptions().size(), 1u);

  first = Subscription();
  upstream->Push(Change(3, 0, 9001));
  EXPECT_TRUE(Eventually([&] { return seen == 3; })) << "the others go on";
  EXPECT_FALSE(upstream->cancelled());
  second = Subscription();
  EXPECT_TRUE(upstream->WaitForCancel());

  // The next one follows again.
  const Subscription third = Subscribe();
  const auto again = fake_->WaitForSubscription(1);
  ASSERT_NE(again, nullptr);
  again->Push(Snapshot(2));
  EXPECT_TRUE(Reaches(third, 1));
}

TEST_F(SharedSubscriptionTest, OtherSelectorsHaveTheirOwn) {
  const Subscription all = Subscribe();
  Selector in_zone;
  in_zone.set_service("orders");
  in_zone.add_zones("z");
  const auto filtered = agent_->Subscribe(in_zone, nullptr);
  ASSERT_TRUE(filtered.ok());
  ASSERT_NE(fake_->WaitForSubscription(1), nullptr);
  // Different words for the same are one.
  Selector named = in_zone;
  named.set_namespace_("default");
  const auto same = agent_->Subscribe(named, nullptr);
  ASSERT_TRUE(same.ok());
  for (const auto& upstream : fake_->subscriptions()) upstream->Push(Snapshot(1));
  ASSERT_TRUE(Reaches(*same, 1));
  EXPECT_EQ(fake_->subscriptions().size(), 2u);
}

// What one that has ended leaves to its handles, and to the next.
TEST(SharedSubscriptionsTest, OneThatHasEndedIsReplaced) {
  using internal_agent::SharedSubscriptions;
  SharedSubscriptions all;
  const auto [first, is_new] = all.Acquire("k");
  EXPECT_TRUE(is_new);
  EXPECT_EQ(all.Acquire("k"), std::pair(first, false));
  first->OnEnd(absl::PermissionDeniedError("no"));
  const auto [second, second_is_new] = all.Acquire("k");
  EXPECT_TRUE(second_is_new);
  EXPECT_NE(first, second);
  all.Release(first);
  all.Release(first);
  EXPECT_EQ(all.Acquire("k"), std::pair(second, false)) << "it is not what was released";
  EXPECT_EQ(first->Current().end, absl::PermissionDeniedError("no"));
  EXPECT_TRUE(first->Current().stale);
}

}  // namespace
}  // namespace failback
