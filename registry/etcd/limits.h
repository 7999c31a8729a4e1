// How many instances and sessions there may be, held approximately by each server on its own.
//
// What there is etcd counts, every five seconds; what this server has added since is added to
// that, so that one server alone goes by what there is. What others have added since is not known:
// n servers together exceed a limit by at most what n - 1 of them add in a period. Counted are
// keys: a tombstone and a mark count like an instance until they end. What is removed makes room at
// the next count. Until the first count a server knows of its own only. Without limits nothing is
// counted.
//
//   const int64_t granted = limits.Reserve(Limits::kInstances, 3);   // 0 … 3
//   …
//   limits.Settle(Limits::kInstances, granted, written);
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_LIMITS_H_
#define FAILBACK_REGISTRY_ETCD_LIMITS_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/keys.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Limits {
 public:
  struct Options {
    int64_t max_instances = 0;  // 0: no limit
    int64_t max_sessions = 0;
    // Those on the session's leases: not the persistent ones.
    int64_t max_instances_per_session = 0;
  };
  enum Kind { kInstances, kSessions };

  // Both outlive this; the client is closed before this goes.
  Limits(Client* client, const Keys* keys, Options options);

  // Counts from now on.
  void Start();

  // How many of `wanted` there may be more; they count until they are settled.
  int64_t Reserve(Kind kind, int64_t wanted);
  void Settle(Kind kind, int64_t reserved, bool written);
  // Of what was there so many are not any more.
  void Removed(Kind kind, int64_t removed);

  // LIMIT_REACHED, which names the limit.
  absl::Status Reached(Kind kind) const;

  int64_t max_instances_per_session() const { return options_.max_instances_per_session; }
  absl::Status SessionIsFull() const;

 private:
  struct Counted {
    int64_t limit = 0;
    int64_t counted = 0;
    int64_t since = 0;  // written and removed here since that was asked for
    int64_t reserved = 0;
  };

  void Count();

  Client* const client_;
  const Keys* const keys_;
  const Options options_;
  Mutex mu_;
  Counted counted_[2] ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_LIMITS_H_
