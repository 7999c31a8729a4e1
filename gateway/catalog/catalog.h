// What is registered, followed once for all clients of the front doors, over any Registry.
//
// However many clients read a service or wait for its next change, there is one subscription at the
// registry, and they share one immutable set. A service is followed from its first question on, and
// for `kept` after its last one; so neither a poll nor a parked request costs the registry anything.
// A namespace is followed as its list of services and, for as long as somebody asks for it, each of
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
// Thread safety: all methods from any thread. `wake` is called without locks, on the executor, on the
// thread that brings the news, or before WaitFor… returns; it must not block. It may still be running when the
// destructor of its Wait returns.

#ifndef FAILBACK_GATEWAY_CATALOG_CATALOG_H_
#define FAILBACK_GATEWAY_CATALOG_CATALOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback::catalog {

// Bytes that were made of one view, each kind once: ten thousand clients that waited for a change
// are answered with the same ones.
//
// Thread safety: all methods from any thread.
class Renderings {
 public:
  using Bytes = std::shared_ptr<const std::string>;

  // `kind` names the door and what the bytes depend on. Of kinds that clients make up not many are
  // kept: the others are made again each time.
  Bytes Get(const std::string& kind, absl::FunctionRef<std::string()> render);

 private:
  static constexpr size_t kMostKept = 16;

  Mutex mu_;
  absl::flat_hash_map<std::string, Bytes> kept_ ABSL_GUARDED_BY(mu_);
};

enum class Knowledge {
  kPending,      // nothing yet, and soon something or kUnavailable
  kUnavailable,  // nothing, as the registry has not answered for `first_wait`
  kDenied,       // the registry does not let this daemon read it
  kTooMany,      // not followed: there are `max_sets` others for which clients wait
  kKnown,
};

// Why there is no answer from what is known: UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED; OK
// when there is one, or, unless this is the `last` look, may be soon.
absl::Status WhyUnknown(Knowledge knowledge, bool last);

// What is known of a service.
struct ServiceView {
  Knowledge knowledge = Knowledge::kPending;
  // Of this view, whatever it says: another one than seen means that something has changed. Grows,
  // also where the set is followed again after it was not.
  uint64_t version = 0;
  // Of the instances (gateway/catalog/index.h); 0 unless known.
  uint64_t index = 0;
  // Since when the set may be out of date; InfiniteFuture: it is not.
  absl::Time stale_since = absl::InfiniteFuture();
  // Sessions of some of its instances are past their TTL, and their end is held back.
  bool held = false;
  // Null unless known.
  std::shared_ptr<const InstanceSet> instances;
  // Of the instances. Null unless known.
  std::shared_ptr<Renderings> renderings;

  bool stale() const { return stale_since != absl::InfiniteFuture(); }
};

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

class FollowedNamespace;
class FollowedSet;

// A `wake` that is to come. Destroying it withdraws it.
class Wait {
 public:
  Wait() = default;
  explicit Wait(std::function<void()> withdraw) : withdraw_(std::move(withdraw)) {}
  Wait(Wait&& other) noexcept : withdraw_(std::exchange(other.withdraw_, nullptr)) {}
  Wait& operator=(Wait&& other) noexcept {
    std::swap(withdraw_, other.withdraw_);
    return *this;
  }
  ~Wait() {
    if (withdraw_ != nullptr) withdraw_();
  }

 private:
  std::function<void()> withdraw_;
};

class Catalog {
 public:
  struct Options {
    // Required; outlives the catalog.
    HashedWheelTimer* timer = nullptr;
    // Where waits are woken; null: on the thread that brings the news, which may be the one that
    // commits. Outlives the catalog.
    Executor* executor = nullptr;
    // Services that are followed at once.
    size_t max_sets = 20000;
    // Followed at once as a whole.
    size_t max_namespaces = 100;
    // After the last question.
    absl::Duration kept = absl::Minutes(10);
    // How long the first questions about a set may have to wait.
    absl::Duration first_wait = absl::Seconds(2);
    absl::Duration resubscribe_delay = absl::Seconds(1);
    // What may not be read is tried again with the first question after it.
    absl::Duration denied_delay = absl::Seconds(5);
    // Between two wakes for one namespace, in which any service may change.
    absl::Duration namespace_interval = absl::Milliseconds(50);
    std::function<absl::Time()> now = absl::Now;
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

  // A name that no service can have is known, and has no instances.
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
