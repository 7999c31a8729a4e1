#include "registry/store/store_maintenance.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/model/canonical.h"
#include "registry/model/instance_view.h"
#include "registry/store/sqlite/durability.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/sqlite/store_head.h"
#include "registry/store/sqlite/store_mark.h"
#include "registry/store/state.h"

namespace failback {
namespace {

constexpr int kPagesPerStep = 1024;

// What SQLite keeps beside a file and, whatever its age, reads as part of the file of that name.
constexpr const char* kLogs[] = {"-wal", "-journal"};

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

absl::Status SystemError(const std::string& path, const std::string& what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EEXIST:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<size_t>(slash, 1));
}

// Makes a file's content, or a folder's names, survive a power cut.
absl::Status Sync(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "cannot open");
  absl::Status status = fsync(fd) == 0 ? absl::OkStatus() : SystemError(path, "cannot sync");
  close(fd);
  return status;
}

// A file that is being made; removed, with what SQLite puts beside it, unless it was kept.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)) { Remove(); }
  ~Unfinished() { Remove(); }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const std::string& path() const { return path_; }

 private:
  void Remove() {
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) unlink((path_ + suffix).c_str());
  }

  const std::string path_;
};

// A store's file seen at one moment.
absl::StatusOr<std::unique_ptr<SqliteDatabase>> OpenSnapshot(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return SystemError(path, "cannot open");
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a file"));
  }
  if (access(path.c_str(), R_OK) != 0) return SystemError(path, "cannot be read");
  auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadOnly);
  if (!db.ok()) return db.status();
  if (auto status = (*db)->Execute("BEGIN"); !status.ok()) return status;
  // The first read begins the transaction.
  const auto version = StoreSchemaVersion(**db);
  if (!version.ok() && (*db)->last_error() == SQLITE_READONLY_ROLLBACK) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path,
                     ": a write was interrupted; start the registry on it once, which undoes it"));
  }
  if (!version.ok() && !absl::IsDataLoss(version.status()) &&
      access(FolderOf(path).c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(version.status().message(),
                     "; SQLite has to write a -shm beside the store, and its folder cannot be "
                     "written: name a copy of it, with its -wal, in a folder that can"));
  }
  if (!version.ok()) return version.status();
  if (*version == 0) return absl::FailedPreconditionError(absl::StrCat(path, ": holds no store"));
  return db;
}

absl::Status Copy(SqliteDatabase& from, SqliteDatabase& to, const CopyProgress& progress) {
  sqlite3_backup* const backup = sqlite3_backup_init(to.handle(), "main", from.handle(), "main");
  if (backup == nullptr) return to.Error(to.last_error());
  int code;
  do {
    code = sqlite3_backup_step(backup, kPagesPerStep);
    if (progress) {
      const int64_t total = sqlite3_backup_pagecount(backup);
      progress(total - sqlite3_backup_remaining(backup), total);
    }
  } while (code == SQLITE_OK);
  sqlite3_backup_finish(backup);
  return code == SQLITE_DONE ? absl::OkStatus() : to.Error(code);
}

// What a snapshot holds, as State reads it; each instance is decoded on the way.
class SnapshotStorage : public Storage {
 public:
  SnapshotStorage(SqliteDatabase* db, StoreHead head) : db_(db), head_(std::move(head)) {}

  StoreIdentity identity() const override { return head_.identity; }
  absl::Status Read(StoreReader* reader) override {
    Decoder decoder(reader);
    return ReadStoreRows(*db_, head_, /*restarted=*/false, &decoder);
  }
  absl::Status Write(const WriteSet& writes) override {
    return absl::FailedPreconditionError("a snapshot is not written");
  }
  bool blocks() const override { return true; }

 private:
  class Decoder : public StoreReader {
   public:
    explicit Decoder(StoreReader* next) : next_(next) {}
    absl::Status OnIncarnation(IncarnationRow row) override {
      return next_->OnIncarnation(std::move(row));
    }
    absl::Status OnSession(SessionRow row) override { return next_->OnSession(std::move(row)); }
    absl::Status OnRecord(RecordRow row) override {
      if (row.instance && !HoldsInstance(row)) {
        return absl::DataLossError(
            absl::StrCat("record ", row.id, " holds no instance of its key"));
      }
      return next_->OnRecord(std::move(row));
    }

