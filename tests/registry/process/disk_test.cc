// A registry whose disk is really full: a small file system of its own, in every phase of the
// store's life. What was acknowledged is there afterwards, and it needs no restart when there is
// room again.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"
#include "tests/util/ports.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

constexpr int kMiB = 1 << 20;

// A file system in memory that only the processes started here see, in a namespace that one
// process keeps alive.
class SmallDisk {
 public:
  explicit SmallDisk(int megabytes)
      : holder_(Process::Start(
            {"/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c",
             absl::StrCat("mount -t tmpfs -o size=", megabytes, "m tmpfs ", mount_point_.path(),
                          " && echo mounted && exec sleep infinity")})) {
    ready_ = holder_->WaitForLine("mounted").has_value();
  }

  bool ready() const { return ready_; }
  std::string Describe() const { return holder_->Describe(); }
  // As the processes name it.
  std::string File(const std::string& name) const { return mount_point_.File(name); }
  // As this process does.
  std::string Seen(const std::string& name) const {
    return absl::StrCat("/proc/", holder_->pid(), "/root", mount_point_.File(name));
  }
  // The command to run `args` where the disk is.
  std::vector<std::string> Inside(std::vector<std::string> args) const {
    args.insert(args.begin(), {"/usr/bin/nsenter", "--target", absl::StrCat(holder_->pid()),
                               "--user", "--mount", "--preserve-credentials", "--wd"});
    return args;
  }

  int64_t Free() const {
    struct statvfs info = {};
    if (statvfs(Seen("").c_str(), &info) != 0) return -1;
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_bsize);
  }
  // Takes all room but `left` bytes.
  void FillUp(int64_t left = 0) {
    std::ofstream file(Seen("filler"), std::ios::binary | std::ios::app);
    const std::string page(4096, 'f');
    while (Free() > left && file.write(page.data(), 4096).flush()) {
    }
  }
  void MakeRoom() { unlink(Seen("filler").c_str()); }

 private:
  const TempDir mount_point_;
  const std::unique_ptr<Process> holder_;
  bool ready_ = false;
};

class DiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.ready()) GTEST_SKIP() << "needs user namespaces: " << disk_.Describe();
  }

  std::string Store() const { return "sqlite://" + disk_.File("registry.db"); }
  void Start() {
    process_ = Process::Start(
        disk_.Inside({RegistryBinary(), "--store", Store(), "--listen", address_, "--admin", ""}));
    ASSERT_TRUE(process_->WaitForLine("listening on").has_value()) << process_->Describe();
    client_ = std::make_unique<RegistryClient>(address_);
  }
  void Kill() {
    client_.reset();
    process_->Kill();
  }
  RunResult Command(std::vector<std::string> args) {
    args.insert(args.begin(), RegistryBinary());
    return RunProcess(disk_.Inside(args));
  }

  // Registers `count` instances, or registers them again, with the next port.
  absl::Status Write(int count, int kilobytes = 1) {
    std::vector<ServiceInstance> batch;
    for (int i = 0; i < count; ++i) {
      batch.push_back(MakeInstance("orders", absl::StrCat(i), port_ + 1));
      for (int k = 0; k < kilobytes; ++k) {
        (*batch.back().mutable_metadata())[absl::StrCat(k)] = std::string(1000, 'x');
      }
    }
    absl::Status status = client_->Register(session_, batch, port_ + 1).status();
    if (status.ok()) ++port_;
    return status;
  }
  static void ExpectReadOnly(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_STORE_READ_ONLY) << status;
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }
  // Writes until there is no room for it.
  void WriteUntilFull(int count, int kilobytes = 1) {
    absl::Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = Write(count, kilobytes);
    ExpectReadOnly(status);
  }
  // All instances are as they were acknowledged last.
  void ExpectAll(size_t count) {
    const auto records = client_->List("orders");
    ASSERT_TRUE(records.ok()) << records.status();
    EXPECT_EQ(records->size(), count);
    for (const auto& record : *records) {
      ASSERT_EQ(record.instance().port(), port_) << record.instance().key().instance_id();
    }
  }
  void OpenSession() {
    const auto session = client_->Open("a", absl::Hours(1));
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = session->session_id();
  }

  SmallDisk disk_{64};
  const std::string address_ = ReservedAddress();
  std::unique_ptr<Process> process_;
  std::unique_ptr<RegistryClient> client_;
  std::string session_;
  uint32_t port_ = 0;  // of what was acknowledged last
};

