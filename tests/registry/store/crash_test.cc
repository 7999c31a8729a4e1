// kill -9 at random moments: what was acknowledged is there, a batch is there wholly or not at all,
// and the store opens every time.
//
// FAILBACK_TEST_SEED=n replays a run as far as timing allows; FAILBACK_TEST_KILLS=n kills n times.

#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"
#include "tests/util/environment.h"
#include "tests/util/process.h"
#include "tests/util/seeded_random.h"

namespace failback {
namespace {

struct Intended {
  uint64_t generation = 0;
  bool registers = false;
};

struct InFlight {
  Intended intent;
  std::vector<std::string> ids;
};

TEST(Crash, NothingAcknowledgedIsLostAndNoBatchIsTorn) {
  const uint64_t kills = FromEnvironment<uint64_t>("FAILBACK_TEST_KILLS", 200);
  SeededRandom random;
  TempDir folder;
  const std::string path = folder.File("registry.db");
  std::map<std::string, Intended> acknowledged;  // by instance id
  uint64_t revision = 0;
  std::optional<uint64_t> epoch;
  uint64_t in_flight_seen = 0;
  int64_t acks = 0;

  for (uint64_t round = 0; round < kills; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const char* const durability = (const char*[]){"full", "normal", "off"}[random.Pick(3)];
    // Of few pages: many a kill meets a checkpoint.
    const char* const checkpoint_pages = (const char*[]){"20", "200", "4000"}[random.Pick(3)];
    auto writer = Process::Start({RunfilePath("tests/registry/store/crash_writer"), path,
                                  durability, checkpoint_pages, std::to_string(1 + round * 1000000),
                                  std::to_string(random.engine()())});
    ASSERT_TRUE(writer->WaitForLine("ack").has_value()) << writer->Describe();
    std::this_thread::sleep_for(std::chrono::microseconds(random.Pick(60000)));
    writer->Kill();
    ASSERT_TRUE(writer->WaitForExit().has_value());

    std::map<std::string, InFlight> in_flight;  // by thread
    for (const absl::string_view view : absl::StrSplit(writer->out(), '\n', absl::SkipEmpty())) {
      std::istringstream line{std::string(view)};
      std::string word;
      std::string thread;
      uint64_t generation = 0;
      line >> word >> thread >> generation;
      if (word == "try") {
        std::string kind;
        std::string ids;
        line >> kind >> ids;
        in_flight[thread] = {{generation, kind == "register"}, absl::StrSplit(ids, ',')};
      } else if (word == "ack") {
        uint64_t acknowledged_revision = 0;
        line >> acknowledged_revision;
        ASSERT_EQ(in_flight[thread].intent.generation, generation);
        for (const std::string& id : in_flight[thread].ids) {
          acknowledged[id] = in_flight[thread].intent;
        }
        in_flight.erase(thread);
        revision = std::max(revision, acknowledged_revision);
        ++acks;
      } else {
        FAIL() << view;
      }
    }

    StoreRegistry::Options options;
    options.uri = "sqlite://" + path;
    StoreHarness store(options);
    EXPECT_EQ(store->epoch(), epoch.value_or(store->epoch())) << "nothing was lost";
    epoch = store->epoch();
    EXPECT_GE(store->revision(), revision);
    revision = store->revision();
    std::map<std::string, uint64_t> present;  // generation by id
    for (const auto& record : store.List("crash")) {
      const uint64_t generation = record.generation();
      EXPECT_EQ(record.instance().port(), 1 + generation % 60000);
      present[record.instance().key().instance_id()] = generation;
    }
    // What a key holds, as far as it can be seen.
    const auto holds = [&](const std::string& id, const Intended& intent) {
      const auto it = present.find(id);
      return intent.registers ? it != present.end() && it->second == intent.generation
                              : it == present.end();
    };
    for (const auto& [thread, batch] : in_flight) {
      // Applied or not, but the same for every key for which the difference shows.
      std::optional<bool> applied;
      for (const std::string& id : batch.ids) {
        const Intended before = acknowledged[id];
        if (!before.registers && !batch.intent.registers) continue;
        const bool is_new = holds(id, batch.intent);
        ASSERT_NE(is_new, holds(id, before)) << id << " holds neither";
        if (applied.has_value()) {
          EXPECT_EQ(*applied, is_new) << "a batch was torn at " << id;
        }
        applied = is_new;
      }
      if (applied.value_or(false)) {
        ++in_flight_seen;
        for (const std::string& id : batch.ids) acknowledged[id] = batch.intent;
      }
    }
    for (const auto& [id, intent] : acknowledged) {
      EXPECT_TRUE(holds(id, intent))
          << id << " should be " << (intent.registers ? "registered" : "gone") << " with "
          << intent.generation;
    }
    // Late calls are still fenced.
    const std::string session = store.Session("writer-0", absl::Hours(1));
    for (const auto& [id, intent] : acknowledged) {
      if (id[0] != '0' || intent.registers || intent.generation < 2) continue;
      EXPECT_EQ(
          ReasonOf(
              store.Register(session, MakeInstance("crash", id), intent.generation - 1).status),
          registry::v1::ERROR_REASON_SUPERSEDED)
          << id;
      break;
    }
  }
  std::cout << acks << " acknowledged, " << in_flight_seen << " of those under way were applied"
            << std::endl;
}

}  // namespace
}  // namespace failback
