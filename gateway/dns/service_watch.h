// One service that is followed, and its records. Internal to ServiceTable.
//
// Thread safety: Look and Stop on one thread, news from any. Its lock is not held while the
// registry is called, nor while records are made.

#ifndef FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_
#define FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gateway/catalog/followed_set.h"
#include "gateway/dns/records.h"
#include "gateway/dns/service_table.h"
#include "registry/model/instance_set.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback::dns {

// What the watches of one table share.
struct WatchContext {
  WatchContext(Registry* registry, ServiceTable::Options table_options, std::function<void()> wake)
      : options(std::move(table_options)),
        follow(std::make_shared<catalog::FollowContext>(registry, options)),
        wake(std::move(wake)) {}

  int64_t NowNanos() const { return options.timer->clock()->NowNanos(); }

  const ServiceTable::Options options;
  const std::shared_ptr<catalog::FollowContext> follow;
  const std::function<void()> wake;
  std::atomic<int64_t> builds{0};
};

class ServiceWatch final : public std::enable_shared_from_this<ServiceWatch> {
 public:
  ServiceWatch(std::shared_ptr<WatchContext> context, Selector selector);

  // Once, after it is shared.
  void Start();
  // Ends the subscription. When it returns nothing of the registry is in use any more, and `wake`
  // does not run.
  void Stop();

  ServiceTable::Found Look(int64_t now_nanos);
  // When it last had an instance; 0: it never had.
  int64_t last_instance_nanos() const;

 private:
  void OnChange();
  // Takes over what is followed now.
  void Note(int64_t now_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An instance is shown, or was lately.
  bool Present(int64_t now_nanos) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Something is known that can be answered.
  bool Answerable(int64_t now_nanos) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasInstances() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return view_.instances != nullptr && !view_.instances->empty();
  }

  const std::shared_ptr<WatchContext> context_;
  const std::shared_ptr<catalog::FollowedSet> set_;

  mutable Mutex mu_;
  CondVar woken_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int waking_ ABSL_GUARDED_BY(mu_) = 0;  // calls of `wake` under way
  catalog::ServiceView view_ ABSL_GUARDED_BY(mu_);
  bool answerable_ ABSL_GUARDED_BY(mu_) = false;  // when it was noted last
  int64_t last_instance_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const ServiceRecords> records_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const InstanceSet> records_of_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_SERVICE_WATCH_H_
