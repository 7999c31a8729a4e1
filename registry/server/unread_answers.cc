#include "registry/server/unread_answers.h"

#include <utility>

namespace failback {

std::shared_ptr<void> UnreadAnswers::Enter(const std::string& reader, size_t bytes,
                                           grpc::CallbackServerContext* context) {
  if (bytes <= kSmall) return {std::shared_ptr<void>(), this};
  const auto size = static_cast<int64_t>(bytes);
  MutexLock lock(&mu_);
  // Clients without a name and an address look all alike.
  const int64_t share = reader.empty() ? max_bytes_ : max_bytes_ / 2;
  int64_t& of_reader = bytes_of_readers_[reader];
  const bool has_room = of_reader == 0 ? bytes_ == 0 || bytes_ + size <= max_bytes_
                                       : of_reader + size <= share && bytes_ + size <= max_bytes_;
  if (!has_room) {
    if (of_reader == 0) bytes_of_readers_.erase(reader);
    return nullptr;
  }
  of_reader += size;
  bytes_ += size;
  const auto entry = entries_.insert(entries_.end(), {reader, size, context});
  return std::shared_ptr<void>(this, [this, entry](void*) { Leave(entry); });
}

void UnreadAnswers::Leave(Entries::iterator entry) {
  MutexLock lock(&mu_);
  bytes_ -= entry->bytes;
  const auto of_reader = bytes_of_readers_.find(entry->reader);
  if ((of_reader->second -= entry->bytes) == 0) bytes_of_readers_.erase(of_reader);
  entries_.erase(entry);
}

void UnreadAnswers::Sweep(int stalled) {
  MutexLock lock(&mu_);
  for (Entry& entry : entries_) {
    if (++entry.sweeps > stalled) entry.context->TryCancel();
  }
}

int64_t UnreadAnswers::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace failback
