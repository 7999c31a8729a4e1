// What an agent carries over what its registries list: which records, in which state, whose.

#include "agent/carried_overlay.h"

#include <map>
#include <string>
#include <vector>

#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/failback/carried_record.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using agent::v1::CarriedIntent;
using registry::v1::InstanceRecord;
using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;
using registry::v1::INTENT_STATE_PARKED;
using registry::v1::INTENT_STATE_SUPERSEDED;
using registry::v1::IntentState;
using registry::v1::ServiceInstance;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kOwn[] = "own-incarnation";

CarriedIntent Intent(const std::string& id, IntentState state,
                     const std::string& upstream = "main") {
  CarriedIntent intent;
  *intent.mutable_instance() = MakeInstance(id);
  intent.set_state(state);
  intent.set_generation(7);
  intent.set_upstream(upstream);
  return intent;
}

// Refused for the sake of `holder`; empty: the refusal does not say who it is.
CarriedIntent Superseded(const std::string& holder, const std::string& upstream = "main") {
  CarriedIntent intent = Intent("a", INTENT_STATE_SUPERSEDED, upstream);
  std::map<std::string, std::string> metadata;
  if (!holder.empty()) metadata["holder"] = holder;
  *intent.mutable_last_status() =
      StatusToProto(Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a newer intent", metadata));
  return intent;
}

InstanceRecord Listed(const std::string& id, const std::string& incarnation = kOwn,
                      const std::string& client_name = "") {
  InstanceRecord record;
  *record.mutable_instance() = MakeInstance(id);
  record.set_incarnation(incarnation);
  record.set_client_name(client_name);
  record.set_generation(6);
  return record;
}

CarriedOverlay Own() {
  CarriedOverlay overlay;
  overlay.incarnation = kOwn;
  return overlay;
}

// Each record as `id state incarnation/client_name`.
std::vector<std::string> Overlaid(const std::vector<CarriedIntent>& carried,
                                  const CarriedOverlay& overlay,
                                  std::vector<InstanceRecord> records) {
  OverlayCarried(carried, overlay, &records);
  std::vector<std::string> rows;
  for (const InstanceRecord& record : records) {
    constexpr size_t kPrefix = sizeof("INTENT_STATE_") - 1;
    rows.push_back(record.instance().key().instance_id() + " " +
                   IntentState_Name(record.state()).substr(kPrefix) + " " + record.incarnation() +
                   "/" + record.client_name());
  }
  return rows;
}

TEST(CarriedOverlayTest, WhatNoRegistryListsIsAddedInOrder) {
  std::vector<InstanceRecord> records = {Listed("b")};
  OverlayCarried({Intent("a", INTENT_STATE_ACCEPTED), Intent("c", INTENT_STATE_PARKED),
                  Intent("d", INTENT_STATE_ACKNOWLEDGED)},
                 Own(), &records);
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records[0].instance().key().instance_id(), "a");
  EXPECT_EQ(records[0].state(), INTENT_STATE_ACCEPTED);
  EXPECT_EQ(records[0].incarnation(), kOwn);
  EXPECT_EQ(records[0].generation(), 7);
  EXPECT_EQ(records[1].instance().key().instance_id(), "b");
  EXPECT_EQ(records[1].generation(), 6) << "as the registry has it";
  EXPECT_EQ(records[2].instance().key().instance_id(), "c");
  EXPECT_EQ(records[2].state(), INTENT_STATE_PARKED);
}

TEST(CarriedOverlayTest, WithAllWhatIsAcknowledgedIsAddedToo) {
  CarriedOverlay overlay = Own();
  overlay.all = true;
  EXPECT_THAT(Overlaid({Intent("a", INTENT_STATE_ACKNOWLEDGED)}, overlay, {}),
              ElementsAre("a ACKNOWLEDGED own-incarnation/"));
  EXPECT_THAT(Overlaid({Intent("a", INTENT_STATE_ACKNOWLEDGED)}, Own(), {}), IsEmpty());
}

TEST(CarriedOverlayTest, WithoutAddOnlyTheStateOfWhatIsListedIsSet) {
  CarriedOverlay overlay = Own();
  overlay.add = false;
  EXPECT_THAT(Overlaid({Intent("a", INTENT_STATE_ACCEPTED), Intent("b", INTENT_STATE_ACCEPTED)},
                       overlay, {Listed("b")}),
              ElementsAre("b ACCEPTED own-incarnation/"));
}

