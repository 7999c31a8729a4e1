#include "tests/util/process.h"

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

TEST(ProcessTest, RunReturnsStatusAndBothStreams) {
  const RunResult result = RunProcess({"/bin/sh", "-c", "echo to out; echo to err >&2; exit 3"});
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "to out\n");
  EXPECT_EQ(result.err, "to err\n");
}

TEST(ProcessTest, EnvironmentIsAddedAndReplaced) {
  const RunResult result = RunProcess({"/bin/sh", "-c", "echo $FAILBACK_ONE $HOME"},
                                      {{"FAILBACK_ONE", "1"}, {"HOME", "/nowhere"}});
  EXPECT_EQ(result.out, "1 /nowhere\n");
}

TEST(ProcessTest, WaitForLineFindsCompleteLinesOfEitherStream) {
  auto process = Process::Start({"/bin/sh", "-c", "echo ready on 7070 >&2; exec sleep 60"});
  EXPECT_EQ(process->WaitForLine("ready"), "ready on 7070");
  EXPECT_EQ(process->WaitForLine("never", absl::Milliseconds(20)), std::nullopt);
  EXPECT_EQ(process->WaitForExit(absl::Milliseconds(20)), std::nullopt);
  process->Signal(SIGTERM);
  EXPECT_EQ(process->WaitForExit(), 128 + SIGTERM);
}

TEST(ProcessTest, WaitForLineEndsWithTheProcess) {
  auto process = Process::Start({"/bin/sh", "-c", "echo something else"});
  EXPECT_EQ(process->WaitForLine("ready"), std::nullopt);
  EXPECT_THAT(process->Describe(), HasSubstr("something else"));
}

TEST(ProcessTest, DestructorKillsAndReaps) {
  pid_t pid;
  {
    auto process = Process::Start({"/bin/sh", "-c", "trap '' TERM; echo up; exec sleep 60"});
    ASSERT_TRUE(process->WaitForLine("up"));
    pid = process->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ProcessTest, KillAllEndsWhatRuns) {
  auto one = Process::Start({"/bin/sleep", "60"});
  auto two = Process::Start({"/bin/sleep", "60"});
  Process::KillAll();
  EXPECT_EQ(one->WaitForExit(), 128 + SIGKILL);
  EXPECT_EQ(two->WaitForExit(), 128 + SIGKILL);
}

TEST(ProcessTest, EndIsSeenAlthoughAGrandchildHoldsThePipe) {
  auto process = Process::Start({"/bin/sh", "-c", "sleep 20 & echo $!"});
  EXPECT_EQ(process->WaitForExit(absl::Seconds(10)), 0);
  kill(std::stoi(process->out()), SIGKILL);
}

TEST(TempDirTest, IsShortAndGoesAway) {
  std::string path;
  {
    const TempDir dir;
    path = dir.path();
    EXPECT_LT(dir.File("agent.sock").size(), 108u);
    EXPECT_TRUE(std::filesystem::exists(dir.Write("a", "b")));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace failback
