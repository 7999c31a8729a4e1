#include "registry/store/sqlite_storage.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/ids.h"
#include "registry/log.h"
#include "registry/store/epoch.h"

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
};
static_assert(sizeof(kMigrations) / sizeof(kMigrations[0]) == SqliteStorage::kSchemaVersion);

constexpr char kPutRecord[] =
    "INSERT OR REPLACE INTO records VALUES "
    "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)";
constexpr char kReadRecords[] =
    "SELECT id, key, instance, fence_rank, fence_generation, fence_digest, fence_registers,"
    " owner_rank, session, persistent, retention_ms, create_revision, modify_revision,"
    " create_ms, modify_ms, checksum FROM records ORDER BY id";

constexpr int kBusyTimeoutMs = 250;

int DurabilityNumber(Durability durability) {
  switch (durability) {
    case Durability::kFull:
      return 2;
    case Durability::kNormal:
      return 1;
    case Durability::kOff:
      return 0;
  }
  return 2;
}

std::string KernelBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Revisions are left out: they start anew with an epoch.
int64_t Checksum(const RecordRow& row) {
  const uint64_t numbers[] = {
      static_cast<uint64_t>(row.id),
      row.fence_rank,
      row.fence_generation,
      row.fence_digest,
      row.owner_rank,
      static_cast<uint64_t>(row.session),
      uint64_t{row.retention_ms},
      static_cast<uint64_t>(row.create_ms),
      static_cast<uint64_t>(row.modify_ms),
      (row.instance ? 1u : 0u) | (row.fence_registers ? 2u : 0u) | (row.persistent ? 4u : 0u),
      Digest64(row.key.data(), row.key.size()),
      row.instance ? Digest64(row.instance.data(), row.instance.size()) : 0};
  return static_cast<int64_t>(Digest64(reinterpret_cast<const char*>(numbers), sizeof(numbers)));
}

}  // namespace

// A prepared statement. Bound bytes must outlive the next Step.
class SqliteStorage::Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void Bind(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
  void Bind(int index, uint64_t value) { Bind(index, static_cast<int64_t>(value)); }
  void BindText(int index, const std::string& text) {
    sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
  }
  void BindBlob(int index, std::string_view bytes) {
    sqlite3_bind_blob(statement_, index, bytes.data(), static_cast<int>(bytes.size()),
                      SQLITE_STATIC);
  }
  void BindNull(int index) { sqlite3_bind_null(statement_, index); }

  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return sqlite3_step(statement_); }
  // Step and Reset of a statement without rows: SQLITE_OK or an error.
  int Run() {
    const int code = sqlite3_step(statement_);
    sqlite3_reset(statement_);
    return code == SQLITE_DONE ? SQLITE_OK : code;
  }

  bool IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  int64_t Int(int column) const { return sqlite3_column_int64(statement_, column); }
  uint64_t Uint(int column) const { return static_cast<uint64_t>(Int(column)); }
  // Valid until the next Step.
  std::string_view Bytes(int column) const {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
    return {data == nullptr ? "" : data,
            static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  sqlite3_stmt* const statement_;
};

absl::StatusOr<std::unique_ptr<SqliteStorage>> SqliteStorage::Open(Options options) {
  std::unique_ptr<SqliteStorage> storage(new SqliteStorage(std::move(options)));
  if (auto status = storage->LockFile(); !status.ok()) return status;
  if (auto status = storage->OpenDatabase(); !status.ok()) return status;
  return storage;
}

SqliteStorage::SqliteStorage(Options options)
    : options_(std::move(options)),
      boot_id_(options_.boot_id.empty() ? KernelBootId() : options_.boot_id) {}

SqliteStorage::~SqliteStorage() {
  if (marked_ && Execute("PRAGMA synchronous=FULL").ok()) {
    Execute("UPDATE store SET clean = 1").IgnoreError();
  }
  for (auto* statement : {&put_record_, &remove_record_, &put_session_, &remove_session_,
                          &put_incarnation_, &remove_incarnation_, &put_position_}) {
    statement->reset();  // before the database closes
  }
  if (db_ != nullptr) sqlite3_close(db_);
}

// An exclusive lock on a file beside the store, which ends with the process.
absl::Status SqliteStorage::LockFile() {
  const std::string& path = options_.path;
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(
        absl::StrCat("store ", path, ": folder ", folder, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::NotFoundError(absl::StrCat("store ", path, ": ", folder, " is not a folder"));
  }
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("store ", path, ": is not a file"));
  }
  auto lock = FileLock::Acquire(path + ".lock");
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path, ": is in use: ", lock.status().message()));
  }
  if (!lock.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("store ", path, ": cannot write to its folder: ", lock.status().message()));
  }
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status SqliteStorage::Error(int code) const {
  const std::string message = absl::StrCat(
      "store ", options_.path, ": ", db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_),
      " (SQLite ", db_ == nullptr ? code : sqlite3_extended_errcode(db_), ")");
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
      return absl::PermissionDeniedError(message);
    default:  // full, read-only, busy, I/O: may pass
      return absl::UnavailableError(message);
  }
}

