#include "registry/intent_journal.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/ids.h"
#include "registry/log.h"
#include "retry/clock.h"

namespace failback {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kApplicationId = 0x4642494a;  // "FBIJ"
constexpr absl::Duration kTryAgain = absl::Seconds(1);
// An incarnation of the options that a registry keeps for another caller.
constexpr char kRefused[] = "refused_incarnation";
// Snapshots that nobody has subscribed to for so long are dropped.
constexpr int kSnapshotDays = 7;

constexpr char kCreate[] =
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;"
    "CREATE TABLE intents (row INTEGER PRIMARY KEY, key BLOB NOT NULL, present INTEGER NOT NULL,"
    " persistent INTEGER NOT NULL, payload BLOB NOT NULL, generation INTEGER NOT NULL,"
    " owner TEXT NOT NULL, owner_ttl_nanos INTEGER NOT NULL, owner_generation INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL);"
    "CREATE TABLE snapshots (selector BLOB PRIMARY KEY, event BLOB NOT NULL,"
    " written INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;";

int64_t Checksum(const IntentJournal::Intent& intent) {
  return static_cast<int64_t>(Digest64(
      absl::StrCat(intent.row, " ", intent.key, " ", intent.present, " ", intent.persistent, " ",
                   intent.payload, " ", intent.generation, " ", intent.owner, " ",
                   absl::ToInt64Nanoseconds(intent.owner_ttl), " ", intent.owner_generation)));
}

}  // namespace

// A prepared statement for one use after the other.
class IntentJournal::Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db) {
    sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Int(int64_t value) {
    if (statement_ != nullptr) sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  // The bytes outlive the step.
  Statement& Blob(const std::string& bytes) {
    if (statement_ != nullptr) {
      sqlite3_bind_blob64(statement_, ++bound_, bytes.data() == nullptr ? "" : bytes.data(),
                          bytes.size(), SQLITE_STATIC);
    }
    return *this;
  }
  Statement& Text(const std::string& text) {
    if (statement_ != nullptr) {
      sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                        SQLITE_STATIC);
    }
    return *this;
  }
  // True when there is a row.
  absl::StatusOr<bool> Step() {
    const int code = statement_ == nullptr ? sqlite3_errcode(db_) : sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return absl::DataLossError(sqlite3_errmsg(db_));
  }
  // Steps to the end and makes ready for the next use.
  absl::Status Run() {
    auto row = Step();
    if (statement_ != nullptr) sqlite3_reset(statement_);
    bound_ = 0;
    return row.status();
  }
  int64_t ColumnInt(int i) const { return sqlite3_column_int64(statement_, i); }
  std::string Column(int i) const {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, i));
    return bytes == nullptr ? std::string()
                            : std::string(bytes, sqlite3_column_bytes(statement_, i));
  }

 private:
  sqlite3* const db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

IntentJournal::IntentJournal(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::shared_ptr<IntentJournal>> IntentJournal::Open(Options options) {
  const std::string& dir = options.dir;
  struct stat info;
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", dir, ": cannot be created: ", std::strerror(errno)));
  }
  if (stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", dir, ": is not a directory"));
  }
  auto lock = FileLock::Acquire(absl::StrCat(dir, "/lock"));
  if (!lock.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", dir, ": ", std::string(lock.status().message())));
  }
  std::shared_ptr<IntentJournal> journal(new IntentJournal(std::move(options)));
  journal->lock_ = *std::move(lock);
  absl::Status opened = journal->OpenDatabase();
  if (!opened.ok() && opened.code() != absl::StatusCode::kFailedPrecondition) {
    auto aside = journal->MoveAside();
    if (!aside.ok()) return aside.status();
    Log(LogLevel::kError, "the intent journal cannot be used, and a new one is begun",
        {{"journal", journal->Path()},
         {"kept_as", *aside},
         {"error", std::string(opened.message())}});
    opened = journal->OpenDatabase();
  }
  if (!opened.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("state directory ", journal->options_.dir,
                                                      ": ", std::string(opened.message())));
  }
  return journal;
}

IntentJournal::~IntentJournal() {
  Stop().IgnoreError();
  Close();
}

void IntentJournal::Close() {
  sqlite3_close_v2(db_);
  db_ = nullptr;
}

absl::Status IntentJournal::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return absl::DataLossError(sqlite3_errmsg(db_));
}

