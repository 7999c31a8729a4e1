// A disk in memory that does what real ones do at their worst, for a store and a journal.
//
// What is written is visible at once and on the disk after a sync. A power cut keeps what was
// synced, and of the rest any subset: each sector of 512 bytes is there or not, whatever the order
// in which it was written, so that a page of SQLite's may be torn; of names that were made, removed
// or renamed since their folder was synced the first few are there. Each call may fail as the
// system's would, a write half way; what is on the disk may lose a bit. All of it is decided by one
// seed.
//
// SQLite uses it as a VFS, everything else as a Disk (registry/base/disk.h):
//
//   LyingDisk disk(seed);
//   disk.MakeFolder("/d", 0700);
//   SqliteStorage::Options options;
//   options.path = "/d/registry.db";
//   options.disk = &disk;
//   …
//   disk.set_faults({.chance = 0.01});   // from here on
//   disk.End(LyingDisk::Crash::kPower);
//   storage.reset();                     // what the dead process still tries fails, unseen
//   … open again …
//
// How real it is: a sector is written as a whole; overwriting a part of a file harms no byte beside
// it (as SQLite assumes of its disks); names are journalled in order, as by ext4, XFS and Btrfs. A
// sync that returns OK has synced: what a disk does that lies about that, no program can mend.
//
// Thread safety: none; one thread.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_LYING_DISK_H_
#define FAILBACK_TESTS_SIMULATE_DISK_LYING_DISK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "registry/base/disk.h"

namespace failback {

class LyingDisk final : public Disk {
 public:
  // What goes wrong from now on.
  struct Faults {
    double chance = 0;       // of each call
    bool full = false;       // every write that needs room: ENOSPC
    double sync_chance = 0;  // of each sync, beside `chance`
    // Of a sync that fails: what it was to write is never written by another one, as on Linux,
    // whose cache takes the pages for clean afterwards.
    bool failed_sync_forgets = false;
  };
  // What may fail, by who asks; counted by calls().
  enum class Call {
    kOpen,
    kRead,
    kWrite,
    kTruncate,
    kSync,
    kLook,
    kNames,  // removed, renamed, synced
    kLock,
    kShared,  // SQLite's shared memory: its locks and its pages
    kCount,
  };
  enum class Crash {
    kProcess,  // kill -9: what was written is there
    kPower,
  };

  explicit LyingDisk(uint64_t seed);
  ~LyingDisk() override;
  LyingDisk(const LyingDisk&) = delete;
  LyingDisk& operator=(const LyingDisk&) = delete;

  void set_faults(const Faults& faults) { faults_ = faults; }
  const Faults& faults() const { return faults_; }
  // Only calls for which it returns true may fail. For a test that aims.
  void set_aim(std::function<bool(Call, const std::string& path)> aim) { aim_ = std::move(aim); }
  // Called with each call that fails, for a person who reads the story.
  void set_witness(std::function<void(const std::string&)> witness) {
    witness_ = std::move(witness);
  }
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  // Syncs take that long, and SQLite's waits as long as it says: `wait` is to let time pass.
  void set_sync_time(absl::Duration time) { sync_time_ = time; }
  void set_wait(std::function<void(absl::Duration)> wait) { wait_ = std::move(wait); }

  // Every file that is open is dead: all that is asked of it fails. What is left is there for the
  // next life.
  void End(Crash crash);
  // The same within the call that comes after `calls` others.
  void EndAfter(int64_t calls, Crash crash) {
    calls_left_ = calls;
    crash_ = crash;
  }
  // Which life it is; another one after each End, and how the one before ended.
  uint64_t life() const { return life_; }
  Crash last_crash() const { return last_crash_; }

  // Turns a bit of the file, on the disk; false if it is empty or not there.
  bool FlipBit(const std::string& path);
  bool FlipBit(const std::string& path, int64_t byte, int bit);

  // As a person would, behind the back of who has it open: what is put there is a file of its own,
  // and on the disk.
  std::optional<std::string> Contents(const std::string& path) const;
  void Put(const std::string& path, std::string bytes);
  void Remove(const std::string& path);
  // Sorted.
  std::vector<std::string> Files() const;
  // All that is on the disk, and puts it back as it was, to the inodes; while nothing is open.
  struct Image;
  std::shared_ptr<const Image> Save() const;
  void Load(const Image& image);