absl::Status SqliteStorage::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteStorage::Prepare(const char* sql, std::unique_ptr<Statement>* statement) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (code != SQLITE_OK) return Error(code);
  *statement = std::make_unique<Statement>(raw);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SqliteStorage::QueryInt(const char* sql) {
  std::unique_ptr<Statement> statement;
  if (auto status = Prepare(sql, &statement); !status.ok()) return status;
  const int code = statement->Step();
  if (code != SQLITE_ROW) return Error(code);
  return statement->Int(0);
}

template <typename Work>
absl::Status SqliteStorage::InTransaction(Work work) {
  if (auto status = Execute("BEGIN IMMEDIATE"); !status.ok()) return status;
  absl::Status status = work();
  if (status.ok()) status = Execute("COMMIT");
  // Some errors have rolled back already.
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
  return status;
}

const char* SqliteStorage::SynchronousPragma() const {
  switch (options_.durability) {
    case Durability::kFull:
      return "PRAGMA synchronous=FULL";
    case Durability::kNormal:
      return "PRAGMA synchronous=NORMAL";
    case Durability::kOff:
      return "PRAGMA synchronous=OFF";
  }
  return "PRAGMA synchronous=FULL";
}

absl::Status SqliteStorage::Connect() {
  const int code =
      sqlite3_open_v2(options_.path.c_str(), &db_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return Error(code);
  sqlite3_extended_result_codes(db_, 1);
  sqlite3_busy_timeout(db_, kBusyTimeoutMs);
  return absl::OkStatus();
}

absl::Status SqliteStorage::OpenDatabase() {
  if (auto status = Connect(); !status.ok()) return status;
  bool created = false;
  absl::Status usable = CheckFile(&created);
  if (const int code = sqlite3_extended_errcode(db_);
      code == SQLITE_IOERR_SHMOPEN || code == SQLITE_IOERR_SHMSIZE) {
    // A full disk has no room for the -shm file. Alone with the store one can do without.
    sqlite3_close(db_);
    if (auto status = Connect(); !status.ok()) return status;
    if (auto status = Execute("PRAGMA locking_mode=EXCLUSIVE"); !status.ok()) return status;
    usable = CheckFile(&created);
  }
  if (!usable.ok()) return usable;
  // WAL is a property of the file; a file that cannot be written keeps what it has.
  const absl::Status wal = Execute("PRAGMA journal_mode=WAL");
  if (!wal.ok() && created) return wal;
  for (const char* pragma : {"PRAGMA wal_autocheckpoint=4000", "PRAGMA journal_size_limit=67108864",
                             "PRAGMA cache_size=-32768", "PRAGMA temp_store=MEMORY"}) {
    if (auto status = Execute(pragma); !status.ok()) return status;
  }
  const auto version = QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (auto status = Migrate(static_cast<int>(*version)); !status.ok()) return status;
  if (auto status = ReadStore(); !status.ok()) return status;
  if (auto status = MarkOpen(); !status.ok() && created) return status;

  const std::pair<const char*, std::unique_ptr<Statement>*> statements[] = {
      {kPutRecord, &put_record_},
      {"DELETE FROM records WHERE id = ?1", &remove_record_},
      {"INSERT OR REPLACE INTO sessions VALUES (?1,?2,?3,?4,?5)", &put_session_},
      {"DELETE FROM sessions WHERE id = ?1", &remove_session_},
      {"INSERT OR REPLACE INTO incarnations VALUES (?1,?2,?3,?4)", &put_incarnation_},
      {"DELETE FROM incarnations WHERE rank = ?1", &remove_incarnation_},
      {"UPDATE store SET revision = ?1, next_rank = ?2", &put_position_},
  };
  for (const auto& [sql, statement] : statements) {
    if (auto status = Prepare(sql, statement); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Whether the file is a store that this program understands.
absl::Status SqliteStorage::CheckFile(bool* created) {
  const auto tables = QueryInt("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  *created = *tables == 0;
  if (*created) return absl::OkStatus();
  const auto application = QueryInt("PRAGMA application_id");
  if (!application.ok()) return application.status();
  if (*application != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", options_.path, ": is an SQLite file of another program"));
  }
  const auto version = QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", options_.path, ": was written by a newer version: schema ", *version,
                     " found, up to ", kSchemaVersion, " supported"));
  }
  if (*version < 1) {
    return absl::DataLossError(
        absl::StrCat("store ", options_.path, ": schema ", *version, " is not a version"));
  }
  return absl::OkStatus();
}

absl::Status SqliteStorage::Migrate(int from) {
  if (from == kSchemaVersion) return absl::OkStatus();
  return InTransaction([&]() -> absl::Status {
    for (int version = from; version < kSchemaVersion; ++version) {
      if (auto status = Execute(kMigrations[version]); !status.ok()) return status;
    }
    if (from == 0) {
      std::unique_ptr<Statement> create;
      if (auto status = Prepare("INSERT INTO store VALUES (1,?1,?2,0,1,?3,1,?4)", &create);
          !status.ok()) {
        return status;
      }
      const std::string store_id = RandomId();
      create->BindText(1, store_id);
      create->Bind(2, NewEpoch());
      create->BindText(3, boot_id_);
      create->Bind(4, int64_t{DurabilityNumber(options_.durability)});
      if (const int code = create->Run(); code != SQLITE_OK) return Error(code);
      if (auto status = Execute(absl::StrCat("PRAGMA application_id=", kApplicationId).c_str());
          !status.ok()) {
        return status;
      }
    }
    return Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str());
  });
}

// The store's identity, with a new epoch if commits of the last life may have been lost.
absl::Status SqliteStorage::ReadStore() {
  std::unique_ptr<Statement> select;
  if (auto status = Prepare(
          "SELECT store_id, epoch, revision, next_rank, boot_id, clean, durability FROM store",
          &select);
      !status.ok()) {
    return status;
  }
  const int code = select->Step();
  if (code == SQLITE_DONE) {
    return absl::DataLossError(absl::StrCat("store ", options_.path, ": has no identity"));
  }
  if (code != SQLITE_ROW) return Error(code);
  identity_.store_id = std::string(select->Bytes(0));
  identity_.epoch = select->Uint(1);
  identity_.revision = select->Uint(2);
  identity_.next_rank = select->Uint(3);
  const bool same_boot = !boot_id_.empty() && select->Bytes(4) == boot_id_;
  const bool clean = select->Int(5) != 0;
  const int64_t durability = select->Int(6);
  select.reset();
  if (clean || same_boot || durability == DurabilityNumber(Durability::kFull)) {
    return absl::OkStatus();
  }
  if (durability == DurabilityNumber(Durability::kOff)) {
    // Nothing was synced: the file itself may have been torn.
    std::unique_ptr<Statement> check;
    if (auto status = Prepare("PRAGMA quick_check(1)", &check); !status.ok()) return status;
    const int found = check->Step();
    if (found != SQLITE_ROW) return Error(found);
    if (check->Bytes(0) != "ok") {
      return absl::DataLossError(
          absl::StrCat("store ", options_.path, ": is damaged: ", std::string(check->Bytes(0))));
    }
  }
  minted_ = true;
  identity_.epoch = NewEpoch();
  identity_.revision = 1;
  Log(LogLevel::kWarning, "commits may have been lost: a new epoch begins",
      {{"store", options_.path}, {"epoch", absl::StrCat(identity_.epoch)}});
  return absl::OkStatus();
}

// Says in the file, durably and before anything else is written, that a life has begun.
absl::Status SqliteStorage::MarkOpen() {
  if (auto status = Execute("PRAGMA synchronous=FULL"); !status.ok()) return status;
  absl::Status status = InTransaction([&]() -> absl::Status {
    if (minted_) {
      if (auto status = Execute("UPDATE records SET create_revision = 1, modify_revision = 1");
          !status.ok()) {
        return status;
      }
    }
    std::unique_ptr<Statement> mark;
    if (auto status = Prepare(
            "UPDATE store SET epoch = ?1, revision = ?2, boot_id = ?3, clean = 0, durability = ?4",
            &mark);
        !status.ok()) {
      return status;
    }
    mark->Bind(1, identity_.epoch);
    mark->Bind(2, identity_.revision);
    mark->BindText(3, boot_id_);
    mark->Bind(4, int64_t{DurabilityNumber(options_.durability)});
    const int code = mark->Run();
    return code == SQLITE_OK ? absl::OkStatus() : Error(code);
  });
  if (status.ok()) status = Execute(SynchronousPragma());
  marked_ = status.ok();
  return status;
}

absl::Status SqliteStorage::Read(StoreReader* reader) {
  // Adds the path to what a reader says about a row.
  const auto told = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("store ", options_.path, ": is damaged: ", status.message()));
  };
  std::unique_ptr<Statement> select;
  int code = SQLITE_OK;
  if (auto status =
          Prepare("SELECT rank, name, client_name, last_seen_ms FROM incarnations", &select);
      !status.ok()) {
    return status;
  }
  while ((code = select->Step()) == SQLITE_ROW) {
    IncarnationRow row;
    row.rank = select->Uint(0);
    row.name = std::string(select->Bytes(1));
    row.client_name = std::string(select->Bytes(2));
    row.last_seen_ms = select->Int(3);
    if (auto status = reader->OnIncarnation(std::move(row)); !status.ok()) return told(status);
  }
  if (code != SQLITE_DONE) return Error(code);

  if (auto status =
          Prepare("SELECT id, session_id, rank, ttl_ms, ends_with_stream FROM sessions", &select);
      !status.ok()) {
    return status;
  }
  while ((code = select->Step()) == SQLITE_ROW) {
    SessionRow row;
    row.id = select->Int(0);
    row.session_id = std::string(select->Bytes(1));
    row.rank = select->Uint(2);
    row.ttl_ms = select->Int(3);
    row.ends_with_stream = select->Int(4) != 0;
    if (auto status = reader->OnSession(std::move(row)); !status.ok()) return told(status);
  }
  if (code != SQLITE_DONE) return Error(code);

  if (auto status = Prepare(kReadRecords, &select); !status.ok()) return status;
  while ((code = select->Step()) == SQLITE_ROW) {
    RecordRow row;
    row.id = select->Int(0);
    row.key = select->Bytes(1);
    if (!select->IsNull(2)) row.instance = Blob(select->Bytes(2));
    row.fence_rank = select->Uint(3);
    row.fence_generation = select->Uint(4);
    row.fence_digest = select->Uint(5);
    row.fence_registers = select->Int(6) != 0;
    row.owner_rank = select->Uint(7);
    row.session = select->Int(8);
    row.persistent = select->Int(9) != 0;
    row.retention_ms = static_cast<uint32_t>(select->Int(10));
    row.create_revision = minted_ ? 1 : select->Uint(11);
    row.modify_revision = minted_ ? 1 : select->Uint(12);
    row.create_ms = select->Int(13);
    row.modify_ms = select->Int(14);
    if (select->Int(15) != Checksum(row)) {
      return told(absl::DataLossError(absl::StrCat("record ", row.id, " has a wrong checksum")));
    }
    if (auto status = reader->OnRecord(std::move(row)); !status.ok()) return told(status);
  }
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
}

