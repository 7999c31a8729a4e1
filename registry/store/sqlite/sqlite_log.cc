#include "registry/store/sqlite/sqlite_log.h"

#include <sqlite3.h>

#include <limits>
#include <string>

#include "absl/strings/numbers.h"

namespace failback {
namespace {

constexpr int64_t kLogHeader = 32;
constexpr int64_t kFrameHeader = 24;
// A small commit is two or three pages.
constexpr int64_t kPagesAhead = 16;
constexpr int64_t kStep = 1 << 20;
// Written at once: SQLite's own files take less than 128 KB.
constexpr int kPiece = 1 << 16;

// Whether a step more leaves the disk of `file` some room for what is no zeros.
bool HasSpace(const char* file, Disk* disk) {
  const int64_t free = file == nullptr ? -1 : disk->FreeBytes(file);
  return free < 0 || free >= 16 * kStep;
}

// What a pragma without argument answers; empty when it does not.
std::string Ask(sqlite3* db, const char* pragma) {
  std::string answer;
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db, pragma, -1, &statement, nullptr) == SQLITE_OK &&
      sqlite3_step(statement) == SQLITE_ROW) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    if (text != nullptr) answer = text;
  }
  sqlite3_finalize(statement);
  return answer;
}

}  // namespace

int64_t FoldLog(sqlite3* db) {
  int folded = -1;
  const int code =
      sqlite3_wal_checkpoint_v2(db, "main", SQLITE_CHECKPOINT_PASSIVE, nullptr, &folded);
  return code == SQLITE_OK ? folded : -1;
}

void SqliteLog::Attach(sqlite3* db, bool keep_room, Disk* disk) {
  // In other modes the journal is another file, with rules of its own.
  if (Ask(db, "PRAGMA journal_mode") != "wal") return;
  db_ = db;
  disk_ = disk;
  if (!keep_room || !absl::SimpleAtoi(Ask(db, "PRAGMA page_size"), &page_size_)) page_size_ = 0;
  sqlite3_wal_hook(db, &OnCommit, this);
}

int SqliteLog::OnCommit(void* self, sqlite3* /*db*/, const char* /*schema*/, int pages) {
  auto* const log = static_cast<SqliteLog*>(self);
  if (pages < log->pages_) log->size_ = 0;  // it has started over, and may have been cut
  log->pages_ = pages;
  return SQLITE_OK;
}

void SqliteLog::Reserve() {
  if (page_size_ == 0) return;
  const int64_t wanted = kLogHeader + (pages_ + kPagesAhead) * (page_size_ + kFrameHeader);
  if (size_ >= wanted) return;
  sqlite3_file* log = nullptr;
  if (sqlite3_file_control(db_, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log) != SQLITE_OK ||
      log == nullptr || log->pMethods == nullptr) {
    return;
  }
  sqlite3_int64 size = 0;
  if (log->pMethods->xFileSize(log, &size) != SQLITE_OK) return;
  size_ = size;
  if (size_ >= wanted) return;
  if (!HasSpace(sqlite3_db_filename(db_, "main"), disk_)) {
    size_ = wanted + kStep;  // asked again when the log has grown by as much
    return;
  }
  static const std::string* const zeros = new std::string(kPiece, '\0');
  for (const int64_t end = size_ + kStep; size_ < end; size_ += kPiece) {
    if (log->pMethods->xWrite(log, zeros->data(), kPiece, size_) != SQLITE_OK) {
      size_ = std::numeric_limits<int64_t>::max();  // not again in this turn of the log
      return;
    }
  }
}

}  // namespace failback
