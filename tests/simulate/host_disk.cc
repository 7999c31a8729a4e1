#include "tests/simulate/host_disk.h"

#include "absl/strings/str_cat.h"

namespace failback::simulate {

HostDisk::HostDisk(uint64_t seed)
    : numbers_(seed), disk_(numbers_.Next()), synced_(numbers_.Pick(2) == 0) {
  chance_ = (const double[]){0, 0, 0.001, 0.01}[numbers_.Pick(4)];
  disk_.MakeFolder(kFolder, 0700);
  disk_.SyncFolderOf(kFolder);
}

std::string HostDisk::boot_id() const { return absl::StrCat("boot-", boots_); }

void HostDisk::Begin() {
  disk_.EndAfter(-1, LyingDisk::Crash::kProcess);
  disk_.set_faults({});
  life_ = disk_.life();
  power_ = synced_ && numbers_.Pick(2) == 0;
}

void HostDisk::Fail() {
  LyingDisk::Faults faults;
  faults.chance = chance_;
  faults.failed_sync_forgets = synced_;
  disk_.set_faults(faults);
}

void HostDisk::Heal() {
  chance_ = 0;
  disk_.set_faults({});
}

void HostDisk::EndSoon() { disk_.EndAfter(numbers_.Pick(60), crash()); }

bool HostDisk::End() {
  const bool ended = disk_.life() != life_;
  if (!ended) disk_.End(crash());
  disk_.EndAfter(-1, LyingDisk::Crash::kProcess);
  if (power_) ++boots_;
  return ended || chance_ > 0;
}

HostDisk::Files HostDisk::Read() const {
  Files files;
  for (const std::string& path : disk_.Files()) files[path] = *disk_.Contents(path);
  return files;
}

void HostDisk::Replace(const Files& files) {
  for (const std::string& path : disk_.Files()) disk_.Remove(path);
  for (const auto& [path, bytes] : files) disk_.Put(path, bytes);
}

}  // namespace failback::simulate