  // Of memory, for what is on it.
  int64_t HeldBytes() const;

  // How much was asked, and how much of it was refused.
  int64_t calls(Call call) const { return calls_[static_cast<size_t>(call)]; }
  int64_t failed() const { return failed_; }
  int64_t syncs() const { return calls(Call::kSync); }

  const char* sqlite_vfs() const override { return vfs_name_.c_str(); }
  int OpenOrMake(const std::string& path, mode_t mode, std::unique_ptr<DiskFile>* file,
                 bool* made) override;
  std::string Resolve(const std::string& path) override { return path; }
  int Look(const std::string& path, FileInfo* info) override;
  int Identify(const std::string& path, FileIdentity* identity) override;
  int MakeFolder(const std::string& path, mode_t mode) override;
  int Rename(const std::string& from, const std::string& to) override;
  int SyncFolderOf(const std::string& path) override;
  int64_t FreeBytes(const std::string& path) override { return free_bytes_; }

 private:
  friend class LyingVfs;
  class OpenFile;

  // What has been written and not synced.
  struct Change {
    int64_t at = 0;
    std::string bytes;
    int64_t truncate_to = -1;  // if not negative, and then no bytes
  };
  // SQLite's shared memory; the dead keep theirs.
  struct Shared {
    std::vector<std::unique_ptr<char[]>> pages;
    int users = 0;
    int readers[8] = {};
    const void* writer[8] = {};
  };
  struct Node {
    uint64_t inode = 0;
    bool folder = false;
    std::string bytes;   // as programs see it
    std::string synced;  // as it is on the disk
    std::vector<Change> unsynced;
    const void* locked_by = nullptr;
    // SQLite's locks on a database.
    int readers = 0;
    const void* reserved = nullptr;
    const void* pending = nullptr;
    const void* exclusive = nullptr;
    std::shared_ptr<Shared> shared;
  };
  using NodePtr = std::shared_ptr<Node>;
  struct NameChange {
    std::string from;  // of a rename
    std::string name;
    NodePtr node;  // null: removed
  };

  int ErrorOf(Call call);
  // 0, or the errno with which this call fails.
  int Fault(Call call, const std::string& path);
  bool Chance(double chance) { return chance > 0 && unit_(random_) < chance; }
  NodePtr Find(const std::string& path) const;
  NodePtr Make(const std::string& path, bool folder);
  void Note(NameChange change);
  void SyncNames();
  void Wait(absl::Duration time) {
    if (wait_ && time > absl::ZeroDuration()) wait_(time);
  }

  int ReadNode(const NodePtr& node, const std::string& path, char* to, size_t size, int64_t at,
               size_t* read);
  int WriteNode(const NodePtr& node, const std::string& path, std::string_view bytes, int64_t at);
  int TruncateNode(const NodePtr& node, const std::string& path, int64_t size);
  int SyncNode(const NodePtr& node, const std::string& path);
  int RemoveName(const std::string& path, bool sync);
  static void Apply(const Change& change, std::string* bytes);
  void LosePower(Node* node);

  std::mt19937_64 random_;
  std::uniform_real_distribution<double> unit_{0, 1};
  const std::string vfs_name_;
  std::unique_ptr<class LyingVfs> vfs_;
  Faults faults_;
  std::function<bool(Call, const std::string&)> aim_;
  std::function<void(const std::string&)> witness_;
  std::function<void(absl::Duration)> wait_;
  absl::Duration sync_time_;
  int64_t free_bytes_ = 0;  // SQLite's log then keeps no room ahead
  uint64_t life_ = 1;
  int64_t calls_left_ = -1;  // until it ends; negative: it does not
  Crash crash_ = Crash::kPower;
  Crash last_crash_ = Crash::kProcess;
  uint64_t last_inode_ = 0;
  std::map<std::string, NodePtr> names_;
  std::map<std::string, NodePtr> synced_names_;
  std::vector<NameChange> unsynced_names_;
  std::vector<std::weak_ptr<Node>> nodes_;
  int64_t calls_[static_cast<size_t>(Call::kCount)] = {};
  int64_t failed_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_LYING_DISK_H_
