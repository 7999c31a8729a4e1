// The leases of tombstones, shared by many of them.
//
// A tombstone has to stay for at least its retention. A lease is granted for twice a retention
// (rounded up to a power of two) and takes tombstones during its first half, so that there are few
// leases however many tombstones.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_TOMBSTONE_LEASES_H_
#define FAILBACK_REGISTRY_ETCD_TOMBSTONE_LEASES_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class TombstoneLeases {
 public:
  TombstoneLeases(Client* client, int64_t keys_per_lease)
      : client_(client), keys_per_lease_(keys_per_lease) {}

  // A lease for `keys` tombstones of this retention.
  void Take(absl::Duration retention, int64_t keys, Client::Done<int64_t> done);

  // `lease` is not there any more.
  void Drop(int64_t lease);

 private:
  struct Waiter {
    int64_t keys;
    Client::Done<int64_t> done;
  };
  // Of one retention class, in seconds.
  struct Class {
    int64_t lease = 0;
    int64_t keys = 0;
    SteadyTime until;
    bool granting = false;
    std::vector<Waiter> waiting;
  };

  void Grant(int64_t seconds);

  Client* const client_;
  const int64_t keys_per_lease_;
  Mutex mu_;
  absl::flat_hash_map<int64_t, Class> classes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_TOMBSTONE_LEASES_H_
