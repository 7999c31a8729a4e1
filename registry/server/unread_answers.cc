#include "registry/server/unread_answers.h"

#include <utility>

namespace failback {

absl::Status UnreadAnswers::Reader::Admit(size_t bytes, std::shared_ptr<void>* room) const {
  if (bytes <= kSmall) return absl::OkStatus();
  *room = answers->Enter(ReaderOf(*context, owner), static_cast<int64_t>(bytes), context);
  if (*room != nullptr) return absl::OkStatus();
  return answers->admission_->Overloaded(CallStats::Limit::kUnreadBytes, answers->max_bytes_,
                                         ", half of them of one caller,");
}

std::shared_ptr<void> UnreadAnswers::Enter(const std::string& reader, int64_t bytes,
                                           grpc::CallbackServerContext* context) {
  MutexLock lock(&mu_);
  const auto found = bytes_of_readers_.find(reader);
  const int64_t of_reader = found == bytes_of_readers_.end() ? 0 : found->second;
  const int64_t share = reader.empty() ? max_bytes_ : max_bytes_ / 2;
  if (bytes_ > 0 && bytes_ + bytes > max_bytes_) return nullptr;
  if (of_reader > 0 && of_reader + bytes > share) return nullptr;
  bytes_of_readers_[reader] = of_reader + bytes;
  bytes_ += bytes;
  const auto entry = entries_.insert(entries_.end(), {reader, bytes, context});
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

}  // namespace failback
