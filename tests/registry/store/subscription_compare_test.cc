// How a SubscriptionHub compares commits with filters: in turns, beside whatever else goes on.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/watch/subscription_hub.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/store/compare_world.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Each message leaves exactly what there was at its revision.
class Checker final : public FakeSubscriber {
 public:
  Checker(const World* world, Selector selector, bool each_commit)
      : world_(world), selector_(std::move(selector)), each_commit_(each_commit) {}

  // A stream begins now.
  void Begin() {
    BeginAgain();
    begun_at_ = world_->published();
    begun_until_ = world_->revision();
    first_ = true;
  }

  void OnMessage(const MessagePtr& event) override {
    const uint64_t before = revision();
    FakeSubscriber::OnMessage(event);
    ASSERT_LE(event->revision(), world_->revision());
    EXPECT_EQ(instances(), SeenAt(event->revision())) << "at revision " << event->revision();
    if (std::exchange(first_, false)) {
      bool fresh = false;
      for (uint64_t at = begun_at_; at <= begun_until_; ++at) fresh |= instances() == SeenAt(at);
      EXPECT_TRUE(fresh) << "what was published before the call is not shown: begun at "
                         << begun_at_ << ", sent " << event->revision();
      return;
    }
    EXPECT_GT(event->revision(), before);
    if (!each_commit_) return;
    for (uint64_t at = before + 1; at < event->revision(); ++at) {
      EXPECT_EQ(SeenAt(at), SeenAt(before)) << "revision " << at << " is not sent";
    }
  }

  std::map<std::string, std::string> SeenAt(uint64_t revision) const {
    return Seen(selector_, world_->history()[revision]);
  }

 private:
  const World* const world_;
  const Selector selector_;
  const bool each_commit_;
  uint64_t begun_at_ = 0;
  uint64_t begun_until_ = 0;
  bool first_ = true;
};

class Story {
 public:
  Story(SeededRandom* random, SubscriptionHub::Options options, bool each_commit)
      : random_(*random), each_commit_(each_commit), world_(options), followers_(12) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      if (!world_.due().empty() && Pick(3) == 0) {
        Compare();
      } else {
        Step();
      }
      if (Pick(60) == 0) Check();
    }
    Check();
    // What is followed no more is not compared with any more, and no story starts again.
    for (Follower& follower : followers_) follower.stream.reset();
    world_.Finish();
  }

 private:
  struct Follower {
    SubscribeRequest request;
    std::shared_ptr<Checker> checker;
    std::unique_ptr<SubscribeStream> stream;
  };

  int Pick(int n) { return random_.Pick(n); }
  std::string Letter() { return std::string(1, static_cast<char>('a' + Pick(3))); }

  // Whatever happens beside a comparison.
  void Step() {
    switch (Pick(8)) {
      case 0:
      case 1:
      case 2:
        if (world_.behind()) {
          world_.Publish();
        } else {
          Commit();
        }
        break;
      case 3:
        world_.Publish();
        break;
      case 4:
      case 5:
        Follow(&followers_[Pick(static_cast<int>(followers_.size()))]);
        break;
      case 6:
        world_.Deliver();
        break;
      default:
        if (Pick(5) == 0) {
          world_.ForgetSession(Letter());
        } else {
          followers_[Pick(static_cast<int>(followers_.size()))].stream.reset();
        }
    }
  }

  void Commit() {
    World::Changes changes;
    for (int i = 1 + Pick(4); i > 0; --i) {
      ServiceInstance instance =
          Orders(Pick(3) == 0 ? "users" : "orders", std::to_string(Pick(5)), Letter(), 1 + Pick(2));
      if (Pick(2) == 0) (*instance.mutable_metadata())[Letter()] = Letter();
      const std::string key = KeyText(instance.key());
      if (Pick(3) == 0) {
        changes[key] = std::nullopt;
      } else {
        changes[key] = std::move(instance);
      }
    }
    world_.Commit(changes,
                  Pick(20) == 0 ? std::vector<std::string>{Letter()} : std::vector<std::string>());
  }

  // Begins, or goes on from where it was.
  void Follow(Follower* follower) {
    follower->stream.reset();
    if (follower->checker == nullptr || Pick(4) == 0) {
      follower->request = Following(Pick(3) == 0 ? "users" : "orders", "");
      Selector* const selector = follower->request.mutable_selector();
      for (int i = Pick(3); i > 0; --i) selector->add_zones(Letter());
      for (int i = Pick(2); i > 0; --i) (*selector->mutable_metadata())[Letter()] = Letter();
      if (Pick(3) == 0) {
        follower->request.set_session_id(Letter());
        follower->request.set_subscription_id(std::to_string(Pick(4)));
      }
      follower->checker = std::make_shared<Checker>(&world_, *selector, each_commit_);
    } else {
      follower->request.set_epoch(follower->checker->epoch());
      follower->request.set_revision(follower->checker->revision());
    }
    follower->checker->Begin();
    follower->stream = world_.Subscribe(follower->request, follower->checker);
  }

  // A turn. What happens while the state is asked for happens on other threads: without a lock.
  void Compare() {
    world_.Compare(Pick(static_cast<int>(world_.due().size())), [this](const std::string& topic) {
      for (int i = Pick(4); i > 0; --i) Step();
      SubscriptionHub::Present present = world_.Present(topic);
      for (int i = Pick(4); i > 0; --i) Step();
      return present;
    });
  }

  void Check() {
    world_.Finish();
    for (const Follower& follower : followers_) {
      if (follower.stream == nullptr || follower.checker->ended().has_value()) continue;
      EXPECT_EQ(follower.checker->instances(), follower.checker->SeenAt(world_.revision()))
          << follower.request.ShortDebugString();
    }
  }

  SeededRandom& random_;
  const bool each_commit_;
  World world_;
  std::vector<Follower> followers_;
};

