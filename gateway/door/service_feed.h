// What the registry has of the services that the front doors are asked for: one subscription per
// service, shared by all who ask, wait or follow.
//
// A service is followed from its first question on, and for a while after its last one: polling it
// costs the registry nothing. A state is immutable and shared, and so is what a door renders of it:
// ten thousand waiting clients are answered with the same bytes. How many services are followed is
// bounded; where there are too many the one that was asked for least recently, and that no client
// waits for, makes room.
//
// The feed knows no callers. A door asks AccessControl about each client before it looks.
//
// Example: a blocking query.
//
//   ServiceFeed::Waiter waiter = feed->WhenNewer(
//       service, seen, [responder](const ServiceStatePtr& state) { … answer … });
//   responder.WhenGone([waiter] { waiter.Cancel(); });
//
// Thread safety: all methods from any thread. Callbacks run without locks, on the thread that
// brings the news or on the caller's; they must not block.

#ifndef FAILBACK_GATEWAY_DOOR_SERVICE_FEED_H_
#define FAILBACK_GATEWAY_DOOR_SERVICE_FEED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

// A service, or, with an empty name, the list of a namespace's services: each as an "instance"
// without id, with its `instance_count`.
struct ServiceName {
  std::string name_space;
  std::string service;
};

// Which state a client has. The default: none.
struct StatePosition {
  uint64_t epoch = 0;
  uint64_t revision = 0;
  bool stale = false;
  bool held = false;

  friend bool operator==(const StatePosition& a, const StatePosition& b) {
    return a.epoch == b.epoch && a.revision == b.revision && a.stale == b.stale && a.held == b.held;
  }
};

// What was known of a service at one moment.
class ServiceState {
 public:
  struct Parts {
    ServiceName name;
    InstanceSet set;
    uint64_t version = 1;
    int64_t epoch_seen_seconds = 0;
    bool stale = false;
    // How it became so: from which state, and what has changed.
    StatePosition previous;
    InstanceSet::Changes changes;
  };
  explicit ServiceState(Parts parts) : parts_(std::move(parts)) {}

  const ServiceName& name() const { return parts_.name; }
  const InstanceSet& set() const { return parts_.set; }
  // Grows by one with each change of the set in this epoch, from 1. Flags alone change it not.
  uint64_t version() const { return parts_.version; }
  // When this daemon saw the epoch of the set first, in seconds of the Unix time.
  int64_t epoch_seen_seconds() const { return parts_.epoch_seen_seconds; }
  // The registry is unavailable, and this is its last known state.
  bool stale() const { return parts_.stale; }
  bool held() const { return parts_.set.flags().held; }
  // A number for clients that know one: grows with each change, over restarts too, below 2^53.
  uint64_t index() const {
    return (static_cast<uint64_t>(parts_.epoch_seen_seconds) << 22) + parts_.version;
  }
  StatePosition position() const { return {set().epoch(), set().revision(), stale(), held()}; }
  // A client that has the state at previous() has this one after these changes.
  const StatePosition& previous() const { return parts_.previous; }
  const InstanceSet::Changes& changes() const { return parts_.changes; }

  // What `render` makes of this state, made once for each `kind` (a door's own name, with what the
  // bytes depend on).
  std::shared_ptr<const std::string> Rendered(const std::string& kind,
                                              absl::FunctionRef<std::string()> render) const;

 private:
  const Parts parts_;
  mutable Mutex mu_;
  mutable std::map<std::string, std::shared_ptr<const std::string>> rendered_ ABSL_GUARDED_BY(mu_);
};
using ServiceStatePtr = std::shared_ptr<const ServiceState>;

class ServiceFeed {
 public:
  struct Options {
    // Required; outlives the feed.
    HashedWheelTimer* timer = nullptr;
    // Where those who wait are answered: not on the thread that brings the news, which is a
    // registry's. Null: there. Outlives the feed.
    Executor* executor = nullptr;
    size_t max_services = 10000;
    // After the last question.
    absl::Duration kept = absl::Minutes(10);
    absl::Duration resubscribe_delay = absl::Seconds(1);
    // After the registry has denied a service to this daemon.
    absl::Duration denied_delay = absl::Seconds(5);
  };

  // Runs once, with the state that is newer; or with why there is none: PERMISSION_DENIED,
  // RESOURCE_EXHAUSTED (too many services), UNAVAILABLE when the feed stops.
  using OnState = absl::AnyInvocable<void(absl::StatusOr<ServiceStatePtr>) &&>;

  // One who waits. Copies are the same one. Dropping it does not cancel.
  class Waiter {
   public:
    Waiter() = default;
    // The callback does not run any more, unless it is running.
    void Cancel() const;
    // It had run when WhenNewer returned.
    bool done() const { return id_ == 0; }

   private:
    friend class ServiceFeed;
    std::weak_ptr<void> service_;
    uint64_t id_ = 0;
  };

  ServiceFeed(Registry* registry, Options options);
  ~ServiceFeed();  // as Stop
  ServiceFeed(const ServiceFeed&) = delete;
  ServiceFeed& operator=(const ServiceFeed&) = delete;

  // Ends the subscriptions; all who wait are answered with UNAVAILABLE. No callback runs afterwards.
  void Stop();

  // Answers when the state is another than `seen`: at once, if it is. The first question about a
  // service waits until the registry has answered.
  Waiter WhenNewer(const ServiceName& name, const StatePosition& seen, OnState on_state);

  // Those that are followed.
  int64_t services() const;
  int64_t waiters() const;

 private:
  class Service;
  struct Shared;
  // Ends what nobody has asked for lately.
  static void Sweep(Shared* shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback

#endif  // FAILBACK_GATEWAY_DOOR_SERVICE_FEED_H_
