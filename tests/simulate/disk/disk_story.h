// What the stories on a lying disk have in common: lives that end in the middle of a call or in
// good order, faults that come and go, and bits that flip in between. All of it is decided by one
// seed.
//
// A story of its own says what runs on the disk, and what of it must be there in the next life:
//
//   class StoreStory final : public DiskStory {
//    public:
//     explicit StoreStory(uint64_t seed) : DiskStory(seed, "/d", /*longest_life=*/1500) { … }
//    private:
//     bool Reopen() override;
//     …
//   };
//
//   StoryResult result = StoreStory(seed).Tell();
//
// Numbers are drawn in one order, so that a seed tells the same story tomorrow.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_DISK_STORY_H_
#define FAILBACK_TESTS_SIMULATE_DISK_DISK_STORY_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/simulate/disk/lying_disk.h"
#include "tests/simulate/disk/story_result.h"

namespace failback {

class DiskStory {
 public:
  StoryResult Tell();

 protected:
  // `folder` is made on the disk. A life that ends in the middle of a call does so after
  // `longest_life` of them at most.
  DiskStory(uint64_t seed, const std::string& folder, int longest_life);
  virtual ~DiskStory() = default;

  // --- What a story does.

  // Begins a life: opens what is on the disk and compares it with what must be there. False when
  // the story ends here.
  virtual bool Reopen() = 0;
  // One thing that happens in a life.
  virtual void Step() = 0;
  // Ends the life in good order; the disk may end meanwhile.
  virtual void EndCleanly() = 0;
  // The life is over, and the disk works again.
  virtual void OnEnd() = 0;
  // Lets go of what runs on the disk.
  virtual void Close() = 0;

  // --- What it does that with.

  int Pick(size_t n) { return static_cast<int>(random_() % n); }
  void Say(std::string line) { result_.told.push_back(std::move(line)); }
  // The first one counts.
  void Violation(std::string what) {
    if (result_.violation.empty()) result_.violation = std::move(what);
  }
  bool violated() const { return !result_.violation.empty(); }

  // Draws how often calls fail in this story. `synced`: a sync that has failed may forget what it
  // was to write.
  void DrawFaults(bool synced);
  bool may_fail() const { return chance_ > 0; }
  // Other faults from here on.
  void SetFaults();
  // What a start may meet.
  LyingDisk::Faults FaultsOfStart() const;
  LyingDisk::Crash CrashOrCut();
  // A bit of one of `files` flips; empty if that has none.
  std::string FlipBitOf(const std::vector<std::string>& files);
  // A mark was not written in the last life: what it wrote may be ahead of it.
  bool unmarked() const { return unmarked_; }
  // The disk is still the one of this life.
  bool alive() const { return disk_.life() == life_; }

  StoryResult result_;
  std::mt19937_64 random_;
  LyingDisk disk_;
  bool clean_ = true;  // nothing can have failed since the story set this
  uint64_t life_ = 0;

 private:
  void Live();

  const int longest_life_;
  double chance_ = 0;
  bool forgets_ = false;
  bool unmarked_ = false;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_DISK_STORY_H_
