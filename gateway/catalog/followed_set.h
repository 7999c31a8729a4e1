// One set that is followed at a Registry: a service, or, with an empty name, the list of a
// namespace's services. The one follower of the front doors: the catalog has many, and so has DNS.
//
// There is one subscription, which begins again where it ended, and after a gap with a snapshot.
// What is known stays: the end of a subscription and a stale set take nothing away, and a set that
// is empty and stale says nothing. A refusal takes all away, and is tried again with a question.
//
// Example:
//
//   auto context = std::make_shared<catalog::FollowContext>(&registry, options);
//   auto set = std::make_shared<catalog::FollowedSet>(context, selector);
//   set->OnChange([] { … });
//   set->Start();
//   const catalog::ServiceView view = set->Look();
//
// Thread safety: all methods from any thread. Its lock is not held while the registry, a waiter or
// `on_change` is called.

#ifndef FAILBACK_GATEWAY_CATALOG_FOLLOWED_SET_H_
#define FAILBACK_GATEWAY_CATALOG_FOLLOWED_SET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gateway/catalog/view.h"
#include "gateway/catalog/waiters.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/refusable_listener.h"
#include "registry/registry.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback::catalog {

struct FollowOptions {
  // Required; outlives the sets.
  HashedWheelTimer* timer = nullptr;
  // Where waiters are woken; null: on the thread that brings the news, which may be the one that
  // commits. Outlives the sets.
  Executor* executor = nullptr;
  // How long the first questions about a set may have to wait.
  absl::Duration first_wait = absl::Seconds(2);
  absl::Duration resubscribe_delay = absl::Seconds(1);
  // What may not be read is tried again with the first question after it.
  absl::Duration denied_delay = absl::Seconds(5);
  std::function<absl::Time()> now = absl::Now;
};

// What sets share.
struct FollowContext {
  FollowContext(Registry* registry, FollowOptions options)
      : registry(registry), options(std::move(options)) {}

  int64_t NowNanos() const { return options.timer->clock()->NowNanos(); }
  // Where the versions of a set begin that is followed from now on: above those of all before.
  uint64_t FirstVersion() { return ++begun << 32 | 1; }

  Registry* const registry;
  const FollowOptions options;
  std::atomic<uint64_t> begun{0};
};

class FollowedSet final : public NotifyListener,
                          public RefusableListener,
                          public std::enable_shared_from_this<FollowedSet> {
 public:
  FollowedSet(std::shared_ptr<FollowContext> context, Selector selector);

  // What runs after each change of the view, beside the waiters. Before Start.
  void OnChange(std::function<void()> on_change) { on_change_ = std::move(on_change); }

  // Once, after it is shared.
  void Start();
  // Ends the subscription. When it returns nothing of the registry is in use any more, and
  // `on_change` may still be running.
  void Stop();

  ServiceView Look();
  Waiters* waiters() { return &waiters_; }

  // When it was asked for last, and whether a namespace needs it: for those that keep many.
  std::atomic<int64_t> asked_nanos{0};
  std::atomic<int> pins{0};

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;
  // What may not be read is refused, and is no intent of the agent's that waits for an operator.
  bool ends_when_refused() const override { return true; }

 private:
  void Subscribe();
  bool Stale() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ || set_.flags().stale; }
  // Takes over what the stream has, if that says something. Whether the view has changed.
  bool Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes whether, and since when, the view is stale, and whether it is held. Whether that has
  // changed it.
  bool NoteFlags() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes who waits, after a change that gave the view this version.
  void Publish(uint64_t version);
  void FirstWaitOver();
  void Later(absl::Duration delay, void (FollowedSet::*method)());

  const std::shared_ptr<FollowContext> context_;
  const Selector selector_;
  std::function<void()> on_change_;
  Waiters waiters_;

  mutable Mutex mu_;
  CondVar subscribed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool subscribing_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<SubscribeStream> stream_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the stream; nothing of another has come
  bool lost_ ABSL_GUARDED_BY(mu_) = false;   // an event of it: the rest is of no use
  // After a refusal: when a question may try again. Zero: it is being tried, or was not refused.
  int64_t retry_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  InstanceSet set_ ABSL_GUARDED_BY(mu_);     // the stream's
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // of what is shown
  ServiceView view_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_FOLLOWED_SET_H_
