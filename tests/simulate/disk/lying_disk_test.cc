#include "tests/simulate/disk/lying_disk.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "registry/store/sqlite/sqlite_database.h"

namespace failback {
namespace {

constexpr char kPath[] = "/file";

std::unique_ptr<DiskFile> Open(LyingDisk* disk) {
  std::unique_ptr<DiskFile> file;
  bool made = false;
  EXPECT_EQ(disk->OpenOrMake(kPath, 0600, &file, &made), 0);
  return file;
}

TEST(LyingDiskTest, WhatIsSyncedIsThereAfterAPowerCutAndOfTheRestAnySector) {
  std::set<std::string> left;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    LyingDisk disk(seed);
    auto file = Open(&disk);
    ASSERT_EQ(file->Write(std::string(1536, 'a'), 0), 0);
    ASSERT_EQ(file->Sync(), 0);
    ASSERT_EQ(disk.SyncFolderOf(kPath), 0);
    ASSERT_EQ(file->Write(std::string(1024, 'b'), 512), 0);
    disk.End(LyingDisk::Crash::kPower);
    EXPECT_EQ(file->Write("c", 0), EIO) << "the dead write nothing";
    const std::string bytes = *disk.Contents(kPath);
    ASSERT_EQ(bytes.size(), 1536u);
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], bytes[i / 512 * 512]);
    left.insert({bytes[0], bytes[512], bytes[1024]});
  }
  EXPECT_EQ(left, (std::set<std::string>{"aaa", "aab", "aba", "abb"}));
}

TEST(LyingDiskTest, AKilledProcessLosesNothingThatItWrote) {
  LyingDisk disk(1);
  auto file = Open(&disk);
  ASSERT_EQ(file->Write("bytes", 0), 0);
  ASSERT_EQ(file->Lock(), 0);
  disk.End(LyingDisk::Crash::kProcess);
  EXPECT_EQ(disk.Contents(kPath), "bytes");
  EXPECT_EQ(Open(&disk)->Lock(), 0) << "its lock went with it";
}

TEST(LyingDiskTest, ANameThatIsNotSyncedMayBeGone) {
  int there = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    LyingDisk disk(seed);
    ASSERT_EQ(Open(&disk)->Sync(), 0);
    disk.End(LyingDisk::Crash::kPower);
    there += disk.Contents(kPath).has_value() ? 1 : 0;
  }
  EXPECT_GT(there, 10);
  EXPECT_LT(there, 90);
}

TEST(LyingDiskTest, TheSameSeedTellsTheSameLies) {
  std::string first;
  for (int i = 0; i < 2; ++i) {
    LyingDisk disk(7);
    LyingDisk::Faults faults;
    faults.chance = 0.3;
    disk.set_faults(faults);
    std::string errors;
    for (int call = 0; call < 100; ++call) {
      FileInfo info;
      errors += disk.Look("/", &info) == EIO ? '!' : '.';
    }
    if (i == 0) first = errors;
    EXPECT_EQ(errors, first);
    EXPECT_EQ(disk.failed(), std::count(errors.begin(), errors.end(), '!'));
  }
}

// SQLite's own locks: of two connections one writes, and readers see what was committed.
TEST(LyingDiskTest, SqliteConnectionsShareItAsFilesOfTheirOwn) {
  LyingDisk disk(1);
  auto one = SqliteDatabase::Open("/n.db", SqliteDatabase::Mode::kCreate, "n", &disk).value();
  ASSERT_EQ(one->Execute("PRAGMA journal_mode=WAL; CREATE TABLE t (n INTEGER)"), absl::OkStatus());
  auto two = SqliteDatabase::Open("/n.db", SqliteDatabase::Mode::kReadWrite, "n", &disk).value();
  ASSERT_EQ(one->Execute("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)"), absl::OkStatus());
  EXPECT_EQ(two->QueryInt("SELECT count(*) FROM t").value(), 0);
  EXPECT_EQ(two->Execute("BEGIN IMMEDIATE").code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(one->Execute("COMMIT"), absl::OkStatus());
  EXPECT_EQ(two->QueryInt("SELECT count(*) FROM t").value(), 1);
  EXPECT_EQ(two->Execute("INSERT INTO t VALUES (2)"), absl::OkStatus());
  one.reset();
  two.reset();
  EXPECT_FALSE(disk.Contents("/n.db-wal").has_value()) << "folded in by the last of them";
}

}  // namespace
}  // namespace failback