SubscriptionHub::Options SmallOptions(SeededRandom* random) {
  SubscriptionHub::Options options;
  options.min_log = 2;
  options.max_log = 20;
  options.looks_per_turn = 1 + random->Pick(10);
  return options;
}

constexpr int kStories = 50;
constexpr int kSteps = 400;

TEST(Compare, AtRandomEachCommitIsSentOnceAndInOrder) {
  SeededRandom random;
  for (int i = 0; i < kStories && !HasFailure(); ++i) {
    Story(&random, SmallOptions(&random), /*each_commit=*/true).Run(kSteps);
  }
}

TEST(Compare, AtRandomWhatIsMergedIsTheNetEffect) {
  SeededRandom random;
  for (int i = 0; i < kStories && !HasFailure(); ++i) {
    SubscriptionHub::Options options = SmallOptions(&random);
    options.max_waiting = random.Pick(6);
    Story(&random, options, /*each_commit=*/false).Run(kSteps);
  }
}

TEST(Compare, AtRandomSnapshotsTakeThePlaceOfLongDeltas) {
  SeededRandom random;
  for (int i = 0; i < kStories && !HasFailure(); ++i) {
    SubscriptionHub::Options options = SmallOptions(&random);
    options.max_waiting = random.Pick(6);
    options.delta.bytes = random.Pick(100);
    options.delta.most_bytes = options.delta.bytes + random.Pick(100);
    Story(&random, options, /*each_commit=*/false).Run(kSteps);
  }
}

TEST(Compare, AServiceWithManyFiltersHoldsUpNoOther) {
  SubscriptionHub::Options options;
  options.looks_per_turn = 1;
  World world(options);
  auto slow = std::make_shared<FakeSubscriber>();
  const auto slow_stream = world.Subscribe(Following("orders", "a"), slow);
  auto quick = std::make_shared<FakeSubscriber>();
  const auto quick_stream = world.Subscribe(Following("users", "a"), quick);
  auto all = std::make_shared<FakeSubscriber>();
  const auto all_stream = world.Subscribe(Following("orders", ""), all);
  World::Changes many;
  for (int i = 0; i < 3; ++i) {
    const ServiceInstance instance = Orders("orders", std::to_string(i), "a");
    many[KeyText(instance.key())] = instance;
  }
  world.Commit(many);
  world.Publish();
  world.Deliver();
  EXPECT_THAT(all->ids(), ElementsAre("0", "1", "2")) << "without a filter: at once";
  ASSERT_THAT(world.due(), SizeIs(1));
  EXPECT_FALSE(world.Compare(0)) << "one change in a turn, and there are three";

  world.Commit(Orders("users", "1", "a"));
  world.Publish();
  ASSERT_THAT(world.due(), SizeIs(2));
  EXPECT_TRUE(world.Compare(1));
  world.Deliver();
  EXPECT_THAT(quick->ids(), ElementsAre("1"));
  EXPECT_THAT(slow->ids(), IsEmpty());

  auto later = std::make_shared<FakeSubscriber>();
  const auto later_stream = world.Subscribe(Following("orders", "a"), later);
  world.Deliver();
  EXPECT_THAT(later->ids(), ElementsAre("0", "1", "2")) << "what was published before it came";
  EXPECT_FALSE(world.Compare(0));
  EXPECT_TRUE(world.Compare(0));
  world.Deliver();
  EXPECT_THAT(slow->ids(), ElementsAre("0", "1", "2"));
  EXPECT_THAT(later->events(), SizeIs(1)) << "not once more";
}

