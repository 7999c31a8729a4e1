#include "tests/simulate/disk/lying_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulate/disk/lying_vfs.h"

namespace failback {
namespace {

constexpr int64_t kSector = 512;
// Of SQLite: its pages, and what the first bytes of a page say of it.
constexpr size_t kPage = 4096;
constexpr size_t kPageHeader = 12;
constexpr const char* kCallNames[] = {"open", "read",  "write", "truncate",     "sync",
                                      "look", "names", "lock",  "shared memory"};

}  // namespace

// A file that the product has open by way of Disk.
class LyingDisk::OpenFile final : public DiskFile {
 public:
  OpenFile(LyingDisk* disk, std::string path, NodePtr node)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), life_(disk->life_) {}
  ~OpenFile() override {
    if (node_->locked_by == this) node_->locked_by = nullptr;
  }

  int Read(char* to, size_t size, int64_t at, size_t* read) override {
    *read = 0;
    return dead() ? EIO : disk_->ReadNode(node_, path_, to, size, at, read);
  }
  int Write(std::string_view bytes, int64_t at) override {
    return dead() ? EIO : disk_->WriteNode(node_, path_, bytes, at);
  }
  int Truncate(int64_t size) override {
    return dead() ? EIO : disk_->TruncateNode(node_, path_, size);
  }
  int Sync() override { return dead() ? EIO : disk_->SyncNode(node_, path_); }
  int Lock() override {
    if (dead()) return EIO;
    if (disk_->Fault(Call::kLock, path_) != 0) return EIO;
    if (node_->locked_by != nullptr && node_->locked_by != this) return EWOULDBLOCK;
    node_->locked_by = this;
    return 0;
  }
  int Look(FileInfo* info) override {
    if (dead()) return EIO;
    if (const int error = disk_->Fault(Call::kLook, path_)) return error;
    info->kind = FileInfo::Kind::kFile;
    info->bytes = static_cast<int64_t>(node_->bytes.size());
    return 0;
  }

 private:
  bool dead() const { return life_ != disk_->life_; }

  LyingDisk* const disk_;
  const std::string path_;
  const NodePtr node_;
  const uint64_t life_;
};

LyingDisk::LyingDisk(uint64_t seed)
    : random_(seed),
      vfs_name_(absl::StrCat("lying-", absl::Hex(reinterpret_cast<uintptr_t>(this)))),
      vfs_(std::make_unique<LyingVfs>(this)) {}

LyingDisk::~LyingDisk() = default;

int LyingDisk::Fault(Call call, const std::string& path) {
  if (calls_left_ == 0) {
    if (witness_)
      witness_(absl::StrCat("it ends in: ", kCallNames[static_cast<size_t>(call)], " ", path));
    End(crash_);
    return EIO;
  }
  if (calls_left_ > 0) --calls_left_;
  ++calls_[static_cast<size_t>(call)];
  const bool fails = Chance(faults_.chance) || (call == Call::kSync && Chance(faults_.sync_chance));
  if (!fails || (aim_ && !aim_(call, path))) return 0;
  ++failed_;
  const int error = ErrorOf(call);
  if (witness_) {
    witness_(
        absl::StrCat(kCallNames[static_cast<size_t>(call)], " ", path, ": ", std::strerror(error)));
  }
  return error;
}

int LyingDisk::ErrorOf(Call call) {
  switch (call) {
    case Call::kOpen:
      return random_() % 2 == 0 ? EMFILE : EIO;
    case Call::kWrite:
    case Call::kTruncate:
      return random_() % 2 == 0 ? ENOSPC : EIO;
    case Call::kLock:
    case Call::kShared:
      return random_() % 4 == 0 ? EIO : random_() % 4 == 0 ? EDEADLK : EBUSY;
    default:
      return EIO;
  }
}

LyingDisk::NodePtr LyingDisk::Find(const std::string& path) const {
  const auto it = names_.find(path);
  return it == names_.end() ? nullptr : it->second;
}

LyingDisk::NodePtr LyingDisk::Make(const std::string& path, bool folder) {
  auto node = std::make_shared<Node>();
  node->inode = ++last_inode_;
  node->folder = folder;
  nodes_.push_back(node);
  Note({"", path, node});
  return node;
}

void LyingDisk::Note(NameChange change) {
  if (!change.from.empty()) names_.erase(change.from);
  if (change.node == nullptr) {
    names_.erase(change.name);
  } else {
    names_[change.name] = change.node;
  }
  unsynced_names_.push_back(std::move(change));
}

void LyingDisk::SyncNames() {
  unsynced_names_.clear();
  synced_names_ = names_;
}