TEST_F(DiskTest, FullWhenACommitIsWrittenAndWhenItIsOpened) {
  disk_.FillUp(4 * kMiB);
  Start();
  OpenSession();
  WriteUntilFull(100);
  ASSERT_GT(port_, 0u);
  ExpectAll(100);
  EXPECT_TRUE(client_->KeepAlive(session_).ok());
  EXPECT_TRUE(process_->WaitForLine("the store cannot be written").has_value());

  Kill();
  disk_.FillUp();
  Start();  // and there is no room for anything
  ExpectAll(100);
  EXPECT_TRUE(client_->KeepAlive(session_).ok());
  ExpectReadOnly(Write(100));

  disk_.MakeRoom();
  EXPECT_TRUE(Eventually([&] { return Write(100).ok(); }));
  EXPECT_TRUE(process_->WaitForLine("the store can be written again").has_value());
  Kill();
  Start();
  ExpectAll(100);
  EXPECT_EQ(Command({"check", "--store", Store()}).status, 0);
}

TEST_F(DiskTest, RoomIsNoticedWhenNobodyWrites) {
  disk_.FillUp(4 * kMiB);
  Start();
  OpenSession();
  WriteUntilFull(100);
  disk_.FillUp();
  EXPECT_TRUE(process_->WaitForLine("the store cannot be written").has_value());
  disk_.MakeRoom();
  EXPECT_TRUE(process_->WaitForLine("the store can be written again").has_value());
  ExpectAll(100);
}

// What is left is for what is written, not for room ahead of it.
TEST_F(DiskTest, ANearlyFullDiskIsNotFilledWithZeros) {
  disk_.FillUp(4 * kMiB);
  Start();
  OpenSession();
  ASSERT_TRUE(Write(1).ok());
  struct stat log;
  ASSERT_EQ(stat(disk_.Seen("registry.db-wal").c_str(), &log), 0);
  EXPECT_LT(log.st_size, kMiB);
  EXPECT_GT(disk_.Free(), 3 * kMiB);
}

// The log is folded into a file that cannot grow.
TEST_F(DiskTest, FullWhenTheLogIsFoldedIn) {
  constexpr int kMany = 1000;
  constexpr int kKilobytes = 3;                        // a page each: 4 MB, and as much of the log
  constexpr int64_t kFoldedIn = int64_t{4000} * 4120;  // from this size of the log on, 16 MB
  Start();
  OpenSession();
  const auto size = [&](const std::string& name) {
    std::ifstream file(disk_.Seen(name), std::ios::binary | std::ios::ate);
    return static_cast<int64_t>(file.tellg());
  };
  // For the log, but then not for the file.
  disk_.FillUp(kFoldedIn + 2 * kMiB - size("registry.db-wal"));
  // Had it been folded in, it would start again, and there would be room for ever.
  WriteUntilFull(kMany, kKilobytes);
  EXPECT_GT(size("registry.db-wal"), kFoldedIn);
  ExpectAll(kMany);

  Kill();
  Start();
  ExpectAll(kMany);
  disk_.MakeRoom();
  EXPECT_TRUE(Eventually([&] { return Write(kMany, kKilobytes).ok(); }));
  EXPECT_TRUE(Eventually([&] {
    return Write(kMany, kKilobytes).ok() && size("registry.db") > kMany * int64_t{4096};
  }));
  Kill();
  Start();
  ExpectAll(kMany);
  EXPECT_EQ(Command({"check", "--store", Store()}).status, 0);
}

TEST_F(DiskTest, FullWhenABackupIsMade) {
  Start();
  OpenSession();
  ASSERT_TRUE(Write(1000).ok());
  disk_.FillUp(kMiB / 2);
  const RunResult backup = Command({"backup", "--store", Store(), "--to", disk_.File("b.db")});
  EXPECT_EQ(backup.status, 1);
  EXPECT_THAT(backup.err, HasSubstr("full"));
  EXPECT_THAT(RunProcess({"/bin/ls", "-A", disk_.Seen("")}).out, ::testing::Not(HasSubstr("b.db")));
  disk_.MakeRoom();
  ASSERT_TRUE(Eventually([&] { return Write(1000).ok(); }));
  EXPECT_EQ(Command({"backup", "--store", Store(), "--to", disk_.File("b.db")}).status, 0);
  EXPECT_EQ(Command({"check", "--store", disk_.File("b.db")}).status, 0);
}

TEST_F(DiskTest, AReadOnlyFileSystemIsNamed) {
  Start();
  OpenSession();
  ASSERT_TRUE(Write(1).ok());
  client_.reset();
  process_->Signal(SIGTERM);
  ASSERT_EQ(process_->WaitForExit(), 0);
  ASSERT_EQ(RunProcess(disk_.Inside({"/bin/mount", "-o", "remount,ro", disk_.File("")})).status, 0);
  const RunResult refused = Command({"--store", Store(), "--listen", "127.0.0.1:0"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("cannot write to its folder"));
  const RunResult check = Command({"check", "--store", Store()});
  EXPECT_EQ(check.status, 2);
  EXPECT_THAT(check.err, HasSubstr("name a copy of it, with its -wal, in a folder that can\n"));
}

}  // namespace
}  // namespace failback
