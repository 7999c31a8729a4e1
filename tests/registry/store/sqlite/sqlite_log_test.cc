#include "registry/store/sqlite/sqlite_log.h"

#include <sqlite3.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/registry/store/files.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr int64_t kFrame = 4096 + 24;

// A table of numbers in a file of its own.
class Numbers {
 public:
  explicit Numbers(const std::string& path, const char* mode = "WAL") : path_(path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &db_), SQLITE_OK);
    Run(absl::StrCat("PRAGMA page_size=4096; PRAGMA synchronous=OFF; PRAGMA journal_mode=", mode,
                     "; CREATE TABLE IF NOT EXISTS numbers (n INTEGER)"));
  }
  ~Numbers() { sqlite3_close(db_); }

  void Run(const std::string& sql) {
    EXPECT_EQ(sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(db_);
  }
  // One commit, for which room is made.
  void Add(SqliteLog* log, int n) {
    Run(absl::StrCat("BEGIN IMMEDIATE; INSERT INTO numbers VALUES (", n, ")"));
    log->Reserve();
    before_commit_ = SizeOf(path_ + "-wal");
    Run("COMMIT");
  }
  std::string Ask(const std::string& sql) {
    std::string answer;
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr), SQLITE_OK);
    if (sqlite3_step(statement) == SQLITE_ROW) {
      answer = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    }
    sqlite3_finalize(statement);
    return answer;
  }

  sqlite3* db() const { return db_; }
  std::string log_path() const { return path_ + "-wal"; }
  // Whether the last commit made the log's file larger.
  bool grew() const { return SizeOf(log_path()) != before_commit_; }

 private:
  const std::string path_;
  sqlite3* db_ = nullptr;
  int64_t before_commit_ = 0;
};

class SqliteLogTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  SqliteLog log_;  // goes after the connection does
  Numbers numbers_{dir_.File("n.db")};
};

TEST_F(SqliteLogTest, CommitsFindRoomInTheLog) {
  log_.Attach(numbers_.db(), /*keep_room=*/true);
  for (int i = 0; i < 1000; ++i) {
    numbers_.Add(&log_, i);
    ASSERT_FALSE(numbers_.grew()) << "commit " << i;
  }
  EXPECT_GT(SizeOf(numbers_.log_path()), 1000 * kFrame);
}

TEST_F(SqliteLogTest, WithoutRoomEachCommitGrowsTheLog) {
  log_.Attach(numbers_.db(), /*keep_room=*/false);
  for (int i = 0; i < 3; ++i) {
    numbers_.Add(&log_, i);
    EXPECT_TRUE(numbers_.grew());
    EXPECT_GT(log_.pages(), i);
  }
}

TEST_F(SqliteLogTest, IsCheckpointedWhenItsOwnerSaysSoAndThenBeginsAnew) {
  log_.Attach(numbers_.db(), /*keep_room=*/true);
  // More than SQLite's own limit of 1,000 pages.
  for (int i = 0; i < 1500; ++i) numbers_.Add(&log_, i);
  EXPECT_GE(log_.pages(), 1500);
  EXPECT_LE(SizeOf(dir_.File("n.db")), 2 * 4096) << "a commit has made a checkpoint";
  const int64_t length = SizeOf(numbers_.log_path());
  log_.Checkpoint();
  EXPECT_GT(SizeOf(dir_.File("n.db")), 3 * 4096);
  numbers_.Add(&log_, 1500);
  EXPECT_LE(log_.pages(), 3);
  for (int i = 1501; i < 2000; ++i) numbers_.Add(&log_, i);
  EXPECT_EQ(SizeOf(numbers_.log_path()), length) << "the room that there was is not used again";
  EXPECT_EQ(numbers_.Ask("SELECT count(DISTINCT n) FROM numbers"), "2000");
}

// SQLite cuts a long log when it starts again.
TEST_F(SqliteLogTest, ALogThatWasCutGetsRoomAgain) {
  numbers_.Run("PRAGMA journal_size_limit=100000");
  log_.Attach(numbers_.db(), /*keep_room=*/true);
  for (int i = 0; i < 200; ++i) numbers_.Add(&log_, i);
  const int64_t length = SizeOf(numbers_.log_path());
  log_.Checkpoint();
  numbers_.Add(&log_, 200);
  ASSERT_LT(SizeOf(numbers_.log_path()), length);
  for (int i = 201; i < 300; ++i) {
    numbers_.Add(&log_, i);
    ASSERT_FALSE(numbers_.grew()) << "commit " << i;
  }
}

// What a kill leaves, at many a length of the log: nothing committed is missing, and the zeros are
// taken for nothing.
TEST_F(SqliteLogTest, WhatACrashLeavesIsWhole) {
  log_.Attach(numbers_.db(), /*keep_room=*/true);
  for (int i = 0; i < 300; ++i) {
    numbers_.Add(&log_, i);
    if (log_.pages() >= 40) log_.Checkpoint();
    if (i % 7 != 0) continue;
    const std::string copy = dir_.File(absl::StrCat("copy-", i, ".db"));
    CopyFile(dir_.File("n.db"), copy);
    CopyFile(numbers_.log_path(), copy + "-wal");
    SqliteLog next;
    Numbers found(copy);
    EXPECT_EQ(found.Ask("PRAGMA integrity_check"), "ok");
    EXPECT_EQ(found.Ask("SELECT count(*) || ' ' || max(n) FROM numbers"),
              absl::StrCat(i + 1, " ", i));
    // And it goes on from there.
    next.Attach(found.db(), /*keep_room=*/true);
    found.Add(&next, 1000);
    EXPECT_EQ(found.Ask("SELECT max(n) FROM numbers"), "1000");
  }
}

// The journal of other modes is rolled back after a crash: no other process may write to it.
TEST_F(SqliteLogTest, LeavesOtherJournalsAlone) {
  Numbers numbers(dir_.File("other.db"), "DELETE");
  log_.Attach(numbers.db(), /*keep_room=*/true);
  numbers.Run("BEGIN IMMEDIATE; INSERT INTO numbers VALUES (1)");
  const int64_t before = SizeOf(dir_.File("other.db-journal"));
  ASSERT_GE(before, 0) << "no journal to look at";
  log_.Reserve();
  EXPECT_EQ(SizeOf(dir_.File("other.db-journal")), before);
  numbers.Run("COMMIT");
  EXPECT_EQ(numbers.Ask("SELECT count(*) FROM numbers"), "1");
}

}  // namespace
}  // namespace failback