int LyingDisk::OpenOrMake(const std::string& path, mode_t /*mode*/, std::unique_ptr<DiskFile>* file,
                          bool* made) {
  if (const int error = Fault(Call::kOpen, path)) return error;
  NodePtr node = Find(path);
  *made = node == nullptr;
  if (*made && faults_.full) return ENOSPC;
  if (*made) node = Make(path, /*folder=*/false);
  if (node->folder) return EISDIR;
  *file = std::make_unique<OpenFile>(this, path, std::move(node));
  return 0;
}

int LyingDisk::Look(const std::string& path, FileInfo* info) {
  if (const int error = Fault(Call::kLook, path)) return error;
  const NodePtr node = Find(path);
  if (node == nullptr) return ENOENT;
  info->kind = node->folder ? FileInfo::Kind::kFolder : FileInfo::Kind::kFile;
  info->bytes = static_cast<int64_t>(node->bytes.size());
  return 0;
}

int LyingDisk::Identify(const std::string& path, FileIdentity* identity) {
  if (const int error = Fault(Call::kLook, path)) return error;
  const NodePtr node = Find(path);
  if (node == nullptr) return ENOENT;
  *identity = {1, node->inode, node->inode};
  return 0;
}

int LyingDisk::MakeFolder(const std::string& path, mode_t /*mode*/) {
  if (const int error = Fault(Call::kNames, path)) return error;
  if (Find(path) != nullptr) return EEXIST;
  if (faults_.full) return ENOSPC;
  Make(path, /*folder=*/true);
  return 0;
}

int LyingDisk::Rename(const std::string& from, const std::string& to) {
  if (const int error = Fault(Call::kNames, from)) return error;
  NodePtr node = Find(from);
  if (node == nullptr) return ENOENT;
  Note({from, to, std::move(node)});
  return 0;
}

int LyingDisk::RemoveName(const std::string& path, bool sync) {
  if (const int error = Fault(Call::kNames, path)) return error;
  if (Find(path) == nullptr) return ENOENT;
  Note({"", path, nullptr});
  if (sync) SyncNames();
  return 0;
}

int LyingDisk::SyncFolderOf(const std::string& path) {
  if (const int error = Fault(Call::kNames, path)) return error;
  SyncNames();
  return 0;
}

int LyingDisk::ReadNode(const NodePtr& node, const std::string& path, char* to, size_t size,
                        int64_t at, size_t* read) {
  *read = 0;
  if (const int error = Fault(Call::kRead, path)) return error;
  const auto begin = static_cast<size_t>(at);
  if (begin >= node->bytes.size()) return 0;
  *read = std::min(size, node->bytes.size() - begin);
  std::memcpy(to, node->bytes.data() + begin, *read);
  return 0;
}

int LyingDisk::WriteNode(const NodePtr& node, const std::string& path, std::string_view bytes,
                         int64_t at) {
  const uint64_t life = life_;
  int error = Fault(Call::kWrite, path);
  if (life != life_) return error;
  if (error == 0 && faults_.full && static_cast<size_t>(at) + bytes.size() > node->bytes.size()) {
    error = ENOSPC;
  }
  if (error != 0) {
    // The first few sectors may have been written.
    const size_t sectors = bytes.size() / kSector;
    bytes = bytes.substr(0, random_() % (sectors + 1) * kSector);
  }
  if (!bytes.empty()) {
    Change change{at, std::string(bytes), -1};
    Apply(change, &node->bytes);
    node->unsynced.push_back(std::move(change));
  }
  return error;
}

int LyingDisk::TruncateNode(const NodePtr& node, const std::string& path, int64_t size) {
  if (const int error = Fault(Call::kTruncate, path)) return error;
  Change change{0, "", size};
  Apply(change, &node->bytes);
  node->unsynced.push_back(std::move(change));
  return 0;
}

int LyingDisk::SyncNode(const NodePtr& node, const std::string& path) {
  Wait(sync_time_);
  const uint64_t life = life_;
  if (const int error = Fault(Call::kSync, path)) {
    if (life != life_) return error;
    // Some of it is on the disk, and is there after a power cut.
    for (const Change& change : node->unsynced) {
      if (random_() % 2 == 0) Apply(change, &node->synced);
    }
    if (faults_.failed_sync_forgets) node->unsynced.clear();
    return error;
  }
  for (const Change& change : node->unsynced) Apply(change, &node->synced);
  node->unsynced.clear();
  return 0;
}

void LyingDisk::Apply(const Change& change, std::string* bytes) {
  if (change.truncate_to >= 0) {
    bytes->resize(static_cast<size_t>(change.truncate_to));
    return;
  }
  const auto at = static_cast<size_t>(change.at);
  if (bytes->size() < at + change.bytes.size()) bytes->resize(at + change.bytes.size());
  bytes->replace(at, change.bytes.size(), change.bytes);
}

