// The parts of failbackctl that decide without a target: what fits a terminal, what a subscription
// adds up to, what a file of instances may hold.

#include <optional>
#include <string>
#include <vector>

#include "agent/ctl/change_command.h"
#include "agent/ctl/followed_set.h"
#include "agent/ctl/instance_file.h"
#include "agent/ctl/terminal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using registry::v1::SubscribeResponse;
using ::testing::HasSubstr;

TEST(TerminalTest, LinesAreCutByColumnsAndKeepTheirColours) {
  const std::string painted = Palette::Coloured().Paint("ähnlich", Tone::kGood) + " rest";
  EXPECT_EQ(CutLine(painted, 2), "\x1b[32mäh\x1b[0m");
  EXPECT_EQ(CutLine("abc", 3), "abc");
  EXPECT_EQ(Palette().Paint("x", Tone::kBad), "x");
  EXPECT_EQ(Palette::Coloured().State("parked"), "\x1b[31mparked\x1b[0m");
  EXPECT_EQ(Palette::Coloured().State("lapsed"), "\x1b[31mlapsed\x1b[0m");
  EXPECT_EQ(Palette::Coloured().State("orders"), "orders");
}

TEST(TerminalTest, ProgressFitsItsTerminal) {
  EXPECT_EQ(ProgressLine("registering", 2500, 10000, 60),
            "registering  [######                     ]  2,500 of 10,000");
  EXPECT_EQ(ProgressLine("registering", 2500, 10000, 30), "registering  2,500 of 10,000");
  EXPECT_EQ(ProgressLine("x", 0, 0, 80), "x  0 of 0");
  EXPECT_THAT(ProgressLine("draining", 20, 10, 200), HasSubstr("[####################"));
}

SubscribeResponse Snapshot(uint64_t revision, const std::vector<std::string>& ids, bool more) {
  SubscribeResponse message;
  message.set_epoch(1);
  message.set_revision(revision);
  message.mutable_snapshot()->set_more(more);
  for (const std::string& id : ids) {
    auto* const key = message.mutable_snapshot()->add_instances()->mutable_key();
    key->set_service("orders");
    key->set_instance_id(id);
  }
  return message;
}

// What the set makes of a message that follows.
std::optional<SubscribeResponse> Take(FollowedSet* set, const SubscribeResponse& message) {
  const auto change = set->Apply(message);
  EXPECT_TRUE(change.ok()) << change.status();
  return change.value_or(std::nullopt);
}

TEST(FollowedSetTest, PartsAreOneChangeAndWhatIsKnownIsNone) {
  FollowedSet set;
  EXPECT_FALSE(Take(&set, Snapshot(7, {"a", "b"}, true)).has_value());
  EXPECT_FALSE(set.known());
  const auto whole = Take(&set, Snapshot(7, {"c"}, false));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->snapshot().instances_size(), 3);
  EXPECT_FALSE(whole->snapshot().more());
  // Another stream tells the same; one that broke off amid a snapshot left nothing behind.
  EXPECT_FALSE(Take(&set, Snapshot(7, {"x"}, true)).has_value());
  set.Restart();
  EXPECT_FALSE(Take(&set, Snapshot(8, {"a", "b", "c"}, false)).has_value());
  EXPECT_EQ(set.revision(), 8u);
  SubscribeResponse stale;
  stale.set_epoch(1);
  stale.set_revision(8);
  stale.set_stale(true);
  EXPECT_TRUE(Take(&set, stale).has_value());
  EXPECT_FALSE(Take(&set, stale).has_value());
  SubscribeResponse delta;
  delta.set_epoch(1);
  delta.set_revision(9);
  delta.mutable_delta()->set_base_revision(8);
  delta.mutable_delta()->add_removals()->set_service("orders");
  delta.mutable_delta()->mutable_removals(0)->set_instance_id("a");
  EXPECT_TRUE(Take(&set, delta).has_value());
  EXPECT_EQ(set.instances().size(), 2u);
}

