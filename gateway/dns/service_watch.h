// One service that is followed, and its records. Internal to ServiceTable.
//
// Thread safety: Look and Stop on one thread, events from any. Its lock is not held while the
// registry is called, nor while records are made.

#ifndef FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_
#define FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gateway/dns/records.h"
#include "gateway/dns/service_table.h"
#include "registry/model/event.h"
#include "registry/model/instance_set.h"
#include "registry/refusable_listener.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback::dns {

// What the watches of one table share.
struct WatchContext {
  WatchContext(Registry* registry, ServiceTable::Options options, std::function<void()> wake)
      : registry(registry), options(std::move(options)), wake(std::move(wake)) {}

  int64_t NowNanos() const { return options.timer->clock()->NowNanos(); }

  Registry* const registry;
  const ServiceTable::Options options;
  const std::function<void()> wake;
  std::atomic<int64_t> builds{0};
};

class ServiceWatch final : public NotifyListener,
                           public RefusableListener,
                           public std::enable_shared_from_this<ServiceWatch> {
 public:
  ServiceWatch(std::shared_ptr<WatchContext> context, Selector selector);

  // Once, after it is shared.
  void Subscribe();
  // Ends the subscription. When it returns nothing of the registry is in use any more.
  void Stop();

  ServiceTable::Found Look(int64_t now_nanos);
  // When it last had an instance; 0: it never had.
  int64_t last_instance_nanos() const;

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;
  // What may not be read is refused, and is no intent of the agent's that waits for an operator.
  bool ends_when_refused() const override { return true; }

 private:
  bool Stale() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ || set_.flags().stale; }
  // An instance is shown, or was lately.
  bool Present(int64_t now_nanos) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing is known that could be answered.
  bool Unknown(int64_t now_nanos) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !denied_ && (!known_ || (Stale() && !Present(now_nanos)));
  }
  // Takes over what the stream has, if that says something.
  void Show(int64_t now_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Later(absl::Duration delay);

  const std::shared_ptr<WatchContext> context_;
  const Selector selector_;
  const int64_t began_nanos_;

  mutable Mutex mu_;
  CondVar subscribed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool subscribing_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<SubscribeStream> stream_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the stream; nothing of another has come
  bool lost_ ABSL_GUARDED_BY(mu_) = false;   // an event of it: the rest is of no use
  bool denied_ ABSL_GUARDED_BY(mu_) = false;
  // After a refusal: when a question may try again. Zero: it is being tried, or was not refused.
  int64_t retry_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  InstanceSet set_ ABSL_GUARDED_BY(mu_);  // the stream's
  // The last set of the stream that said something: an empty stale one does not.
  InstanceSet shown_ ABSL_GUARDED_BY(mu_);
  bool known_ ABSL_GUARDED_BY(mu_) = false;    // there was one
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 1;  // of shown_
  int64_t last_instance_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const ServiceRecords> records_ ABSL_GUARDED_BY(mu_);
  uint64_t records_of_ ABSL_GUARDED_BY(mu_) = 0;  // the changes that they were made after
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_
