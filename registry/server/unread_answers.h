// Bounds the answers that clients have not read yet.
//
// A client that opens no window makes the server keep its answers: a small request for a large List
// is memory for as long as the client likes. So large answers are counted until gRPC has handed them
// to the network, those of one reader and all; what has no room is refused in place of its answer,
// and a call whose answer stays unread for long is cancelled.
//
//   std::shared_ptr<void> room = unread.Enter("alice", answer.Length(), context);
//   if (room == nullptr) return Overloaded();     // it is free again when `room` is destroyed
//
// Thread safety: all methods from any thread. The object outlives what Enter returns.

#ifndef FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_
#define FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/server_context.h"
#include "retry/mutex.h"

namespace failback {

class UnreadAnswers {
 public:
  // An answer up to this size costs little more than its stream, and is not counted.
  static constexpr size_t kSmall = 4096;

  // One reader may have half of `max_bytes`; those without a name share all.
  explicit UnreadAnswers(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Room for an answer of a call, which lives until this is destroyed; null when there is none. One
  // answer has room for itself, however large.
  std::shared_ptr<void> Enter(const std::string& reader, size_t bytes,
                              grpc::CallbackServerContext* context);

  // To be called at intervals: cancels the calls whose answers have been unread for more than
  // `stalled` of them.
  void Sweep(int stalled);

  int64_t max_bytes() const { return max_bytes_; }
  int64_t bytes() const;

 private:
  struct Entry {
    std::string reader;
    int64_t bytes;
    grpc::CallbackServerContext* context;
    int sweeps = 0;
  };
  using Entries = std::list<Entry>;

  void Leave(Entries::iterator entry);

  const int64_t max_bytes_;
  mutable Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int64_t> bytes_of_readers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_
