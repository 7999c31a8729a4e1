#include "gateway/catalog/catalog.h"

#include <list>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "gateway/catalog/followed_namespace.h"
#include "gateway/catalog/followed_set.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback::catalog {
namespace {

constexpr absl::Duration kSweepPeriod = absl::Seconds(30);
// Sets that are looked at to find one that may go.
constexpr int kMostTried = 64;

// No name has a slash in its namespace. Of the list of services the service is empty.
std::string NameOf(const std::string& name_space, const std::string& service) {
  return absl::StrCat(name_space, "/", service);
}

bool IsName(const std::string& name_space, const std::string& service) {
  Selector selector;
  selector.set_namespace_(name_space);
  selector.set_service(service);
  return ValidateSelector(FieldPath(), selector).ok();
}

}  // namespace

// Nothing is called with its lock held.
struct Catalog::Shared : std::enable_shared_from_this<Shared> {
  Shared(Registry* registry, Options catalog_options)
      : options(std::move(catalog_options)),
        context(std::make_shared<FollowContext>(registry, options)) {}

  // The set of a service, or of the list of services, if it is followed already.
  std::shared_ptr<FollowedSet> Find(const std::string& name) {
    MutexLock lock(&mu);
    return FindLocked(name);
  }
  // The same, followed from now on. Null: there are too many.
  std::shared_ptr<FollowedSet> Service(const std::string& name_space, const std::string& service,
                                       bool pin);
  std::shared_ptr<FollowedNamespace> Namespace(const std::string& name_space);
  void Sweep();
  void Stop();

  const Options options;
  const std::shared_ptr<FollowContext> context;

  mutable Mutex mu;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  // The last is the one asked for least recently. By name: namespace, slash, service.
  using Sets = std::list<std::pair<std::string, std::shared_ptr<FollowedSet>>>;
  Sets sets ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string, Sets::iterator> by_name ABSL_GUARDED_BY(mu);
  std::map<std::string, std::shared_ptr<FollowedNamespace>> namespaces ABSL_GUARDED_BY(mu);
  int64_t evicted ABSL_GUARDED_BY(mu) = 0;
  std::unique_ptr<PeriodicTask> sweep;

