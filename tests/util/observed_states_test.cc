#include "tests/util/observed_states.h"

#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SubscribeResponse Event(const std::string& text) {
  SubscribeResponse event;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &event)) << text;
  return event;
}

ServiceInstance Instance(const std::string& id, int port) {
  ServiceInstance instance;
  instance.mutable_key()->set_instance_id(id);
  instance.set_port(port);
  return instance;
}

constexpr char kSnapshotAB[] =
    "epoch: 5 revision: 2 snapshot { instances { key { instance_id: 'a' } port: 1 } "
    "instances { key { instance_id: 'b' } port: 1 } }";

TEST(ObservedStatesTest, FollowsSnapshotsDeltasAndStaleness) {
  ObservedStates observed;
  EXPECT_TRUE(observed
                  .Apply(Event("epoch: 5 revision: 1 snapshot { more: true "
                               "instances { key { instance_id: 'a' } port: 1 } }"))
                  .ok());
  EXPECT_TRUE(observed.states().empty());
  EXPECT_TRUE(observed
                  .Apply(Event("epoch: 5 revision: 1 snapshot { "
                               "instances { key { instance_id: 'b' } port: 1 } }"))
                  .ok());
  EXPECT_TRUE(observed.Apply(Event("epoch: 5 revision: 1 stale: true")).ok());
  EXPECT_TRUE(observed.Apply(Event("epoch: 5 revision: 1")).ok());
  EXPECT_TRUE(
      observed
          .Apply(Event("epoch: 5 revision: 3 delta { base_revision: 1 "
                       "removals { instance_id: 'a' } upserts { key { instance_id: 'c' } } }"))
          .ok());
  EXPECT_EQ(observed.states().size(), 4u);
  EXPECT_THAT(observed.CurrentIds(), ElementsAre("b", "c"));
  // A new epoch may have lower revisions.
  EXPECT_TRUE(observed.Apply(Event("epoch: 6 revision: 1 snapshot {}")).ok());
}

TEST(ObservedStatesTest, NamesTheRuleThatIsBroken) {
  const auto error = [](const std::string& text) {
    ObservedStates observed;
    EXPECT_TRUE(observed.Apply(Event(kSnapshotAB)).ok());
    return std::string(observed.Apply(Event(text)).message());
  };
  EXPECT_THAT(error(kSnapshotAB), HasSubstr("twice in a row"));
  EXPECT_THAT(error("epoch: 5 revision: 3 delta { base_revision: 2 }"),
              HasSubstr("twice in a row"));
  EXPECT_THAT(error("epoch: 5 revision: 2"), HasSubstr("twice in a row"));
  EXPECT_THAT(error("epoch: 5 revision: 1 snapshot {}"), HasSubstr("revision 1 after 2"));
  EXPECT_THAT(
      error("epoch: 5 revision: 4 delta { base_revision: 3 removals { instance_id: 'a' } }"),
      HasSubstr("from revision 3 on 2"));
  EXPECT_THAT(
      error("epoch: 6 revision: 4 delta { base_revision: 2 removals { instance_id: 'a' } }"),
      HasSubstr("new epoch"));
  EXPECT_THAT(
      error("epoch: 5 revision: 4 delta { base_revision: 2 removals { instance_id: 'x' } }"),
      HasSubstr("not there"));
  ObservedStates empty;
  EXPECT_THAT(std::string(empty.Apply(Event("epoch: 5 revision: 1 stale: true")).message()),
              HasSubstr("no snapshot first"));
}

TEST(DesiredHistoryTest, OnlyDesiredStatesInTheirOrder) {
  DesiredHistory desired;
  desired.Registered(Instance("a", 1));
  desired.Registered(Instance("b", 1));
  desired.Unregistered("a");
  desired.Registered(Instance("b", 2));
  const auto check = [&](const std::vector<std::string>& texts) {
    std::vector<SubscribeResponse> events;
    for (const std::string& text : texts) events.push_back(Event(text));
    return std::string(CheckSubscription(events, desired).message());
  };
  const std::string remove_a =
      "epoch: 5 revision: 3 delta { base_revision: 2 removals { instance_id: 'a' } }";
  EXPECT_EQ(check({kSnapshotAB, remove_a}), "");
  EXPECT_EQ(check({kSnapshotAB,
                   "epoch: 5 revision: 3 delta { base_revision: 2 upserts { key { instance_id: 'b' "
                   "} port: 2 } }"}),
            "");
  EXPECT_THAT(check({kSnapshotAB,
                     "epoch: 5 revision: 3 delta { base_revision: 2 upserts { key { instance_id: "
                     "'b' } port: 3 } }"}),
              HasSubstr("b was seen registered"));
  EXPECT_THAT(
      check(
          {kSnapshotAB,
           "epoch: 5 revision: 3 delta { base_revision: 2 upserts { key { instance_id: 'c' } } }"}),
      HasSubstr("c was seen and never desired"));
  // Back from the dead.
  EXPECT_THAT(check({kSnapshotAB, remove_a,
                     "epoch: 5 revision: 4 delta { base_revision: 3 upserts { key { instance_id: "
                     "'a' } port: 1 } }"}),
              HasSubstr("a was seen registered"));
  // Gone although it was to stay.
  EXPECT_THAT(
      check({kSnapshotAB,
             "epoch: 5 revision: 4 delta { base_revision: 2 removals { instance_id: 'b' } }"}),
      HasSubstr("b was seen gone"));
  desired.MayLapse();
  EXPECT_EQ(
      check({kSnapshotAB,
             "epoch: 5 revision: 4 delta { base_revision: 2 removals { instance_id: 'b' } }"}),
      "");
}

}  // namespace
}  // namespace failback
