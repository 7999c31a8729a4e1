#include "tests/simulate/disk/lying_vfs.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

namespace failback {

// One that SQLite has open. SQLite has room for the first two members only.
struct LyingVfs::File {
  sqlite3_file base;  // first: what SQLite sees
  struct Body {
    LyingDisk* disk;
    std::string path;
    NodePtr node;
    uint64_t life;
    bool syncs_names;  // its name is to be on the disk with its first sync
    bool goes;         // with its close
    int level = SQLITE_LOCK_NONE;
    std::shared_ptr<LyingDisk::Shared> shared;
    int shared_slots = 0;  // bits
    int own_slots = 0;

    bool dead() const { return life != disk->life_; }
  };
  Body* body;
};

namespace {

constexpr int kLockSlots = 8;

}  // namespace

LyingVfs::File* LyingVfs::Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }

int LyingVfs::Code(LyingDisk* disk, int error, int what) {
  disk->vfs_->last_error_ = error;
  switch (error) {
    case 0:
      return SQLITE_OK;
    case ENOSPC:
      return what == SQLITE_CANTOPEN ? what : SQLITE_FULL;
    case EBUSY:
      return SQLITE_BUSY;
    case EDEADLK:
      return SQLITE_LOCKED;
    default:
      return what;
  }
}

LyingVfs::LyingVfs(LyingDisk* disk) : disk_(disk) {
  vfs_.iVersion = 2;
  vfs_.szOsFile = sizeof(File);
  vfs_.mxPathname = 512;
  vfs_.zName = disk->vfs_name_.c_str();
  vfs_.pAppData = disk;
  vfs_.xOpen = &Open;
  vfs_.xDelete = &Delete;
  vfs_.xAccess = &Access;
  vfs_.xFullPathname = &FullPathname;
  vfs_.xRandomness = &Randomness;
  vfs_.xSleep = &Sleep;
  vfs_.xCurrentTime = &CurrentTime;
  vfs_.xCurrentTimeInt64 = &CurrentTimeInt64;
  vfs_.xGetLastError = &LastError;
  sqlite3_vfs_register(&vfs_, /*makeDflt=*/0);
}

LyingVfs::~LyingVfs() { sqlite3_vfs_unregister(&vfs_); }

const sqlite3_io_methods LyingVfs::kMethods = {2,
                                               &Close,
                                               &Read,
                                               &Write,
                                               &Truncate,
                                               &Sync,
                                               &FileSize,
                                               &Lock,
                                               &Unlock,
                                               &CheckReserved,
                                               &FileControl,
                                               &SectorSize,
                                               &Characteristics,
                                               &SharedMap,
                                               &SharedLock,
                                               &SharedBarrier,
                                               &SharedUnmap,
                                               nullptr,
                                               nullptr};

int LyingVfs::Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out) {
  LyingDisk* const disk = DiskOf(vfs);
  file->pMethods = nullptr;
  const std::string path = name == nullptr ? "" : name;
  if (const int error = disk->Fault(LyingDisk::Call::kOpen, path)) {
    return Code(disk, error, SQLITE_CANTOPEN);
  }
  NodePtr node = path.empty() ? std::make_shared<LyingDisk::Node>() : disk->Find(path);
  if (node == nullptr) {
    if ((flags & SQLITE_OPEN_CREATE) == 0) return Code(disk, ENOENT, SQLITE_CANTOPEN);
    if (disk->faults_.full) return Code(disk, ENOSPC, SQLITE_CANTOPEN);
    node = disk->Make(path, /*folder=*/false);
  }
  if (node->folder) return Code(disk, EISDIR, SQLITE_CANTOPEN);
  // As SQLite's own: it syncs the folder of a journal or a log that it may have made.
  const bool syncs_names = (flags & SQLITE_OPEN_CREATE) != 0 &&
                           (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) != 0;
  Of(file)->body =
      new File::Body{disk,        path,        std::move(node),
                     disk->life_, syncs_names, (flags & SQLITE_OPEN_DELETEONCLOSE) != 0};
  file->pMethods = &kMethods;
  if (out != nullptr) *out = flags;
  return SQLITE_OK;
}

int LyingVfs::Delete(sqlite3_vfs* vfs, const char* name, int sync_folder) {
  LyingDisk* const disk = DiskOf(vfs);
  const int error = disk->RemoveName(name, sync_folder != 0);
  return error == ENOENT ? SQLITE_IOERR_DELETE_NOENT : Code(disk, error, SQLITE_IOERR_DELETE);
}

int LyingVfs::Access(sqlite3_vfs* vfs, const char* name, int flags, int* out) {
  LyingDisk* const disk = DiskOf(vfs);
  if (const int error = disk->Fault(LyingDisk::Call::kLook, name)) {
    return Code(disk, error, SQLITE_IOERR_ACCESS);
  }
  const NodePtr node = disk->Find(name);
  *out = node != nullptr && (flags != SQLITE_ACCESS_EXISTS || !node->bytes.empty());
  return SQLITE_OK;
}