 private:
  std::shared_ptr<FollowedSet> FindLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // After a change of a service, or of the list of services.
  void Changed(const std::string& name_space, bool is_list);
  static bool MayGo(FollowedSet* set) { return set->pins == 0 && set->waiters()->size() == 0; }
  // One that makes room, taken out; null: there is none.
  std::shared_ptr<FollowedSet> Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::shared_ptr<FollowedNamespace> EvictNamespace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

std::shared_ptr<FollowedSet> Catalog::Shared::Evict() {
  for (int tried = 0; tried < kMostTried && !sets.empty(); ++tried) {
    const auto last = std::prev(sets.end());
    if (!MayGo(last->second.get())) {
      sets.splice(sets.begin(), sets, last);
      continue;
    }
    std::shared_ptr<FollowedSet> set = std::move(last->second);
    by_name.erase(last->first);
    sets.erase(last);
    ++evicted;
    return set;
  }
  return nullptr;
}

std::shared_ptr<FollowedNamespace> Catalog::Shared::EvictNamespace() {
  auto oldest = namespaces.end();
  for (auto it = namespaces.begin(); it != namespaces.end(); ++it) {
    if (it->second->waiters()->size() > 0) continue;
    if (oldest == namespaces.end() || it->second->asked_nanos < oldest->second->asked_nanos) {
      oldest = it;
    }
  }
  if (oldest == namespaces.end()) return nullptr;
  std::shared_ptr<FollowedNamespace> followed = std::move(oldest->second);
  namespaces.erase(oldest);
  ++evicted;
  return followed;
}

std::shared_ptr<FollowedSet> Catalog::Shared::FindLocked(const std::string& name) {
  const auto it = by_name.find(name);
  if (it == by_name.end()) return nullptr;
  sets.splice(sets.begin(), sets, it->second);
  it->second->second->asked_nanos = context->NowNanos();
  return it->second->second;
}

void Catalog::Shared::Changed(const std::string& name_space, bool is_list) {
  std::shared_ptr<FollowedNamespace> followed;
  {
    MutexLock lock(&mu);
    const auto found = namespaces.find(name_space);
    if (found == namespaces.end()) return;
    followed = found->second;
  }
  if (is_list) return followed->Refresh();
  followed->Changed();
}

std::shared_ptr<FollowedSet> Catalog::Shared::Service(const std::string& name_space,
                                                      const std::string& service, bool pin) {
  const std::string name = NameOf(name_space, service);
  std::shared_ptr<FollowedSet> set, evicted_set;
  {
    MutexLock lock(&mu);
    set = FindLocked(name);
    if (set != nullptr) {
      if (pin) ++set->pins;
      return set;
    }
    if (stopped) return nullptr;
    if (sets.size() >= options.max_sets) {
      evicted_set = Evict();
      if (evicted_set == nullptr) return nullptr;
    }
    Selector selector;
    selector.set_namespace_(name_space);
    selector.set_service(service);
    set = std::make_shared<FollowedSet>(context, selector);
    set->OnChange([weak = weak_from_this(), name_space, is_list = service.empty()] {
      if (const std::shared_ptr<Shared> self = weak.lock()) self->Changed(name_space, is_list);
    });
    set->asked_nanos = context->NowNanos();
    if (pin) ++set->pins;
    sets.emplace_front(name, set);
    by_name.emplace(name, sets.begin());
  }
  if (evicted_set != nullptr) evicted_set->Stop();
  set->Start();
  return set;
}

std::shared_ptr<FollowedNamespace> Catalog::Shared::Namespace(const std::string& name_space) {
  {
    MutexLock lock(&mu);
    const auto it = namespaces.find(name_space);
    if (it != namespaces.end()) {
      it->second->asked_nanos = context->NowNanos();
      return it->second;
    }
  }
  // Without the lock, as it may subscribe.
  const std::shared_ptr<FollowedSet> names = Service(name_space, "", /*pin=*/true);
  if (names == nullptr) return nullptr;
  std::shared_ptr<FollowedNamespace> followed, evicted_namespace;
  {
    MutexLock lock(&mu);
    const auto it = namespaces.find(name_space);
    const bool full = it == namespaces.end() && namespaces.size() >= options.max_namespaces;
    if (full) evicted_namespace = EvictNamespace();
    if (stopped || it != namespaces.end() || (full && evicted_namespace == nullptr)) {
      --names->pins;
      return stopped || it == namespaces.end() ? nullptr : it->second;
    }
    followed = std::make_shared<FollowedNamespace>(
        context, names, options.namespace_interval,
        [weak = weak_from_this(),
         name_space](const std::string& service) -> std::shared_ptr<FollowedSet> {
          const std::shared_ptr<Shared> self = weak.lock();
          return self == nullptr ? nullptr : self->Service(name_space, service, true);
        });
    followed->asked_nanos = context->NowNanos();
    namespaces.emplace(name_space, followed);
  }
  if (evicted_namespace != nullptr) evicted_namespace->Stop();
  followed->Refresh();  // the list may be known already
  return followed;
}

void Catalog::Shared::Sweep() {
  const int64_t oldest = context->NowNanos() - absl::ToInt64Nanoseconds(options.kept);
  std::vector<std::shared_ptr<FollowedSet>> gone;
  std::vector<std::shared_ptr<FollowedNamespace>> gone_namespaces;
  {
    MutexLock lock(&mu);
    for (auto it = namespaces.begin(); it != namespaces.end();) {
      if (it->second->asked_nanos > oldest || it->second->waiters()->size() > 0) {
        ++it;
        continue;
      }
      gone_namespaces.push_back(std::move(it->second));
      it = namespaces.erase(it);
    }
    for (auto it = sets.begin(); it != sets.end();) {
      if (it->second->asked_nanos > oldest || !MayGo(it->second.get())) {
        ++it;
        continue;
      }
      by_name.erase(it->first);
      gone.push_back(std::move(it->second));
      it = sets.erase(it);
    }
  }
  for (const auto& followed : gone_namespaces) followed->Stop();
  for (const auto& set : gone) set->Stop();
}

void Catalog::Shared::Stop() {
  sweep.reset();
  Sets stopping;
  std::map<std::string, std::shared_ptr<FollowedNamespace>> stopping_namespaces;
  {
    MutexLock lock(&mu);
    stopped = true;
    by_name.clear();
    stopping.swap(sets);
    stopping_namespaces.swap(namespaces);
  }
  for (const auto& [name, followed] : stopping_namespaces) followed->Stop();
  for (const auto& [name, set] : stopping) set->Stop();
}

Catalog::Catalog(Registry* registry, Options options)
    : shared_(std::make_shared<Shared>(registry, std::move(options))) {
  auto sweep = PeriodicTask::Start(shared_->context->options.timer, kSweepPeriod,
                                   [shared = shared_.get()] { shared->Sweep(); });
  if (sweep.ok()) shared_->sweep = *std::move(sweep);  // else the timer has stopped
}

Catalog::~Catalog() { Stop(); }

void Catalog::Stop() { shared_->Stop(); }

ServiceView Catalog::Service(const std::string& name_space, const std::string& service) {
  std::shared_ptr<FollowedSet> set = shared_->Find(NameOf(name_space, service));
  if (set == nullptr && !IsName(name_space, service)) {
    // There is no such service, nor will there be.
    ServiceView none;
    none.knowledge = Knowledge::kKnown;
    none.version = 1;
    none.index = 1;
    none.instances = std::make_shared<const InstanceSet>();
    none.renderings = std::make_shared<Renderings>();
    return none;
  }
  if (set == nullptr) set = shared_->Service(name_space, service, false);
  if (set != nullptr) return set->Look();
  ServiceView none;
  none.knowledge = Knowledge::kTooMany;
  return none;
}

NamespaceView Catalog::Namespace(const std::string& name_space) {
  NamespaceView none;
  if (!IsName(name_space, "")) {
    none.knowledge = Knowledge::kKnown;
    none.version = 1;
    none.index = 1;
    none.services = std::make_shared<const NamespaceView::Services>();
    none.renderings = std::make_shared<Renderings>();
    return none;
  }
  const std::shared_ptr<FollowedNamespace> followed = shared_->Namespace(name_space);
  if (followed != nullptr) return followed->Look();
  none.knowledge = Knowledge::kTooMany;
  return none;
}

namespace {

// Of a set that knows `wake` until it is woken or withdrawn.
template <typename Followed>
Wait WaitFor(const std::shared_ptr<Followed>& followed, uint64_t version,
             std::function<void()> wake) {
  if (followed == nullptr) return Wait();
  std::shared_ptr<Waiters> waiters(followed, followed->waiters());
  const uint64_t id = waiters->Add(version, std::move(wake));
  return id == 0 ? Wait() : Wait(std::move(waiters), id);
}

}  // namespace

Wait Catalog::WaitForService(const std::string& name_space, const std::string& service,
                             uint64_t version, std::function<void()> wake) {
  std::shared_ptr<FollowedSet> set = shared_->Find(NameOf(name_space, service));
  if (set == nullptr) {
    if (!IsName(name_space, service)) return Wait();
    set = shared_->Service(name_space, service, false);
  }
  return WaitFor(set, version, std::move(wake));
}

Wait Catalog::WaitForNamespace(const std::string& name_space, uint64_t version,
                               std::function<void()> wake) {
  if (!IsName(name_space, "")) return Wait();
  return WaitFor(shared_->Namespace(name_space), version, std::move(wake));
}

Catalog::Statistics Catalog::Stats() const {
  MutexLock lock(&shared_->mu);
  Statistics statistics;
  statistics.sets = static_cast<int64_t>(shared_->sets.size());
  statistics.evicted = shared_->evicted;
  for (const auto& [name, set] : shared_->sets) {
    statistics.waiting += static_cast<int64_t>(set->waiters()->size());
  }
  for (const auto& [name, followed] : shared_->namespaces) {
    statistics.waiting += static_cast<int64_t>(followed->waiters()->size());
  }
  return statistics;
}

}  // namespace failback::catalog