TEST(Compare, NoLockIsHeldWhileTheStateIsAskedFor) {
  SubscriptionHub::Options options;
  options.delta.bytes = options.delta.most_bytes = 1;  // each commit is sent as a snapshot
  World world(options);
  auto leaves = std::make_shared<FakeSubscriber>();
  auto leaves_stream = world.Subscribe(Following("orders", "a"), leaves);
  auto stays = std::make_shared<FakeSubscriber>();
  const auto stays_stream = world.Subscribe(Following("orders", "b"), stays);
  auto comes = std::make_shared<FakeSubscriber>();
  std::unique_ptr<SubscribeStream> comes_stream;
  const ServiceInstance first = Orders("orders", "1", "a");
  const ServiceInstance second = Orders("orders", "2", "b");
  world.Commit({{KeyText(first.key()), first}, {KeyText(second.key()), second}});
  world.Publish();
  ASSERT_THAT(world.due(), SizeIs(1));
  int asked = 0;
  world.Compare(0, [&](const std::string& topic) {
    ++asked;
    SubscriptionHub::Present present = world.Present(topic);
    leaves_stream.reset();
    comes_stream = world.Subscribe(Following("orders", "a"), comes);
    world.Commit(Orders("orders", "3", "a"));
    world.Publish();
    return present;
  });
  EXPECT_EQ(asked, 1);
  world.Finish();
  EXPECT_THAT(leaves->events(), IsEmpty());
  EXPECT_THAT(stays->ids(), ElementsAre("2"));
  EXPECT_THAT(comes->ids(), ElementsAre("1", "3"));
}

// Keeps its first snapshot, as a slow client does.
class Keeper final : public NotifyListener {
 public:
  void OnEvent(const EventPtr& event) override {
    if (event->is_snapshot() && kept_ == nullptr) kept_ = event;
  }
  void OnEnd(const absl::Status&) override {}

 private:
  EventPtr kept_;
};

TEST(Compare, AnOldSnapshotIsNotSharedWhenACommitHasNoOneToSendItTo) {
  for (const size_t long_delta : {size_t{1}, size_t{1} << 20}) {
    SubscriptionHub::Options options;
    options.delta.bytes = options.delta.most_bytes = long_delta;
    World world(options);
    const auto keeper = std::make_shared<Keeper>();
    auto kept_stream = world.Subscribe(Following("orders", "a"), keeper);
    world.Deliver();
    world.Commit(Orders("orders", "1", "a"));
    world.Publish();
    // Has the commit already, and keeps the group when the other leaves.
    SubscribeRequest request = Following("orders", "a");
    request.set_epoch(1);
    request.set_revision(1);
    const auto ahead_stream = world.Subscribe(request, std::make_shared<Keeper>());
    kept_stream.reset();
    world.Finish();
    auto follower = std::make_shared<FakeSubscriber>();
    const auto stream = world.Subscribe(Following("orders", "a"), follower);
    world.Deliver();
    EXPECT_THAT(follower->ids(), ElementsAre("1"));
  }
}

TEST(Compare, WhatWaitsIsBoundedByWhatChanges) {
  SubscriptionHub::Options options;
  options.max_waiting = 10;
  World world(options);
  auto follower = std::make_shared<FakeSubscriber>();
  const auto stream = world.Subscribe(Following("orders", "a"), follower);
  world.Deliver();
  for (int i = 1; i <= 1000; ++i) {
    world.Commit(Orders("orders", std::to_string(i % 3), "a", i));
    world.Publish();
  }
  ASSERT_THAT(world.due(), SizeIs(1)) << "a topic is due once";
  world.Finish();
  EXPECT_THAT(follower->ids(), ElementsAre("0", "1", "2"));
  EXPECT_EQ(follower->revision(), 1000u);
  // The snapshot, what was merged, and what came after it: ten changes and twice what it had left.
  EXPECT_LE(follower->events().size(), 1u + 1u + 10u + 2u * 3u);
}

}  // namespace
}  // namespace failback
