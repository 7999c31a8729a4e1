#include "registry/security/file_changes.h"

#include <sys/stat.h>

#include <ctime>
#include <utility>

namespace failback {
namespace {

constexpr int64_t kNanos = 1000000000;
// Longer than any file system's notion of "now" lags behind.
constexpr int64_t kRecentNanos = 2 * kNanos;

int64_t Nanos(const timespec& time) { return time.tv_sec * kNanos + time.tv_nsec; }

int64_t NowNanos() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return Nanos(now);
}

}  // namespace

FileChanges::FileChanges(std::vector<std::string> paths) : paths_(std::move(paths)) {}

bool FileChanges::Check() {
  const int64_t now = NowNanos();
  bool recent = false;
  std::vector<Stamp> stamps;
  stamps.reserve(paths_.size());
  for (const std::string& path : paths_) {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) {
      stamps.emplace_back();
      continue;
    }
    const int64_t written = Nanos(info.st_mtim);
    recent |= written > now - kRecentNanos && written <= now + kRecentNanos;
    stamps.emplace_back(info.st_dev, info.st_ino, info.st_size, written, Nanos(info.st_ctim));
  }
  const bool changed = stamps != seen_;
  seen_ = std::move(stamps);
  return changed || recent;
}

}  // namespace failback
