#include "registry/base/disk.h"

#include <sys/resource.h>

#include <cerrno>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "registry/base/file_lock.h"
#include "tests/util/process.h"

namespace failback {
namespace {

TEST(DiskTest, AFileIsMadeOnceAndHoldsWhatIsWritten) {
  TempDir dir;
  Disk* const disk = Disk::Real();
  const std::string path = dir.File("file");
  std::unique_ptr<DiskFile> file;
  bool made = false;
  ASSERT_EQ(disk->OpenOrMake(path, 0600, &file, &made), 0);
  EXPECT_TRUE(made);
  EXPECT_EQ(file->Write("abcdef", 2), 0);
  EXPECT_EQ(file->Truncate(6), 0);
  EXPECT_EQ(file->Sync(), 0);
  EXPECT_EQ(disk->SyncFolderOf(path), 0);

  std::unique_ptr<DiskFile> again;
  ASSERT_EQ(disk->OpenOrMake(path, 0600, &again, &made), 0);
  EXPECT_FALSE(made);
  char bytes[16];
  size_t size = 0;
  EXPECT_EQ(again->Read(bytes, sizeof(bytes), 1, &size), 0);
  EXPECT_EQ(std::string(bytes, size), std::string("\0abcd", 5));
  FileInfo info;
  EXPECT_EQ(disk->Look(path, &info), 0);
  EXPECT_EQ(info.kind, FileInfo::Kind::kFile);
  EXPECT_EQ(info.bytes, 6);
  EXPECT_EQ(file->Lock(), 0);
  EXPECT_EQ(again->Lock(), EWOULDBLOCK);
  file.reset();
  EXPECT_EQ(again->Lock(), 0) << "a lock goes with its file";
}

TEST(DiskTest, IdentityIsTheFilesNotThePaths) {
  TempDir dir;
  Disk* const disk = Disk::Real();
  const std::string path = dir.Write("file", "one");
  FileIdentity before;
  FileIdentity moved;
  FileIdentity other;
  ASSERT_EQ(disk->Identify(path, &before), 0);
  ASSERT_EQ(disk->Rename(path, dir.File("moved")), 0);
  ASSERT_EQ(disk->Identify(dir.File("moved"), &moved), 0);
  EXPECT_TRUE(moved == before);
  EXPECT_EQ(disk->Identify(path, &other), ENOENT);
  dir.Write("file", "two");
  ASSERT_EQ(disk->Identify(path, &other), 0);
  EXPECT_FALSE(other == before);
}

// A process without descriptors is not one that may not use the file.
TEST(DiskTest, WhatCannotBeOpenedNowIsUnavailable) {
  TempDir dir;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status lock = FileLock::Acquire(dir.File("lock")).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(lock.code(), absl::StatusCode::kUnavailable) << lock;
}

}  // namespace
}  // namespace failback
