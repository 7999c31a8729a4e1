// All services of a namespace, followed one by one. Internal to the catalog.
//
// Until each service that its list names is known the namespace is not: a client would take a part
// for the whole. After that a new service is left out until it is known.
//
// Thread safety: all methods from any thread. Lock order: this, then a FollowedSet.

#ifndef FAILBACK_GATEWAY_CATALOG_FOLLOWED_NAMESPACE_H_
#define FAILBACK_GATEWAY_CATALOG_FOLLOWED_NAMESPACE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "gateway/catalog/catalog.h"
#include "gateway/catalog/followed_set.h"
#include "gateway/catalog/waiters.h"
#include "retry/mutex.h"

namespace failback::catalog {

class FollowedNamespace final : public std::enable_shared_from_this<FollowedNamespace> {
 public:
  // The set of a service, pinned; null: there are too many.
  using Acquire = std::function<std::shared_ptr<FollowedSet>(const std::string& service)>;

  // `names`, pinned: the list of the services.
  FollowedNamespace(std::shared_ptr<FollowContext> context, std::shared_ptr<FollowedSet> names,
                    absl::Duration interval, Acquire acquire)
      : context_(std::move(context)),
        names_(std::move(names)),
        interval_(interval),
        acquire_(std::move(acquire)),
        changes_(context_->FirstVersion()) {}

  // The list of services has changed.
  void Refresh();
  // A service has changed.
  void Changed();
  // Lets all services go, and their list.
  void Stop();

  NamespaceView Look();
  Waiters* waiters() { return &waiters_; }

  // When it was asked for last; of the catalog.
  std::atomic<int64_t> asked_nanos{0};

 private:
  void Build() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishNow();

  const std::shared_ptr<FollowContext> context_;
  const std::shared_ptr<FollowedSet> names_;
  const absl::Duration interval_;  // between two wakes
  const Acquire acquire_;
  Waiters waiters_;

  Mutex refresh_mu_;  // one Refresh at a time; before mu_

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::shared_ptr<FollowedSet>> services_ ABSL_GUARDED_BY(mu_);
  bool too_many_ ABSL_GUARDED_BY(mu_) = false;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;  // each service has been known
  uint64_t changes_ ABSL_GUARDED_BY(mu_);
  NamespaceView view_ ABSL_GUARDED_BY(mu_);  // of the change that is its version
  int64_t published_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_FOLLOWED_NAMESPACE_H_
