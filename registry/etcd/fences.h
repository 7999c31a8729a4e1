// Fences of what has expired. etcd deletes an instance's key with its lease, and nothing is left
// that would refuse an older incarnation which wakes up afterwards. A server that follows the
// service sees that, and puts the fence back, as a tombstone.
//
// An instance is fenced unless its session was closed: the incarnation's record has the leases of
// the session that was (registry/etcd/sessions.h). What the fence was is read from etcd at the
// revision before the deletion. Of several servers that follow the service one writes: a
// transaction compares that the keys are not there. What is in it and is there by then (another
// server was faster, or a new registration) is left out.
//
// Bounds: one batch of kBatch instances is on its way at a time, at most kMaxWaiting wait,
// and what is beyond them, or has waited for its retention, gets no fence. Where no client follows
// the service, or etcd does not answer, there is none either.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_FENCES_H_
#define FAILBACK_REGISTRY_ETCD_FENCES_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/tombstone_leases.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Fences {
 public:
  static constexpr size_t kBatch = 100;
  static constexpr size_t kMaxWaiting = 100000;

  struct Gone {
    std::string canonical;
    uint64_t rank = 0;     // of its fence
    int64_t revision = 0;  // that deleted it
  };

  // Both outlive this; the client is closed before this goes.
  Fences(Client* client, const Keys* keys, int64_t keys_per_lease)
      : client_(client), keys_(keys), leases_(client, keys_per_lease) {}

  void Add(std::vector<Gone> gone);

  // True when a fence of a higher rank than `rank` is on its way for the instance: then `over` runs
  // when it is there, or is given up.
  bool Await(const std::string& canonical, uint64_t rank, absl::AnyInvocable<void() &&> over);

 private:
  struct Item;
  struct Batch;
  struct Pending {
    uint64_t rank = 0;
    std::vector<absl::AnyInvocable<void() &&>> waiting;
  };
  struct Waiting {
    Gone gone;
    SteadyTime until;
  };

  void Next();
  void ReadBefore(const std::shared_ptr<Batch>& batch);
  void ReadOwners(const std::shared_ptr<Batch>& batch);
  void TakeLease(const std::shared_ptr<Batch>& batch);
  void Write(const std::shared_ptr<Batch>& batch, int64_t lease);
  void Finish(const std::shared_ptr<Batch>& batch);

  Client* const client_;
  const Keys* const keys_;
  TombstoneLeases leases_;

  mutable Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, Pending> pending_ ABSL_GUARDED_BY(mu_);  // by canonical key
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_FENCES_H_
