#include "registry/store/sqlite/sqlite_schema.h"

#include <sqlite3.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "registry/store/sqlite/epoch.h"
#include "registry/store/sqlite/row_checksum.h"

namespace failback {
namespace {

// Each entry brings a file from the version of its index to the next. Never changed, only added to.
constexpr const char* kMigrations[] = {
    // 0 -> 1: a new file.
    R"sql(
      CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        store_id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        next_rank INTEGER NOT NULL,
        boot_id TEXT NOT NULL,      -- of the machine's start in which it was last opened
        clean INTEGER NOT NULL,     -- 1: closed in good order
        durability INTEGER NOT NULL -- of the last life; 2 full, 1 normal, 0 off
      );
      CREATE TABLE incarnations (
        rank INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        client_name TEXT NOT NULL,
        last_seen_ms INTEGER NOT NULL
      );
      CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        rank INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        ends_with_stream INTEGER NOT NULL
      );
      CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        key BLOB NOT NULL,          -- namespace NUL service NUL instance_id
        instance BLOB,              -- a serialized ServiceInstance; NULL: only the fence is left
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
        checksum INTEGER NOT NULL
      );
    )sql",
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
};
static_assert(sizeof(kMigrations) / sizeof(kMigrations[0]) == kStoreSchemaVersion);

// From here on every row has a checksum, and not only records.
constexpr int kFirstSealedVersion = 4;
constexpr uint64_t kRanksLeftOut = 1000000;
constexpr uint64_t kMostInHead = uint64_t{1} << 53;

constexpr char kPutRecord[] =
    "INSERT OR REPLACE INTO records VALUES "
    "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)";
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

