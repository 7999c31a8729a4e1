#include "xds/service_cache.h"

#include <map>
#include <utility>
#include <vector>

#include "retry/mutex.h"
#include "xds/service_watch.h"

namespace failback::xds {

struct ServiceCache::Shared : std::enable_shared_from_this<Shared> {
  Shared(Registry* registry, const Options& options)
      : context(std::make_shared<WatchContext>(registry, options)) {}

  struct Entry {
    std::shared_ptr<ServiceWatch> watch;
    // Counts the times that it was left without followers.
    uint64_t left = 0;
  };

  std::shared_ptr<ServiceWatch> Lookup(const std::string& name) {
    MutexLock lock(&mu);
    const auto it = entries.find(name);
    return it == entries.end() ? nullptr : it->second.watch;
  }

  // Ends the watch, if nobody has followed it since it was left for the `left`-th time.
  void EndIfUnused(const std::string& name, uint64_t left) {
    std::shared_ptr<ServiceWatch> ended;
    {
      MutexLock lock(&mu);
      const auto it = entries.find(name);
      if (it == entries.end() || it->second.left != left) return;
      if (it->second.watch->follower_count() > 0) return;
      ended = std::move(it->second.watch);
      entries.erase(it);
    }
    ended->Stop();
  }

  const std::shared_ptr<WatchContext> context;
  Mutex mu;
  std::map<std::string, Entry> entries ABSL_GUARDED_BY(mu);
};

ServiceCache::ServiceCache(Registry* registry, Options options)
    : shared_(std::make_shared<Shared>(registry, options)) {}

ServiceCache::~ServiceCache() {
  std::map<std::string, Shared::Entry> entries;
  {
    MutexLock lock(&shared_->mu);
    entries.swap(shared_->entries);
  }
  for (const auto& [name, entry] : entries) entry.watch->Stop();
}

void ServiceCache::Follow(const std::string& name, const std::shared_ptr<Follower>& follower) {
  std::shared_ptr<ServiceWatch> fresh;
  {
    MutexLock lock(&shared_->mu);
    std::shared_ptr<ServiceWatch>& watch = shared_->entries[name].watch;
    if (watch == nullptr) {
      watch = std::make_shared<ServiceWatch>(shared_->context, name);
      fresh = watch;
    }
    watch->Add(follower);
  }
  if (fresh != nullptr) fresh->Start();
}

void ServiceCache::Unfollow(const std::string& name, const std::shared_ptr<Follower>& follower) {
  uint64_t left = 0;
  {
    MutexLock lock(&shared_->mu);
    const auto it = shared_->entries.find(name);
    if (it == shared_->entries.end() || it->second.watch->Remove(follower) > 0) return;
    left = ++it->second.left;
  }
  shared_->context->options.timer
      ->NewTimeout(
          [weak = std::weak_ptr<Shared>(shared_), name, left] {
            if (auto shared = weak.lock()) shared->EndIfUnused(name, left);
          },
          shared_->context->options.linger)
      .IgnoreError();
}

StreamState::Found ServiceCache::Find(ResourceType type, const std::string& name,
                                      const std::string& zone) {
  const std::shared_ptr<ServiceWatch> watch = shared_->Lookup(name);
  return watch == nullptr ? StreamState::Found() : watch->Find(type, zone);
}

ServiceCache::Statistics ServiceCache::Stats() const {
  Statistics statistics;
  {
    MutexLock lock(&shared_->mu);
    statistics.services = static_cast<int64_t>(shared_->entries.size());
  }
  statistics.unusable_instances = shared_->context->unusable;
  statistics.builds = shared_->context->builds;
  return statistics;
}

}  // namespace failback::xds
