#include "registry/store/sqlite/sqlite_storage.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"
#include "registry/model/ids.h"
#include "registry/store/sqlite/epoch.h"
#include "registry/store/sqlite/sqlite_log.h"

namespace failback {
namespace {

const char* SynchronousPragma(Durability durability) {
  switch (durability) {
    case Durability::kFull:
      return "PRAGMA synchronous=FULL";
    case Durability::kNormal:
      return "PRAGMA synchronous=NORMAL";
    case Durability::kOff:
      return "PRAGMA synchronous=OFF";
  }
  return "PRAGMA synchronous=FULL";
}

}  // namespace

std::string KernelBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

bool MayHaveLostCommits(const StoreHead& head, const std::string& boot_id) {
  const bool same_boot = !boot_id.empty() && head.boot_id == boot_id;
  return !head.clean && !same_boot && head.durability != Durability::kFull;
}

std::string StoreFileOf(const std::string& path, Disk* disk) { return disk->Resolve(path); }

absl::StatusOr<FileLock> LockStore(const std::string& path, Disk* disk) {
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  FileInfo info;
  if (const int error = disk->Look(folder, &info)) {
    const std::string message =
        absl::StrCat("store ", path, ": folder ", folder, ": ", std::strerror(error));
    if (MayPass(error)) return absl::UnavailableError(message);
    return absl::NotFoundError(absl::StrCat(message, "; make it: ", HowToMakeFolder(folder)));
  }
  if (info.kind != FileInfo::Kind::kFolder) {
    return absl::NotFoundError(absl::StrCat("store ", path, ": ", folder, " is not a folder"));
  }
  if (disk->Look(path, &info) == 0 && info.kind != FileInfo::Kind::kFile) {
    return absl::FailedPreconditionError(absl::StrCat("store ", path, ": is not a file"));
  }
  auto lock = FileLock::Acquire(StoreFileOf(path, disk) + ".lock", disk);
  if (absl::IsUnavailable(lock.status())) {
    return absl::UnavailableError(absl::StrCat("store ", path, ": ", lock.status().message()));
  }
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path, ": is in use: ", lock.status().message()));
  }
  if (!lock.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("store ", path, ": cannot write to its folder: ", lock.status().message()));
  }
  return lock;
}

absl::StatusOr<std::unique_ptr<SqliteStorage>> SqliteStorage::Open(Options options) {
  std::unique_ptr<SqliteStorage> storage(new SqliteStorage(std::move(options)));
  auto lock = LockStore(storage->options_.path, storage->options_.disk);
  if (!lock.ok()) return lock.status();
  storage->lock_ = *std::move(lock);
  if (auto status = storage->OpenDatabase(); !status.ok()) return status;
  return storage;
}

SqliteStorage::SqliteStorage(Options options) : options_(std::move(options)) {
  if (options_.boot_id.empty()) options_.boot_id = KernelBootId();
}

SqliteStorage::~SqliteStorage() {
  if (!marked_ || !db_->Execute("PRAGMA synchronous=FULL").ok()) return;
  // Where nothing is synced, what was folded may be in the file alone, and not on the disk: the log
  // has started over, or does so with the head that says that all is there.
  if (options_.durability == Durability::kOff) {
    checkpointer_.reset();  // nothing is folded behind the sync
    if (!db_->Sync().ok()) return;
  }
  head_.clean = true;
  WriteStoreHead(*db_, head_).IgnoreError();
}

absl::Status SqliteStorage::Connect() {
  db_.reset();
  auto db =
      SqliteDatabase::Open(options_.path, SqliteDatabase::Mode::kCreate, "store", options_.disk);
  if (!db.ok()) return db.status();
  db_ = *std::move(db);
  return absl::OkStatus();
}

