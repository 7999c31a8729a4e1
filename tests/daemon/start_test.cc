#include "daemon/start.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "failback/registry/v1/config.pb.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "tests/util/process.h"

namespace failback {
namespace {

TEST(MakeFolderTest, OneLevelIsMadeAndNothingIsChanged) {
  TempDir dir;
  struct stat info;
  MakeFolderOf("sqlite://" + dir.File("a/registry.db"), 0750);
  ASSERT_EQ(stat(dir.File("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750 & ~umask(0));
  ASSERT_EQ(chmod(dir.File("a").c_str(), 0700), 0);
  MakeFolderOf("unix:" + dir.File("a/agent.sock"), 0755);
  ASSERT_EQ(stat(dir.File("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700) << "it was there";
  MakeFolderOf("unix:" + dir.File("b/c/agent.sock"), 0755);
  EXPECT_EQ(access(dir.File("b").c_str(), F_OK), -1);
  MakeFolderOf("127.0.0.1:7060", 0755);
  MakeFolderOf("memory:", 0755);
}

TEST(MakeFolderTest, WhatAnOperatorHasWrittenIsNotMade) {
  TempDir dir;
  MakeDefaultFolder(registry::v1::RegistryConfig(), "store",
                    "sqlite://" + dir.File("mispelled/registry.db"), 0750);
  EXPECT_EQ(access(dir.File("mispelled").c_str(), F_OK), -1);
}

TEST(WarnOfWritableTest, NamesTheKeyAndThePathThatEveryUserMayWriteTo) {
  std::string warning;
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    warning += FormatLogLine(event, fields) + "\n";
  });
  TempDir dir;
  const std::string file = dir.Write("token", "x");
  ASSERT_EQ(chmod(file.c_str(), 0660), 0);
  WarnOfWritable("admin.token_file", file);
  WarnOfWritable("admin.token_file", dir.File("nothing"));
  WarnOfWritable("state_dir", "");
  EXPECT_EQ(warning, "");
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  WarnOfWritable("admin.token_file", file);
  EXPECT_EQ(warning, "every user of this machine may write to it key=admin.token_file path=" +
                         file + " help=\"chmod o-w " + file + "\"\n");
  SetLogSink(LogLevel::kWarning, nullptr);
}

}  // namespace
}  // namespace failback
