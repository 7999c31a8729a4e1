#include "registry/store/sqlite/sqlite_checkpointer.h"

#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "retry/executor.h"
#include "retry/mutex.h"
#include "tests/registry/store/files.h"
#include "tests/util/fake_executor.h"
#include "tests/util/process.h"
#include "tests/util/seeded_random.h"

namespace failback {

namespace {

constexpr int64_t kPages = 40;

// Stops what threads other than the test's own write to a database, as a device that is stuck.
class Stuck {
 public:
  // From then on the next such write waits.
  void Hold() {
    MutexLock lock(&mu_);
    held_ = true;
    waits_ = false;
  }
  bool WaitUntilHeld() {
    const absl::Time until = absl::Now() + kProcessTimeout;
    MutexLock lock(&mu_);
    while (!waits_ && absl::Now() < until) changed_.WaitFor(&mu_, until - absl::Now());
    return waits_;
  }
  void Release() {
    MutexLock lock(&mu_);
    held_ = false;
    changed_.SignalAll();
  }

  // What such a write goes through.
  void Pass() {
    MutexLock lock(&mu_);
    if (!held_) return;
    waits_ = true;
    changed_.SignalAll();
    while (held_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  bool waits_ ABSL_GUARDED_BY(mu_) = false;
};

Stuck* stuck = nullptr;
thread_local bool own = false;

ssize_t StuckWrite(int file, const void* bytes, size_t size, off64_t at) {
  if (!own && stuck != nullptr) stuck->Pass();
  return pwrite64(file, bytes, size, at);
}

std::unique_ptr<SqliteDatabase> Connect(const std::string& path) {
  auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kCreate).value();
  EXPECT_EQ(db->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
                        "CREATE TABLE IF NOT EXISTS numbers (n INTEGER, filling BLOB)"),
            absl::OkStatus());
  return db;
}

class SqliteCheckpointerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    own = true;
    sqlite3_vfs* const files = sqlite3_vfs_find(nullptr);
    for (const char* const name : {"pwrite64", "pwrite"}) {
      files->xSetSystemCall(files, name, reinterpret_cast<sqlite3_syscall_ptr>(&StuckWrite));
    }
  }
  ~SqliteCheckpointerTest() override {
    stuck_.Release();
    checkpointer_.reset();
    stuck = nullptr;
  }

  void Start(bool beside = true) {
    stuck = &stuck_;
    writer_ = Connect(path_);
    writer_->AttachLog(/*keep_room=*/true);
    checkpointer_ = std::make_unique<SqliteCheckpointer>(
        writer_.get(), beside ? Connect(path_) : nullptr, kPages, &passes_);
  }
  // Returns when no pass is under way.
  void WaitForPass() {
    std::promise<void> passed;
    passes_.Execute([&] { passed.set_value(); });
    passed.get_future().wait();
  }

  // A commit of `pages` and a little.
  void Add(int pages = 0) {
    ASSERT_EQ(writer_->InTransaction([&] {
      return writer_->Execute(
          absl::StrCat("INSERT INTO numbers VALUES (", count_, ", zeroblob(", pages * 4096, "))"));
    }),
              absl::OkStatus());
    ++count_;
    checkpointer_->AfterCommit();
  }
  // Commits until a pass has begun, which is held.
  void AddUntilHeld() {
    stuck_.Hold();
    while (writer_->log().pages() < kPages) Add();
    ASSERT_TRUE(stuck_.WaitUntilHeld()) << "no pass";
  }
  // The end of the pass that is held, with `commits` beside it.
  void EndPass(int commits) {
    for (int i = 0; i < commits; ++i) Add();
    stuck_.Release();
    WaitForPass();
  }
  void FinishAndBeginAnew() {
    checkpointer_->Finish();
    EXPECT_FALSE(checkpointer_->wants_finish());
    Add();
    EXPECT_LE(writer_->log().pages(), 3);
  }

  // What the file at `path` holds is whole and is what was committed.
  void ExpectWhole(const std::string& path, int64_t count) {
    auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadWrite).value();
    EXPECT_EQ(db->QueryInt("SELECT count(*) FROM pragma_integrity_check"
                           " WHERE integrity_check = 'ok'")
                  .value(),
              1);
    EXPECT_EQ(db->QueryInt("SELECT count(DISTINCT n) FROM numbers").value(), count);
    EXPECT_EQ(db->QueryInt("SELECT max(n) FROM numbers").value(), count - 1);
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("n.db");
  Stuck stuck_;
  ThreadPool passes_{1};
  std::unique_ptr<SqliteDatabase> writer_;
  std::unique_ptr<SqliteCheckpointer> checkpointer_;
  int64_t count_ = 0;
};

TEST_F(SqliteCheckpointerTest, CommitsGoOnBesideAPass) {
  Start();
  AddUntilHeld();
  for (int i = 0; i < 50; ++i) Add();
  EXPECT_FALSE(checkpointer_->wants_finish()) << "a pass is under way";
  EXPECT_GE(writer_->log().pages(), kPages + 50);
  EndPass(0);

  // That is too much to be left for the end: there is another pass.
  stuck_.Hold();
  Add();
  EXPECT_FALSE(checkpointer_->wants_finish());
  ASSERT_TRUE(stuck_.WaitUntilHeld());
  EndPass(2);

  // And the little that has come meanwhile is folded in between commits.
  Add();
  ASSERT_TRUE(checkpointer_->wants_finish());
  FinishAndBeginAnew();
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, APassThatMeetsNoCommitLeavesNothing) {
  Start();
  for (int turn = 0; turn < 3; ++turn) {
    AddUntilHeld();
    EndPass(0);
    Add();
    EXPECT_LE(writer_->log().pages(), 3) << "the log has not started again";
    EXPECT_FALSE(checkpointer_->wants_finish());
  }
  // And is not taken for one of a later turn.
  while (writer_->log().pages() < kPages) {
    Add();
    ASSERT_FALSE(checkpointer_->wants_finish());
  }
  WaitForPass();
  ExpectWhole(path_, count_);
}

