// Bounds the answers that clients have not read yet.
//
// A client that opens no window makes the server keep its answers: a small request for a large List
// is memory for as long as the client likes. So large answers are counted until gRPC has handed
// them to the network, those of one reader and all; what has no room is refused in place of its
// answer, and a call whose answer stays unread for long is cancelled.
//
//   const UnreadAnswers::Reader reader{&unread, context, "alice"};
//   std::shared_ptr<void> room;                   // free again when it is destroyed
//   absl::Status status = reader.Admit(answer.Length(), &room);
//
// Thread safety: all methods from any thread. The object outlives the room that it gives.

#ifndef FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_
#define FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "registry/server/admission.h"
#include "retry/mutex.h"

namespace failback {

class UnreadAnswers {
 public:
  // An answer up to this size costs little more than its stream, and is not counted.
  static constexpr size_t kSmall = 4096;

  // Who reads the answer of a call: `owner`, or where it has no name its connection.
  struct Reader {
    UnreadAnswers* answers;
    grpc::CallbackServerContext* context;
    std::string owner;

    // Puts room for an answer into `room`, which is destroyed before the call. OVERLOADED when
    // there is none. One answer has room for itself, however large.
    absl::Status Admit(size_t bytes, std::shared_ptr<void>* room) const;
  };

  // One reader may have half of `max_bytes`; clients without name and address share all.
  // `admission`, which refuses, outlives this.
  UnreadAnswers(const Admission* admission, int64_t max_bytes)
      : admission_(admission), max_bytes_(max_bytes) {}

  // To be called at intervals: cancels the calls whose answers have been unread for more than
  // `stalled` of them.
  void Sweep(int stalled);

 private:
  struct Entry {
    std::string reader;
    int64_t bytes;
    grpc::CallbackServerContext* context;
    int sweeps = 0;
  };
  using Entries = std::list<Entry>;

  // Null when there is no room.
  std::shared_ptr<void> Enter(const std::string& reader, int64_t bytes,
                              grpc::CallbackServerContext* context);
  void Leave(Entries::iterator entry);

  const Admission* const admission_;
  const int64_t max_bytes_;
  mutable Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, int64_t> bytes_of_readers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_UNREAD_ANSWERS_H_
