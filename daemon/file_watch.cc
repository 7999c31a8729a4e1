#include "daemon/file_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <memory>

namespace failback {
namespace {

// A write is noticed when it is complete; a link that is changed is a rename or a new name.
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_ONLYDIR;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

FileWatch::FileWatch(const std::vector<std::string>& files) : files_(files) {
  if (!files_.empty()) fd_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  AddFolders();
}

FileWatch::~FileWatch() {
  if (fd_ >= 0) close(fd_);
}

void FileWatch::AddFolders() {
  if (fd_ < 0) return;
  for (const std::string& file : files_) {
    // A folder that is watched already is not watched twice.
    inotify_add_watch(fd_, FolderOf(file).c_str(), kEvents);
    const std::unique_ptr<char, void (*)(void*)> target(realpath(file.c_str(), nullptr), free);
    if (target != nullptr) inotify_add_watch(fd_, FolderOf(target.get()).c_str(), kEvents);
  }
}

bool FileWatch::Changed() {
  bool changed = false;
  alignas(inotify_event) char buffer[16 * (sizeof(inotify_event) + NAME_MAX + 1)];
  while (fd_ >= 0 && read(fd_, buffer, sizeof(buffer)) > 0) changed = true;
  if (changed) AddFolders();
  return changed;
}

}  // namespace failback
