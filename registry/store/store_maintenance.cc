#include "registry/store/store_maintenance.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/canonical.h"
#include "registry/instance_view.h"
#include "registry/store/sqlite_database.h"
#include "registry/store/sqlite_storage.h"
#include "registry/store/state.h"
#include "registry/store/store_mark.h"

namespace failback {
namespace {

constexpr int kPagesPerStep = 1024;

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

absl::Status CheckRows(SqliteDatabase& db, StoreSummary* summary) {
  auto head = ReadStoreHead(db);
  if (!head.ok()) return head.status();
  SnapshotStorage storage(&db, *head);
  State state{State::Options()};
  if (auto status = state.Load(&storage, Moment()); !status.ok()) return status;
  if (auto status = state.CheckInvariants(); !status.ok()) {
    return db.Damaged(std::string(status.message()));
  }
  summary->identity = head->identity;
  summary->services = state.services();
  summary->instances = state.instances();
  summary->tombstones = state.tombstones();
  summary->sessions = state.sessions();
  summary->incarnations = state.incarnations();
  return absl::OkStatus();
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
    auto status = RestartRevisions(copy);
    return status.ok() ? WriteStoreHead(copy, *head) : status;
  });
}

// Moves the store at `path` aside; its new name.
absl::StatusOr<std::string> PutAside(const std::string& path) {
  // Folds its -wal in, where it can be read at all.
  if (auto db = SqliteDatabase::Open(path, SqliteDatabase::Mode::kReadWrite); db.ok()) {
    (*db)->Execute("PRAGMA wal_checkpoint(TRUNCATE)").IgnoreError();
  }
  const std::string stamp = absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone());
  std::string aside = absl::StrCat(path, ".replaced-", stamp);
  for (int i = 2; link(path.c_str(), aside.c_str()) != 0; ++i) {
    if (errno != EEXIST) return SystemError(aside, "cannot keep the replaced store");
    aside = absl::StrCat(path, ".replaced-", stamp, "-", i);
  }
  // What could not be folded in stays with it; beside the new file it would be taken for its own.
  const std::string wal = path + "-wal";
  if (Exists(wal) && link(wal.c_str(), (aside + "-wal").c_str()) != 0) {
    return SystemError(aside + "-wal", "cannot keep the replaced store's log");
  }
  if (auto status = Sync(FolderOf(path)); !status.ok()) return status;
  unlink(wal.c_str());
  unlink((path + "-shm").c_str());
  return aside;
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

// The new file belongs to whom the old one belonged to.
void TakeOwner(const std::string& from, const std::string& to) {
  struct stat info;
  if (stat(from.c_str(), &info) != 0) return;
  chmod(to.c_str(), info.st_mode & 07777);
  if (lchown(to.c_str(), info.st_uid, info.st_gid) != 0) return;  // not root: it is ours already
}

// What root has made for a store in somebody's folder is that user's, who is to run the registry.
void GiveToOwnerOfFolder(const std::string& store) {
  struct stat info;
  if (geteuid() != 0 || stat(FolderOf(store).c_str(), &info) != 0) return;
  for (const std::string& path : {store, StoreMark::PathOf(store), store + ".lock"}) {
    struct stat file;
    if (lstat(path.c_str(), &file) != 0 || file.st_uid != 0) continue;
    if (lchown(path.c_str(), info.st_uid, info.st_gid) != 0) return;
  }
}

}  // namespace

absl::StatusOr<StoreSummary> CheckStore(const std::string& path) {
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

absl::StatusOr<StoreSummary> BackUpStore(const std::string& from, const std::string& to,
                                         const CopyProgress& progress) {
  if (Exists(to)) {
    return absl::FailedPreconditionError(absl::StrCat(to, ": is there already; give a new name"));
  }
  if (access(FolderOf(to).c_str(), W_OK | X_OK) != 0) return SystemError(to, "cannot be made");
  auto source = OpenSnapshot(from);
  if (!source.ok()) return source.status();
  const Unfinished unfinished(absl::StrCat(to, ".partial-", getpid()));
  {
    auto copy = SqliteDatabase::Open(unfinished.path(), SqliteDatabase::Mode::kCreate);
    if (!copy.ok()) return copy.status();
    if (auto status = Copy(**source, **copy, progress); !status.ok()) return status;
    if (auto status = MakeOneFile(**copy); !status.ok()) return status;
  }
  auto summary = CheckStore(unfinished.path());
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
  RestoredStore restored;
  const Unfinished unfinished(to + ".restoring");
  {
    auto source = OpenSnapshot(from);
    if (!source.ok()) return source.status();
    auto copy = SqliteDatabase::Open(unfinished.path(), SqliteDatabase::Mode::kCreate);
    if (!copy.ok()) return copy.status();
    if (auto status = Copy(**source, **copy, progress); !status.ok()) return status;
    if (auto status = BeginEpoch(**copy); !status.ok()) return status;
    if (auto status = MakeOneFile(**copy); !status.ok()) return status;
  }
  auto summary = CheckStore(unfinished.path());
  if (!summary.ok()) return summary.status();
  restored.store = *std::move(summary);
  // Before the old one is touched.
  if (auto status = Sync(unfinished.path()); !status.ok()) return status;
  if (Exists(to)) {
    TakeOwner(to, unfinished.path());
    auto aside = PutAside(to);
    if (!aside.ok()) return aside.status();
    restored.replaced = *std::move(aside);
  }
  if (rename(unfinished.path().c_str(), to.c_str()) != 0) return SystemError(to, "cannot replace");
  if (auto status = Sync(FolderOf(to)); !status.ok()) return status;
  if (auto status = MarkContinued(to); !status.ok()) return status;
  GiveToOwnerOfFolder(to);
  return restored;
}

}  // namespace failback
