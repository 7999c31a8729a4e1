#include "registry/failback/journal_snapshots.h"

#include <sqlite3.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

// Snapshots without a subscriber for so long are dropped.
constexpr absl::Duration kKept = absl::Hours(24 * 7);

int64_t Oldest() { return absl::ToUnixSeconds(absl::Now() - kKept); }

int64_t Checksum(const std::string& bytes) { return static_cast<int64_t>(Digest64(bytes)); }

}  // namespace

const char JournalSnapshots::kCreate[] =
    "CREATE TABLE snapshots (selector BLOB PRIMARY KEY, event BLOB NOT NULL,"
    " written INTEGER NOT NULL, checksum INTEGER NOT NULL, selector_checksum INTEGER)"
    " WITHOUT ROWID;";

absl::StatusOr<bool> JournalSnapshots::HasSelectorChecksums() {
  const auto columns = db_->QueryInt(
      "SELECT count(*) FROM pragma_table_info('snapshots') WHERE name = 'selector_checksum'"
      " COLLATE NOCASE");
  if (!columns.ok()) return columns.status();
  return *columns > 0;
}

absl::StatusOr<std::vector<JournalSnapshot>> JournalSnapshots::Read() {
  const auto has_selector_checksums = HasSelectorChecksums();
  if (!has_selector_checksums.ok()) return has_selector_checksums.status();
  const std::string sql = absl::StrCat("SELECT selector, event, checksum, ",
                                       *has_selector_checksums ? "selector_checksum" : "NULL",
                                       " FROM snapshots WHERE written >= ? ORDER BY written");
  auto rows = db_->Prepare(sql.c_str());
  if (!rows.ok()) return rows.status();
  (*rows)->Bind(1, Oldest());
  std::vector<JournalSnapshot> snapshots;
  int code;
  while ((code = (*rows)->Step()) == SQLITE_ROW) {
    const SqliteStatement& row = **rows;
    JournalSnapshot snapshot{std::string(row.Bytes(0)), std::string(row.Bytes(1))};
    // Without a checksum of its selector it was written by 0.1.0.
    const bool whole = Checksum(snapshot.event) == row.Int(2) &&
                       (row.IsNull(3) || Checksum(snapshot.selector) == row.Int(3));
    if (whole) snapshots.push_back(std::move(snapshot));
  }
  if (code != SQLITE_DONE) return db_->Error(code);
  return snapshots;
}

absl::Status JournalSnapshots::RemoveOld() {
  auto old = db_->Prepare("DELETE FROM snapshots WHERE written < ?");
  if (!old.ok()) return old.status();
  (*old)->Bind(1, Oldest());
  return Run(old->get());
}

absl::Status JournalSnapshots::PrepareWrites() {
  if (drop_ != nullptr) return absl::OkStatus();
  const auto has_selector_checksums = HasSelectorChecksums();
  if (!has_selector_checksums.ok()) return has_selector_checksums.status();
  if (!*has_selector_checksums) {
    absl::Status added = db_->Execute("ALTER TABLE snapshots ADD COLUMN selector_checksum INTEGER");
    if (!added.ok()) return added;
  }
  auto put = db_->Prepare(
      "INSERT OR REPLACE INTO snapshots (selector, event, written, checksum, selector_checksum)"
      " VALUES (?, ?, ?, ?, ?)");
  if (!put.ok()) return put.status();
  auto drop = db_->Prepare("DELETE FROM snapshots WHERE selector = ?");
  if (!drop.ok()) return drop.status();
  put_ = *std::move(put);
  drop_ = *std::move(drop);
  return absl::OkStatus();
}

absl::Status JournalSnapshots::Write(const JournalSnapshot& snapshot) {
  if (snapshot.event.empty()) {
    drop_->BindBlob(1, snapshot.selector);
    return Run(drop_.get());
  }
  put_->BindBlob(1, snapshot.selector);
  put_->BindBlob(2, snapshot.event);
  put_->Bind(3, absl::ToUnixSeconds(absl::Now()));
  put_->Bind(4, Checksum(snapshot.event));
  put_->Bind(5, Checksum(snapshot.selector));
  return Run(put_.get());
}

absl::Status JournalSnapshots::Run(SqliteStatement* statement) {
  const int code = statement->Run();
  return code == SQLITE_OK ? absl::OkStatus() : db_->Error(code);
}

}  // namespace failback