   private:
    static bool HoldsInstance(const RecordRow& row) {
      registry::v1::ServiceInstance instance;
      if (instance.ParseFromArray(row.instance.data(), static_cast<int>(row.instance.size()))) {
        return CanonicalKey(instance.key()) == row.key;
      }
      // One whose text is not UTF-8 is left out by who loads the store, and no damage.
      EncodedInstance encoded;
      return ReadInstance(row.instance.view(), &encoded);
    }

    StoreReader* const next_;
  };

  SqliteDatabase* const db_;
  const StoreHead head_;
};

absl::Status CheckRows(SqliteDatabase& db, const StoreHead& head, StoreSummary* summary) {
  SnapshotStorage storage(&db, head);
  State state{State::Options()};
  if (auto status = state.Load(&storage, Moment()); !status.ok()) return status;
  if (auto status = state.CheckInvariants(); !status.ok()) {
    return db.Damaged(std::string(status.message()));
  }
  summary->identity = head.identity;
  summary->services = state.services();
  summary->instances = state.instances();
  summary->tombstones = state.tombstones();
  summary->sessions = state.sessions();
  summary->incarnations = state.incarnations();
  return absl::OkStatus();
}

absl::Status CheckRows(SqliteDatabase& db, StoreSummary* summary) {
  auto head = ReadStoreHead(db);
  if (!head.ok()) return head.status();
  return CheckRows(db, *head, summary);
}

absl::StatusOr<StoreSummary> CheckAll(const std::string& path) {
  auto db = OpenSnapshot(path);
  if (!db.ok()) return db.status();
  StoreSummary summary;
  const auto version = StoreSchemaVersion(**db);
  if (!version.ok()) return version.status();
  summary.schema = *version;
  struct stat info;
  if (stat(path.c_str(), &info) == 0) summary.bytes = info.st_size;
  if (auto status = (*db)->CheckStructure("integrity_check"); !status.ok()) return status;
  if (*version == kStoreSchemaVersion) {
    if (auto status = CheckRows(**db, &summary); !status.ok()) return status;
    return summary;
  }
  // An older one is read as it will be when it has been migrated.
  auto migrated = SqliteDatabase::Open("", SqliteDatabase::Mode::kCreate);
  if (!migrated.ok()) return migrated.status();
  if (auto status = Copy(**db, **migrated, nullptr); !status.ok()) return status;
  if (auto status = MigrateStore(**migrated, *version, {}); !status.ok()) return status;
  if (auto status = CheckRows(**migrated, &summary); !status.ok()) return status;
  return summary;
}

// Whether all that is wrong with the store at `path` is that its rows are of several commits, as a
// power cut leaves them where nothing is synced, and a start takes them (SqliteStorage::ReadStore).
bool IsMendedByAStart(const std::string& path) {
  auto db = OpenSnapshot(path);
  if (!db.ok()) return false;
  const auto version = StoreSchemaVersion(**db);
  if (!version.ok() || *version != kStoreSchemaVersion) return false;
  auto head = ReadStoreHead(**db);
  if (!head.ok() || head->durability != Durability::kOff) return false;
  if (!MayHaveLostCommits(*head, KernelBootId())) return false;
  head->row_sum.reset();
  StoreSummary summary;
  return (*db)->CheckStructure("integrity_check").ok() && CheckRows(**db, *head, &summary).ok();
}

// What an operator is to know of the store at `path`, which is damaged as `damage` says.
absl::Status WhatToDo(const std::string& path, const absl::Status& damage) {
  if (!IsMendedByAStart(path)) return damage;
  return absl::FailedPreconditionError(absl::StrCat(
      "store ", path, ": the machine went down while a registry wrote to it with durability off, ",
      "and its rows are of several commits; start the registry on it once, which goes on with ",
      "them in a new epoch"));
}

// Makes a copy one file, complete in itself: without a -wal beside it.
absl::Status MakeOneFile(SqliteDatabase& copy) {
  return copy.Execute("PRAGMA journal_mode=DELETE");
}

// Begins a new epoch in a copy, and brings it to this program's schema.
absl::Status BeginEpoch(SqliteDatabase& copy) {
  const auto version = StoreSchemaVersion(copy);
  if (!version.ok()) return version.status();
  if (auto status = MigrateStore(copy, *version, {}); !status.ok()) return status;
  auto head = ReadStoreHead(copy);
  if (!head.ok()) return head.status();
  BeginNewEpoch(&*head);
  head->clean = true;
  return copy.InTransaction([&] {
    auto status = RestartRevisions(copy, &*head);
    return status.ok() ? WriteStoreHead(copy, *head) : status;
  });
}