int LyingVfs::FullPathname(sqlite3_vfs* /*vfs*/, const char* name, int size, char* out) {
  sqlite3_snprintf(size, out, "%s", name);
  return SQLITE_OK;
}

int LyingVfs::Randomness(sqlite3_vfs* vfs, int size, char* out) {
  LyingDisk* const disk = DiskOf(vfs);
  std::generate(out, out + size, [disk] { return static_cast<char>(disk->random_()); });
  return size;
}

int LyingVfs::Sleep(sqlite3_vfs* vfs, int micros) {
  DiskOf(vfs)->Wait(absl::Microseconds(micros));
  return micros;
}

int LyingVfs::CurrentTimeInt64(sqlite3_vfs* /*vfs*/, sqlite3_int64* out) {
  *out = sqlite3_int64{2460000} * 86400000;  // a day in 2023; nothing asks
  return SQLITE_OK;
}

int LyingVfs::CurrentTime(sqlite3_vfs* /*vfs*/, double* out) {
  *out = 2460000;
  return SQLITE_OK;
}

int LyingVfs::LastError(sqlite3_vfs* vfs, int /*size*/, char* /*out*/) {
  return DiskOf(vfs)->vfs_->last_error_;
}

int LyingVfs::Close(sqlite3_file* file) {
  File::Body* const body = Of(file)->body;
  SharedUnmap(file, 0);
  if (!body->dead()) {
    Unlock(file, SQLITE_LOCK_NONE);
    if (body->goes && !body->path.empty()) body->disk->RemoveName(body->path, false);
  }
  delete body;
  return SQLITE_OK;
}

int LyingVfs::Read(sqlite3_file* file, void* to, int size, sqlite3_int64 at) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_READ;
  size_t read = 0;
  const int error = body->disk->ReadNode(body->node, body->path, static_cast<char*>(to),
                                         static_cast<size_t>(size), at, &read);
  if (error != 0) return Code(body->disk, error, SQLITE_IOERR_READ);
  if (read == static_cast<size_t>(size)) return SQLITE_OK;
  std::memset(static_cast<char*>(to) + read, 0, static_cast<size_t>(size) - read);
  return SQLITE_IOERR_SHORT_READ;
}

int LyingVfs::Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 at) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_WRITE;
  const std::string_view bytes(static_cast<const char*>(from), static_cast<size_t>(size));
  return Code(body->disk, body->disk->WriteNode(body->node, body->path, bytes, at),
              SQLITE_IOERR_WRITE);
}

int LyingVfs::Truncate(sqlite3_file* file, sqlite3_int64 size) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_TRUNCATE;
  return Code(body->disk, body->disk->TruncateNode(body->node, body->path, size),
              SQLITE_IOERR_TRUNCATE);
}

int LyingVfs::Sync(sqlite3_file* file, int /*flags*/) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_FSYNC;
  if (const int error = body->disk->SyncNode(body->node, body->path)) {
    return Code(body->disk, error, SQLITE_IOERR_FSYNC);
  }
  if (std::exchange(body->syncs_names, false)) body->disk->SyncNames();
  return SQLITE_OK;
}

int LyingVfs::FileSize(sqlite3_file* file, sqlite3_int64* size) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_FSTAT;
  if (const int error = body->disk->Fault(LyingDisk::Call::kLook, body->path)) {
    return Code(body->disk, error, SQLITE_IOERR_FSTAT);
  }
  *size = static_cast<sqlite3_int64>(body->node->bytes.size());
  return SQLITE_OK;
}

// As https://sqlite.org/lockingv3.html has it.
int LyingVfs::Lock(sqlite3_file* file, int level) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_LOCK;
  if (body->level >= level) return SQLITE_OK;
  if (const int error = body->disk->Fault(LyingDisk::Call::kLock, body->path)) {
    return Code(body->disk, error, SQLITE_IOERR_LOCK);
  }
  LyingDisk::Node* const node = body->node.get();
  const auto others = [file](const void* holder) { return holder != nullptr && holder != file; };
  if (level == SQLITE_LOCK_SHARED) {
    if (others(node->pending) || others(node->exclusive)) return SQLITE_BUSY;
    ++node->readers;
  } else if (level == SQLITE_LOCK_RESERVED) {
    if (others(node->reserved) || others(node->pending)) return SQLITE_BUSY;
    node->reserved = file;
  } else {
    if (others(node->reserved) || others(node->pending)) return SQLITE_BUSY;
    node->pending = file;
    body->level = SQLITE_LOCK_PENDING;
    if (node->readers > 1) return SQLITE_BUSY;
    node->exclusive = file;
  }
  body->level = level;
  return SQLITE_OK;
}

