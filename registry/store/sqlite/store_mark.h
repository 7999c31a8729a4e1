// A mark beside a store's file (or an intent journal's) that says whether the file is still the one
// that was written last.
//
// A database file that is put back from a backup looks in every way like the store it once was:
// nothing in it can say that newer commits existed. So how far the store has come is also kept
// outside of it, in `<store>.mark`: the epoch, how many groups were written, and which file they
// went into (inode and time of birth). At the next start the store continues only if its file is
// that one and has come at least as far. Otherwise it has gone back, or is a copy that lives on its
// own, and what it calls a revision is not what its clients know: a new epoch is due.
//
// The mark is written after each commit, with one pwrite of 64 bytes, so a process that is killed
// leaves a mark that is at most one commit behind, which is never taken for going back. When a
// machine is lost the mark may be anything that it was; it is ahead of the file only if commits
// were lost.
//
// What it cannot notice: the mark and the file written back together in place, as a snapshot of a
// whole disk does. An operator who restores a store by other means than copying removes the mark: a
// store without one begins a new epoch.
//
// Example:
//
//   auto mark = StoreMark::Open(path);
//   if (!mark.ok()) return mark.status();
//   if (const auto why = mark->WhyNotContinued(position)) BeginNewEpoch(*why);
//   …                                                     // each commit:
//   mark->Put(position);
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_STORE_SQLITE_STORE_MARK_H_
#define FAILBACK_REGISTRY_STORE_SQLITE_STORE_MARK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/base/disk.h"

namespace failback {

class StoreMark {
 public:
  // How far a store has come.
  struct Position {
    uint64_t epoch = 0;
    uint64_t writes = 0;  // groups committed, since the file was made
  };

  // Where the mark of the store at `store_path` is.
  static std::string PathOf(const std::string& store_path);

  // Reads the mark of the store at `store_path`, whose file exists, and makes an empty one if there
  // is none. `kind` says in errors what the file is. Errors, each one line that names the path:
  // UNAVAILABLE.
  static absl::StatusOr<StoreMark> Open(const std::string& store_path, const char* kind = "store",
                                        Disk* disk = Disk::Real());

  // Whether there was a mark.
  bool marked() const { return marked_; }
  // The same, and of the file that is there now: one without tables has lost its log, which had all
  // of it.
  bool marks_this_file() const {
    return marked_ && marked_inode_ == store_.inode && marked_born_ == store_.born;
  }

  // Whether what was marked is in `epoch`.
  bool marks_epoch(uint64_t epoch) const { return marked_ && position_.epoch == epoch; }

  // Nullopt when a store at `position` is the one that was marked; else, for a log, why it is not.
  std::optional<std::string> WhyNotContinued(const Position& position) const;

  // The store is at `position`, and has been made as durable as it will be. UNAVAILABLE: the old
  // mark stands, which is never wrong, only less precise.
  absl::Status Put(const Position& position);

  // As Put, and returns when the mark is on the disk.
  absl::Status PutDurably(const Position& position);

 private:
  struct Block;

  StoreMark(std::string store_path, const char* kind)
      : store_path_(std::move(store_path)), kind_(kind) {}
  absl::Status Error(const char* what, int error) const;

  std::string store_path_;
  const char* kind_;
  std::unique_ptr<DiskFile> file_;
  FileIdentity store_;   // the store's file
  bool marked_ = false;  // there was a whole mark
  Position position_;    // as found
  uint64_t marked_inode_ = 0;
  uint64_t marked_born_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_SQLITE_STORE_MARK_H_
