// Who has followed a service at one server goes on at another from there: two EtcdRegistry on one
// real etcd.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using Ids = std::vector<std::string>;

class ResumeTest : public EtcdTest {
 protected:
  ResumeTest()
      : prefix_(NewPrefix()),
        here_(etcd(), prefix_),
        there_(etcd(), prefix_),
        session_(here_.Session("owner", absl::Seconds(60))) {}

  void Put(const std::string& id, uint32_t port = 80, const std::string& zone = "z1") {
    ServiceInstance instance = MakeInstance("s", id, port);
    instance.set_zone(zone);
    ASSERT_TRUE(here_.Register(session_, instance, ++generation_).ok());
  }
  void Remove(const std::string& id) {
    ASSERT_TRUE(here_.Unregister(session_, MakeInstance("s", id).key(), ++generation_).ok());
  }
  static bool Knows(const FakeSubscriber& subscriber, const Ids& ids) {
    return Eventually([&] { return !subscriber.events().empty() && subscriber.ids() == ids; });
  }
  static int Deltas(const FakeSubscriber& subscriber) {
    int deltas = 0;
    for (const auto& event : subscriber.events()) deltas += event->has_delta() ? 1 : 0;
    return deltas;
  }

  const std::string prefix_;
  EtcdHarness here_, there_;
  const std::string session_;
  uint64_t generation_ = 0;
  const std::shared_ptr<FakeSubscriber> subscriber_ = std::make_shared<FakeSubscriber>();
};

TEST_F(ResumeTest, WhatAServerHasNotSeenIsOneDelta) {
  Put("1");
  Put("2");
  auto stream = here_.Subscribe(subscriber_, "s");
  ASSERT_TRUE(Knows(*subscriber_, {"1", "2"}));
  stream.reset();
  Put("1", 81);
  Remove("2");
  Put("3");
  stream = there_.Subscribe(subscriber_, "s", true);
  ASSERT_TRUE(Knows(*subscriber_, {"1", "3"}));
  ASSERT_EQ(subscriber_->events().size(), 1u);
  EXPECT_EQ(subscriber_->events()[0]->delta().upserts_size(), 2);
  EXPECT_EQ(subscriber_->events()[0]->delta().removals_size(), 1);
  // And on, as ever.
  Put("4");
  ASSERT_TRUE(Knows(*subscriber_, {"1", "3", "4"}));
  EXPECT_EQ(Deltas(*subscriber_), 2);
}

TEST_F(ResumeTest, APositionAheadOfTheServersWatchIsConfirmed) {
  Put("1");
  auto other = std::make_shared<FakeSubscriber>();
  const auto others = there_.Subscribe(other, "s");
  ASSERT_TRUE(Knows(*other, {"1"}));
  // Etcd goes on, the service does not.
  ASSERT_TRUE(here_.Register(session_, MakeInstance("elsewhere", "1"), ++generation_).ok());
  auto stream = here_.Subscribe(subscriber_, "s");
  ASSERT_TRUE(Knows(*subscriber_, {"1"}));
  ASSERT_GT(subscriber_->revision(), other->revision());
  stream.reset();
  stream = there_.Subscribe(subscriber_, "s", true);
  ASSERT_TRUE(Knows(*subscriber_, {"1"}));
  ASSERT_EQ(subscriber_->events().size(), 1u);
  ASSERT_TRUE(subscriber_->events()[0]->has_delta());
  EXPECT_EQ(subscriber_->events()[0]->delta().upserts_size(), 0);
  Put("2");
  ASSERT_TRUE(Knows(*subscriber_, {"1", "2"}));
  ASSERT_TRUE(Knows(*other, {"1", "2"}));
  EXPECT_EQ(Deltas(*subscriber_), 2);
}

TEST_F(ResumeTest, WhatIsCompactedIsToldAsASnapshot) {
  Put("1");
  auto stream = here_.Subscribe(subscriber_, "s");
  ASSERT_TRUE(Knows(*subscriber_, {"1"}));
  stream.reset();
  Remove("1");
  Put("2");
  const uint64_t revision = here_.List("s")[0].modify_revision();
  ASSERT_EQ(etcd().Ctl({"compact", absl::StrCat(revision)}).status, 0);
  stream = there_.Subscribe(subscriber_, "s", true);
  ASSERT_TRUE(Knows(*subscriber_, {"2"}));
  EXPECT_TRUE(subscriber_->events()[0]->has_snapshot());
}

TEST_F(ResumeTest, AFilterSeesWhatComesToMatchAndWhatNoLongerDoes) {
  Put("1", 80, "z1");
  Put("2", 80, "z1");
  Put("3", 80, "z2");
  SubscribeRequest request;
  request.mutable_selector()->set_service("s");
  request.mutable_selector()->add_zones("z1");
  auto stream = here_->Subscribe(request, subscriber_);
  ASSERT_TRUE(Knows(*subscriber_, {"1", "2"}));
  stream.reset();
  Put("2", 80, "z2");
  Put("3", 80, "z1");
  Put("4", 80, "z2");
  request.set_epoch(subscriber_->epoch());
  request.set_revision(subscriber_->revision());
  subscriber_->BeginAgain();
  stream = there_->Subscribe(request, subscriber_);
  ASSERT_TRUE(Knows(*subscriber_, {"1", "3"}));
  ASSERT_EQ(subscriber_->events().size(), 1u);
  EXPECT_EQ(subscriber_->events()[0]->delta().upserts_size(), 1);
  EXPECT_EQ(subscriber_->events()[0]->delta().removals_size(), 1);
}

TEST_F(ResumeTest, AMarkThatHasGoneMeanwhileIsTold) {
  Put("1");
  SetOfflineRequest request;
  *request.mutable_key() = MakeInstance("s", "1").key();
  request.set_offline(true);
  ASSERT_TRUE(CallAndWait(*here_, &Registry::SetOffline, request).ok());
  auto stream = here_.Subscribe(subscriber_, "s");
  ASSERT_TRUE(Knows(*subscriber_, {"1"}));
  ASSERT_TRUE(subscriber_->events()[0]->snapshot().instances(0).has_offline());
  stream.reset();
  request.set_offline(false);
  ASSERT_TRUE(CallAndWait(*here_, &Registry::SetOffline, request).ok());
  stream = there_.Subscribe(subscriber_, "s", true);
  ASSERT_TRUE(Knows(*subscriber_, {"1"}));
  ASSERT_EQ(subscriber_->events()[0]->delta().upserts_size(), 1);
  EXPECT_FALSE(subscriber_->events()[0]->delta().upserts(0).has_offline());
}

TEST_F(ResumeTest, ManyPositionsAtOnceAreAllRight) {
  std::vector<std::shared_ptr<FakeSubscriber>> subscribers;
  Ids ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(absl::StrCat("i", i));
    Put(ids.back());
    subscribers.push_back(std::make_shared<FakeSubscriber>());
    const auto stream = here_.Subscribe(subscribers.back(), "s");
    ASSERT_TRUE(Knows(*subscribers.back(), ids));
  }
  Remove("i0");
  ids.erase(ids.begin());
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (const auto& subscriber : subscribers) {
    streams.push_back(there_.Subscribe(subscriber, "s", true));
  }
  for (const auto& subscriber : subscribers) EXPECT_TRUE(Knows(*subscriber, ids));
}

}  // namespace
}  // namespace failback