TEST(CarriedOverlayTest, OfSeveralUpstreamsTheFirstThatHasNotAcknowledgedCounts) {
  CarriedOverlay overlay = Own();
  overlay.all = true;
  EXPECT_THAT(Overlaid({Intent("a", INTENT_STATE_ACKNOWLEDGED, "one"),
                        Intent("a", INTENT_STATE_PARKED, "two"),
                        Intent("a", INTENT_STATE_ACCEPTED, "three")},
                       overlay, {}),
              ElementsAre("a PARKED own-incarnation/"));
}

TEST(CarriedOverlayTest, TheOwnerThatTheOnlyRegistryListsStays) {
  // The refusal is older than the listing: another one may hold the key by now.
  EXPECT_THAT(Overlaid({Superseded("winner")}, Own(), {Listed("a", "later", "another")}),
              ElementsAre("a SUPERSEDED later/another"));
  EXPECT_THAT(Overlaid({Superseded("winner")}, Own(), {}), ElementsAre("a SUPERSEDED /winner"))
      << "none is listed";
}

TEST(CarriedOverlayTest, SupersededAtOneOfSeveralNamesTheWinnerThere) {
  const std::vector<CarriedIntent> carried = {Intent("a", INTENT_STATE_ACKNOWLEDGED, "one"),
                                              Superseded("winner", "two")};
  EXPECT_THAT(Overlaid(carried, Own(), {Listed("a", kOwn, "us")}),
              ElementsAre("a SUPERSEDED /winner"));
  CarriedOverlay of_a_stranger;  // who does not know the agent's incarnation
  EXPECT_THAT(Overlaid(carried, of_a_stranger, {Listed("a", kOwn, "us")}),
              ElementsAre("a SUPERSEDED /winner"));
  EXPECT_THAT(Overlaid(carried, of_a_stranger, {Listed("a", "later", "winner")}),
              ElementsAre("a SUPERSEDED later/winner"))
      << "it is the one that is listed";
  EXPECT_THAT(Overlaid(carried, Own(), {Listed("a", kOwn, "winner")}),
              ElementsAre("a SUPERSEDED /winner"))
      << "of the same name, and another incarnation";
}

TEST(CarriedOverlayTest, AnUnknownWinnerLeavesNoOwnerButTheOneThatIsListed) {
  EXPECT_THAT(Overlaid({Superseded("")}, Own(), {Listed("a", kOwn, "us")}),
              ElementsAre("a SUPERSEDED /"));
  EXPECT_THAT(Overlaid({Superseded("")}, Own(), {}), ElementsAre("a SUPERSEDED /"));
  EXPECT_THAT(Overlaid({Intent("a", INTENT_STATE_ACKNOWLEDGED, "one"), Superseded("", "two")},
                       Own(), {Listed("a", "later", "another")}),
              ElementsAre("a SUPERSEDED later/another"));
}

TEST(CountCarriedTest, EachInstanceCountsOnceInItsState) {
  const auto record = [](const ServiceInstance& instance, IntentState state) {
    return CarriedRecord{CanonicalKey(instance.key()),
                         Blob(CanonicalInstance(instance)),
                         state,
                         7,
                         "main",
                         absl::OkStatus()};
  };
  ServiceInstance other = MakeInstance("f", 1, "payments");
  other.set_persistent(true);
  const CarriedCounts counts =
      CountCarried({record(MakeInstance("a"), INTENT_STATE_ACKNOWLEDGED),
                    record(MakeInstance("b"), INTENT_STATE_ACKNOWLEDGED),
                    record(MakeInstance("b"), INTENT_STATE_ACCEPTED),
                    record(MakeInstance("c"), INTENT_STATE_PARKED),
                    record(MakeInstance("d"), INTENT_STATE_SUPERSEDED),
                    record(MakeInstance("e"), registry::v1::INTENT_STATE_LAPSED),
                    record(other, INTENT_STATE_ACKNOWLEDGED)});
  EXPECT_EQ(counts.services, 2);
  EXPECT_EQ(counts.instances.total(), 6);
  EXPECT_EQ(counts.instances.healthy(), 2);
  EXPECT_EQ(counts.instances.pending(), 1);
  EXPECT_EQ(counts.instances.parked(), 1);
  EXPECT_EQ(counts.instances.superseded(), 1);
  EXPECT_EQ(counts.instances.lapsed(), 1);
  EXPECT_EQ(counts.instances.persistent(), 1);
  EXPECT_EQ(CountCarried({}).services, 0);
}

}  // namespace
}  // namespace failback
