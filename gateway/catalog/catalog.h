// What is registered, followed once for all clients of the front doors, over any Registry.
//
// However many clients read a service or wait for its next change, there is one subscription at the
// registry, and they share one immutable set. A service is followed from its first question on, and
// for `kept` after its last one; so neither a poll nor a parked request costs the registry anything.
// A namespace is followed as its list of services and, for as long as a client asks for it, each of
// these. How many sets are followed is bounded; where there are too many the one that was asked for
// least recently makes room, unless a client waits for it.
//
// What is known stays: the end of a subscription and a stale set take nothing away, and a set that
// is empty and stale says nothing.
//
// Example: a long poll.
//
//   catalog::ServiceView view = catalog->Service("default", "orders");
//   if (view.index > seen) return Answer(view);
//   wait = catalog->WaitForService("default", "orders", view.version, [this] { LookAgain(); });
//
// Thread safety: all methods from any thread. `wake` is called without locks, on the executor, on
// the thread that brings the news, or before WaitFor… returns; it must not block. It may still be
// running when the destructor of its Wait returns.

#ifndef FAILBACK_GATEWAY_CATALOG_CATALOG_H_
#define FAILBACK_GATEWAY_CATALOG_CATALOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gateway/catalog/followed_set.h"
#include "gateway/catalog/view.h"
#include "gateway/catalog/waiters.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"

namespace failback::catalog {

// What is known of all services of a namespace.
struct NamespaceView {
  struct Service {
    std::string name;
    uint64_t index = 0;
    std::shared_ptr<const InstanceSet> instances;  // never empty
  };
  using Services = std::vector<Service>;

  Knowledge knowledge = Knowledge::kPending;
  uint64_t version = 0;
  uint64_t index = 0;
  absl::Time stale_since = absl::InfiniteFuture();
  // Sorted by name. Null unless known.
  std::shared_ptr<const Services> services;
  // Of the services. Null unless known.
  std::shared_ptr<Renderings> renderings;

  bool stale() const { return stale_since != absl::InfiniteFuture(); }
};

class Catalog {
 public:
  struct Options : FollowOptions {
    // Services and lists of services that are followed at once.
    size_t max_sets = 20000;
    // Followed at once as a whole.
    size_t max_namespaces = 100;
    // After the last question.
    absl::Duration kept = absl::Minutes(10);
    // Between two wakes for one namespace, in which any service may change.
    absl::Duration namespace_interval = absl::Milliseconds(50);
  };

  struct Statistics {
    int64_t sets = 0;     // that are followed
    int64_t waiting = 0;  // Waits that have not been woken
    int64_t evicted = 0;  // sets that had to make room
  };

  // `registry` outlives Stop.
  Catalog(Registry* registry, Options options);
  ~Catalog();  // as Stop
  // Ends all subscriptions. What is asked afterwards is answered with kTooMany.
  void Stop();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // A name that no service can have is known, and has no instances. With an empty name: the list of
  // the namespace's services, each as an "instance" without id, with its `instance_count`.
  ServiceView Service(const std::string& name_space, const std::string& service);
  NamespaceView Namespace(const std::string& name_space);

  // `wake` runs once, when the view is not the one of `version` any more.
  Wait WaitForService(const std::string& name_space, const std::string& service, uint64_t version,
                      std::function<void()> wake);
  Wait WaitForNamespace(const std::string& name_space, uint64_t version,
                        std::function<void()> wake);

  Statistics Stats() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_CATALOG_H_
