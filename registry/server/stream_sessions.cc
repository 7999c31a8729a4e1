#include "registry/server/stream_sessions.h"

#include <algorithm>

namespace failback {

void StreamSessions::Opened(const std::string& session_id, bool ends_with_stream, absl::Time now,
                            absl::Time expires) {
  MutexLock lock(&mu_);
  if (!ends_with_stream) {
    sessions_.erase(session_id);
    return;
  }
  if (sessions_.size() >= sweep_at_) {
    absl::erase_if(sessions_, [&](const auto& entry) {
      return entry.second.stream == 0 && entry.second.expires < now;
    });
    sweep_at_ = std::max<size_t>(1024, 2 * sessions_.size());
  }
  sessions_[session_id].expires = expires;
}

void StreamSessions::Renewed(const std::string& session_id, StreamId stream) {
  MutexLock lock(&mu_);
  const auto it = sessions_.find(session_id);
  if (it != sessions_.end()) it->second.stream = stream;
}

void StreamSessions::Closed(const std::string& session_id) {
  MutexLock lock(&mu_);
  sessions_.erase(session_id);
}

std::vector<std::string> StreamSessions::Ended(StreamId stream) {
  std::vector<std::string> ended;
  MutexLock lock(&mu_);
  absl::erase_if(sessions_, [&](const auto& entry) {
    if (entry.second.stream != stream) return false;
    ended.push_back(entry.first);
    return true;
  });
  return ended;
}

size_t StreamSessions::size() const {
  MutexLock lock(&mu_);
  return sessions_.size();
}

}  // namespace failback
