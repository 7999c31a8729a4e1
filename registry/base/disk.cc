#include "registry/base/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace failback {
namespace {

FileInfo InfoOf(const struct stat& found) {
  FileInfo info;
  info.kind = S_ISREG(found.st_mode)   ? FileInfo::Kind::kFile
              : S_ISDIR(found.st_mode) ? FileInfo::Kind::kFolder
                                       : FileInfo::Kind::kOther;
  info.bytes = found.st_size;
  info.names = found.st_nlink;
  return info;
}

class RealFile final : public DiskFile {
 public:
  explicit RealFile(int fd) : fd_(fd) {}
  ~RealFile() override { close(fd_); }

  int Read(char* to, size_t size, int64_t at, size_t* read) override {
    *read = 0;
    while (*read < size) {
      const ssize_t count = pread(fd_, to + *read, size - *read, at + static_cast<off_t>(*read));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) break;
      *read += static_cast<size_t>(count);
    }
    return 0;
  }

  int Write(std::string_view bytes, int64_t at) override {
    while (!bytes.empty()) {
      const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), at);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      bytes.remove_prefix(static_cast<size_t>(count));
      at += count;
    }
    return 0;
  }

  int Truncate(int64_t size) override { return ftruncate(fd_, size) == 0 ? 0 : errno; }
  int Sync() override { return fdatasync(fd_) == 0 ? 0 : errno; }
  int Lock() override { return flock(fd_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno; }
  int Look(FileInfo* info) override {
    struct stat found;
    if (fstat(fd_, &found) != 0) return errno;
    *info = InfoOf(found);
    return 0;
  }

 private:
  const int fd_;
};

class RealDisk final : public Disk {
 public:
  const char* sqlite_vfs() const override { return nullptr; }

  int OpenOrMake(const std::string& path, mode_t mode, std::unique_ptr<DiskFile>* file,
                 bool* made) override {
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    int fd;
    do {
      fd = open(path.c_str(), kFlags);
      *made = fd < 0 && errno == ENOENT;
      if (*made) fd = open(path.c_str(), kFlags | O_CREAT | O_EXCL, mode);
    } while (fd < 0 && *made && errno == EEXIST);  // another process has made it
    if (fd < 0) return errno;
    *file = std::make_unique<RealFile>(fd);
    return 0;
  }

  std::string Resolve(const std::string& path) override {
    std::error_code none;
    const std::filesystem::path file = std::filesystem::canonical(path, none);
    return none ? path : file.string();
  }

  int Look(const std::string& path, FileInfo* info) override {
    struct stat found;
    if (stat(path.c_str(), &found) != 0) return errno;
    *info = InfoOf(found);
    return 0;
  }

  int Identify(const std::string& path, FileIdentity* identity) override {
    // Not stat: a file whose times have been asked for gets another time with the next write, and a
    // sync then writes its inode too (Linux 6.13, multigrain timestamps).
    struct statx found;
    if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_INO | STATX_BTIME, &found) != 0) {
      return errno;
    }
    identity->device = makedev(found.stx_dev_major, found.stx_dev_minor);
    identity->inode = found.stx_ino;
    identity->born =
        (found.stx_mask & STATX_BTIME) == 0
            ? 0
            : static_cast<uint64_t>(found.stx_btime.tv_sec) * 1000000000 + found.stx_btime.tv_nsec;
    return 0;
  }

  int MakeFolder(const std::string& path, mode_t mode) override {
    return mkdir(path.c_str(), mode) == 0 ? 0 : errno;
  }

  int Rename(const std::string& from, const std::string& to) override {
    return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }

  int SyncFolderOf(const std::string& path) override {
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error;
  }

  int64_t FreeBytes(const std::string& path) override {
    struct statvfs disk;
    if (statvfs(path.c_str(), &disk) != 0) return -1;
    return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  }
};

}  // namespace

bool MayPass(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case EINTR:
    case ESTALE:
      return true;
    default:
      return false;
  }
}

Disk* Disk::Real() {
  static Disk* const real = new RealDisk;
  return real;
}

}  // namespace failback