// What is left of a file: of what was not synced any sectors.
void LyingDisk::LosePower(Node* node) {
  // All, none, or some of it; the extremes are as likely as they are in life.
  const double kept = random_() % 4 == 0 ? 1 : random_() % 3 == 0 ? 0 : unit_(random_);
  for (const Change& change : node->unsynced) {
    if (change.truncate_to >= 0) {
      if (Chance(kept)) Apply(change, &node->synced);
      continue;
    }
    const int64_t end = change.at + static_cast<int64_t>(change.bytes.size());
    for (int64_t at = change.at; at < end;) {
      const int64_t next = std::min(end, (at / kSector + 1) * kSector);
      if (Chance(kept)) {
        Apply({at,
               change.bytes.substr(static_cast<size_t>(at - change.at),
                                   static_cast<size_t>(next - at)),
               -1},
              &node->synced);
      }
      at = next;
    }
  }
  node->unsynced.clear();
  node->bytes = node->synced;
}

void LyingDisk::End(Crash crash) {
  ++life_;
  calls_left_ = -1;
  last_crash_ = crash;
  if (crash == Crash::kPower) {
    const size_t kept = random_() % (unsynced_names_.size() + 1);
    for (size_t i = 0; i < kept; ++i) {
      const NameChange& change = unsynced_names_[i];
      if (!change.from.empty()) synced_names_.erase(change.from);
      if (change.node == nullptr) {
        synced_names_.erase(change.name);
      } else {
        synced_names_[change.name] = change.node;
      }
    }
    unsynced_names_.clear();
    names_ = synced_names_;
  }
  std::vector<std::weak_ptr<Node>> left;
  for (const std::weak_ptr<Node>& weak : nodes_) {
    const NodePtr node = weak.lock();
    if (node == nullptr) continue;
    left.push_back(weak);
    if (crash == Crash::kPower) LosePower(node.get());
    node->locked_by = node->reserved = node->pending = node->exclusive = nullptr;
    node->readers = 0;
    node->shared.reset();
  }
  nodes_ = std::move(left);
}

bool LyingDisk::FlipBit(const std::string& path) {
  const NodePtr node = Find(path);
  if (node == nullptr || node->bytes.empty()) return false;
  size_t byte = random_() % node->bytes.size();
  // A third are where SQLite says what a page is made of: few bytes, on which much depends.
  if (random_() % 3 == 0) byte = byte / kPage * kPage + byte % kPageHeader;
  return FlipBit(path, static_cast<int64_t>(byte), static_cast<int>(random_() % 8));
}

bool LyingDisk::FlipBit(const std::string& path, int64_t byte, int bit) {
  const NodePtr node = Find(path);
  if (node == nullptr) return false;
  for (std::string* bytes : {&node->bytes, &node->synced}) {
    if (static_cast<size_t>(byte) < bytes->size()) {
      (*bytes)[static_cast<size_t>(byte)] ^= static_cast<char>(1 << bit);
    }
  }
  return true;
}

std::optional<std::string> LyingDisk::Contents(const std::string& path) const {
  const NodePtr node = Find(path);
  if (node == nullptr || node->folder) return std::nullopt;
  return node->bytes;
}

void LyingDisk::Put(const std::string& path, std::string bytes) {
  const NodePtr node = Make(path, /*folder=*/false);
  node->bytes = bytes;
  node->synced = std::move(bytes);
  SyncNames();
}

void LyingDisk::Remove(const std::string& path) {
  if (Find(path) == nullptr) return;
  Note({"", path, nullptr});
  SyncNames();
}

std::vector<std::string> LyingDisk::Files() const {
  std::vector<std::string> files;
  for (const auto& [path, node] : names_) {
    if (!node->folder) files.push_back(path);
  }
  return files;
}

int64_t LyingDisk::HeldBytes() const {
  size_t held = 0;
  for (const std::weak_ptr<Node>& weak : nodes_) {
    const NodePtr node = weak.lock();
    if (node == nullptr) continue;
    held += node->bytes.capacity() + node->synced.capacity() +
            node->unsynced.capacity() * sizeof(Change);
    for (const Change& change : node->unsynced) held += change.bytes.capacity();
  }
  return static_cast<int64_t>(held);
}

struct LyingDisk::Image {
  std::map<std::string, Node> nodes;
};

std::shared_ptr<const LyingDisk::Image> LyingDisk::Save() const {
  auto image = std::make_shared<Image>();
  for (const auto& [path, node] : names_) {
    Node& saved = image->nodes[path];
    saved.inode = node->inode;
    saved.folder = node->folder;
    saved.bytes = node->bytes;
  }
  return image;
}

void LyingDisk::Load(const Image& image) {
  names_.clear();
  nodes_.clear();
  for (const auto& [path, saved] : image.nodes) {
    auto node = std::make_shared<Node>(saved);
    node->synced = node->bytes;
    nodes_.push_back(node);
    names_[path] = std::move(node);
  }
  SyncNames();
}

}  // namespace failback