int LyingVfs::Unlock(sqlite3_file* file, int level) {
  File::Body* const body = Of(file)->body;
  if (body->dead() || body->level <= level) return SQLITE_OK;
  LyingDisk::Node* const node = body->node.get();
  for (const void** holder : {&node->reserved, &node->pending, &node->exclusive}) {
    if (*holder == file) *holder = nullptr;
  }
  if (level == SQLITE_LOCK_NONE) --node->readers;
  body->level = level;
  return SQLITE_OK;
}

int LyingVfs::CheckReserved(sqlite3_file* file, int* out) {
  File::Body* const body = Of(file)->body;
  if (body->dead()) return SQLITE_IOERR_CHECKRESERVEDLOCK;
  *out = body->node->reserved != nullptr || body->node->exclusive != nullptr;
  return SQLITE_OK;
}

int LyingVfs::FileControl(sqlite3_file* /*file*/, int /*operation*/, void* /*argument*/) {
  return SQLITE_NOTFOUND;
}

int LyingVfs::SectorSize(sqlite3_file* /*file*/) { return 4096; }

int LyingVfs::Characteristics(sqlite3_file* /*file*/) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

int LyingVfs::SharedMap(sqlite3_file* file, int page, int size, int extend, void volatile** out) {
  File::Body* const body = Of(file)->body;
  *out = nullptr;
  if (body->dead()) return SQLITE_IOERR_SHMMAP;
  if (const int error = body->disk->Fault(LyingDisk::Call::kShared, body->path)) {
    return Code(body->disk, error, SQLITE_IOERR_SHMMAP);
  }
  if (body->shared == nullptr) {
    auto& shared = body->node->shared;
    if (shared == nullptr) shared = std::make_shared<LyingDisk::Shared>();
    body->shared = shared;
    ++shared->users;
  }
  auto& pages = body->shared->pages;
  while (extend != 0 && static_cast<int>(pages.size()) <= page) {
    if (body->disk->faults_.full) return Code(body->disk, ENOSPC, SQLITE_IOERR_SHMSIZE);
    pages.push_back(std::make_unique<char[]>(static_cast<size_t>(size)));
  }
  if (page < static_cast<int>(pages.size())) *out = pages[static_cast<size_t>(page)].get();
  return SQLITE_OK;
}

int LyingVfs::SharedLock(sqlite3_file* file, int first, int count, int flags) {
  File::Body* const body = Of(file)->body;
  if (body->dead() || body->shared == nullptr) return SQLITE_IOERR_SHMLOCK;
  LyingDisk::Shared* const shared = body->shared.get();
  const int mask = ((1 << count) - 1) << first;
  if ((flags & SQLITE_SHM_UNLOCK) != 0) {
    for (int slot = first; slot < first + count; ++slot) {
      const int bit = 1 << slot;
      if ((body->own_slots & bit) != 0) shared->writer[slot] = nullptr;
      if ((body->shared_slots & bit) != 0) --shared->readers[slot];
    }
    body->own_slots &= ~mask;
    body->shared_slots &= ~mask;
    return SQLITE_OK;
  }
  if (const int error = body->disk->Fault(LyingDisk::Call::kShared, body->path)) {
    return Code(body->disk, error, SQLITE_IOERR_SHMLOCK);
  }
  const bool alone = (flags & SQLITE_SHM_EXCLUSIVE) != 0;
  for (int slot = first; slot < first + count; ++slot) {
    const bool shares = (body->shared_slots & (1 << slot)) != 0;
    if (shared->writer[slot] != nullptr && shared->writer[slot] != file) return SQLITE_BUSY;
    if (alone && shared->readers[slot] > (shares ? 1 : 0)) return SQLITE_BUSY;
  }
  for (int slot = first; slot < first + count; ++slot) {
    if (alone) {
      shared->writer[slot] = file;
    } else if ((body->shared_slots & (1 << slot)) == 0) {
      ++shared->readers[slot];
    }
  }
  (alone ? body->own_slots : body->shared_slots) |= mask;
  return SQLITE_OK;
}

void LyingVfs::SharedBarrier(sqlite3_file* /*file*/) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

int LyingVfs::SharedUnmap(sqlite3_file* file, int /*remove*/) {
  File::Body* const body = Of(file)->body;
  if (body->shared == nullptr) return SQLITE_OK;
  SharedLock(file, 0, kLockSlots, SQLITE_SHM_UNLOCK);
  // The first that comes after the last begins with none, as SQLite's own do.
  if (--body->shared->users == 0 && body->node->shared == body->shared) body->node->shared.reset();
  body->shared.reset();
  return SQLITE_OK;
}

}  // namespace failback
