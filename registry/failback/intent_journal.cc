#include "registry/failback/intent_journal.h"

#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/store/sqlite/sqlite_log.h"
#include "retry/clock.h"

namespace failback {
namespace {

// From the first intent on that an operator has cancelled; before, and where there is none, 1,
// which earlier programs read too.
constexpr int kSchemaVersion = 2;
// In the column `present`: an operator has cancelled the intent.
constexpr int64_t kGivenUp = 2;
constexpr int kApplicationId = 0x4642494a;  // "FBIJ"
constexpr char kKind[] = "intent journal";
constexpr absl::Duration kTryAgain = absl::Seconds(1);
// An incarnation of the options that a registry keeps for another caller.
constexpr char kRefused[] = "refused_incarnation";
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
// After a journal was put back, so that new numbers are above those of the life that is not in it.
constexpr uint64_t kNumbersLeftOut = 1000000;
// Snapshots without a subscriber for so long are dropped.
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
  return static_cast<int64_t>(Digest64(absl::StrCat(
      intent.row, " ", intent.key, " ", intent.present, " ", intent.persistent, " ", intent.payload,
      " ", intent.generation, " ", intent.owner, " ", absl::ToInt64Nanoseconds(intent.owner_ttl),
      " ", intent.owner_generation, intent.given_up ? " given up" : "")));
}

int64_t Checksum(const IntentJournal::Snapshot& snapshot) {
  return static_cast<int64_t>(
      Digest64(absl::StrCat(snapshot.selector.size(), " ", snapshot.selector, snapshot.event)));
}

}  // namespace

