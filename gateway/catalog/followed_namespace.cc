#include "gateway/catalog/followed_namespace.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gateway/catalog/index.h"
#include "registry/model/event.h"

namespace failback::catalog {
namespace {

bool SameServices(const NamespaceView::Services& a, const NamespaceView::Services& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const NamespaceView::Service& x, const NamespaceView::Service& y) {
                      return x.name == y.name && x.index == y.index;
                    });
}

}  // namespace

void FollowedNamespace::Refresh() {
  {
    MutexLock refresh(&refresh_mu_);
    const ServiceView names = names_->Look();
    std::set<std::string> wanted;
    if (names.instances != nullptr) {
      names.instances->ForEach(
          [&](const Blob& entry) { wanted.emplace(ParseInstance(entry).key().service()); });
    }
    std::vector<std::string> missing;
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
      for (auto it = services_.begin(); it != services_.end();) {
        if (wanted.erase(it->first) > 0) {
          ++it;
        } else {
          --it->second->pins;
          it = services_.erase(it);
        }
      }
    }
    // Without the lock: the first event of a subscription may come before Subscribe returns.
    std::map<std::string, std::shared_ptr<FollowedSet>> acquired;
    bool too_many = false;
    for (const std::string& service : wanted) {
      std::shared_ptr<FollowedSet> set = acquire_(service);
      too_many = set == nullptr;
      if (too_many) break;
      acquired.emplace(service, std::move(set));
    }
    MutexLock lock(&mu_);
    too_many_ = too_many;
    if (stopped_) {
      for (const auto& [service, set] : acquired) --set->pins;
      return;
    }
    services_.merge(acquired);
  }
  Changed();
}

void FollowedNamespace::Stop() {
  MutexLock lock(&mu_);
  if (std::exchange(stopped_, true)) return;
  --names_->pins;
  for (const auto& [service, set] : services_) --set->pins;
  services_.clear();
}

NamespaceView FollowedNamespace::Look() {
  MutexLock lock(&mu_);
  if (view_.version != changes_) Build();
  return view_;
}

void FollowedNamespace::Build() {
  view_.version = changes_;
  const ServiceView names = names_->Look();
  Knowledge knowledge = too_many_ ? Knowledge::kTooMany : names.knowledge;
  auto services = std::make_shared<NamespaceView::Services>();
  services->reserve(services_.size());
  absl::Time stale_since = names.stale_since;
  for (const auto& [name, set] : services_) {
    if (knowledge != Knowledge::kKnown) break;
    ServiceView service = set->Look();
    if (service.knowledge == Knowledge::kKnown) {
      stale_since = std::min(stale_since, service.stale_since);
      if (service.instances->empty()) continue;
      services->push_back({name, service.index, std::move(service.instances)});
    } else if (service.knowledge != Knowledge::kDenied && !complete_) {
      knowledge = service.knowledge;
    }
  }
  view_.knowledge = knowledge;
  view_.stale_since = stale_since;
  if (knowledge != Knowledge::kKnown) {
    view_.services = nullptr;
    view_.renderings = nullptr;
    view_.stale_since = absl::InfiniteFuture();
    return;
  }
  complete_ = true;
  if (view_.services != nullptr && SameServices(*view_.services, *services)) return;
  view_.services = std::move(services);
  view_.renderings = std::make_shared<Renderings>();
  view_.index = std::max(
      view_.index == 0 ? FirstIndex(context_->options.now()) : NextIndex(view_.index), names.index);
}

void FollowedNamespace::Changed() {
  uint64_t version = 0;
  absl::Duration delay;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    ++changes_;
    if (scheduled_) return;
    const int64_t now = context_->NowNanos();
    const int64_t interval = absl::ToInt64Nanoseconds(interval_);
    if (published_nanos_ == 0 || now - published_nanos_ >= interval) {
      published_nanos_ = std::max<int64_t>(1, now);
      version = changes_;
    } else {
      scheduled_ = true;
      delay = absl::Nanoseconds(published_nanos_ + interval - now);
    }
  }
  if (version != 0) return waiters_.Publish(version, context_->options.executor);
  // Refused only when the timer has stopped, with the process.
  context_->options.timer
      ->NewTimeout(
          [weak = weak_from_this()] {
            if (auto self = weak.lock()) self->PublishNow();
          },
          delay)
      .IgnoreError();
}

void FollowedNamespace::PublishNow() {
  uint64_t version = 0;
  {
    MutexLock lock(&mu_);
    scheduled_ = false;
    published_nanos_ = std::max<int64_t>(1, context_->NowNanos());
    version = changes_;
  }
  waiters_.Publish(version, context_->options.executor);
}

}  // namespace failback::catalog