// Copies the store at `from` to the new file `to`, has `change` change the copy, and reads it back.
absl::StatusOr<StoreSummary> CopyStore(
    const std::string& from, const std::string& to, const CopyProgress& progress,
    const std::function<absl::Status(SqliteDatabase& copy)>& change) {
  const auto make = [&]() -> absl::Status {
    auto source = OpenSnapshot(from);
    if (!source.ok()) return source.status();
    auto copy = SqliteDatabase::Open(to, SqliteDatabase::Mode::kCreate);
    if (!copy.ok()) return copy.status();
    if (auto status = Copy(**source, **copy, progress); !status.ok()) return status;
    if (auto status = change(**copy); !status.ok()) return status;
    return MakeOneFile(**copy);
  };
  const absl::Status made = make();
  auto summary = made.ok() ? CheckAll(to) : absl::StatusOr<StoreSummary>(made);
  if (!absl::IsDataLoss(summary.status())) return summary;
  // The copy is damaged as what it is a copy of, and goes.
  return WhatToDo(
      from, absl::DataLossError(absl::StrReplaceAll(summary.status().message(), {{to, from}})));
}

// Folds the log of the store at `path`, which is about to be replaced, into its file. What is
// damaged stays as it is, its log beside it.
absl::Status FoldIn(const std::string& path) {
  struct stat info;
  // SQLite takes the log of an empty file for an old one, and removes it.
  if (stat(path.c_str(), &info) != 0 || info.st_size == 0) return absl::OkStatus();
  auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadWrite);
  if (!db.ok()) return db.status();
  // Alone with it. It stays in WAL mode: a change of that needs a journal, and if it is killed
  // there the file cannot be read before a writer has undone it.
  absl::Status status = (*db)->Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (status.ok()) status = (*db)->QueryInt("SELECT count(*) FROM sqlite_master").status();
  if (status.ok()) status = (*db)->Execute("PRAGMA wal_checkpoint(TRUNCATE)");
  if (status.ok() || absl::IsDataLoss(status)) return absl::OkStatus();
  if (((*db)->last_error() & 0xff) == SQLITE_BUSY) {
    return absl::FailedPreconditionError(absl::StrCat(
        "store ", path, ": is in use: another program has it open; end that, and try again"));
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; to give it up, move it away first"));
}

// Gives the files `path` and beside it other names, so that nothing of them is taken for a part of
// what comes to `path`: the new name, empty if there was nothing. `path` itself stays until then.
absl::StatusOr<std::string> PutAside(const std::string& path) {
  if (auto status = FoldIn(path); !status.ok()) return status;
  std::vector<std::string> found;
  if (Exists(path)) found.emplace_back();
  for (const char* log : kLogs) {
    if (Exists(path + log)) found.emplace_back(log);
  }
  if (found.empty()) return "";
  const auto free = [&](const std::string& name) {
    return std::none_of(found.begin(), found.end(),
                        [&](const std::string& end) { return Exists(name + end); });
  };
  const std::string name = absl::StrCat(
      path, ".replaced-", absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone()));
  std::string aside = name;
  for (int i = 2; !free(aside); ++i) aside = absl::StrCat(name, "-", i);
  for (const std::string& end : found) {
    if (link((path + end).c_str(), (aside + end).c_str()) != 0) {
      return SystemError(path + end, absl::StrCat("cannot be kept as ", aside, end));
    }
  }
  if (auto status = Sync(FolderOf(path)); !status.ok()) return status;
  for (const char* end : {"-wal", "-journal", "-shm"}) {
    if (unlink((path + end).c_str()) != 0 && errno != ENOENT) {
      return SystemError(path + end, "cannot be removed");
    }
  }
  // A power cut must not bring a log back beside the new file.
  if (auto status = Sync(FolderOf(path)); !status.ok()) return status;
  return aside + found[0];
}

// Says that the file at `path` is the store that goes on, so that its epoch holds.
absl::Status MarkContinued(const std::string& path) {
  auto db = OpenSnapshot(path);
  if (!db.ok()) return db.status();
  const auto head = ReadStoreHead(**db);
  if (!head.ok()) return head.status();
  auto mark = StoreMark::Open(path);
  if (!mark.ok()) return mark.status();
  return mark->PutDurably({head->identity.epoch, head->writes});
}