absl::Status IntentJournal::OpenDatabase() {
  if (sqlite3_open_v2(Path().c_str(), &db_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                      nullptr) != SQLITE_OK) {
    return absl::DataLossError(db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_));
  }
  for (const char* sql :
       {"PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 4000",
        options_.full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"}) {
    if (absl::Status status = Execute(sql); !status.ok()) return status;
  }
  const auto pragma = [this](const char* sql) -> absl::StatusOr<std::string> {
    Statement statement(db_, sql);
    auto row = statement.Step();
    if (!row.ok()) return row.status();
    return *row ? statement.Column(0) : std::string();
  };
  const auto version = pragma("PRAGMA user_version");
  const auto id = pragma("PRAGMA application_id");
  const auto tables = pragma("SELECT count(*) FROM sqlite_master");
  if (!version.ok()) return version.status();
  if (!id.ok()) return id.status();
  if (!tables.ok()) return tables.status();
  if (*tables == "0") {
    const std::string create =
        absl::StrCat("BEGIN IMMEDIATE;", kCreate, "PRAGMA application_id = ", kApplicationId,
                     ";PRAGMA user_version = ", kSchemaVersion, ";COMMIT;");
    if (absl::Status status = Execute(create.c_str()); !status.ok()) return status;
  } else if (*id != absl::StrCat(kApplicationId)) {
    return absl::DataLossError("is another program's file");
  } else if (*version != absl::StrCat(kSchemaVersion)) {
    return absl::FailedPreconditionError(absl::StrCat(Path(), " has version ", *version,
                                                      ", and this program knows ", kSchemaVersion,
                                                      " at most"));
  }
  const auto check = pragma("PRAGMA quick_check(1)");
  if (!check.ok()) return check.status();
  if (*check != "ok") return absl::DataLossError(*check);
  return Load();
}

absl::Status IntentJournal::Load() {
  intents_.clear();
  snapshots_.clear();
  incarnation_.clear();
  last_generation_ = 0;
  int64_t last_row = 0;
  std::string refused;
  {
    Statement meta(db_, "SELECT name, value FROM meta");
    for (auto row = meta.Step();; row = meta.Step()) {
      if (!row.ok()) return row.status();
      if (!*row) break;
      if (meta.Column(0) == "incarnation") incarnation_ = meta.Column(1);
      if (meta.Column(0) == kRefused) refused = meta.Column(1);
      if (meta.Column(0) == "generation") {
        last_generation_ = static_cast<uint64_t>(meta.ColumnInt(1));
      }
    }
  }
  {
    Statement rows(db_,
                   "SELECT row, key, present, persistent, payload, generation, owner,"
                   " owner_ttl_nanos, owner_generation, checksum FROM intents ORDER BY row");
    for (auto row = rows.Step();; row = rows.Step()) {
      if (!row.ok()) return row.status();
      if (!*row) break;
      Intent& intent = intents_.emplace_back();
      intent.row = rows.ColumnInt(0);
      intent.key = rows.Column(1);
      intent.present = rows.ColumnInt(2) != 0;
      intent.persistent = rows.ColumnInt(3) != 0;
      intent.payload = rows.Column(4);
      intent.generation = static_cast<uint64_t>(rows.ColumnInt(5));
      intent.owner = rows.Column(6);
      intent.owner_ttl = absl::Nanoseconds(rows.ColumnInt(7));
      intent.owner_generation = static_cast<uint64_t>(rows.ColumnInt(8));
      registry::v1::InstanceKey key;
      if (Checksum(intent) != rows.ColumnInt(9) || !ParseCanonicalKey(intent.key, &key)) {
        return absl::DataLossError(absl::StrCat("row ", intent.row, " is damaged"));
      }
      last_row = std::max(last_row, intent.row);
      last_generation_ = std::max(last_generation_, intent.generation);
    }
  }
  last_row_ = last_row;
  written_generation_ = last_generation_;
  {
    const int64_t oldest = absl::ToUnixSeconds(absl::Now() - absl::Hours(24 * kSnapshotDays));
    Statement old(db_, "DELETE FROM snapshots WHERE written < ?");
    if (absl::Status status = old.Int(oldest).Run(); !status.ok()) return status;
    Statement rows(db_, "SELECT selector, event, checksum FROM snapshots ORDER BY written");
    for (auto row = rows.Step();; row = rows.Step()) {
      if (!row.ok()) return row.status();
      if (!*row) break;
      Snapshot snapshot{rows.Column(0), rows.Column(1)};
      // A cache: what is damaged is not there.
      if (static_cast<int64_t>(Digest64(snapshot.event)) != rows.ColumnInt(2)) continue;
      snapshots_.push_back(std::move(snapshot));
    }
  }
  const std::string before = incarnation_;
  if (!options_.incarnation.empty() && options_.incarnation != refused) {
    incarnation_ = options_.incarnation;
  }
  if (incarnation_.empty()) incarnation_ = RandomId();
  if (incarnation_ == before) return absl::OkStatus();
  return SetMeta("incarnation", incarnation_);
}

