#include "registry/base/small_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/base/file_lock.h"
#include "tests/util/process.h"

namespace failback {
namespace {

TEST(SmallFileTest, ReplacesAndReads) {
  TempDir dir;
  const std::string path = dir.File("names");
  EXPECT_EQ(ReadFile(path).status().code(), absl::StatusCode::kNotFound);
  for (const std::string& text : {std::string("a\nb\n"), std::string(100000, 'x'), std::string()}) {
    ASSERT_EQ(ReplaceFile(path, text, 0600), absl::OkStatus());
    EXPECT_EQ(ReadFile(path).value(), text);
  }
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SmallFileTest, WhatCannotBeReadIsNotTakenForNothing) {
  TempDir dir;
  EXPECT_EQ(ReadFile(dir.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  // It does not wait for who would write to a pipe, nor read without end.
  const std::string pipe = dir.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile(pipe).status().message(), "is not a file");
  EXPECT_EQ(ReadFile("/dev/zero").status().message(), "is not a file");
  EXPECT_EQ(ReadFile(dir.Write("large", std::string((1 << 20) + 1, 'x'))).status().message(),
            "is larger than 1048576 bytes, the most that is allowed");
}

// Somebody else who may write to the folder has put links where our files go.
TEST(SmallFileTest, LinksAreNotFollowed) {
  TempDir dir;
  const std::string victim = dir.Write("victim", "precious");
  const std::string path = dir.File("names");
  ASSERT_EQ(symlink(victim.c_str(), path.c_str()), 0);
  ASSERT_EQ(symlink(victim.c_str(), absl::StrCat(path, ".", getpid(), ".tmp").c_str()), 0);
  ASSERT_EQ(ReplaceFile(path, "ours", 0600), absl::OkStatus());
  EXPECT_EQ(ReadFile(path).value(), "ours");
  EXPECT_EQ(ReadFile(victim).value(), "precious");
}

TEST(FileLockTest, LinksAreRefused) {
  TempDir dir;
  const std::string victim = dir.Write("victim", "precious");
  ASSERT_EQ(symlink(victim.c_str(), dir.File("soft").c_str()), 0);
  ASSERT_EQ(symlink(dir.File("new").c_str(), dir.File("dangling").c_str()), 0);
  ASSERT_EQ(link(victim.c_str(), dir.File("hard").c_str()), 0);
  for (const char* name : {"soft", "dangling", "hard"}) {
    const absl::Status refused = FileLock::Acquire(dir.File(name)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(refused.message().find(dir.File(name)), std::string::npos) << refused;
  }
  EXPECT_EQ(FileLock::Acquire(dir.File("soft")).status().message(),
            absl::StrCat("cannot create ", dir.File("soft"), ": is a symbolic link"));
  EXPECT_EQ(ReadFile(victim).value(), "precious");
  EXPECT_EQ(access(dir.File("new").c_str(), F_OK), -1);
  EXPECT_TRUE(FileLock::Acquire(dir.File("lock")).ok());
}

}  // namespace
}  // namespace failback