absl::Status ReadIncarnations(SqliteDatabase& db, Seal seal,
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
    if (seal == Seal::kRequired && (*select)->Int(4) != Checksum(row)) {
      return WrongChecksum("incarnation", row.rank);
    }
    if (auto status = take(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::Status ReadSessions(SqliteDatabase& db, Seal seal,
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
    if (seal == Seal::kRequired && (*select)->Int(5) != Checksum(row)) {
      return WrongChecksum("session", static_cast<uint64_t>(row.id));
    }
    if (auto status = take(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::Status ReadRecords(SqliteDatabase& db, bool restarted, StoreReader* reader) {
  auto select = db.Prepare(kReadRecords);
  if (!select.ok()) return select.status();
  int code;
  while ((code = (*select)->Step()) == SQLITE_ROW) {
    RecordRow row = RecordOf(**select);
    if ((*select)->Int(15) != Checksum(row)) {
      return WrongChecksum("record", static_cast<uint64_t>(row.id));
    }
    if (restarted) row.create_revision = row.modify_revision = 1;
    if (auto status = reader->OnRecord(std::move(row)); !status.ok()) return status;
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db.Error(code);
}

absl::StatusOr<StoreHead> ReadHead(SqliteDatabase& db, Seal seal) {
  auto select = db.Prepare(
      "SELECT store_id, epoch, revision, next_rank, boot_id, clean, durability, writes, checksum,"
      " sessions FROM store");
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
  if (!(*select)->IsNull(9)) head.sessions = (*select)->Int(9);
  if (seal == Seal::kRequired && (*select)->Int(8) != Checksum(head)) {
    return db.Damaged("its identity has a wrong checksum");
  }
  const StoreIdentity& identity = head.identity;
  if (identity.epoch == 0 || std::max(identity.revision, identity.next_rank) > kMostInHead) {
    return db.Damaged("its identity is not possible");
  }
  return head;
}

void BindSessions(int index, const StoreHead& head, SqliteStatement* statement) {
  if (head.sessions.has_value()) {
    statement->Bind(index, *head.sessions);
  } else {
    statement->BindNull(index);
  }
}

// Gives the rows of a file from before kFirstSealedVersion their checksums.
absl::Status SealRows(SqliteDatabase& db) {
  auto head = ReadHead(db, Seal::kIgnored);
  if (!head.ok()) return head.status();
  WriteSet all;
  absl::Status status = ReadIncarnations(db, Seal::kIgnored, [&](IncarnationRow row) {
    all.incarnations.push_back(std::move(row));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  status = ReadSessions(db, Seal::kIgnored, [&](SessionRow row) {
    all.sessions.push_back(std::move(row));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  auto writer = StoreRowWriter::Create(&db);
  if (!writer.ok()) return writer.status();
  return (*writer)->Write(all, *head);  // the head too
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
    for (int version = from; version < kStoreSchemaVersion; ++version) {
      if (auto status = db.Execute(kMigrations[version]); !status.ok()) return status;
    }
    if (from == 0) {
      if (auto status = WriteStoreHead(db, head); !status.ok()) return status;
      if (auto status = db.Execute(absl::StrCat("PRAGMA application_id=", kStoreApplicationId));
          !status.ok()) {
        return status;
      }
    } else if (from < kFirstSealedVersion) {
      if (auto status = SealRows(db); !status.ok()) return status;
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
  BindSessions(10, head, put->get());
  const int code = (*put)->Run();
  return code == SQLITE_OK ? absl::OkStatus() : db.Error(code);
}

absl::Status RestartRevisions(SqliteDatabase& db) {
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
  int64_t sessions = 0;
  const auto on_session = [&](SessionRow row) {
    ++sessions;
    return reader->OnSession(std::move(row));
  };
  if (auto status = ReadIncarnations(db, Seal::kRequired, on_incarnation); !status.ok()) {
    return with_path(status);
  }
  if (auto status = ReadSessions(db, Seal::kRequired, on_session); !status.ok()) {
    return with_path(status);
  }
  if (head.sessions.value_or(sessions) != sessions) {
    return db.Damaged(absl::StrCat("of ", *head.sessions, " sessions ", sessions, " are there"));
  }
  return with_path(ReadRecords(db, restarted, reader));
}

absl::StatusOr<std::unique_ptr<StoreRowWriter>> StoreRowWriter::Create(SqliteDatabase* db) {
  std::unique_ptr<StoreRowWriter> writer(new StoreRowWriter(db));
  const std::pair<const char*, std::unique_ptr<SqliteStatement>*> statements[] = {
      {kPutRecord, &writer->put_record_},
      {"DELETE FROM records WHERE id BETWEEN ?1 AND ?2", &writer->remove_records_},
      {"INSERT OR REPLACE INTO sessions VALUES (?1,?2,?3,?4,?5,?6)", &writer->put_session_},
      {"DELETE FROM sessions WHERE id BETWEEN ?1 AND ?2", &writer->remove_sessions_},
      {"INSERT OR REPLACE INTO incarnations VALUES (?1,?2,?3,?4,?5,?6)", &writer->put_incarnation_},
      {"DELETE FROM incarnations WHERE rank = ?1", &writer->remove_incarnation_},
      {"UPDATE store SET revision = ?1, next_rank = ?2, writes = ?3, checksum = ?4, sessions = ?5",
       &writer->put_position_},
  };
  for (const auto& [sql, statement] : statements) {
    auto prepared = db->Prepare(sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  return writer;
}

int StoreRowWriter::PutRecord(const RecordRow& row) {
  SqliteStatement& put = *put_record_;
  put.Bind(1, row.id);
  put.BindBlob(2, row.key);
  if (row.instance) {
    put.BindBlob(3, row.instance.view());
  } else {
    put.BindNull(3);
  }
  put.Bind(4, row.fence_rank);
  put.Bind(5, row.fence_generation);
  put.Bind(6, row.fence_digest);
  put.Bind(7, int64_t{row.fence_registers});
  put.Bind(8, row.owner_rank);
  put.Bind(9, row.session);
  put.Bind(10, int64_t{row.persistent});
  put.Bind(11, int64_t{row.retention_ms});
  put.Bind(12, row.create_revision);
  put.Bind(13, row.modify_revision);
  put.Bind(14, row.create_ms);
  put.Bind(15, row.modify_ms);
  put.Bind(16, Checksum(row));
  if (row.offline) {
    put.BindBlob(17, row.offline.view());
  } else {
    put.BindNull(17);
  }
  return put.Run();
}

int StoreRowWriter::Remove(const std::vector<int64_t>& ids, SqliteStatement* remove) {
  int code = SQLITE_OK;
  for (auto first = ids.begin(); first != ids.end() && code == SQLITE_OK;) {
    auto last = first;
    while (last + 1 != ids.end() && *(last + 1) == *last + 1) ++last;
    remove->Bind(1, *first);
    remove->Bind(2, *last);
    code = remove->Run();
    first = last + 1;
  }
  return code;
}

absl::Status StoreRowWriter::Write(const WriteSet& writes, const StoreHead& head) {
  int code = SQLITE_OK;
  for (const IncarnationRow& row : writes.incarnations) {
    put_incarnation_->Bind(1, row.rank);
    put_incarnation_->BindText(2, row.name);
    put_incarnation_->BindText(3, row.client_name);
    put_incarnation_->Bind(4, row.last_seen_ms);
    put_incarnation_->Bind(5, Checksum(row));
    put_incarnation_->BindText(6, row.owner);
    if ((code = put_incarnation_->Run()) != SQLITE_OK) return db_->Error(code);
  }
  for (const SessionRow& row : writes.sessions) {
    put_session_->Bind(1, row.id);
    put_session_->BindText(2, row.session_id);
    put_session_->Bind(3, row.rank);
    put_session_->Bind(4, row.ttl_ms);
    put_session_->Bind(5, int64_t{row.ends_with_stream});
    put_session_->Bind(6, Checksum(row));
    if ((code = put_session_->Run()) != SQLITE_OK) return db_->Error(code);
  }
  for (const RecordRow& row : writes.records) {
    if ((code = PutRecord(row)) != SQLITE_OK) return db_->Error(code);
  }
  code = Remove(writes.removed_records, remove_records_.get());
  if (code == SQLITE_OK) code = Remove(writes.removed_sessions, remove_sessions_.get());
  if (code != SQLITE_OK) return db_->Error(code);
  for (const uint64_t rank : writes.removed_incarnations) {
    remove_incarnation_->Bind(1, rank);
    if ((code = remove_incarnation_->Run()) != SQLITE_OK) return db_->Error(code);
  }
  put_position_->Bind(1, head.identity.revision);
  put_position_->Bind(2, head.identity.next_rank);
  put_position_->Bind(3, head.writes);
  put_position_->Bind(4, Checksum(head));
  BindSessions(5, head, put_position_.get());
  code = put_position_->Run();
  return code == SQLITE_OK ? absl::OkStatus() : db_->Error(code);
}

}  // namespace failback
