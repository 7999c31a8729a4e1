#include "registry/store/sqlite/store_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

constexpr uint64_t kMagic = 0x314b524d52534246;  // "FBSRMRK1" read as a little-endian number

void SyncFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace

// What the file holds, in the byte order of the machine.
struct StoreMark::Block {
  uint64_t magic = kMagic;
  uint64_t epoch = 0;
  uint64_t writes = 0;
  uint64_t inode = 0;
  uint64_t born = 0;
  uint64_t reserved[2] = {0, 0};
  uint64_t checksum = 0;  // of what is before it

  uint64_t Checksum() const {
    return Digest64(reinterpret_cast<const char*>(this), offsetof(Block, checksum));
  }
};

std::string StoreMark::PathOf(const std::string& store_path) { return store_path + ".mark"; }

absl::StatusOr<StoreMark> StoreMark::Open(const std::string& store_path, const char* kind) {
  static_assert(sizeof(Block) == 64);
  const std::string path = PathOf(store_path);
  const bool existed = access(path.c_str(), F_OK) == 0;
  StoreMark mark(store_path, kind,
                 open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (mark.fd_ < 0) return mark.Error("cannot be opened");
  if (!existed) SyncFolderOf(path);
  if (auto status = mark.Identify(); !status.ok()) return status;
  Block block;
  if (pread(mark.fd_, &block, sizeof(block), 0) == sizeof(block) && block.magic == kMagic &&
      block.checksum == block.Checksum()) {
    mark.marked_ = true;
    mark.position_ = {block.epoch, block.writes};
    mark.marked_inode_ = block.inode;
    mark.marked_born_ = block.born;
  }
  return mark;
}

StoreMark::StoreMark(StoreMark&& other) noexcept
    : store_path_(other.store_path_),
      kind_(other.kind_),
      fd_(std::exchange(other.fd_, -1)),
      inode_(other.inode_),
      born_(other.born_),
      marked_(other.marked_),
      position_(other.position_),
      marked_inode_(other.marked_inode_),
      marked_born_(other.marked_born_) {}

StoreMark::~StoreMark() {
  if (fd_ >= 0) close(fd_);
}

absl::Status StoreMark::Error(const char* what) const {
  return absl::UnavailableError(absl::StrCat(kind_, " ", store_path_, ": its mark ",
                                             PathOf(store_path_), " ", what, ": ",
                                             std::strerror(errno)));
}

absl::Status StoreMark::Identify() {
  struct statx info;
  if (statx(AT_FDCWD, store_path_.c_str(), 0, STATX_INO | STATX_BTIME, &info) != 0) {
    return Error("cannot tell which file it is of");
  }
  inode_ = info.stx_ino;
  born_ = (info.stx_mask & STATX_BTIME) == 0
              ? 0
              : static_cast<uint64_t>(info.stx_btime.tv_sec) * 1000000000 + info.stx_btime.tv_nsec;
  return absl::OkStatus();
}

std::optional<std::string> StoreMark::WhyNotContinued(const Position& position) const {
  if (!marked_) return "it has no mark";
  if (position_.epoch != position.epoch) return "another epoch was marked";
  if (position.writes < position_.writes) {
    return absl::StrCat("it has gone back, from write ", position_.writes, " to ", position.writes);
  }
  if (marked_inode_ != inode_ || marked_born_ != born_) return "it is a copy";
  return std::nullopt;
}

absl::Status StoreMark::Put(const Position& position) {
  Block block;
  block.epoch = position.epoch;
  block.writes = position.writes;
  block.inode = inode_;
  block.born = born_;
  block.checksum = block.Checksum();
  ssize_t written;
  do {
    written = pwrite(fd_, &block, sizeof(block), 0);
  } while (written < 0 && errno == EINTR);
  return written == sizeof(block) ? absl::OkStatus() : Error("cannot be written");
}

absl::Status StoreMark::PutDurably(const Position& position) {
  if (auto status = Put(position); !status.ok()) return status;
  return fdatasync(fd_) == 0 ? absl::OkStatus() : Error("cannot be synced");
}

}  // namespace failback
