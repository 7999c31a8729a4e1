#include "registry/store/sqlite/sqlite_schema.h"

#include <sqlite3.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "registry/store/sqlite/epoch.h"
#include "registry/store/sqlite/row_checksum.h"
#include "registry/store/sqlite/store_row_writer.h"

namespace failback {
namespace {

// The tables of a new file: what kMigrations makes of one of version 1, in a seventh of the time.
// Columns stay in the order in which they came, and have no comments: SQLite keeps the text, and a
// column that is dropped would leave what follows in a comment.
//   store.boot_id       of the machine's start in which it was last opened
//   store.clean         1: closed in good order
//   store.durability    of the last life; 2 full, 1 normal, 0 off
//   records.key         namespace NUL service NUL instance_id
//   records.instance    a serialized ServiceInstance; NULL: only the fence is left
constexpr char kTables[] = R"sql(
  CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    next_rank INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    durability INTEGER NOT NULL,
    writes INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER NOT NULL DEFAULT 0,
    row_sum INTEGER
  );
  CREATE TABLE incarnations (
    rank INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    client_name TEXT NOT NULL,
    last_seen_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT ''
  );
  CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    rank INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    ends_with_stream INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
  );
  CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    instance BLOB,
    fence_rank INTEGER NOT NULL,
    fence_generation INTEGER NOT NULL,
    fence_digest INTEGER NOT NULL,
    fence_registers INTEGER NOT NULL,
    owner_rank INTEGER NOT NULL,
    session INTEGER NOT NULL,
    persistent INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    modify_revision INTEGER NOT NULL,
    create_ms INTEGER NOT NULL,
    modify_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    offline BLOB
  );
)sql";

// Each entry brings a file from the version of its index, and one, to the next. Never changed, only
// added to; kTables likewise.
constexpr const char* kMigrations[] = {
    // 1 -> 2: how many groups were written, to be compared with the mark.
    "ALTER TABLE store ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
    // 2 -> 3: an operator's mark, a serialized OfflineMark.
    "ALTER TABLE records ADD COLUMN offline BLOB",
    // 3 -> 4: checksums of the rows that had none, put there by SealRows.
    R"sql(
      ALTER TABLE store ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
      ALTER TABLE incarnations ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
      ALTER TABLE sessions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    )sql",
    // 4 -> 5: an instance goes with the row of its session, so a session that is lost would take
    // its instances along: they are counted. NULL: not yet.
    "ALTER TABLE store ADD COLUMN sessions INTEGER",
    // 5 -> 6: who opened an incarnation. Empty: callers were not distinguished, or it is not known.
    "ALTER TABLE incarnations ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    // 6 -> 7: the sum of all rows, put there by SealRows, in place of the count of sessions.
    "ALTER TABLE store RENAME COLUMN sessions TO row_sum",
};
static_assert(sizeof(kMigrations) / sizeof(kMigrations[0]) == kStoreSchemaVersion - 1);

// From here on every row has a checksum, and not only records.
constexpr int kFirstSealedVersion = 4;
// Up to here the head may have the count of sessions.
constexpr int kLastCountedVersion = 6;
constexpr uint64_t kRanksLeftOut = 1000000;
constexpr uint64_t kMostInHead = uint64_t{1} << 53;

constexpr char kReadRecords[] =
    "SELECT id, key, instance, fence_rank, fence_generation, fence_digest, fence_registers,"
    " owner_rank, session, persistent, retention_ms, create_revision, modify_revision,"
    " create_ms, modify_ms, checksum, offline FROM records ORDER BY id";

RecordRow RecordOf(const SqliteStatement& select) {
  RecordRow row;
  row.id = select.Int(0);
  row.key = select.Bytes(1);
  if (!select.IsNull(2)) row.instance = Blob(select.Bytes(2));
  row.fence_rank = select.Uint(3);
  row.fence_generation = select.Uint(4);
  row.fence_digest = select.Uint(5);
  row.fence_registers = select.Int(6) != 0;
  row.owner_rank = select.Uint(7);
  row.session = select.Int(8);
  row.persistent = select.Int(9) != 0;
  row.retention_ms = static_cast<uint32_t>(select.Int(10));
  row.create_revision = select.Uint(11);
  row.modify_revision = select.Uint(12);
  row.create_ms = select.Int(13);
  row.modify_ms = select.Int(14);
  if (!select.IsNull(16)) row.offline = Blob(select.Bytes(16));
  return row;
}