// A crash in the middle of a pass: the database is half of this time and half of that, and the log
// has it all.
TEST_F(SqliteCheckpointerTest, WhatACrashDuringAPassLeavesIsWhole) {
  Start();
  for (int turn = 0; turn < 3; ++turn) {
    AddUntilHeld();
    Add();
    const std::string copy = dir_.File(absl::StrCat("copy-", turn, ".db"));
    CopyFile(path_, copy);
    CopyFile(path_ + "-wal", copy + "-wal");
    ExpectWhole(copy, count_);
    EndPass(0);
    Add();
    FinishAndBeginAnew();
  }
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, PassesThatFallBehindAreNotWaitedForForEver) {
  Start();
  AddUntilHeld();
  while (writer_->log().pages() < 4 * kPages) Add();
  EXPECT_FALSE(checkpointer_->wants_finish()) << "two checkpoints at a time";
  EndPass(0);
  Add();
  ASSERT_TRUE(checkpointer_->wants_finish());
  FinishAndBeginAnew();
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, WithoutASecondConnectionTheWriterFoldsTheLog) {
  Start(/*beside=*/false);
  for (int turn = 0; turn < 3; ++turn) {
    while (writer_->log().pages() < kPages - 3) {
      Add();
      ASSERT_FALSE(checkpointer_->wants_finish());
    }
    Add(3);
    ASSERT_TRUE(checkpointer_->wants_finish());
    FinishAndBeginAnew();
  }
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, WhatAReaderNeedsStaysInTheLog) {
  Start();
  Add();
  auto reader = Connect(path_);
  ASSERT_EQ(reader->Execute("BEGIN"), absl::OkStatus());
  EXPECT_EQ(reader->QueryInt("SELECT count(*) FROM numbers").value(), 1);
  // It may be tried, but not with each commit.
  int tries = 0;
  for (int i = 0; i < 20 * kPages; ++i) {
    Add();
    if (!checkpointer_->wants_finish()) continue;
    ++tries;
    checkpointer_->Finish();
  }
  EXPECT_GT(writer_->log().pages(), 20 * kPages);
  EXPECT_LE(tries, 20 * 4);
  EXPECT_EQ(reader->QueryInt("SELECT count(*) FROM numbers").value(), 1);

  ASSERT_EQ(reader->Execute("COMMIT"), absl::OkStatus());
  // The next try has nothing in its way.
  while (!checkpointer_->wants_finish() && writer_->log().pages() > 3) {
    Add();
    ASSERT_LT(writer_->log().pages(), 30 * kPages);
    WaitForPass();
  }
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, ItsEndWaitsForThePassUnderWay) {
  Start();
  AddUntilHeld();
  std::atomic<bool> released{false};
  std::thread releaser([&] {
    own = true;
    released = true;
    stuck_.Release();
  });
  checkpointer_.reset();
  EXPECT_TRUE(released);
  releaser.join();
  writer_.reset();
  EXPECT_EQ(SizeOf(path_ + "-wal"), -1) << "a connection was left";
  ExpectWhole(path_, count_);
}

TEST_F(SqliteCheckpointerTest, APassThatHasNotBegunAtItsEndNeverDoes) {
  FakeExecutor executor;
  writer_ = Connect(path_);
  writer_->AttachLog(/*keep_room=*/true);
  checkpointer_ =
      std::make_unique<SqliteCheckpointer>(writer_.get(), Connect(path_), kPages, &executor);
  while (executor.waiting() == 0) Add();
  checkpointer_.reset();
  EXPECT_EQ(executor.RunAll(), 1);
  EXPECT_GE(SizeOf(path_ + "-wal"), kPages * 4096) << "it was folded in";
  writer_.reset();
  ExpectWhole(path_, count_);
}

// Commits and reads of all sizes, and checkpoints as they come.
TEST_F(SqliteCheckpointerTest, NothingIsLostHoweverTheyMeet) {
  SeededRandom random;
  Start();
  std::atomic<int64_t> committed{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    auto db = Connect(path_);
    while (!done) {
      const int64_t before = committed;
      const int64_t found = db->QueryInt("SELECT count(*) FROM numbers").value();
      EXPECT_GE(found, before);
      EXPECT_GE(committed + 1, found);
    }
  });
  for (int i = 0; i < 3000; ++i) {
    Add(random.Pick(10) == 0 ? random.Pick(30) : 0);
    committed = count_;
    // Others may commit before the writer has its turn.
    if (!checkpointer_->wants_finish() || random.Pick(3) != 0) continue;
    checkpointer_->Finish();
  }
  done = true;
  reader.join();
  // What may have kept the log from starting again has gone.
  while (writer_->log().pages() > 3) {
    if (checkpointer_->wants_finish()) checkpointer_->Finish();
    Add();
    ASSERT_LT(count_, 4000);
    WaitForPass();
  }
  checkpointer_.reset();
  CopyFile(path_, dir_.File("copy.db"));
  CopyFile(path_ + "-wal", dir_.File("copy.db-wal"));
  ExpectWhole(dir_.File("copy.db"), count_);
  ExpectWhole(path_, count_);
}

}  // namespace
}  // namespace failback