TEST(FollowedSetTest, AGapIsAnErrorAndTheNextStreamBeginsWithASnapshot) {
  FollowedSet set;
  Take(&set, Snapshot(7, {"a"}, false));
  SubscribeResponse delta;
  delta.set_epoch(1);
  delta.set_revision(9);
  delta.mutable_delta()->set_base_revision(8);
  EXPECT_EQ(set.Apply(delta).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(set.revision(), 0u);
  set.Restart();
  EXPECT_TRUE(Take(&set, Snapshot(6, {"b"}, false)).has_value());
  EXPECT_EQ(set.revision(), 6u);
}

TEST(FollowedSetTest, AStreamThatResumesMayBeginWithAnEarlierSnapshot) {
  FollowedSet set;
  Take(&set, Snapshot(7, {"a"}, false));
  set.Restart();
  EXPECT_TRUE(Take(&set, Snapshot(6, {"b"}, false)).has_value());
  EXPECT_EQ(set.revision(), 6u);
}

TEST(FollowedSetTest, AnEmptyFirstSnapshotIsNews) {
  FollowedSet set;
  EXPECT_TRUE(Take(&set, Snapshot(0, {}, false)).has_value());
}

TEST(ChangeEnvironmentTest, NamesThatAreTooManyForAVariableAreLeftOut) {
  SubscribeResponse change = Snapshot(1, {}, false);
  for (int i = 0; i < 10000; ++i) {
    auto* const key = change.mutable_snapshot()->add_instances()->mutable_key();
    key->set_service("orders");
    key->set_instance_id("instance-" + std::to_string(i));
  }
  FollowedSet set;
  Take(&set, change);
  const Environment environment = ChangeEnvironment("t", {}, change, set);
  EXPECT_EQ(environment.at("FAILBACK_EVENT_UPSERTS"), "");
  EXPECT_EQ(environment.at("FAILBACK_EVENT_COUNT"), "10000");
  EXPECT_TRUE(RunShellCommand("test \"$(wc -c)\" -eq 200000 && test -z \"$FAILBACK_EVENT_UPSERTS\"",
                              std::string(200000, 'x'), environment)
                  .ok());
}

TEST(InstanceFileTest, NamesAreThoseOfTheWireInBothSpellings) {
  const auto instances = ParseInstances("f.yaml",
                                        "- key: {service: a, instance_id: '1', namespace: n}\n"
                                        "  address: h\n"
                                        "  port: 80\n"
                                        "  status: draining\n"
                                        "  metadata: {version: 1.10}\n"
                                        "- instance:\n"
                                        "    key: {service: a, instanceId: '2'}\n"
                                        "    status: HEALTH_STATUS_UNSPECIFIED\n"
                                        "    instanceCount: '3'\n"
                                        "  generation: 7\n",
                                        "default-namespace");
  ASSERT_TRUE(instances.ok()) << instances.status();
  ASSERT_EQ(instances->size(), 2u);
  EXPECT_EQ((*instances)[0].metadata().at("version"), "1.10");
  EXPECT_EQ((*instances)[0].status(), registry::v1::HEALTH_STATUS_DRAINING);
  EXPECT_EQ((*instances)[0].key().namespace_(), "n");
  EXPECT_EQ((*instances)[1].key().instance_id(), "2");
  EXPECT_EQ((*instances)[1].key().namespace_(), "default-namespace");
  EXPECT_EQ((*instances)[1].instance_count(), 0u);
  EXPECT_THAT(
      std::string(
          ParseInstances("f.yaml", "\n- key: {service: a}\n  port: x\n", "").status().message()),
      HasSubstr("f.yaml:3: port: 'x' is not a whole number"));
}

TEST(InstanceFileTest, AnyJsonIsTaken) {
  const auto instances = ParseInstances(
      "f.json",
      "[{\"key\":{\"service\":\"a\",\"instanceId\":\"1\"},\"address\":\"h\",\"port\":80,\n"
      "\t\"metadata\":{\"mood\":\"\\ud83d\\ude00\\/\\u00e9\",\"quoted\":\"\\\"\\\\ud83d\\\"\",\n"
      "\t\t\"both\":\"\\\\\\uD83D\\uDE00\"}}]",
      "n");
  ASSERT_TRUE(instances.ok()) << instances.status();
  const auto& metadata = instances->at(0).metadata();
  EXPECT_EQ(metadata.at("mood"), "😀/é");
  EXPECT_EQ(metadata.at("quoted"), "\"\\ud83d\"");
  EXPECT_EQ(metadata.at("both"), "\\😀");
  EXPECT_THAT(
      std::string(ParseInstances("f.json", "[\n{\"zone\": \"\\ud83d\"}]", "n").status().message()),
      HasSubstr("f.json:2: not YAML"))
      << "half a character";
}

}  // namespace
}  // namespace failback
