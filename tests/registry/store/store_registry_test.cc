#include "registry/store/store_registry.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StoreRegistry, RegistersListsAndUnregisters) {
  StoreHarness store;
  const std::string session = store.Session("a");
  const ServiceInstance one = MakeInstance("orders", "1");
  const Outcome registered = store.Register(session, one, 7);
  ASSERT_TRUE(registered.ok()) << registered.status;
  EXPECT_EQ(registered.generation, 7u);
  EXPECT_EQ(registered.revision, 1u);

  const auto records = store.List();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].instance().key().namespace_(), "default");
  EXPECT_EQ(records[0].instance().port(), 80u);
  EXPECT_EQ(records[0].incarnation(), "a");
  EXPECT_EQ(records[0].client_name(), "client of a");
  EXPECT_EQ(records[0].rank(), 1u);
  EXPECT_EQ(records[0].generation(), 7u);
  EXPECT_EQ(records[0].create_revision(), 1u);
  EXPECT_EQ(records[0].modify_revision(), 1u);
  EXPECT_EQ(records[0].create_time().seconds(), 1700000000);

  const Outcome unregistered = store.Unregister(session, one.key(), 8);
  EXPECT_TRUE(unregistered.ok()) << unregistered.status;
  EXPECT_EQ(unregistered.revision, 2u);
  EXPECT_THAT(store.List(), IsEmpty());
}

TEST(StoreRegistry, TellsSubscribers) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1")).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  auto stream = store.Subscribe(subscriber, "orders");
  EXPECT_THAT(subscriber->ids(), ElementsAre("1"));
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "2")).ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2"));
  ASSERT_TRUE(store.Register(session, MakeInstance("payments", "1")).ok());
  store.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(subscriber->ids(), IsEmpty());
  EXPECT_EQ(subscriber->events().size(), 3u);
  stream.reset();
}

}  // namespace
}  // namespace failback
