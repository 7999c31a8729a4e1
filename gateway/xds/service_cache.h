// The resources of every service that some stream follows, over any Registry.
//
// However many streams follow a service, there is one subscription at the registry and one encoding
// of each resource, which they share. A change costs one pass over the service that changed and
// nothing for the others: the instances are kept as endpoints, the event that changes one marks the
// service and notifies its followers, and the first of them to ask makes the new encoding. One
// whose bytes are those of before (only metadata changed, the same set came again after an outage)
// is no change and keeps its version.
//
// Followers are notified of the first change at once, and of the next ones of the same service
// after 10 us per instance: at 10,000 instances that start one by one, ten times a second and not
// ten thousand times, which would be 300 KB each time, for each stream.
//
// What clients have is taken from them only when the registry says so. An end of the subscription,
// a stale set, a registry that is not there keep what is known. Before anything is known the
// endpoints of a service are null; when that lasts (`first_wait`) there is a placeholder without
// endpoints, so that calls fail instead of hanging. A service without a follower is kept up to date
// for `linger`, so that a program that restarts finds it, also while the registry is unavailable.
//
// Thread safety: all methods from any thread. Followers are called without locks, on the thread
// that brings the news, and must not block.

#ifndef FAILBACK_GATEWAY_XDS_SERVICE_CACHE_H_
#define FAILBACK_GATEWAY_XDS_SERVICE_CACHE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gateway/xds/resources.h"
#include "gateway/xds/stream_state.h"
#include "registry/registry.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"

namespace failback::xds {

class ServiceCache {
 public:
  // Who follows services.
  class Follower {
   public:
    virtual ~Follower() = default;
    // The endpoints of `name` have changed, or are known now.
    virtual void OnServiceChanged(const std::string& name) = 0;
  };

  struct Options {
    // Required; outlives the cache.
    HashedWheelTimer* timer = nullptr;
    // Optional; outlives the cache. Where followers are notified; default: on the thread that
    // brings the news, which may be the one that commits.
    Executor* executor = nullptr;
    // Instances of the client's zone first.
    bool zone_aware = false;
    // How long a client waits for a service of which nothing is known.
    absl::Duration first_wait = absl::Seconds(2);
    // How long a service without followers is kept, and how many of them.
    absl::Duration linger = absl::Minutes(5);
    size_t max_lingering = 1000;
    // Services that are followed at once, those that linger included; these make room.
    size_t max_services = 20000;
    // Between two attempts to subscribe.
    absl::Duration resubscribe_delay = absl::Seconds(1);
    // Between two notifications about a service, for each of its instances.
    absl::Duration push_interval_per_instance = absl::Microseconds(10);
  };

  struct Statistics {
    // That are followed, or linger.
    int64_t services = 0;
    // Registered instances of these that clients cannot get, as their address is a host name.
    int64_t unusable_instances = 0;
    // ClusterLoadAssignments made.
    int64_t builds = 0;
  };

  // `registry` outlives the cache.
  ServiceCache(Registry* registry, Options options);
  // Every follower has unfollowed.
  ~ServiceCache();
  ServiceCache(const ServiceCache&) = delete;
  ServiceCache& operator=(const ServiceCache&) = delete;

  // From now on `follower` is notified of changes of the service; at most once for each of both.
  // Must not be called with a lock held that the follower takes. LIMIT_REACHED: there are as many
  // services as there may be, and nothing was done.
  absl::Status Follow(const std::string& name, const std::shared_ptr<Follower>& follower);
  void Unfollow(const std::string& name, const std::shared_ptr<Follower>& follower);

  // A resource of a service that is followed; nothing of one that is not. `zone` is the client's.
  StreamState::Found Find(ResourceType type, const std::string& name, const std::string& zone);

  Statistics Stats() const;

 private:
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_SERVICE_CACHE_H_
