// Conflator on random streams that are read at random times.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/model/event.h"
#include "registry/watch/conflator.h"
#include "tests/registry/message_listener.h"
#include "tests/registry/watch/conflator_events.h"

namespace failback {
namespace {

// Seeds given back with FAILBACK_TEST_SEED=n; otherwise a fixed range of them.
std::vector<uint64_t> Seeds() {
  if (const char* seed = std::getenv("FAILBACK_TEST_SEED"))
    return {std::strtoull(seed, nullptr, 10)};
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 1; seed <= 1000; ++seed) seeds.push_back(seed);
  return seeds;
}

// A source of random events, in order, of which each changes the state.
class Source {
 public:
  explicit Source(uint64_t seed) : random_(seed) {}

  static constexpr int kKeys = 6;
  static constexpr int kPart = 2;
  static constexpr int kMaxParts = kKeys / kPart;

  int Below(int bound) { return static_cast<int>(random_() % bound); }

  EventPtr Next() {
    const int kind = Below(20);
    if (!started_ || kind == 0) {
      if (!started_ || Below(2) == 0) {
        ++epoch_;
        revision_ = 0;
      }
      started_ = true;
      for (int i = Below(4); i > 0; --i) Change();
      ++revision_;
      return Below(2) == 0 ? Snapshot(epoch_, revision_, contents_, stale_)
                           : InParts(epoch_, revision_, contents_, kPart, stale_);
    }
    if (kind <= 2) {
      stale_ = !stale_;
      return Stale(epoch_, revision_, stale_);
    }
    const Contents before = contents_;
    const uint64_t base = revision_;
    do {
      for (int i = 1 + Below(2); i > 0; --i) Change();
    } while (contents_ == before);
    revision_ += 1 + Below(3);
    Contents upserts;
    std::vector<std::string> removals;
    for (const auto& [id, port] : contents_) {
      if (before.count(id) == 0 || before.at(id) != port) upserts[id] = port;
    }
    for (const auto& entry : before) {
      if (contents_.count(entry.first) == 0) removals.push_back(entry.first);
    }
    return Delta(epoch_, base, revision_, upserts, removals, stale_);
  }

  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  bool stale() const { return stale_; }
  const Contents& contents() const { return contents_; }

 private:
  // Few keys and ports, so that states come back.
  void Change() {
    const std::string id(1, static_cast<char>('a' + Below(kKeys)));
    if (Below(2) == 0) {
      contents_.erase(id);
    } else {
      contents_[id] = 1 + Below(2);
    }
  }

  std::mt19937_64 random_;
  bool started_ = false;
  bool stale_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
  Contents contents_;
};

// Invariants 1 to 3 of the class, on random streams read at random times.
void RunRandom(uint64_t seed, bool resume) {
  Source source(seed);
  Subscriber subscriber;
  Conflator conflator(0, 0);
  if (resume) {
    for (int i = 0; i < 5; ++i) source.Next();
    subscriber = Subscriber(source.epoch(), source.revision(), source.contents());
    subscriber.stale = source.stale();
    conflator = Conflator(source.epoch(), source.revision());
  }
  bool told = false;
  bool knows_all = !resume;
  const auto take = [&](const MessagePtr& event) {
    const Subscriber before = subscriber;
    subscriber.Apply(*event);
    const bool complete = !event->has_snapshot() || !event->snapshot().more();
    if (told && complete && knows_all) {
      EXPECT_FALSE(subscriber == before) << "the same state twice: " << event->DebugString();
    }
    told = told || complete;
    knows_all = knows_all || (event->has_snapshot() && complete);
  };
  for (int step = 0; step < 60; ++step) {
    const absl::Status status = conflator.Add(source.Next());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LE(conflator.pending(), static_cast<size_t>(2 * Source::kMaxParts + Source::kKeys));
    if (source.Below(8) == 0) {
      if (const MessagePtr next = Next(conflator)) take(next);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const MessagePtr& message : Drain(conflator)) take(message);
  EXPECT_EQ(subscriber.contents, source.contents());
  EXPECT_EQ(subscriber.epoch, source.epoch());
  EXPECT_EQ(subscriber.stale, source.stale());
}

TEST(ConflatorRandomTest, EndsInTheSameStateByValidMessages) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    RunRandom(seed, /*resume=*/false);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ConflatorRandomTest, AlsoAfterResuming) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(absl::StrCat("FAILBACK_TEST_SEED=", seed));
    RunRandom(seed, /*resume=*/true);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace failback
