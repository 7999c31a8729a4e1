// The disk of a simulated machine, in memory: what its process keeps, and what is left of it when
// the process is killed or the machine loses power. No file is touched.
//
// Which of the two happens, and in the middle of which call to the disk, follows from the seed. A
// machine loses power only if it syncs what it has acknowledged: what is lost otherwise is allowed,
// and not what a story is about. On some disks calls fail now and then, until it is healed.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_HOST_DISK_H_
#define FAILBACK_TESTS_SIMULATE_HOST_DISK_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulate/disk/lying_disk.h"
#include "tests/simulate/random.h"

namespace failback::simulate {

class HostDisk {
 public:
  // By path.
  using Files = std::map<std::string, std::string>;

  // Where a process keeps its files.
  static constexpr char kFolder[] = "/state";

  explicit HostDisk(uint64_t seed);

  Disk* disk() { return &disk_; }
  // Whether the process is to sync what it acknowledges.
  bool synced() const { return synced_; }
  // Of its own, for how a process uses its disk.
  SeededNumbers* numbers() { return &numbers_; }
  // Names the start of the machine.
  std::string boot_id() const;

  // A process begins to use it. No call fails before Fail().
  void Begin();
  void Fail();
  // From here on all calls work.
  void Heal();
  // Some calls fail.
  bool fails() const { return chance_ > 0; }
  // The disk ends in the middle of one of the next calls: what the process still asks of it fails,
  // until that is killed.
  void EndSoon();
  // The process is killed, or the machine loses power, unless that has happened with EndSoon. To be
  // called before the process is taken down: what it does then fails, unseen. Returns whether the
  // process may have known that not all of what it did is on the disk.
  bool End();

  // Of memory, for what is on it.
  int64_t HeldBytes() const { return disk_.HeldBytes(); }
  // What is on it. While no process uses it, or as of this moment.
  Files Read() const;
  // Makes it so, of new files, as of a backup that is copied back.
  void Replace(const Files& files);

 private:
  LyingDisk::Crash crash() const {
    return power_ ? LyingDisk::Crash::kPower : LyingDisk::Crash::kProcess;
  }

  SeededNumbers numbers_;
  LyingDisk disk_;
  const bool synced_;
  double chance_;       // of a call that fails
  bool power_ = false;  // goes at the end of this life
  uint64_t life_ = 0;   // of the disk, as the process began
  int boots_ = 1;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_HOST_DISK_H_
