#include "gateway/catalog/catalog.h"

#include <list>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "gateway/catalog/followed_namespace.h"
#include "gateway/catalog/followed_set.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback::catalog {
namespace {

constexpr absl::Duration kSweepPeriod = absl::Seconds(30);
// Sets that are looked at to find one that may go.
constexpr int kMostTried = 64;

}  // namespace

absl::Status WhyUnknown(Knowledge knowledge, bool last) {
  switch (knowledge) {
    case Knowledge::kPending:
      return last ? absl::UnavailableError("the registry has not answered yet") : absl::OkStatus();
    case Knowledge::kUnavailable:
      return absl::UnavailableError(
          "the registry cannot be reached, and nothing is known from before");
    case Knowledge::kDenied:
      return Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED,
                     "the registry does not let this daemon read that");
    case Knowledge::kTooMany:
      return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                     "this daemon follows as many services as it may");
    default:
      return absl::OkStatus();
  }
}

Renderings::Bytes Renderings::Get(const std::string& kind,
                                  absl::FunctionRef<std::string()> render) {
  // With the lock: others who want the same wait for it rather than make it too.
  MutexLock lock(&mu_);
  const auto it = kept_.find(kind);
  if (it != kept_.end()) return it->second;
  Bytes bytes = std::make_shared<const std::string>(render());
  if (kept_.size() < kMostKept) kept_.emplace(kind, bytes);
  return bytes;
}

// Nothing is called with its lock held.
struct Catalog::Shared : std::enable_shared_from_this<Shared> {
  Shared(Registry* registry, Options options)
      : context(std::make_shared<FollowContext>(registry, std::move(options))) {}

  // The set of a service. Null: there are too many.
  std::shared_ptr<FollowedSet> Service(const std::string& name_space, const std::string& service,
                                       bool pin);
  std::shared_ptr<FollowedNamespace> Namespace(const std::string& name_space);
  void Sweep();
  void Stop();

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

std::shared_ptr<FollowedSet> Catalog::Shared::Service(const std::string& name_space,
                                                      const std::string& service, bool pin) {
  // No name has a slash in its namespace.
  const std::string name = absl::StrCat(name_space, "/", service);
  std::shared_ptr<FollowedSet> set, evicted_set;
  {
    MutexLock lock(&mu);
    const auto it = by_name.find(name);
    if (it != by_name.end()) {
      sets.splice(sets.begin(), sets, it->second);
      it->second->second->asked_nanos = context->NowNanos();
      if (pin) ++it->second->second->pins;
      return it->second->second;
    }
    if (stopped) return nullptr;
    if (sets.size() >= context->options.max_sets) {
      evicted_set = Evict();
      if (evicted_set == nullptr) return nullptr;
    }
    Selector selector;
    selector.set_namespace_(name_space);
    selector.set_service(service);
    set = std::make_shared<FollowedSet>(context, selector);
    set->OnChange([weak = weak_from_this(), name_space] {
      const std::shared_ptr<Shared> self = weak.lock();
      if (self == nullptr) return;
      std::shared_ptr<FollowedNamespace> changed;
      {
        MutexLock lock(&self->mu);
        const auto found = self->namespaces.find(name_space);
        if (found != self->namespaces.end()) changed = found->second;
      }
      if (changed != nullptr) changed->Changed();
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
  std::shared_ptr<FollowedNamespace> followed, evicted_namespace;
  {
    MutexLock lock(&mu);
    const auto it = namespaces.find(name_space);
    if (it != namespaces.end()) {
      it->second->asked_nanos = context->NowNanos();
      return it->second;
    }
    if (stopped) return nullptr;
    if (namespaces.size() >= context->options.max_namespaces) {
      evicted_namespace = EvictNamespace();
      if (evicted_namespace == nullptr) return nullptr;
    }
    Selector selector;
    selector.set_namespace_(name_space);
    auto names = std::make_shared<FollowedSet>(context, selector);
    followed = std::make_shared<FollowedNamespace>(
        context, names,
        [weak = weak_from_this(),
         name_space](const std::string& service) -> std::shared_ptr<FollowedSet> {
          const std::shared_ptr<Shared> self = weak.lock();
          return self == nullptr ? nullptr : self->Service(name_space, service, true);
        });
    names->OnChange([weak = std::weak_ptr<FollowedNamespace>(followed)] {
      if (auto self = weak.lock()) self->Refresh();
    });
    followed->asked_nanos = context->NowNanos();
    namespaces.emplace(name_space, followed);
  }
  if (evicted_namespace != nullptr) {
    evicted_namespace->names()->Stop();
    evicted_namespace->Stop();
  }
  followed->names()->Start();
  return followed;
}

void Catalog::Shared::Sweep() {
  const int64_t oldest = context->NowNanos() - absl::ToInt64Nanoseconds(context->options.kept);
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
  for (const auto& followed : gone_namespaces) {
    followed->names()->Stop();
    followed->Stop();
  }
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
  for (const auto& [name, followed] : stopping_namespaces) {
    followed->names()->Stop();
    followed->Stop();
  }
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
  Selector selector;
  selector.set_namespace_(name_space);
  selector.set_service(service);
  if (service.empty() || !ValidateSelector(FieldPath(), selector).ok()) {
    // There is no such service, nor will there be.
    ServiceView none;
    none.knowledge = Knowledge::kKnown;
    none.version = 1;
    none.index = 1;
    none.instances = std::make_shared<const InstanceSet>();
    none.renderings = std::make_shared<Renderings>();
    return none;
  }
  const std::shared_ptr<FollowedSet> set = shared_->Service(name_space, service, false);
  if (set != nullptr) return set->Look();
  ServiceView none;
  none.knowledge = Knowledge::kTooMany;
  return none;
}

NamespaceView Catalog::Namespace(const std::string& name_space) {
  Selector selector;
  selector.set_namespace_(name_space);
  NamespaceView none;
  if (!ValidateSelector(FieldPath(), selector).ok()) {
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
  const uint64_t id = followed->waiters()->Add(version, std::move(wake));
  if (id == 0) return Wait();
  return Wait([followed, id] { followed->waiters()->Remove(id); });
}

}  // namespace

Wait Catalog::WaitForService(const std::string& name_space, const std::string& service,
                             uint64_t version, std::function<void()> wake) {
  Selector selector;
  selector.set_namespace_(name_space);
  selector.set_service(service);
  if (service.empty() || !ValidateSelector(FieldPath(), selector).ok()) return Wait();
  return WaitFor(shared_->Service(name_space, service, false), version, std::move(wake));
}

Wait Catalog::WaitForNamespace(const std::string& name_space, uint64_t version,
                               std::function<void()> wake) {
  Selector selector;
  selector.set_namespace_(name_space);
  if (!ValidateSelector(FieldPath(), selector).ok()) return Wait();
  return WaitFor(shared_->Namespace(name_space), version, std::move(wake));
}

Catalog::Statistics Catalog::Stats() const {
  MutexLock lock(&shared_->mu);
  Statistics statistics;
  statistics.sets = static_cast<int64_t>(shared_->sets.size() + shared_->namespaces.size());
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
