#include "tests/bench/synced_file.h"

#include <fcntl.h>
#include <unistd.h>

namespace failback {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kPages = 256;

}  // namespace

SyncedFile::SyncedFile(const std::string& path, Sync sync)
    : sync_(sync),
      page_(kPageBytes, 'x'),
      fd_(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)),
      fine_(fd_ >= 0) {
  for (int64_t i = 0; fine_ && i < kPages; ++i) fine_ = WritePage(i);
  fine_ = fine_ && fsync(fd_) == 0;
}

SyncedFile::~SyncedFile() {
  if (fd_ >= 0) close(fd_);
}

bool SyncedFile::WritePage(int64_t number) {
  return pwrite(fd_, page_.data(), page_.size(), number * kPageBytes) == kPageBytes;
}

bool SyncedFile::Write() {
  const int64_t number = next_++;
  fine_ = fine_ && WritePage(sync_ == Sync::kInPlace ? number % kPages : kPages + number) &&
          (sync_ == Sync::kFsync ? fsync(fd_) : fdatasync(fd_)) == 0;
  return fine_;
}

}  // namespace failback
