// Writes batches of intents: fencing by transactions that compare, then put.
//
// A batch is cut into chunks of at most 125 operations and about a MiB. A chunk is one transaction:
// it compares that the session's key is there, and that each instance's key is as the decision
// (registry/model/fencing.h) took it to be; then it puts all, or reads what the keys really are and
// decides again. Registrations are at first taken to be of keys that are not there; everything else
// is read first. A transaction that arrives twice does no harm: the second time what it compares is
// not so any more, and what it reads is what it wished.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_WRITER_H_
#define FAILBACK_REGISTRY_ETCD_WRITER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/fences.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/limits.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/tombstone_leases.h"
#include "registry/etcd/txn_window.h"
#include "registry/model/batch.h"

namespace failback {
namespace etcd {

class Writer {
 public:
  struct Written {
    std::vector<IntentOutcome> outcomes;
    bool as_asked = false;  // each is OK, under the generation that its intent came with
    uint64_t revision = 0;
  };

  // All outlive the writer; the client is closed before the writer goes.
  Writer(Client* client, const Keys* keys, Sessions* sessions, Fences* fences, Limits* limits,
         int64_t keys_per_lease)
      : client_(client),
        keys_(keys),
        sessions_(sessions),
        fences_(fences),
        limits_(limits),
        tombstones_(client, keys_per_lease),
        window_(kMaxInFlight) {}

  // `session` null: the intents are detached. One that is refused already keeps its status. An
  // error is that of the whole batch; part of it may have been written.
  void Write(SessionPtr session, std::vector<Intent> intents, Client::Done<Written> done);

 private:
  // Transactions under way at once; the others wait.
  static constexpr int kMaxInFlight = 16;

  struct Job;
  class Chunk;

  Client* const client_;
  const Keys* const keys_;
  Sessions* const sessions_;
  Fences* const fences_;
  Limits* const limits_;
  TombstoneLeases tombstones_;
  TxnWindow window_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_WRITER_H_
