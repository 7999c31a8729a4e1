#include "registry/store/sqlite/store_mark.h"

#include <cstddef>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

constexpr uint64_t kMagic = 0x314b524d52534246;  // "FBSRMRK1" read as a little-endian number

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

absl::StatusOr<StoreMark> StoreMark::Open(const std::string& store_path, const char* kind,
                                          Disk* disk) {
  static_assert(sizeof(Block) == 64);
  const std::string path = PathOf(store_path);
  StoreMark mark(store_path, kind);
  bool made = false;
  if (const int error = disk->OpenOrMake(path, 0644, &mark.file_, &made)) {
    return mark.Error("cannot be opened", error);
  }
  // A mark that a power cut takes is one that is missing, which is noticed.
  if (made) disk->SyncFolderOf(path);
  if (const int error = disk->Identify(store_path, &mark.store_)) {
    return mark.Error("cannot tell which file it is of", error);
  }
  Block block;
  size_t size = 0;
  if (const int error =
          mark.file_->Read(reinterpret_cast<char*>(&block), sizeof(block), 0, &size)) {
    return mark.Error("cannot be read", error);  // which is not to have none
  }
  if (size == sizeof(block) && block.magic == kMagic && block.checksum == block.Checksum()) {
    mark.marked_ = true;
    mark.position_ = {block.epoch, block.writes};
    mark.marked_inode_ = block.inode;
    mark.marked_born_ = block.born;
  }
  return mark;
}

absl::Status StoreMark::Error(const char* what, int error) const {
  return absl::UnavailableError(absl::StrCat(kind_, " ", store_path_, ": its mark ",
                                             PathOf(store_path_), " ", what, ": ",
                                             std::strerror(error)));
}

std::optional<std::string> StoreMark::WhyNotContinued(const Position& position) const {
  if (!marked_) return "it has no mark";
  if (position_.epoch != position.epoch) return "another epoch was marked";
  if (position.writes < position_.writes) {
    return absl::StrCat("it has gone back, from write ", position_.writes, " to ", position.writes);
  }
  if (!marks_this_file()) return "it is a copy";
  return std::nullopt;
}

absl::Status StoreMark::Put(const Position& position) {
  Block block;
  block.epoch = position.epoch;
  block.writes = position.writes;
  block.inode = store_.inode;
  block.born = store_.born;
  block.checksum = block.Checksum();
  const int error =
      file_->Write(std::string_view(reinterpret_cast<const char*>(&block), sizeof(block)), 0);
  return error == 0 ? absl::OkStatus() : Error("cannot be written", error);
}

absl::Status StoreMark::PutDurably(const Position& position) {
  if (auto status = Put(position); !status.ok()) return status;
  const int error = file_->Sync();
  return error == 0 ? absl::OkStatus() : Error("cannot be synced", error);
}

}  // namespace failback
