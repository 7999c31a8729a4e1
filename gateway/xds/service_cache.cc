#include "gateway/xds/service_cache.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/xds/service_watch.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback::xds {

struct ServiceCache::Shared : std::enable_shared_from_this<Shared> {
  Shared(Registry* registry, const Options& options)
      : context(std::make_shared<WatchContext>(registry, options)) {}

  struct Entry {
    std::shared_ptr<ServiceWatch> watch;
    // Which departure of a last follower it was that left it without any; 0: it has followers.
    uint64_t left = 0;
  };

  std::shared_ptr<ServiceWatch> Lookup(const std::string& name) {
    MutexLock lock(&mu);
    const auto it = entries.find(name);
    return it == entries.end() ? nullptr : it->second.watch;
  }

  // Ends the watch, if it had no follower since it was left for the `left`-th time.
  void EndIfUnused(const std::string& name, uint64_t left) {
    std::shared_ptr<ServiceWatch> ended;
    {
      MutexLock lock(&mu);
      const auto it = entries.find(name);
      if (it == entries.end() || it->second.left != left) return;
      ended = Remove(it);
    }
    ended->Stop();
  }

  std::shared_ptr<ServiceWatch> Remove(std::map<std::string, Entry>::iterator it)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::shared_ptr<ServiceWatch> ended = std::move(it->second.watch);
    lingering.erase(it->second.left);
    entries.erase(it);
    return ended;
  }

  // Ends the one that has been without followers for the longest time; null when there is none.
  std::shared_ptr<ServiceWatch> RemoveOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return lingering.empty() ? nullptr : Remove(entries.find(lingering.begin()->second));
  }

  const std::shared_ptr<WatchContext> context;
  Mutex mu;
  std::map<std::string, Entry> entries ABSL_GUARDED_BY(mu);
  // Names of those without followers, by Entry::left.
  std::map<uint64_t, std::string> lingering ABSL_GUARDED_BY(mu);
  uint64_t last_left ABSL_GUARDED_BY(mu) = 0;
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

absl::Status ServiceCache::Follow(const std::string& name,
                                  const std::shared_ptr<Follower>& follower) {
  std::shared_ptr<ServiceWatch> fresh;
  std::shared_ptr<ServiceWatch> ended;
  {
    MutexLock lock(&shared_->mu);
    const size_t most = shared_->context->options.max_services;
    if (shared_->entries.count(name) == 0 && shared_->entries.size() >= most) {
      ended = shared_->RemoveOldest();
      if (ended == nullptr) {
        return Refusal(
            registry::v1::ERROR_REASON_LIMIT_REACHED,
            absl::StrCat("xDS clients follow ", most, " services here, the most that they may"),
            {{"limit", absl::StrCat(most)}});
      }
    }
    Shared::Entry& entry = shared_->entries[name];
    if (entry.watch == nullptr) {
      entry.watch = std::make_shared<ServiceWatch>(shared_->context, name);
      fresh = entry.watch;
    }
    shared_->lingering.erase(entry.left);
    entry.left = 0;
    entry.watch->Add(follower);
  }
  if (ended != nullptr) ended->Stop();
  if (fresh != nullptr) fresh->Start();
  return absl::OkStatus();
}

void ServiceCache::Unfollow(const std::string& name, const std::shared_ptr<Follower>& follower) {
  uint64_t left = 0;
  std::shared_ptr<ServiceWatch> ended;
  {
    MutexLock lock(&shared_->mu);
    const auto it = shared_->entries.find(name);
    if (it == shared_->entries.end() || it->second.watch->Remove(follower) > 0) return;
    if (it->second.left != 0) return;  // it was not followed
    left = it->second.left = ++shared_->last_left;
    shared_->lingering[left] = name;
    if (shared_->lingering.size() > shared_->context->options.max_lingering) {
      ended = shared_->RemoveOldest();
    }
  }
  if (ended != nullptr) ended->Stop();
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