absl::Status IntentJournal::SetMeta(const char* name, const std::string& value) {
  Statement statement(db_, "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)");
  return statement.Text(name).Text(value).Run();
}

absl::StatusOr<std::string> IntentJournal::MoveAside() {
  Close();
  std::string aside;
  struct stat info;
  for (int n = 1; aside.empty() || stat(aside.c_str(), &info) == 0; ++n) {
    aside = absl::StrCat(Path(), ".corrupt-", n);
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    const std::string from = absl::StrCat(Path(), suffix);
    if (stat(from.c_str(), &info) != 0) continue;
    if (std::rename(from.c_str(), absl::StrCat(aside, suffix).c_str()) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("state directory ", options_.dir, ": ",
                                                        from, " cannot be used, nor moved to ",
                                                        aside, ": ", std::strerror(errno)));
    }
  }
  return aside;
}

std::vector<IntentJournal::Intent> IntentJournal::TakeIntents() {
  return std::exchange(intents_, {});
}

std::vector<IntentJournal::Snapshot> IntentJournal::TakeSnapshots() {
  return std::exchange(snapshots_, {});
}

void IntentJournal::Start(OnCommit on_commit) {
  on_commit_ = std::move(on_commit);
  if (!options_.manual) {
    // The thread keeps the journal until it has left it.
    thread_ = std::thread([self = shared_from_this()] { self->Work(); });
  }
}

uint64_t IntentJournal::Put(Intent intent) {
  MutexLock lock(&mu_);
  queued_.generation = std::max(queued_.generation, intent.generation);
  const int64_t row = intent.row;
  queued_.rows[row] = std::move(intent);
  changed_.Signal();
  return queued_.sequence = ++sequence_;
}

uint64_t IntentJournal::Remove(int64_t row) {
  MutexLock lock(&mu_);
  queued_.rows[row] = std::nullopt;
  changed_.Signal();
  return queued_.sequence = ++sequence_;
}

uint64_t IntentJournal::ReplaceIncarnation(const std::string& refused,
                                           const std::string& incarnation) {
  MutexLock lock(&mu_);
  queued_.meta["incarnation"] = incarnation;
  queued_.meta[kRefused] = refused;
  changed_.Signal();
  return queued_.sequence = ++sequence_;
}

uint64_t IntentJournal::PutSnapshot(Snapshot snapshot) {
  MutexLock lock(&mu_);
  queued_.snapshots[std::move(snapshot.selector)] = std::move(snapshot.event);
  changed_.Signal();
  return queued_.sequence = ++sequence_;
}

bool IntentJournal::TakeBatch() {
  Batch batch;
  {
    MutexLock lock(&mu_);
    std::swap(batch, queued_);
  }
  if (writing_.empty()) {
    writing_ = std::move(batch);
  } else {
    // What could not be written before goes along; the newer state of a row wins.
    for (auto& [row, intent] : batch.rows) writing_.rows[row] = std::move(intent);
    for (auto& [selector, event] : batch.snapshots) writing_.snapshots[selector] = std::move(event);
    for (auto& [name, value] : batch.meta) writing_.meta[name] = std::move(value);
    writing_.generation = std::max(writing_.generation, batch.generation);
    writing_.sequence = std::max(writing_.sequence, batch.sequence);
  }
  return !writing_.empty();
}

void IntentJournal::TryAgainLater() {
  const auto try_again = [weak = weak_from_this()] {
    const std::shared_ptr<IntentJournal> self = weak.lock();
    if (self == nullptr) return;
    MutexLock lock(&self->mu_);
    self->try_again_ = true;
    self->changed_.Signal();
  };
  absl::StatusOr<Timeout> timeout = options_.timer->PutBack(try_again, kTryAgain);
  if (timeout.ok()) retry_ = *std::move(timeout);  // if not, the timer has been stopped
}

void IntentJournal::Work() {
  while (true) {
    {
      MutexLock lock(&mu_);
      try_again_ = false;
      if (!writing_.empty() && !stopping_ && options_.timer != nullptr) TryAgainLater();
      while (queued_.empty() && !try_again_ && !stopping_) changed_.Wait(&mu_);
      retry_.Cancel();
      if (stopping_) return;
    }
    if (!TakeBatch()) continue;
    const uint64_t sequence = writing_.sequence;
    const absl::Status status = Write(writing_);
    if (status.ok()) writing_ = Batch();
    on_commit_(sequence, status);
  }
}