absl::Status SqliteStorage::OpenDatabase() {
  if (auto status = Connect(); !status.ok()) return status;
  absl::StatusOr<int> version = StoreSchemaVersion(*db_);
  if (const int code = db_->last_error();
      code == SQLITE_IOERR_SHMOPEN || code == SQLITE_IOERR_SHMSIZE) {
    // A full disk has no room for the -shm file. Alone with the store one can do without.
    if (auto status = Connect(); !status.ok()) return status;
    if (auto status = db_->Execute("PRAGMA locking_mode=EXCLUSIVE"); !status.ok()) return status;
    alone_ = true;
    version = StoreSchemaVersion(*db_);
  }
  if (!version.ok()) return version.status();
  const bool created = *version == 0;
  // WAL is a property of the file; a file that cannot be written keeps what it has.
  absl::Status wal = db_->Execute("PRAGMA journal_mode=WAL");
  if (!wal.ok() && created) return wal;
  for (const char* pragma : {"PRAGMA journal_size_limit=67108864", "PRAGMA cache_size=-4096",
                             "PRAGMA temp_store=MEMORY"}) {
    if (auto status = db_->Execute(pragma); !status.ok()) return status;
  }
  // Where not every commit is synced, room in the log gains nothing.
  db_->AttachLog(/*keep_room=*/options_.durability == Durability::kFull);
  head_.identity = {RandomId(), NewEpoch(), 0, 1};
  head_.boot_id = options_.boot_id;
  head_.durability = options_.durability;
  if (auto status = MigrateStore(*db_, *version, head_); !status.ok()) return status;
  auto mark = StoreMark::Open(options_.path, "store", options_.disk);
  if (!mark.ok()) return mark.status();
  mark_.emplace(*std::move(mark));
  if (created && mark_->marked()) {
    Log(LogLevel::kWarning,
        "the store has gone and its mark is still there: an empty store and a new epoch begin, "
        "agents send everything again, and what nothing sends again is lost",
        {{"store", options_.path}, {"mark", StoreMark::PathOf(options_.path)}});
  }
  if (auto status = ReadStore(created); !status.ok()) return status;
  // What an earlier life has left in the log is written again, to its place. Linux takes the pages
  // of a sync that has failed for clean: they may be in its cache only, and a commit behind them in
  // the log would be lost with them.
  FoldLog(db_->handle());
  if (auto status = MarkOpen(); !status.ok() && created) return status;
  auto rows = StoreRowWriter::Create(db_.get());
  if (!rows.ok()) return rows.status();
  rows_ = *std::move(rows);
  auto beside = ConnectBeside();
  if (!beside.ok()) {
    Log(LogLevel::kWarning, "checkpoints of the store will hold up its commits",
        {{"store", options_.path}, {"error", std::string(beside.status().message())}});
  }
  checkpointer_ =
      std::make_unique<SqliteCheckpointer>(db_.get(), beside.ok() ? *std::move(beside) : nullptr,
                                           options_.checkpoint_pages, options_.executor);
  return absl::OkStatus();
}

// A second connection, for checkpoints; null if there can be none.
absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteStorage::ConnectBeside() const {
  if (alone_) return nullptr;
  auto db =
      SqliteDatabase::Open(options_.path, SqliteDatabase::Mode::kReadWrite, "store", options_.disk);
  if (!db.ok()) return db.status();
  if (auto status = (*db)->Execute(SynchronousPragma(options_.durability)); !status.ok()) {
    return status;
  }
  // A connection that has read nothing does not know that there is a log.
  if (auto tables = (*db)->QueryInt("SELECT count(*) FROM sqlite_master"); !tables.ok()) {
    return tables.status();
  }
  return db;
}

// The store's head, with a new epoch if commits that clients know of may be missing.
absl::Status SqliteStorage::ReadStore(bool created) {
  auto head = ReadStoreHead(*db_);
  if (!head.ok()) return head.status();
  head_ = *std::move(head);
  const bool lossy = MayHaveLostCommits(head_, options_.boot_id);
  std::optional<std::string> why;
  if (!created) why = mark_->WhyNotContinued({head_.identity.epoch, head_.writes});
  if (lossy) why = "commits may have been lost with the machine";
  if (!why.has_value()) return absl::OkStatus();
  if (lossy && head_.durability == Durability::kOff) {
    // Nothing was synced: the file itself may have been torn, and its rows be of different commits.
    if (auto status = db_->CheckStructure("quick_check"); !status.ok()) return status;
    head_.row_sum.reset();
  }
  minted_ = true;
  BeginNewEpoch(&head_);
  Log(LogLevel::kWarning, "the store is not as it was last: a new epoch begins",
      {{"store", options_.path}, {"epoch", absl::StrCat(head_.identity.epoch)}, {"reason", *why}});
  return absl::OkStatus();
}

