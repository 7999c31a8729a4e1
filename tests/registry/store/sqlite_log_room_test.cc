#include "registry/store/sqlite_log_room.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr int64_t kFrame = 4096 + 24;

int64_t SizeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? int64_t{info.st_size} : -1;
}

void CopyFile(const std::string& from, const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  std::ofstream(to, std::ios::binary) << in.rdbuf();
}

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
  // One commit, for which `room` is made.
  void Add(SqliteLogRoom* room, int n) {
    Run(absl::StrCat("BEGIN IMMEDIATE; INSERT INTO numbers VALUES (", n, ")"));
    room->Reserve();
    before_commit_ = SizeOf(log());
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
  std::string log() const { return path_ + "-wal"; }
  // Whether the last commit made the log's file larger.
  bool grew() const { return SizeOf(log()) != before_commit_; }

 private:
  const std::string path_;
  sqlite3* db_ = nullptr;
  int64_t before_commit_ = 0;
};

TEST(SqliteLogRoomTest, CommitsFindRoomInTheLog) {
  const TempDir dir;
  Numbers numbers(dir.File("n.db"));
  SqliteLogRoom room;
  room.Attach(numbers.db(), 4000);
  for (int i = 0; i < 1000; ++i) {
    numbers.Add(&room, i);
    ASSERT_FALSE(numbers.grew()) << "commit " << i;
  }
  EXPECT_GT(SizeOf(numbers.log()), 1000 * kFrame);
}

TEST(SqliteLogRoomTest, WithoutItEachCommitGrowsTheLog) {
  const TempDir dir;
  Numbers numbers(dir.File("n.db"));
  SqliteLogRoom room;  // not attached
  numbers.Add(&room, 1);
  EXPECT_TRUE(numbers.grew());
}

TEST(SqliteLogRoomTest, TheLogIsStillCheckpointedAndItsRoomUsedAgain) {
  const TempDir dir;
  Numbers numbers(dir.File("n.db"));
  SqliteLogRoom room;
  room.Attach(numbers.db(), 50);
  for (int i = 0; i < 2000; ++i) numbers.Add(&room, i);
  EXPECT_LE(SizeOf(numbers.log()), 70 * kFrame + (1 << 20));
  EXPECT_GT(SizeOf(dir.File("n.db")), 4 * 4096) << "nothing was checkpointed";
  EXPECT_EQ(numbers.Ask("SELECT count(DISTINCT n) FROM numbers"), "2000");
}

// What a kill leaves, at many a length of the log: nothing committed is missing, and the zeros are
// taken for nothing.
TEST(SqliteLogRoomTest, WhatACrashLeavesIsWhole) {
  const TempDir dir;
  Numbers numbers(dir.File("n.db"));
  SqliteLogRoom room;
  room.Attach(numbers.db(), 40);
  for (int i = 0; i < 300; ++i) {
    numbers.Add(&room, i);
    if (i % 7 != 0) continue;
    const std::string copy = dir.File(absl::StrCat("copy-", i, ".db"));
    CopyFile(dir.File("n.db"), copy);
    CopyFile(numbers.log(), copy + "-wal");
    Numbers found(copy);
    EXPECT_EQ(found.Ask("PRAGMA integrity_check"), "ok");
    EXPECT_EQ(found.Ask("SELECT count(*) || ' ' || max(n) FROM numbers"),
              absl::StrCat(i + 1, " ", i));
    // And it goes on from there.
    SqliteLogRoom next;
    next.Attach(found.db(), 40);
    found.Add(&next, 1000);
    EXPECT_EQ(found.Ask("SELECT max(n) FROM numbers"), "1000");
  }
}

// The journal of other modes is rolled back after a crash: nobody else may write to it.
TEST(SqliteLogRoomTest, LeavesOtherJournalsAlone) {
  const TempDir dir;
  Numbers numbers(dir.File("n.db"), "DELETE");
  SqliteLogRoom room;
  room.Attach(numbers.db(), 4000);
  numbers.Run("BEGIN IMMEDIATE; INSERT INTO numbers VALUES (1)");
  const int64_t before = SizeOf(dir.File("n.db-journal"));
  ASSERT_GE(before, 0) << "no journal to look at";
  room.Reserve();
  EXPECT_EQ(SizeOf(dir.File("n.db-journal")), before);
  numbers.Run("COMMIT");
  EXPECT_EQ(numbers.Ask("SELECT count(*) FROM numbers"), "1");
}

}  // namespace
}  // namespace failback