void IntentJournal::Flush() {
  if (!options_.manual || !TakeBatch()) return;
  const uint64_t sequence = writing_.sequence;
  const absl::Status status = Write(writing_);
  if (status.ok()) writing_ = Batch();
  if (on_commit_) on_commit_(sequence, status);
}

absl::Status IntentJournal::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
  if (db_ == nullptr || !TakeBatch()) return absl::OkStatus();
  absl::Status status = Write(writing_);
  writing_ = Batch();
  return status;
}

IntentJournal::Statistics IntentJournal::Stats() const {
  Statistics stats;
  {
    MutexLock lock(&mu_);
    stats = stats_;
  }
  for (const char* suffix : {"", "-wal"}) {
    struct stat info;
    if (stat(absl::StrCat(Path(), suffix).c_str(), &info) == 0) stats.bytes += info.st_size;
  }
  return stats;
}

absl::Status IntentJournal::Write(const Batch& batch) {
  const int64_t begin = Clock::Real()->NowNanos();
  const absl::Status status = WriteInTransaction(batch);
  MutexLock lock(&mu_);
  stats_.write_nanos.Observe(Clock::Real()->NowNanos() - begin);
  if (!batch.rows.empty()) stats_.group_intents.Observe(static_cast<int64_t>(batch.rows.size()));
  stats_.failing = !status.ok();
  return status;
}

absl::Status IntentJournal::WriteInTransaction(const Batch& batch) {
  absl::Status status = Execute("BEGIN IMMEDIATE");
  if (status.ok()) status = WriteRows(batch);
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) {
    if (sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
    if (!failing_) {
      Log(LogLevel::kError, "the intent journal cannot be written, trying on",
          {{"journal", Path()}, {"error", std::string(status.message())}});
    }
    failing_ = true;
    return absl::UnavailableError(
        absl::StrCat(Path(), " cannot be written: ", std::string(status.message())));
  }
  written_generation_ = std::max(written_generation_, batch.generation);
  if (std::exchange(failing_, false)) {
    Log(LogLevel::kWarning, "the intent journal is written again", {{"journal", Path()}});
  }
  return absl::OkStatus();
}

absl::Status IntentJournal::WriteRows(const Batch& batch) {
  Statement put(
      db_,
      "INSERT OR REPLACE INTO intents (row, key, present, persistent, payload, generation,"
      " owner, owner_ttl_nanos, owner_generation, checksum)"
      " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  Statement remove(db_, "DELETE FROM intents WHERE row = ?");
  for (const auto& [row, intent] : batch.rows) {
    absl::Status status;
    if (intent.has_value()) {
      status = put.Int(row)
                   .Blob(intent->key)
                   .Int(intent->present)
                   .Int(intent->persistent)
                   .Blob(intent->payload)
                   .Int(static_cast<int64_t>(intent->generation))
                   .Text(intent->owner)
                   .Int(absl::ToInt64Nanoseconds(intent->owner_ttl))
                   .Int(static_cast<int64_t>(intent->owner_generation))
                   .Int(Checksum(*intent))
                   .Run();
    } else {
      status = remove.Int(row).Run();
    }
    if (!status.ok()) return status;
  }
  if (batch.generation > written_generation_) {
    Statement meta(db_, "INSERT OR REPLACE INTO meta (name, value) VALUES ('generation', ?)");
    absl::Status status = meta.Int(static_cast<int64_t>(batch.generation)).Run();
    if (!status.ok()) return status;
  }
  for (const auto& [name, value] : batch.meta) {
    if (absl::Status status = SetMeta(name.c_str(), value); !status.ok()) return status;
  }
  Statement snapshot(db_,
                     "INSERT OR REPLACE INTO snapshots (selector, event, written, checksum)"
                     " VALUES (?, ?, ?, ?)");
  Statement drop(db_, "DELETE FROM snapshots WHERE selector = ?");
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  for (const auto& [selector, event] : batch.snapshots) {
    if (event.empty()) {
      if (absl::Status status = drop.Blob(selector).Run(); !status.ok()) return status;
      continue;
    }
    absl::Status status = snapshot.Blob(selector)
                              .Blob(event)
                              .Int(now)
                              .Int(static_cast<int64_t>(Digest64(event)))
                              .Run();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace failback
