// Rule 11 and the power cut: with `full_sync` an intent is on the disk before it is answered or
// sent; without it no caller waits for the disk.

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/registry/failback/failback_fixture.h"

namespace {
std::atomic<int> syncs{0};
}  // namespace

// SQLite's syncs come here, as a program's own symbols go before those of the C library.
extern "C" int fdatasync(int fd) {
  ++syncs;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
extern "C" int fsync(int fd) {
  ++syncs;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace failback {
namespace {

class JournalSyncTest : public FailbackTest {
 protected:
  void StartWith(bool full_sync) {
    options_.state_dir = absl::StrCat(testing::TempDir(), "/sync-", full_sync);
    options_.manual_journal = true;
    options_.full_sync = full_sync;
    fake_->registers.AnswerWith([this](const RegisterRequest&) {
      at_sent_ = syncs;
      RegisterResponse response;
      response.add_results();
      return response;
    });
    Start();
    syncs = 0;
  }

  void State(const std::string& id) {
    registry_->Register(MakeRegister({MakeInstance(id)}),
                        [this](const absl::StatusOr<RegisterResponse>& response) {
                          EXPECT_TRUE(response.ok()) << response.status();
                          at_accepted_ = syncs;
                        });
  }

  int at_sent_ = -1;
  int at_accepted_ = -1;
};

TEST_F(JournalSyncTest, Rule11_EachGroupIsOnTheDiskBeforeItIsAnsweredOrSent) {
  StartWith(/*full_sync=*/true);
  for (const char* id : {"a", "b", "c"}) {
    syncs = 0;
    State(id);
    EXPECT_GE(at_accepted_, 1) << id;
    EXPECT_GE(at_sent_, 1) << id;
  }
}

TEST_F(JournalSyncTest, WithoutItTheDiskIsNotWaitedFor) {
  StartWith(/*full_sync=*/false);
  State("a");
  EXPECT_EQ(at_accepted_, 0);
  EXPECT_EQ(at_sent_, 0);
}

}  // namespace
}  // namespace failback
