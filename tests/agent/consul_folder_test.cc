// What clients of Consul have registered, in an agent's state directory: there again after a restart.

#include "agent/consul_folder.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ConsulFolderTest : public ::testing::Test {
 protected:
  ConsulFolderTest() : path_(absl::StrCat(::testing::TempDir(), "/consul-XXXXXX")) {
    path_ = absl::StrCat(mkdtemp(path_.data()), "/consul");
  }
  std::unique_ptr<consul::ServiceFolder> Open() {
    auto folder = OpenConsulFolder(path_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.ok() ? *std::move(folder) : nullptr;
  }
  std::string path_;
};

TEST_F(ConsulFolderTest, WhatIsKeptComesBack_AndWhatIsForgottenDoesNot) {
  auto folder = Open();
  EXPECT_THAT(folder->TakeAll(), IsEmpty());
  folder->Keep("a/../b", "one");
  folder->Keep("c", "two");
  folder->Keep("c", "three");
  folder->Keep(std::string(5000, 'x'), "four");
  folder->Keep("d", "five");
  folder->Forget("d");
  folder->Forget("never there");
  folder = nullptr;
  folder = Open();
  EXPECT_THAT(folder->TakeAll(), UnorderedElementsAre("one", "three", "four"));
  EXPECT_THAT(folder->TakeAll(), IsEmpty()) << "once";
  folder->Forget("a/../b");
  folder->Forget(std::string(5000, 'x'));
  folder = nullptr;
  EXPECT_THAT(Open()->TakeAll(), ElementsAre("three"));
}

TEST_F(ConsulFolderTest, OnlyItsOwnerReadsIt_AsChecksHaveHeaders) {
  auto folder = Open();
  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST_F(ConsulFolderTest, WhatIsNoFolderIsNamed) {
  std::ofstream(path_) << "a file";
  const auto folder = OpenConsulFolder(path_);
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(folder.status().message().find(path_), std::string::npos);
}

}  // namespace
}  // namespace failback