absl::Status SqliteStorage::Write(const WriteSet& writes) {
  if (!marked_) {
    if (auto status = MarkOpen(); !status.ok()) return status;
  }
  return InTransaction([&] { return WriteRows(writes); });
}

absl::Status SqliteStorage::WriteRows(const WriteSet& writes) {
  const auto run = [](Statement& statement, int* code) {
    *code = statement.Run();
    return *code == SQLITE_OK;
  };
  int code = SQLITE_OK;
  for (const IncarnationRow& row : writes.incarnations) {
    put_incarnation_->Bind(1, row.rank);
    put_incarnation_->BindText(2, row.name);
    put_incarnation_->BindText(3, row.client_name);
    put_incarnation_->Bind(4, row.last_seen_ms);
    if (!run(*put_incarnation_, &code)) return Error(code);
  }
  for (const SessionRow& row : writes.sessions) {
    put_session_->Bind(1, row.id);
    put_session_->BindText(2, row.session_id);
    put_session_->Bind(3, row.rank);
    put_session_->Bind(4, row.ttl_ms);
    put_session_->Bind(5, int64_t{row.ends_with_stream});
    if (!run(*put_session_, &code)) return Error(code);
  }
  for (const RecordRow& row : writes.records) {
    Statement& put = *put_record_;
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
    if (!run(put, &code)) return Error(code);
  }
  const std::pair<const std::vector<int64_t>*, Statement*> removals[] = {
      {&writes.removed_records, remove_record_.get()},
      {&writes.removed_sessions, remove_session_.get()},
  };
  for (const auto& [ids, statement] : removals) {
    for (const int64_t id : *ids) {
      statement->Bind(1, id);
      if (!run(*statement, &code)) return Error(code);
    }
  }
  for (const uint64_t rank : writes.removed_incarnations) {
    remove_incarnation_->Bind(1, rank);
    if (!run(*remove_incarnation_, &code)) return Error(code);
  }
  put_position_->Bind(1, writes.revision);
  put_position_->Bind(2, writes.next_rank);
  return run(*put_position_, &code) ? absl::OkStatus() : Error(code);
}

}  // namespace failback