absl::Status WrongChecksum(const char* kind, uint64_t id) {
  return absl::DataLossError(absl::StrCat(kind, " ", id, " has a wrong checksum"));
}

// Whether rows have to have the right checksum.
enum class Seal { kRequired, kIgnored };

// Adds the rows' parts to `sum`.
absl::Status ReadIncarnations(SqliteDatabase& db, Seal seal, uint64_t* sum,
                              const std::function<absl::Status(IncarnationRow)>& take) {
  auto select =
      db.Prepare("SELECT rank, name, client_name, last_seen_ms, checksum, owner FROM incarnations");
  if (!select.ok()) return select.status();
  int code;
  while ((code = (*select)->Step()) == SQLITE_ROW) {
    IncarnationRow row;
    row.rank = (*select)->Uint(0);
    row.name = std::string((*select)->Bytes(1));
    row.client_name = std::string((*select)->Bytes(2));
    row.last_seen_ms = (*select)->Int(3);
    row.owner = std::string((*select)->Bytes(5));
    const int64_t checksum = (*select)->Int(4);
    if (seal == Seal::kRequired && checksum != Checksum(row)) {
      return WrongChecksum("incarnation", row.rank);
    }
    *sum += IncarnationPart(checksum);
    if (auto status = take(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::Status ReadSessions(SqliteDatabase& db, Seal seal, uint64_t* sum,
                          const std::function<absl::Status(SessionRow)>& take) {
  auto select =
      db.Prepare("SELECT id, session_id, rank, ttl_ms, ends_with_stream, checksum FROM sessions");
  if (!select.ok()) return select.status();
  int code;
  while ((code = (*select)->Step()) == SQLITE_ROW) {
    SessionRow row;
    row.id = (*select)->Int(0);
    row.session_id = std::string((*select)->Bytes(1));
    row.rank = (*select)->Uint(2);
    row.ttl_ms = (*select)->Int(3);
    row.ends_with_stream = (*select)->Int(4) != 0;
    const int64_t checksum = (*select)->Int(5);
    if (seal == Seal::kRequired && checksum != Checksum(row)) {
      return WrongChecksum("session", static_cast<uint64_t>(row.id));
    }
    *sum += SessionPart(checksum);
    if (auto status = take(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::Status ReadRecords(SqliteDatabase& db, bool restarted, uint64_t* sum, StoreReader* reader) {
  auto select = db.Prepare(kReadRecords);
  if (!select.ok()) return select.status();
  int code;
  while ((code = (*select)->Step()) == SQLITE_ROW) {
    RecordRow row = RecordOf(**select);
    const int64_t checksum = (*select)->Int(15);
    if (checksum != Checksum(row)) {
      return WrongChecksum("record", static_cast<uint64_t>(row.id));
    }
    *sum += RecordPart(checksum, row.create_revision, row.modify_revision);
    if (restarted) row.create_revision = row.modify_revision = 1;
    if (auto status = reader->OnRecord(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::StatusOr<StoreHead> ReadHead(SqliteDatabase& db, Seal seal) {
  auto select = db.Prepare(
      "SELECT store_id, epoch, revision, next_rank, boot_id, clean, durability, writes, checksum,"
      " row_sum FROM store");
  if (!select.ok()) return select.status();
  const int code = (*select)->Step();
  if (code == SQLITE_DONE) {
    return absl::DataLossError(absl::StrCat("store ", db.path(), ": has no identity"));
  }
  if (code != SQLITE_ROW) return db.Error(code);
  StoreHead head;
  head.identity.store_id = std::string((*select)->Bytes(0));
  head.identity.epoch = (*select)->Uint(1);
  head.identity.revision = (*select)->Uint(2);
  head.identity.next_rank = (*select)->Uint(3);
  head.boot_id = std::string((*select)->Bytes(4));
  head.clean = (*select)->Int(5) != 0;
  head.durability = DurabilityOf((*select)->Int(6));
  head.writes = (*select)->Uint(7);
  if (!(*select)->IsNull(9)) head.row_sum = (*select)->Uint(9);
  if (seal == Seal::kRequired && (*select)->Int(8) != Checksum(head)) {
    return db.Damaged("its identity has a wrong checksum");
  }
  const StoreIdentity& identity = head.identity;
  if (identity.epoch == 0 || std::max(identity.revision, identity.next_rank) > kMostInHead) {
    return db.Damaged("its identity is not possible");
  }
  return head;
}

void BindRowSum(int index, const StoreHead& head, SqliteStatement* statement) {
  if (head.row_sum.has_value()) {
    statement->Bind(index, *head.row_sum);
  } else {
    statement->BindNull(index);
  }
}

// What the rows add up to by the checksums that they carry; and with the revisions that records
// have when an epoch begins.
struct RowSums {
  uint64_t now = 0;
  uint64_t restarted = 0;
};
absl::StatusOr<RowSums> SumRows(SqliteDatabase& db) {
  RowSums sums;
  for (const auto& [sql, part] : {std::pair("SELECT checksum FROM incarnations", &IncarnationPart),
                                  std::pair("SELECT checksum FROM sessions", &SessionPart)}) {
    auto select = db.Prepare(sql);
    if (!select.ok()) return select.status();
    int code;
    while ((code = (*select)->Step()) == SQLITE_ROW) sums.now += part((*select)->Int(0));
    if (code != SQLITE_DONE) return db.Error(code);
  }
  sums.restarted = sums.now;
  auto select = db.Prepare("SELECT checksum, create_revision, modify_revision FROM records");
  if (!select.ok()) return select.status();
  int code;
  while ((code = (*select)->Step()) == SQLITE_ROW) {
    const int64_t checksum = (*select)->Int(0);
    sums.now += RecordPart(checksum, (*select)->Uint(1), (*select)->Uint(2));
    sums.restarted += RecordPart(checksum, 1, 1);
  }
  if (code != SQLITE_DONE) return db.Error(code);
  return sums;
}

absl::Status WrongSum(const SqliteDatabase& db) {
  return db.Damaged("its rows are not those of its last commit: their sum is another");
}

// Gives the rows of a file of version `from` their checksums, and the head the sum of all.
absl::Status SealRows(SqliteDatabase& db, int from) {
  const Seal seal = from < kFirstSealedVersion ? Seal::kIgnored : Seal::kRequired;
  auto head = ReadHead(db, seal);
  if (!head.ok()) return head.status();
  if (seal == Seal::kIgnored) {
    WriteSet all;
    uint64_t none = 0;
    absl::Status status = ReadIncarnations(db, seal, &none, [&](IncarnationRow row) {
      all.incarnations.push_back(std::move(row));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    status = ReadSessions(db, seal, &none, [&](SessionRow row) {
      all.sessions.push_back(std::move(row));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    auto writer = StoreRowWriter::Create(&db);
    if (!writer.ok()) return writer.status();
    if (status = (*writer)->Write(all, &*head); !status.ok()) return status;
  } else if (from <= kLastCountedVersion && head->row_sum.has_value()) {
    const auto sessions = db.QueryInt("SELECT count(*) FROM sessions");
    if (!sessions.ok()) return sessions.status();
    if (static_cast<uint64_t>(*sessions) != *head->row_sum) {
      return db.Damaged(absl::StrCat("of ", *head->row_sum, " sessions ", *sessions, " are there"));
    }
  }
  const auto sums = SumRows(db);
  if (!sums.ok()) return sums.status();
  head->row_sum = sums->now;
  return WriteStoreHead(db, *head);
}

}  // namespace

void BeginNewEpoch(StoreHead* head) {
  head->identity.epoch = NewEpoch();
  head->identity.revision = 1;
  head->identity.next_rank += kRanksLeftOut;
}

absl::StatusOr<int> StoreSchemaVersion(SqliteDatabase& db) {
  const auto tables = db.QueryInt("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  if (*tables == 0) return 0;
  const auto application = db.QueryInt("PRAGMA application_id");
  if (!application.ok()) return application.status();
  if (*application != kStoreApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", db.path(), ": is an SQLite file of another program"));
  }
  const auto version = db.QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version > kStoreSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", db.path(), ": was written by a newer version: schema ", *version,
                     " found, up to ", kStoreSchemaVersion, " supported"));
  }
  if (*version < 1) {
    return absl::DataLossError(
        absl::StrCat("store ", db.path(), ": schema ", *version, " is not a version"));
  }
  return static_cast<int>(*version);
}

absl::Status MigrateStore(SqliteDatabase& db, int from, const StoreHead& head) {
  if (from == kStoreSchemaVersion) return absl::OkStatus();
  return db.InTransaction([&]() -> absl::Status {
    for (int version = from; version > 0 && version < kStoreSchemaVersion; ++version) {
      if (auto status = db.Execute(kMigrations[version - 1]); !status.ok()) return status;
    }
    if (from == 0) {
      if (auto status = db.Execute(kTables); !status.ok()) return status;
      StoreHead empty = head;
      empty.row_sum = 0;
      if (auto status = WriteStoreHead(db, empty); !status.ok()) return status;
      if (auto status = db.Execute(absl::StrCat("PRAGMA application_id=", kStoreApplicationId));
          !status.ok()) {
        return status;
      }
    } else if (auto status = SealRows(db, from); !status.ok()) {
      return status;
    }
    return db.Execute(absl::StrCat("PRAGMA user_version=", kStoreSchemaVersion));
  });
}

absl::StatusOr<StoreHead> ReadStoreHead(SqliteDatabase& db) {
  return ReadHead(db, Seal::kRequired);
}

absl::Status WriteStoreHead(SqliteDatabase& db, const StoreHead& head) {
  auto put = db.Prepare("INSERT OR REPLACE INTO store VALUES (1,?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)");
  if (!put.ok()) return put.status();
  (*put)->BindText(1, head.identity.store_id);
  (*put)->Bind(2, head.identity.epoch);
  (*put)->Bind(3, head.identity.revision);
  (*put)->Bind(4, head.identity.next_rank);
  (*put)->BindText(5, head.boot_id);
  (*put)->Bind(6, int64_t{head.clean});
  (*put)->Bind(7, int64_t{DurabilityNumber(head.durability)});
  (*put)->Bind(8, head.writes);
  (*put)->Bind(9, Checksum(head));
  BindRowSum(10, head, put->get());
  const int code = (*put)->Run();
  return code == SQLITE_OK ? absl::OkStatus() : db.Error(code);
}

absl::Status RestartRevisions(SqliteDatabase& db, StoreHead* head) {
  const auto sums = SumRows(db);
  if (!sums.ok()) return sums.status();
  if (head->row_sum.value_or(sums->now) != sums->now) return WrongSum(db);
  head->row_sum = sums->restarted;
  return db.Execute("UPDATE records SET create_revision = 1, modify_revision = 1");
}

absl::Status ReadStoreRows(SqliteDatabase& db, const StoreHead& head, bool restarted,
                           StoreReader* reader) {
  // Adds the path to an error about a row; SQLite's own errors have it.
  const auto with_path = [&](const absl::Status& status) {
    if (!absl::IsDataLoss(status) || absl::StrContains(status.message(), db.path())) return status;
    return db.Damaged(std::string(status.message()));
  };
  const auto on_incarnation = [&](IncarnationRow row) {
    return reader->OnIncarnation(std::move(row));
  };
  const auto on_session = [&](SessionRow row) { return reader->OnSession(std::move(row)); };
  uint64_t sum = 0;
  if (auto status = ReadIncarnations(db, Seal::kRequired, &sum, on_incarnation); !status.ok()) {
    return with_path(status);
  }
  if (auto status = ReadSessions(db, Seal::kRequired, &sum, on_session); !status.ok()) {
    return with_path(status);
  }
  if (auto status = ReadRecords(db, restarted, &sum, reader); !status.ok()) {
    return with_path(status);
  }
  return head.row_sum.value_or(sum) == sum ? absl::OkStatus() : WrongSum(db);
}

}  // namespace failback
