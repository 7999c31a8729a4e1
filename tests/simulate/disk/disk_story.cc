#include "tests/simulate/disk/disk_story.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/simulate/disk/seeded_entropy.h"

namespace failback {

DiskStory::DiskStory(uint64_t seed, const std::string& folder, int longest_life)
    : random_(seed), disk_(random_()), longest_life_(longest_life) {
  SeedEntropy(random_());
  disk_.MakeFolder(folder, 0700);
  disk_.SyncFolderOf(folder);
  disk_.set_witness([this](const std::string& what) {
    Say("      disk: " + what);
    unmarked_ = unmarked_ || absl::StrContains(what, ".mark");
  });
}

StoryResult DiskStory::Tell() {
  const int lives = 2 + Pick(5);
  for (int life = 0; life < lives && !violated(); ++life) Live();
  if (!violated()) Reopen();
  Close();
  for (size_t i = 0; i < static_cast<size_t>(LyingDisk::Call::kCount); ++i) {
    result_.calls += disk_.calls(static_cast<LyingDisk::Call>(i));
  }
  return std::move(result_);
}

void DiskStory::Live() {
  if (!Reopen()) return;
  unmarked_ = false;
  SetFaults();
  if (Pick(2) == 0) {
    const LyingDisk::Crash crash = CrashOrCut();
    disk_.EndAfter(Pick(1 + static_cast<size_t>(Pick(static_cast<size_t>(longest_life_)))), crash);
  }
  life_ = disk_.life();
  const int steps = 10 + Pick(90);
  for (int i = 0; i < steps && alive() && !violated(); ++i) Step();
  if (violated()) return;
  if (alive()) {
    if (Pick(3) != 0) {
      disk_.End(CrashOrCut());
    } else {
      EndCleanly();
    }
  }
  disk_.set_faults({});
  disk_.EndAfter(-1, LyingDisk::Crash::kProcess);
  OnEnd();
  Close();
}

void DiskStory::DrawFaults(bool synced) {
  chance_ = (const double[]){0, 0.0005, 0.005, 0.03}[Pick(4)];
  forgets_ = synced && Pick(2) == 0;
}

void DiskStory::SetFaults() {
  LyingDisk::Faults faults;
  if (Pick(2) == 0) faults.chance = chance_;
  if (may_fail() && Pick(3) == 0) faults.sync_chance = 0.2;
  faults.full = may_fail() && Pick(12) == 0;
  faults.failed_sync_forgets = forgets_;
  clean_ = clean_ && faults.chance == 0 && faults.sync_chance == 0 && !faults.full;
  disk_.set_faults(faults);
  Say(absl::StrCat("faults: ", faults.chance, " of syncs ", faults.sync_chance,
                   faults.full ? " full" : ""));
}

LyingDisk::Faults DiskStory::FaultsOfStart() const {
  LyingDisk::Faults faults;
  faults.chance = chance_;
  faults.failed_sync_forgets = forgets_;
  return faults;
}

LyingDisk::Crash DiskStory::CrashOrCut() {
  return Pick(3) == 0 ? LyingDisk::Crash::kProcess : LyingDisk::Crash::kPower;
}

std::string DiskStory::FlipBitOf(const std::vector<std::string>& files) {
  const std::string& file = files[static_cast<size_t>(Pick(files.size()))];
  if (!disk_.FlipBit(file)) return "";
  ++result_.flips;
  return file;
}

}  // namespace failback