// The new file `to` is for whom the old one, if there is one, was.
absl::Status TakeOwner(const std::string& from, const std::string& to) {
  struct stat info;
  if (stat(from.c_str(), &info) != 0) return absl::OkStatus();
  struct stat made;
  if (stat(to.c_str(), &made) != 0) return SystemError(to, "cannot be read");
  if ((made.st_uid != info.st_uid || made.st_gid != info.st_gid) &&
      lchown(to.c_str(), info.st_uid, info.st_gid) != 0) {
    return SystemError(to, absl::StrCat("cannot be given to user ", info.st_uid, " and group ",
                                        info.st_gid, ", as ", from, " is; run this as that user"));
  }
  if (chmod(to.c_str(), info.st_mode & 0777) != 0) return SystemError(to, "cannot get its mode");
  return absl::OkStatus();
}

// What root has made for a store in another user's folder is that user's, who is to run the
// registry.
void GiveToOwnerOfFolder(const std::string& path) {
  struct stat info;
  struct stat file;
  if (geteuid() != 0 || stat(FolderOf(path).c_str(), &info) != 0) return;
  if (lstat(path.c_str(), &file) != 0 || file.st_uid != 0) return;
  if (lchown(path.c_str(), info.st_uid, info.st_gid) != 0) return;  // as root has made it
}

}  // namespace

absl::StatusOr<StoreSummary> CheckStore(const std::string& path) {
  auto summary = CheckAll(path);
  if (absl::IsDataLoss(summary.status())) return WhatToDo(path, summary.status());
  return summary;
}

absl::StatusOr<StoreSummary> BackUpStore(const std::string& from, const std::string& to,
                                         const CopyProgress& progress) {
  if (Exists(to)) {
    return absl::FailedPreconditionError(absl::StrCat(to, ": is there already; give a new name"));
  }
  for (const char* log : kLogs) {
    if (Exists(to + log)) {
      return absl::FailedPreconditionError(absl::StrCat(
          to, log, ": is there already, and would be read as part of the backup; remove it"));
    }
  }
  if (access(FolderOf(to).c_str(), W_OK | X_OK) != 0) return SystemError(to, "cannot be made");
  const Unfinished unfinished(absl::StrCat(to, ".partial-", getpid()));
  auto summary = CopyStore(from, unfinished.path(), progress,
                           [](SqliteDatabase&) { return absl::OkStatus(); });
  if (!summary.ok()) return summary;
  if (auto status = Sync(unfinished.path()); !status.ok()) return status;
  if (link(unfinished.path().c_str(), to.c_str()) != 0) return SystemError(to, "cannot create");
  if (auto status = Sync(FolderOf(to)); !status.ok()) return status;
  return summary;
}

absl::StatusOr<RestoredStore> RestoreStore(const std::string& from, const std::string& to,
                                           const CopyProgress& progress) {
  auto lock = LockStore(to);
  if (!lock.ok()) return lock.status();
  const std::string file = StoreFileOf(to);
  struct stat info;
  if (!Exists(file) && lstat(file.c_str(), &info) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "store ", to, ": is a symbolic link to a file that is not there; mount its disk, or ",
        "remove the link"));
  }
  const Unfinished unfinished(file + ".restoring");
  auto summary = CopyStore(from, unfinished.path(), progress, BeginEpoch);
  if (!summary.ok()) return summary.status();
  RestoredStore restored;
  restored.store = *std::move(summary);
  // Before the old one is touched.
  if (auto status = TakeOwner(file, unfinished.path()); !status.ok()) return status;
  if (auto status = Sync(unfinished.path()); !status.ok()) return status;
  auto replaced = PutAside(file);
  if (!replaced.ok()) return replaced.status();
  restored.replaced = *std::move(replaced);
  if (rename(unfinished.path().c_str(), file.c_str()) != 0) {
    return SystemError(file, "cannot be replaced");
  }
  absl::Status kept = Sync(FolderOf(file));
  if (kept.ok()) kept = MarkContinued(to);
  if (!kept.ok()) {
    return absl::Status(kept.code(), absl::StrCat(kept.message(), "; the backup is in its place, ",
                                                  "and a start begins one more epoch"));
  }
  for (const std::string& path : {file, file + ".lock", StoreMark::PathOf(to)}) {
    GiveToOwnerOfFolder(path);
  }
  return restored;
}

}  // namespace failback
