// Which sessions end with which KeepAlive stream (OpenSessionRequest.ends_with_stream).
//
// Such a session belongs to the stream that renewed it last. A client that reconnects renews it on
// its new stream, and then the end of the old one means nothing.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_STREAM_SESSIONS_H_
#define FAILBACK_REGISTRY_SERVER_STREAM_SESSIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

class StreamSessions {
 public:
  // Names a stream; never 0.
  using StreamId = uint64_t;

  // A session was opened, or opened again, with or without `ends_with_stream`. Unless it is renewed
  // on a stream before its lease ends at `expires` it is forgotten some time after. `now` is of a
  // clock that is never set.
  void Opened(const std::string& session_id, bool ends_with_stream, absl::Time now,
              absl::Time expires);

  // `stream` carries a renewal of `session_id`.
  void Renewed(const std::string& session_id, StreamId stream);

  void Closed(const std::string& session_id);

  // The sessions that end with `stream`, which are forgotten here.
  std::vector<std::string> Ended(StreamId stream);

  size_t size() const;

 private:
  struct Session {
    StreamId stream = 0;  // 0: none yet
    absl::Time expires;   // while there is none
  };

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  // When to look for sessions that were never renewed.
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 1024;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_STREAM_SESSIONS_H_
