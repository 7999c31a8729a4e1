// How a SubscriptionHub compares commits with filters: in turns, beside whatever else goes on.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/selector.h"
#include "registry/store/store_registry.h"
#include "registry/watch/subscription_hub.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/util/seeded_random.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Entry {
  ServiceInstance instance;
  std::string bytes;  // canonical
};
// By KeyText.
using Set = std::map<std::string, Entry>;

ServiceInstance Orders(const std::string& service, const std::string& id, const std::string& zone,
                       uint32_t port = 80) {
  ServiceInstance instance = MakeInstance(service, id, port);
  instance.mutable_key()->set_namespace_("default");
  instance.set_zone(zone);
  return instance;
}

SubscribeRequest Following(const std::string& service, const std::string& zone) {
  SubscribeRequest request;
  request.mutable_selector()->set_namespace_("default");
  request.mutable_selector()->set_service(service);
  if (!zone.empty()) request.mutable_selector()->add_zones(zone);
  return request;
}

std::string TopicOf(const std::string& service) { return std::string("default") + '\0' + service; }

std::map<std::string, std::string> Seen(const Selector& selector, const Set& set) {
  std::map<std::string, std::string> seen;
  for (const auto& [key, entry] : set) {
    if (entry.instance.key().service() == selector.service() &&
        SelectorMatches(selector, entry.instance)) {
      seen[key] = entry.bytes;
    }
  }
  return seen;
}

// A hub, and the state that it publishes, which is ahead of it between Commit and Publish.
class World {
 public:
  explicit World(SubscriptionHub::Options options)
      : hub_(SubscriptionHub::Create(options, /*epoch=*/1, /*revision=*/0)) {}

  SubscriptionHub& hub() { return *hub_; }
  const std::vector<Set>& history() const { return history_; }
  uint64_t revision() const { return history_.size() - 1; }
  uint64_t published() const { return published_; }
  bool behind() const { return unpublished_.has_value(); }
  const SubscriptionHub::Due& due() const { return due_; }

  // Null in place of an instance: it goes.
  using Changes = std::map<std::string, std::optional<ServiceInstance>>;
  void Commit(const Changes& changes, std::vector<std::string> ended_sessions = {}) {
    ASSERT_FALSE(behind());
    Set now = history_.back();
    std::map<std::string, std::vector<InstanceChange>> by_service;
    for (const auto& [key, instance] : changes) {
      InstanceChange change;
      std::string service;
      if (const auto it = now.find(key); it != now.end()) {
        change.before = Blob(it->second.bytes);
        service = it->second.instance.key().service();
        now.erase(it);
      }
      if (instance.has_value()) {
        const std::string bytes = CanonicalInstance(*instance);
        change.after = Blob(bytes);
        service = instance->key().service();
        now[key] = {*instance, bytes};
      }
      if (change.before != change.after) by_service[service].push_back(std::move(change));
    }
    CommitResult commit;
    commit.ended_sessions = std::move(ended_sessions);
    history_.push_back(std::move(now));
    commit.revision = revision();
    for (auto& [service, instances] : by_service) {
      commit.services.push_back({TopicOf(service), std::move(instances), SizeOf(service)});
    }
    unpublished_ = std::move(commit);
  }
  void Commit(const ServiceInstance& instance) { Commit({{KeyText(instance.key()), instance}}); }

  void Publish() {
    if (!behind()) return;
    published_ = unpublished_->revision;
    hub_->Publish(*std::exchange(unpublished_, std::nullopt), Contents(), &deliveries_, &due_);
  }

  // One turn of the topic at `place`; true: it was its last one.
  template <typename Contents>
  bool Compare(size_t place, Contents contents) {
    const std::shared_ptr<SubscriptionHub::Topic> topic = due_[place];
    if (hub_->Compare(topic, contents, &deliveries_)) return false;
    due_.erase(std::find(due_.begin(), due_.end(), topic));
    return true;
  }
  bool Compare(size_t place) { return Compare(place, Contents()); }

  void Deliver() { SubscriptionHub::Deliver(std::exchange(deliveries_, {})); }

  // Until nothing is left to send.
  void Finish() {
    Publish();
    while (!due_.empty()) Compare(0);
    Deliver();
  }

  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) {
    return hub_->Subscribe(request, std::nullopt, Contents(), std::move(listener), &deliveries_);
  }
  void ForgetSession(const std::string& id) { hub_->ForgetSession(id, &deliveries_); }

  SubscriptionHub::Present Present(const std::string& topic) const {
    SubscriptionHub::Present present;
    present.revision = revision();
    for (const auto& [key, entry] : history_.back()) {
      if (TopicOf(entry.instance.key().service()) != topic) continue;
      present.entries.emplace_back(entry.bytes);
    }
    return present;
  }

 private:
  struct ContentsOf {
    const World* world;
    SubscriptionHub::Present operator()(const std::string& topic) const {
      return world->Present(topic);
    }
  };
  // As a reference to it is taken.
  const ContentsOf& Contents() const { return contents_; }

  int64_t SizeOf(const std::string& service) const {
    int64_t size = 0;
    for (const auto& [key, entry] : history_.back()) {
      if (entry.instance.key().service() == service) ++size;
    }
    return size;
  }

  const std::shared_ptr<SubscriptionHub> hub_;
  const ContentsOf contents_{this};
  std::vector<Set> history_ = {Set()};  // by revision
  uint64_t published_ = 0;
  std::optional<CommitResult> unpublished_;
  SubscriptionHub::Deliveries deliveries_;
  SubscriptionHub::Due due_;
};

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
    // What is followed no more is not compared with any more, and no story begins anew.
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
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (follower.subscriber->instances() != fresh->instances()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
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