// Says in the file, durably and before anything else is written, that a life has begun.
absl::Status SqliteStorage::MarkOpen() {
  if (auto status = db_->Execute("PRAGMA synchronous=FULL"); !status.ok()) return status;
  StoreHead head = head_;
  head.boot_id = options_.boot_id;
  head.clean = false;
  head.durability = options_.durability;
  absl::Status status = db_->InTransaction([&]() -> absl::Status {
    if (minted_) {
      if (auto status = RestartRevisions(*db_, &head); !status.ok()) return status;
    }
    return WriteStoreHead(*db_, head);
  });
  if (status.ok()) head_ = head;
  if (status.ok() && options_.durability == Durability::kOff) status = FoldOpening();
  // Killed before this, a new epoch that no client has seen is followed by another one.
  if (status.ok()) status = mark_->PutDurably({head_.identity.epoch, head_.writes});
  if (status.ok()) status = db_->Execute(SynchronousPragma(options_.durability));
  marked_ = status.ok();
  store_file_ = Identity(options_.path);
  log_file_ = Identity(options_.path + "-wal");
  return status;
}

// Where nothing is synced the log starts over before the file has what was in it, and a power cut
// may leave neither: so the file itself has to say that a life has begun.
absl::Status SqliteStorage::FoldOpening() {
  const int64_t folded = FoldLog(db_->handle());
  if (folded >= db_->log().pages()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("store ", options_.path, ": its log cannot be folded into it now"));
}

FileIdentity SqliteStorage::Identity(const std::string& path) const {
  FileIdentity identity;
  return options_.disk->Identify(path, &identity) == 0 ? identity : FileIdentity();
}

absl::Status SqliteStorage::CheckInPlace() const {
  const std::string log = options_.path + "-wal";
  const std::string* const missing = !(Identity(options_.path) == store_file_) ? &options_.path
                                     : !(Identity(log) == log_file_)           ? &log
                                                                               : nullptr;
  if (missing == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "store ", options_.path, ": ", *missing,
      " has been moved, removed or replaced while it is open: put it back, or restore a backup; "
      "a restart without it begins an empty store"));
}

absl::Status SqliteStorage::Read(StoreReader* reader) {
  return ReadStoreRows(*db_, head_, minted_, reader);
}

absl::Status SqliteStorage::Write(const WriteSet& writes) {
  if (!marked_) {
    if (auto status = MarkOpen(); !status.ok()) return status;
  }
  if (auto status = CheckInPlace(); !status.ok()) return status;
  StoreHead head = head_;
  head.identity.revision = writes.revision;
  head.identity.next_rank = writes.next_rank;
  ++head.writes;
  absl::Status status = db_->InTransaction([&] { return rows_->Write(writes, &head); });
  if (!status.ok()) return status;
  head_ = std::move(head);
  const absl::Status marked = mark_->Put({head_.identity.epoch, head_.writes});
  if (!marked.ok() && !mark_failed_) {
    Log(LogLevel::kWarning, "a store that is put back may not be noticed",
        {{"error", std::string(marked.message())}});
  }
  mark_failed_ = !marked.ok();
  checkpointer_->AfterCommit();
  return absl::OkStatus();
}

std::vector<Storage::File> SqliteStorage::Files() const {
  const auto size_of = [this](const std::string& path) {
    FileInfo info;
    return options_.disk->Look(path, &info) == 0 ? info.bytes : 0;
  };
  return {{"store", size_of(options_.path)}, {"log", size_of(options_.path + "-wal")}};
}

}  // namespace failback
