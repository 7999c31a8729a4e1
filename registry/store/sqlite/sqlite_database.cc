#include "registry/store/sqlite/sqlite_database.h"

#include <sqlite3.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace failback {
namespace {

constexpr int kBusyTimeoutMs = 250;

int OpenFlags(SqliteDatabase::Mode mode) {
  switch (mode) {
    case SqliteDatabase::Mode::kCreate:
      return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    case SqliteDatabase::Mode::kReadWrite:
      return SQLITE_OPEN_READWRITE;
    case SqliteDatabase::Mode::kReadOnly:
      return SQLITE_OPEN_READONLY;
  }
  return SQLITE_OPEN_READONLY;
}

// The code in what a check of the structure says of a page that it could not read, "…: unable to
// get the page. error code=522", or without one, of a list's, "…: failed to get page 7";
// SQLITE_CORRUPT when it says something else.
int CodeInCheck(const std::string& found) {
  // Numbers of pages that cannot be are named otherwise, and before.
  if (absl::StrContains(found, "failed to get page")) return SQLITE_IOERR;
  constexpr absl::string_view kMark = "error code=";
  const size_t at = found.find(std::string(kMark));
  if (at == std::string::npos) return SQLITE_CORRUPT;
  const std::string text = found.substr(at + kMark.size());
  int code = 0;
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  return absl::SimpleAtoi(text.substr(0, end), &code) ? code : SQLITE_CORRUPT;
}

}  // namespace

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
}

void SqliteStatement::BindText(int index, const std::string& text) {
  sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
}

void SqliteStatement::BindBlob(int index, std::string_view bytes) {
  sqlite3_bind_blob(statement_, index, bytes.data(), static_cast<int>(bytes.size()), SQLITE_STATIC);
}

void SqliteStatement::BindNull(int index) { sqlite3_bind_null(statement_, index); }

int SqliteStatement::Step() { return sqlite3_step(statement_); }

void SqliteStatement::Reset() { sqlite3_reset(statement_); }

int SqliteStatement::Run() {
  const int code = sqlite3_step(statement_);
  sqlite3_reset(statement_);
  return code == SQLITE_DONE ? SQLITE_OK : code;
}

bool SqliteStatement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

int64_t SqliteStatement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string_view SqliteStatement::Bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  return {data == nullptr ? "" : data,
          static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path,
                                                                     Mode mode, const char* kind,
                                                                     Disk* disk) {
  sqlite3* db = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &db, OpenFlags(mode) | SQLITE_OPEN_NOMUTEX, disk->sqlite_vfs());
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(path, db, kind, disk));
  if (code != SQLITE_OK) return database->Error(code);
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, kBusyTimeoutMs);
  return database;
}

SqliteDatabase::SqliteDatabase(std::string path, sqlite3* db, const char* kind, Disk* disk)
    : path_(std::move(path)), db_(db), kind_(kind), disk_(disk) {}

SqliteDatabase::~SqliteDatabase() {
  begin_.reset();
  commit_.reset();
  sqlite3_close(db_);
}

std::string OnOneLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return text;
}

absl::Status SqliteDatabase::Damaged(const std::string& what) const {
  return absl::DataLossError(OnOneLine(absl::StrCat(kind_, " ", path_, ": is damaged: ", what)));
}

absl::Status SqliteDatabase::Error(int code) const {
  const std::string message = OnOneLine(absl::StrCat(
      kind_, " ", path_, ": ", db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_),
      " (SQLite ", db_ == nullptr ? code : sqlite3_extended_errcode(db_), ")"));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_CANTOPEN:
      if (db_ != nullptr && MayPass(sqlite3_system_errno(db_))) {
        return absl::UnavailableError(message);
      }
      return absl::PermissionDeniedError(message);
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(message);
    default:  // full, read-only, busy, I/O: may pass
      return absl::UnavailableError(message);
  }
}

int SqliteDatabase::last_error() const { return sqlite3_extended_errcode(db_); }

absl::Status SqliteDatabase::Execute(const std::string& sql) {
  const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::StatusOr<std::unique_ptr<SqliteStatement>> SqliteDatabase::Prepare(const char* sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (code != SQLITE_OK) return Error(code);
  return std::make_unique<SqliteStatement>(raw);
}

absl::StatusOr<int64_t> SqliteDatabase::QueryInt(const char* sql) {
  auto statement = Prepare(sql);
  if (!statement.ok()) return statement.status();
  const int code = (*statement)->Step();
  if (code != SQLITE_ROW) return Error(code);
  return (*statement)->Int(0);
}

absl::Status SqliteDatabase::CheckStructure(const char* check) {
  auto statement = Prepare(absl::StrCat("PRAGMA ", check, "(1)").c_str());
  if (!statement.ok()) return statement.status();
  const int code = (*statement)->Step();
  if (code != SQLITE_ROW) return Error(code);
  const std::string found((*statement)->Bytes(0));
  if (found == "ok") return absl::OkStatus();
  switch (CodeInCheck(found) & 0xff) {
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
    case SQLITE_BUSY:
    case SQLITE_CANTOPEN:
      return absl::UnavailableError(OnOneLine(absl::StrCat(kind_, " ", path_, ": ", found)));
    default:
      return Damaged(found);
  }
}

absl::Status SqliteDatabase::Sync() {
  sqlite3_file* file = nullptr;
  int code = sqlite3_file_control(db_, "main", SQLITE_FCNTL_FILE_POINTER, &file);
  if (code == SQLITE_OK) {
    code = file == nullptr || file->pMethods == nullptr
               ? SQLITE_IOERR_FSYNC
               : file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
  }
  if (code == SQLITE_OK) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(kind_, " ", path_, ": cannot be synced (SQLite ", code, ")"));
}

absl::Status SqliteDatabase::RunKept(const char* sql, std::unique_ptr<SqliteStatement>* statement) {
  if (*statement == nullptr) {
    auto prepared = Prepare(sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  const int code = (*statement)->Run();
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteDatabase::Begin() { return RunKept("BEGIN IMMEDIATE", &begin_); }

absl::Status SqliteDatabase::Commit() {
  log_.Reserve();
  return RunKept("COMMIT", &commit_);
}

// Some errors have rolled back already.
void SqliteDatabase::RollBack() {
  if (sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
}

}  // namespace failback
