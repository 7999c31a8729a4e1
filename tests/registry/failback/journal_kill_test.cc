// kill -9 of a real process at random moments: no accepted intent is lost, unregisters included.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <sstream>

#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/journal_story.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr int kRounds = 25;

// Keys to ports; 0: owed an unregister.
using Owed = std::map<std::string, uint32_t>;

class JournalKillTest : public FailbackTest {
 protected:
  // What a process that starts in `dir` owes the registry.
  Owed Restart(const std::string& dir, uint64_t* last_generation) {
    registry_.reset();
    auto fake = std::make_unique<FakeRegistry>();
    fake_ = fake.get();
    GoAway();
    options_.incarnation.clear();
    options_.state_dir = dir;
    options_.manual_journal = true;
    auto created = FailbackRegistry::Create(std::move(fake), options_);
    EXPECT_TRUE(created.ok()) << created.status();
    registry_ = *std::move(created);
    Owed owed;
    for (const auto& row : registry_->Pending()) {
      EXPECT_GT(row.generation(), 0);
      *last_generation = std::max(*last_generation, row.generation());
      owed[row.key().instance_id()] = 0;
    }
    Answer<ListResponse> list;
    registry_->List(ListRequest(), list.Catch());
    if (list.get().ok()) {
      for (const auto& record : list.get()->records()) {
        owed[record.instance().key().instance_id()] = record.instance().port();
      }
    } else {  // no instance is known
      EXPECT_TRUE(absl::IsUnavailable(list.get().status())) << list.get().status();
    }
    incarnation_ = registry_->incarnation();
    registry_.reset();
    return owed;
  }

  std::string incarnation_;
};

TEST_F(JournalKillTest, NoAcceptedIntentIsLost) {
  const char* const text = std::getenv("FAILBACK_SEED");
  const uint32_t seed =
      text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : std::random_device()();
  std::cerr << "FAILBACK_SEED=" << seed << "\n";
  std::mt19937 random(seed);
  TempDir dir;
  const std::string state = dir.File("state");
  // Of the steps that may have been taken, in order.
  std::vector<JournalStep> steps;
  Owed before;
  int first = 1;
  std::string incarnation;
  uint64_t last_generation = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    auto child = Process::Start({RunfilePath("tests/registry/failback/journal_child"), state,
                                 std::to_string(seed), std::to_string(first)});
    // At the start (the journal is being opened), and anywhere after.
    const int wait_for = static_cast<int>(random() % 400);
    if (random() % 6 != 0) {
      ASSERT_TRUE(child->WaitForLine(absl::StrCat("accepted ", first + wait_for)))
          << child->Describe();
    }
    child->Kill();
    int accepted = first - 1;
    std::istringstream out(child->out());
    std::string word;
    int number = 0;
    while (out >> word >> number) {
      EXPECT_EQ(word, "accepted");
      accepted = std::max(accepted, number);  // answers may overtake each other
    }
    uint64_t generation = 0;
    const Owed owed = Restart(state, &generation);
    EXPECT_GE(generation, last_generation) << "numbers go back";
    last_generation = generation;
    if (incarnation.empty()) incarnation = incarnation_;
    EXPECT_EQ(incarnation_, incarnation);
    // Exactly the first steps, up to one that is not before the last accepted.
    Owed expected = before;
    int last = first - 1;
    const auto take = [&](int index) {
      const JournalStep step = MakeJournalStep(seed, index);
      expected[step.id] = step.port;
      last = index;
    };
    while (last < accepted) take(last + 1);
    while (owed != expected && last < accepted + 20000) take(last + 1);
    ASSERT_EQ(owed, expected) << "accepted " << first << " to " << accepted;
    before = owed;
    first = last + 1;
  }
  EXPECT_GT(first, 100) << "the children got nowhere";
}

}  // namespace
}  // namespace failback
