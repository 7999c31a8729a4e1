// What an agent's Subscriptions of one selector share: one stream of the registry, and one set.
//
// However many parts of a program follow a service, it is followed once: a further handle costs its
// own callback and queue, not a copy of the set.
//
//   auto [shared, is_new] = subscriptions->Acquire(key);
//   shared->Add(follower);
//   if (is_new) shared->SetStream(registry->Subscribe(request, shared));
//   …
//   shared->Remove(follower.get());
//   subscriptions->Release(shared);
//
// Thread safety: all methods from any thread. No lock is held while a follower, or the registry, is
// called.
//
// Invariants:
// 1. A stream is open as long as its subscription has a user: until each Acquire has its Release.
// 2. A follower that is added is notified of what is known already, and of each change after it.

#ifndef FAILBACK_AGENT_SHARED_SUBSCRIPTION_H_
#define FAILBACK_AGENT_SHARED_SUBSCRIPTION_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_agent {

class SharedSubscription final : public NotifyListener {
 public:
  // Is notified that there is news: on the thread that brings it, so it must not block.
  class Follower {
   public:
    virtual ~Follower() = default;
    virtual void OnChange() = 0;
  };

  struct State {
    InstanceSet instances;  // its runs are shared
    bool stale = true;      // as before the first snapshot
    absl::Status end;       // not OK: it has ended for good
  };
  State Current() const;

  void Add(const std::shared_ptr<Follower>& follower);
  void Remove(const Follower* follower);

  // Once, by the caller for which it is new.
  void SetStream(std::unique_ptr<SubscribeStream> stream);

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;

 private:
  friend class SharedSubscriptions;

  bool ended() const;
  // No user is left: the stream ends, now or when it is set.
  void Close();
  void Notify();

  size_t users_ = 0;  // guarded by the lock of SharedSubscriptions
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  bool any_ ABSL_GUARDED_BY(mu_) = false;  // an event, or the end, has come
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<SubscribeStream> stream_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Follower>> followers_ ABSL_GUARDED_BY(mu_);
};

class SharedSubscriptions {
 public:
  // The subscription of this key, which has one user more; and whether it is new: the caller then
  // opens its stream. One that has ended is replaced.
  std::pair<std::shared_ptr<SharedSubscription>, bool> Acquire(const std::string& key);
  void Release(const std::shared_ptr<SharedSubscription>& shared);

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<SharedSubscription>> by_key_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal_agent
}  // namespace failback

#endif  // FAILBACK_AGENT_SHARED_SUBSCRIPTION_H_
