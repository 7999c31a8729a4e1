#include "registry/server/read_threads.h"

#include <optional>
#include <utility>

namespace failback {

ReadThreads::Slot ReadThreads::Push(const std::string& reader, Task read) {
  Slot slot;
  {
    MutexLock lock(&mu_);
    slot = queue_.Push(reader, std::move(read));
    if (busy_ == most_) return slot;
    ++busy_;
  }
  threads_->Execute([this] { Work(); });
  return slot;
}

void ReadThreads::Work() {
  mu_.Lock();
  while (!queue_.empty()) {
    FairQueue<Task>::Taken next = queue_.Pop();
    mu_.Unlock();
    std::move(next.task)();
    next.task = nullptr;
    mu_.Lock();
    queue_.Done(next.owner);
  }
  --busy_;
  mu_.Unlock();
}

bool ReadThreads::Withdraw(const Slot& slot) {
  std::optional<Task> read;  // destroyed without the lock
  MutexLock lock(&mu_);
  read = queue_.Remove(slot);
  return read.has_value();
}

int64_t ReadThreads::waiting() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

}  // namespace failback