IntentJournal::IntentJournal(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::shared_ptr<IntentJournal>> IntentJournal::Open(Options options) {
  const std::string& dir = options.dir;
  const auto failure = [&dir](int error, const std::string& what) {
    const std::string message = absl::StrCat("state directory ", dir, ": ", what);
    return MayPass(error) ? absl::UnavailableError(message)
                          : absl::FailedPreconditionError(message);
  };
  if (const int error = options.disk->MakeFolder(dir, 0700); error != 0 && error != EEXIST) {
    return failure(error, absl::StrCat("cannot be created: ", std::strerror(error)));
  }
  FileInfo info;
  const int error = options.disk->Look(dir, &info);
  if (error != 0 || info.kind != FileInfo::Kind::kFolder) {
    return failure(error, "is not a directory");
  }
  auto lock = FileLock::Acquire(absl::StrCat(dir, "/lock"), options.disk);
  if (!lock.ok()) {
    const std::string message =
        absl::StrCat("state directory ", dir, ": ", std::string(lock.status().message()));
    if (absl::IsUnavailable(lock.status())) return absl::UnavailableError(message);
    return absl::FailedPreconditionError(message);
  }
  std::shared_ptr<IntentJournal> journal(new IntentJournal(std::move(options)));
  journal->lock_ = *std::move(lock);
  absl::Status opened = journal->WaitForDatabase();
  if (absl::IsDataLoss(opened)) {
    auto aside = journal->MoveAside();
    if (!aside.ok()) return aside.status();
    Log(LogLevel::kError, "the intent journal is damaged, and a new one is begun",
        {{"journal", journal->Path()},
         {"kept_as", *aside},
         {"error", std::string(opened.message())}});
    opened = journal->WaitForDatabase();
  }
  if (!opened.ok()) {
    return absl::Status(opened.code(), absl::StrCat("state directory ", journal->options_.dir, ": ",
                                                    std::string(opened.message())));
  }
  return journal;
}

IntentJournal::~IntentJournal() {
  Stop().IgnoreError();
  Close();
}

void IntentJournal::Close() {
  for (auto* statement : {&put_, &remove_, &put_meta_, &put_snapshot_, &drop_snapshot_})
    statement->reset();
  db_.reset();
  mark_.reset();
}

absl::Status IntentJournal::WaitForDatabase() {
  const Clock* const clock = Clock::Real();
  const int64_t end = clock->NowNanos() + absl::ToInt64Nanoseconds(options_.patience);
  bool logged = false;
  while (true) {
    absl::Status status = OpenDatabase();
    if (status.ok()) return status;
    Close();
    const absl::Duration left = absl::Nanoseconds(end - clock->NowNanos());
    if (!absl::IsUnavailable(status) || left <= absl::ZeroDuration()) return status;
    if (!std::exchange(logged, true)) {
      Log(LogLevel::kWarning, "the intent journal cannot be read yet, waiting",
          {{"journal", Path()},
           {"error", std::string(status.message())},
           {"at_most", absl::FormatDuration(options_.patience)}});
    }
    MutexLock lock(&mu_);
    changed_.WaitFor(&mu_, std::min(left, kLookAgain));
  }
}

absl::Status IntentJournal::OpenDatabase() {
  FileInfo info;
  if (options_.disk->Look(Path(), &info) == 0 && info.kind != FileInfo::Kind::kFile) {
    return absl::DataLossError(absl::StrCat(Path(), " is not a file"));
  }
  auto db = SqliteDatabase::Open(Path(), SqliteDatabase::Mode::kCreate, kKind, options_.disk);
  if (!db.ok()) return db.status();
  db_ = *std::move(db);
  for (const char* sql :
       {"PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 4000",
        options_.full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"}) {
    if (absl::Status status = db_->Execute(sql); !status.ok()) return status;
  }
  if (absl::Status status = CheckSchema(); !status.ok()) return status;
  if (absl::Status status = db_->CheckStructure("quick_check"); !status.ok()) return status;
  if (absl::Status status = Load(); !status.ok()) return status;
  if (absl::Status status = PrepareWrites(); !status.ok()) return status;
  if (absl::Status status = FindOutWhetherPutBack(); !status.ok()) return status;
  // What is in the log may be in the kernel's cache only, as of a store (SqliteStorage).
  FoldLog(db_->handle());
  return KeepIncarnation();
}

absl::Status IntentJournal::CheckSchema() {
  const auto tables = db_->QueryInt("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  created_ = *tables == 0;
  if (created_) {
    return db_->InTransaction([&]() -> absl::Status {
      return db_->Execute(absl::StrCat(kCreate, "PRAGMA application_id = ", kApplicationId,
                                       ";PRAGMA user_version = 1"));
    });
  }
  const auto id = db_->QueryInt("PRAGMA application_id");
  if (!id.ok()) return id.status();
  if (*id != kApplicationId) return db_->Damaged("it is another program's file");
  const auto version = db_->QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version < 1 || *version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(Path(), " has version ", *version,
                                                      ", and this program knows ", kSchemaVersion,
                                                      " at most"));
  }
  const auto known = db_->QueryInt(
      "SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'intents', 'snapshots')");
  if (!known.ok()) return known.status();
  return *known == 3 ? absl::OkStatus() : db_->Damaged("its tables are not there");
}

absl::Status IntentJournal::Load() {
  if (absl::Status status = LoadMeta(); !status.ok()) return status;
  if (absl::Status status = LoadIntents(); !status.ok()) return status;
  return LoadSnapshots();
}

absl::Status IntentJournal::LoadMeta() {
  incarnation_.clear();
  refused_.clear();
  last_generation_ = 0;
  writes_ = 0;
  auto meta = db_->Prepare("SELECT name, value FROM meta");
  if (!meta.ok()) return meta.status();
  int code;
  while ((code = (*meta)->Step()) == SQLITE_ROW) {
    const std::string_view name = (*meta)->Bytes(0);
    if (name == "incarnation") incarnation_ = std::string((*meta)->Bytes(1));
    if (name == kRefused) refused_ = std::string((*meta)->Bytes(1));
    if (name == "generation") last_generation_ = (*meta)->Uint(1);
    if (name == "writes") writes_ = (*meta)->Uint(1);
  }
  return code == SQLITE_DONE ? absl::OkStatus() : db_->Error(code);
}

absl::Status IntentJournal::LoadIntents() {
  intents_.clear();
  int64_t last_row = 0;
  auto rows = db_->Prepare(
      "SELECT row, key, present, persistent, payload, generation, owner,"
      " owner_ttl_nanos, owner_generation, checksum FROM intents ORDER BY row");
  if (!rows.ok()) return rows.status();
  int code;
  while ((code = (*rows)->Step()) == SQLITE_ROW) {
    const SqliteStatement& row = **rows;
    Intent& intent = intents_.emplace_back();
    intent.row = row.Int(0);
    intent.key = std::string(row.Bytes(1));
    intent.present = (row.Int(2) & 1) != 0;
    intent.given_up = (row.Int(2) & kGivenUp) != 0;
    intent.persistent = row.Int(3) != 0;
    intent.payload = std::string(row.Bytes(4));
    intent.generation = row.Uint(5);
    intent.owner = std::string(row.Bytes(6));
    intent.owner_ttl = absl::Nanoseconds(row.Int(7));
    intent.owner_generation = row.Uint(8);
    registry::v1::InstanceKey key;
    if (Checksum(intent) != row.Int(9) || !ParseCanonicalKey(intent.key, &key)) {
      return absl::DataLossError(absl::StrCat("row ", intent.row, " is damaged"));
    }
    last_row = std::max(last_row, intent.row);
    last_generation_ = std::max(last_generation_, intent.generation);
  }
  last_row_ = last_row;
  written_generation_ = last_generation_;
  return code == SQLITE_DONE ? absl::OkStatus() : db_->Error(code);
}

absl::Status IntentJournal::LoadSnapshots() {
  snapshots_.clear();
  const int64_t oldest = absl::ToUnixSeconds(absl::Now() - absl::Hours(24 * kSnapshotDays));
  auto rows = db_->Prepare(
      "SELECT selector, event, checksum FROM snapshots WHERE written >= ? ORDER BY written");
  if (!rows.ok()) return rows.status();
  (*rows)->Bind(1, oldest);
  int code;
  while ((code = (*rows)->Step()) == SQLITE_ROW) {
    Snapshot snapshot{std::string((*rows)->Bytes(0)), std::string((*rows)->Bytes(1))};
    // A cache: what is damaged is not there. 0.1.0 wrote the event's digest alone.
    const int64_t sum = (*rows)->Int(2);
    if (sum != Checksum(snapshot) && sum != static_cast<int64_t>(Digest64(snapshot.event))) {
      continue;
    }
    snapshots_.push_back(std::move(snapshot));
  }
  if (code != SQLITE_DONE) return db_->Error(code);
  auto old = db_->Prepare("DELETE FROM snapshots WHERE written < ?");
  if (!old.ok()) return old.status();
  (*old)->Bind(1, oldest);
  // A file that is only read for now is read all the same.
  code = (*old)->Run();
  Report(code == SQLITE_OK ? absl::OkStatus() : db_->Error(code));
  return absl::OkStatus();
}

absl::Status IntentJournal::PrepareWrites() {
  const std::pair<const char*, std::unique_ptr<SqliteStatement>*> statements[] = {
      {"INSERT OR REPLACE INTO intents (row, key, present, persistent, payload, generation,"
       " owner, owner_ttl_nanos, owner_generation, checksum)"
       " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
       &put_},
      {"DELETE FROM intents WHERE row = ?", &remove_},
      {"INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", &put_meta_},
      {"INSERT OR REPLACE INTO snapshots (selector, event, written, checksum)"
       " VALUES (?, ?, ?, ?)",
       &put_snapshot_},
      {"DELETE FROM snapshots WHERE selector = ?", &drop_snapshot_},
  };
  for (const auto& [sql, statement] : statements) {
    auto prepared = db_->Prepare(sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
  }
  return absl::OkStatus();
}

StoreMark::Position IntentJournal::Position() const {
  // A journal has one incarnation for as long as its numbers mean something.
  return {Digest64(named_), writes_};
}

absl::Status IntentJournal::FindOutWhetherPutBack() {
  auto mark = StoreMark::Open(Path(), kKind, options_.disk);
  if (!mark.ok()) return mark.status();
  mark_.emplace(*std::move(mark));
  was_put_back_ = false;
  if (created_ && !mark_->marks_this_file()) return absl::OkStatus();
  // An earlier version kept neither count nor mark.
  if (writes_ == 0 && !mark_->marked()) return absl::OkStatus();
  named_ = incarnation_;
  const std::optional<std::string> why = mark_->WhyNotContinued(Position());
  if (!why.has_value()) return absl::OkStatus();
  was_put_back_ = true;
  last_generation_ += kNumbersLeftOut;
  Log(LogLevel::kError,
      "the intent journal is not as it was last: the registry decides what of it still holds",
      {{"journal", Path()}, {"reason", *why}, {"intents", absl::StrCat(intents_.size())}});
  return absl::OkStatus();
}

absl::Status IntentJournal::KeepIncarnation() {
  const std::string before = incarnation_;
  if (!options_.incarnation.empty() && options_.incarnation != refused_) {
    incarnation_ = options_.incarnation;
  }
  if (incarnation_.empty()) incarnation_ = RandomId();
  if (incarnation_ != before) {
    const std::string name = "incarnation";
    put_meta_->BindText(1, name);
    put_meta_->BindText(2, incarnation_);
    const int code = put_meta_->Run();
    if (code != SQLITE_OK) return db_->Error(code);
  }
  named_ = incarnation_;
  // As long as what it holds is in doubt the mark is one that fits nothing, so that the next start
  // doubts it too.
  marks_ = !was_put_back_;
  ReportMark(mark_->PutDurably(was_put_back_ ? StoreMark::Position() : Position()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> IntentJournal::MoveAside() {
  Close();
  std::string aside;
  FileInfo info;
  for (int n = 1; aside.empty() || options_.disk->Look(aside, &info) == 0; ++n) {
    aside = absl::StrCat(Path(), ".corrupt-", n);
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    const std::string from = absl::StrCat(Path(), suffix);
    if (options_.disk->Look(from, &info) == ENOENT) continue;
    if (const int error = options_.disk->Rename(from, absl::StrCat(aside, suffix))) {
      return absl::FailedPreconditionError(absl::StrCat("state directory ", options_.dir, ": ",
                                                        from, " cannot be used, nor moved to ",
                                                        aside, ": ", std::strerror(error)));
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

void IntentJournal::Settle() {
  marks_.store(true, std::memory_order_relaxed);
  MutexLock lock(&mu_);
  queued_.settled = true;
  // The next life, which is in no doubt, is to leave out the same numbers.
  queued_.generation = std::max(queued_.generation, last_generation_);
  changed_.Signal();
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
    writing_.settled = writing_.settled || batch.settled;
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
      const bool unwritten = failing_ || !writing_.empty();
      if (unwritten && !stopping_ && options_.timer != nullptr) TryAgainLater();
      while (queued_.empty() && !try_again_ && !stopping_) changed_.Wait(&mu_);
      retry_.Cancel();
      if (stopping_) return;
    }
    // One that could not be written is tried without anything to write too: it shows that it can.
    if (!TakeBatch() && !failing_) continue;
    const uint64_t sequence = writing_.sequence;
    const absl::Status status = Write(writing_);
    if (status.ok()) writing_ = Batch();
    on_commit_(sequence, status);
  }
}

void IntentJournal::Flush() {
  // A caller notified of a write may ask for the next: that is made here, and one that failed not
  // at once.
  if (!options_.manual || flushing_) return;
  flushing_ = true;
  absl::Status status;
  while (status.ok() && TakeBatch()) {
    const uint64_t sequence = writing_.sequence;
    status = Write(writing_);
    if (status.ok()) writing_ = Batch();
    if (on_commit_) on_commit_(sequence, status);
  }
  flushing_ = false;
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
    FileInfo info;
    if (options_.disk->Look(absl::StrCat(Path(), suffix), &info) == 0) stats.bytes += info.bytes;
  }
  return stats;
}

absl::Status IntentJournal::Write(const Batch& batch) {
  const int64_t begin = Clock::Real()->NowNanos();
  absl::Status status = db_->InTransaction([&] { return WriteRows(batch); });
  if (status.ok()) {
    ++writes_;
    written_generation_ = std::max(written_generation_, batch.generation);
    if (const auto it = batch.meta.find("incarnation"); it != batch.meta.end()) named_ = it->second;
    if (marks_.load(std::memory_order_relaxed)) ReportMark(mark_->Put(Position()));
  } else {
    status = absl::UnavailableError(
        absl::StrCat("the intent journal cannot be written: ",
                     absl::StripPrefix(status.message(), absl::StrCat(kKind, " "))));
  }
  Report(status);
  MutexLock lock(&mu_);
  stats_.write_nanos.Observe(Clock::Real()->NowNanos() - begin);
  if (!batch.rows.empty()) stats_.group_intents.Observe(static_cast<int64_t>(batch.rows.size()));
  return status;
}

void IntentJournal::Report(const absl::Status& status) {
  const int64_t now = Clock::Real()->NowNanos();
  if (!status.ok() && outage_.Failed(now)) {
    Log(LogLevel::kError, "the intent journal cannot be written, trying on",
        {{"journal", Path()}, {"error", std::string(status.message())}});
  } else if (status.ok() && outage_.Worked(now)) {
    Log(LogLevel::kWarning, "the intent journal is written again", {{"journal", Path()}});
  }
  MutexLock lock(&mu_);
  if (!status.ok() && !failing_) stats_.error_since = absl::Now();
  failing_ = !status.ok();
  stats_.error = status;
}

void IntentJournal::ReportMark(const absl::Status& status) {
  if (!status.ok() && !mark_failed_) {
    Log(LogLevel::kWarning, "a journal that is put back may not be noticed",
        {{"error", std::string(status.message())}});
  }
  mark_failed_ = !status.ok();
}

absl::Status IntentJournal::WriteRows(const Batch& batch) {
  int code;
  const bool cancelled = std::any_of(batch.rows.begin(), batch.rows.end(), [](const auto& row) {
    return row.second.has_value() && row.second->given_up;
  });
  if (cancelled) {
    absl::Status status = db_->Execute(absl::StrCat("PRAGMA user_version = ", kSchemaVersion));
    if (!status.ok()) return status;
  }
  for (const auto& [row, intent] : batch.rows) {
    if (intent.has_value()) {
      put_->Bind(1, row);
      put_->BindBlob(2, intent->key);
      put_->Bind(3, int64_t{intent->present} | (intent->given_up ? kGivenUp : 0));
      put_->Bind(4, int64_t{intent->persistent});
      put_->BindBlob(5, intent->payload);
      put_->Bind(6, intent->generation);
      put_->BindText(7, intent->owner);
      put_->Bind(8, absl::ToInt64Nanoseconds(intent->owner_ttl));
      put_->Bind(9, intent->owner_generation);
      put_->Bind(10, Checksum(*intent));
      code = put_->Run();
    } else {
      remove_->Bind(1, row);
      code = remove_->Run();
    }
    if (code != SQLITE_OK) return db_->Error(code);
  }
  const auto put_number = [this](const char* name, uint64_t value) {
    const std::string text = name;
    put_meta_->BindText(1, text);
    put_meta_->Bind(2, value);
    return put_meta_->Run();
  };
  if ((code = put_number("writes", writes_ + 1)) != SQLITE_OK) return db_->Error(code);
  if (batch.generation > written_generation_ &&
      (code = put_number("generation", batch.generation)) != SQLITE_OK) {
    return db_->Error(code);
  }
  for (const auto& [name, value] : batch.meta) {
    put_meta_->BindText(1, name);
    put_meta_->BindText(2, value);
    if ((code = put_meta_->Run()) != SQLITE_OK) return db_->Error(code);
  }
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  for (const auto& [selector, event] : batch.snapshots) {
    if (event.empty()) {
      drop_snapshot_->BindBlob(1, selector);
      if ((code = drop_snapshot_->Run()) != SQLITE_OK) return db_->Error(code);
      continue;
    }
    put_snapshot_->BindBlob(1, selector);
    put_snapshot_->BindBlob(2, event);
    put_snapshot_->Bind(3, now);
    put_snapshot_->Bind(4, Checksum(Snapshot{selector, event}));
    if ((code = put_snapshot_->Run()) != SQLITE_OK) return db_->Error(code);
  }
  return absl::OkStatus();
}

}  // namespace failback
