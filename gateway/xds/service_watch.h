// One service that is followed: its subscription, its endpoints, its encoded resources. Internal to
// ServiceCache.
//
// Thread safety: all methods from any thread. Its lock is never held while the registry or a
// follower is called.

#ifndef FAILBACK_GATEWAY_XDS_SERVICE_WATCH_H_
#define FAILBACK_GATEWAY_XDS_SERVICE_WATCH_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gateway/xds/endpoints.h"
#include "gateway/xds/service_cache.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback::xds {

// What the watches of one cache share.
struct WatchContext {
  WatchContext(Registry* registry, ServiceCache::Options options)
      : registry(registry), options(options) {}

  Registry* const registry;
  const ServiceCache::Options options;
  std::atomic<uint64_t> last_version{0};
  std::atomic<int64_t> unusable{0};
  std::atomic<int64_t> builds{0};
};

class ServiceWatch final : public NotifyListener,
                           public std::enable_shared_from_this<ServiceWatch> {
 public:
  using Follower = ServiceCache::Follower;

  ServiceWatch(std::shared_ptr<WatchContext> context, std::string name);
  ~ServiceWatch() override;

  // To be called once.
  void Start();
  // Ends the subscription; the watch does nothing after it. Must not be called with a lock held.
  void Stop();

  void Add(const std::shared_ptr<Follower>& follower);
  // Returns how many are left.
  size_t Remove(const std::shared_ptr<Follower>& follower);

  StreamState::Found Find(ResourceType type, const std::string& zone);

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;

 private:
  static constexpr int64_t kNever = -1;

  // The ClusterLoadAssignment for the clients of one zone.
  struct Variant {
    ResourcePtr resource;
    // The state of `endpoints_` that it was made of.
    uint64_t made_of = 0;
  };

  void Subscribe();
  // Whether that changed what clients are sent.
  bool Take(const InstanceSet::Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Put(const Blob& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Erase(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(const ServiceEndpoint& endpoint, int64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The zone by which this client's endpoints differ from others'; empty if they do not.
  std::string ZoneThatMatters(const std::string& zone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ResourcePtr Endpoints(const std::string& zone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ResourcePtr NewResource(std::string encoded);
  // Notes that followers are to be notified; whether that is now, and not after a pause.
  bool ScheduleTell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notifies them, on the executor.
  void TellSoon();
  // Runs a method of this after a delay, if it still lives.
  void Later(absl::Duration delay, void (ServiceWatch::*method)());
  void FirstWaitOver();
  void TellNow();

  const std::shared_ptr<WatchContext> context_;
  const std::string name_;
  std::array<ResourcePtr, kResourceTypes.size()> fixed_;  // but for the endpoints

  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<SubscribeStream> stream_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Follower>> followers_ ABSL_GUARDED_BY(mu_);
  InstanceSet instances_ ABSL_GUARDED_BY(mu_);
  // An event was lost: another subscription follows.
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  ServiceEndpoints endpoints_ ABSL_GUARDED_BY(mu_);
  // Counts the changes of endpoints_.
  uint64_t state_ ABSL_GUARDED_BY(mu_) = 1;
  // A first set has come.
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  // It has not, for so long that a placeholder stands in.
  bool waited_ ABSL_GUARDED_BY(mu_) = false;
  bool warned_ ABSL_GUARDED_BY(mu_) = false;
  int64_t unusable_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t told_at_nanos_ ABSL_GUARDED_BY(mu_) = kNever;
  bool tell_scheduled_ ABSL_GUARDED_BY(mu_) = false;
  // By zone of the client; empty for all clients whose zone has no instance or does not matter.
  std::map<std::string, Variant> variants_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> zones_ ABSL_GUARDED_BY(mu_);  // that have instances
  uint64_t zones_of_ ABSL_GUARDED_BY(mu_) = 0;        // the state that this is true of
};

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_SERVICE_WATCH_H_
