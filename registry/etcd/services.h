// Subscriptions on etcd: one watch for each service (or namespace) that is followed here, however
// many follow it.
//
// A service that someone asks for is read (a range at one revision, in pages) and then watched from
// the next revision on; the copy that this makes is what new subscribers get as their snapshot.
// When the watch has to start over (compacted, cancelled) the service is read again, and the
// difference is sent as one delta. When etcd is unavailable for longer than the client and the
// watcher bridge, followers are notified by the end of their streams. What had no follower for a
// while is let go.
//
// Groups, filters, deltas and positions are those of SubscriptionHub.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_SERVICES_H_
#define FAILBACK_REGISTRY_ETCD_SERVICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "registry/etcd/client.h"
#include "registry/etcd/fences.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/watcher.h"
#include "registry/registry.h"
#include "registry/watch/subscription_hub.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Services {
 public:
  struct Options {
    SubscriptionHub::Options hub;
    // Keys read at a time.
    int64_t page_size = 2000;
    // A watch without a stream for so long ends.
    absl::Duration outage_limit = absl::Seconds(10);
  };

  // All outlive this; the client is closed before this goes.
  Services(Client* client, const Keys* keys, Identity* identity, Fences* fences, Options options);
  ~Services();

  // A subscription whose request, valid and canonical, is still being looked into. The caller of
  // Subscribe holds NewHandle of it at once; Follow or Refuse is called when its session is known.
  class Stream;
  static std::shared_ptr<Stream> NewStream(const SubscribeRequest& request,
                                           std::shared_ptr<NotifyListener> listener);
  static std::unique_ptr<SubscribeStream> NewHandle(std::shared_ptr<Stream> stream);
  void Follow(const std::shared_ptr<Stream>& stream);
  static void Refuse(const std::shared_ptr<Stream>& stream, const absl::Status& status);

  absl::Status Unsubscribe(const UnsubscribeRequest& request);

  // The session is over: so are its subscriptions.
  void EndSession(const std::string& session_id);
  // The sessions with subscriptions here.
  std::vector<std::string> Sessions() const;

  // The store has begun a new life: all streams end, those who follow come again.
  void EndEpoch();

  // Instances (canonical) of followed services that have a mark and have been gone for longer than
  // `memory`, as far as is known here.
  std::vector<std::string> StaleMarks(absl::Duration memory);

  // Drops what had no follower since the last Sweep.
  void Sweep();

  // Ends every stream. Before the client is closed.
  void Stop(const absl::Status& status);

  // Services that are watched.
  int64_t watched() const;

 private:
  class Service;

  std::shared_ptr<SubscriptionHub> Hub(uint64_t epoch);
  void Drop(const std::shared_ptr<Service>& service);

  Client* const client_;
  const Keys* const keys_;
  Identity* const identity_;
  Fences* const fences_;
  const Options options_;
  Watcher watcher_;

  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<SubscriptionHub> hub_ ABSL_GUARDED_BY(mu_);  // of that epoch
  absl::flat_hash_map<std::string, std::shared_ptr<Service>> services_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_SERVICES_H_
