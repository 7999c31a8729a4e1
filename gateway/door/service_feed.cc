#include "gateway/door/service_feed.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "registry/model/errors.h"
#include "registry/refusable_listener.h"
#include "retry/periodic_task.h"

namespace failback {
namespace {

// How many of the least recently asked are looked at for one that no client waits for.
constexpr int kMostLooks = 100;
// Epochs whose first sight is remembered.
constexpr size_t kMostEpochs = 64;

constexpr absl::Duration kSweepPeriod = absl::Seconds(30);

bool IsDenied(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

std::string MapKey(const ServiceName& name) {
  return absl::StrCat(name.name_space, std::string(1, '\0'), name.service);
}

}  // namespace

std::shared_ptr<const std::string> ServiceState::Rendered(
    const std::string& kind, absl::FunctionRef<std::string()> render) const {
  {
    MutexLock lock(&mu_);
    if (const auto it = rendered_.find(kind); it != rendered_.end()) return it->second;
  }
  // Without the lock: of two who render at once one was in vain.
  auto bytes = std::make_shared<const std::string>(render());
  MutexLock lock(&mu_);
  return rendered_.emplace(kind, std::move(bytes)).first->second;
}

// What the services of one feed share.
struct ServiceFeed::Shared {
  Shared(Registry* registry, Options options) : registry(registry), options(options) {}

  int64_t EpochSeen(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mu);
  // Answers those who wait where the options say.
  void Run(absl::AnyInvocable<void() &&> task) const {
    if (options.executor == nullptr) return std::move(task)();
    options.executor->Execute(std::move(task));
  }

  Registry* const registry;
  const Options options;
  std::atomic<int64_t> waiters{0};

  Mutex mu;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  struct Entry {
    std::string key;
    std::shared_ptr<Service> service;
    int64_t asked_nanos;
  };
  std::list<Entry> entries ABSL_GUARDED_BY(mu);  // the last was asked for least recently
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_key ABSL_GUARDED_BY(mu);
  std::map<uint64_t, int64_t> epochs ABSL_GUARDED_BY(mu);
  std::unique_ptr<PeriodicTask> sweep;
};

int64_t ServiceFeed::Shared::EpochSeen(uint64_t epoch) {
  MutexLock lock(&mu);
  if (const auto it = epochs.find(epoch); it != epochs.end()) return it->second;
  if (epochs.size() >= kMostEpochs) {
    epochs.erase(std::min_element(epochs.begin(), epochs.end(), [](const auto& a, const auto& b) {
      return a.second < b.second;
    }));
  }
  return epochs.emplace(epoch, absl::ToUnixSeconds(absl::Now())).first->second;
}

// One service that is followed.
class ServiceFeed::Service final : public NotifyListener,
                                   public RefusableListener,
                                   public std::enable_shared_from_this<Service> {
 public:
  Service(std::shared_ptr<Shared> shared, ServiceName name)
      : shared_(std::move(shared)), name_(std::move(name)) {}

  void Subscribe();
  // Ends the subscription, and answers those who wait.
  void Stop(const absl::Status& why);
  bool idle() const {
    MutexLock lock(&mu_);
    return waiters_.empty();
  }

  uint64_t Wait(const StatePosition& seen, OnState on_state);
  void Cancel(uint64_t id);

  void OnEvent(const EventPtr& event) override;
  void OnEnd(const absl::Status& status) override;
  bool ends_when_refused() const override { return true; }

 private:
  using Waiters = std::map<uint64_t, OnState>;

  void Show(InstanceSet::Changes changes, bool stale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Waiters TakeWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(Waiters waiters, absl::StatusOr<ServiceStatePtr> with) const;
  void Later(absl::Duration delay);

  const std::shared_ptr<Shared> shared_;
  const ServiceName name_;

  mutable Mutex mu_;
  CondVar subscribed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool subscribing_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;  // an event: the rest of the stream is of no use
  std::unique_ptr<SubscribeStream> stream_ ABSL_GUARDED_BY(mu_);
  InstanceSet set_ ABSL_GUARDED_BY(mu_);
  absl::Status denied_ ABSL_GUARDED_BY(mu_);
  ServiceStatePtr state_ ABSL_GUARDED_BY(mu_);  // null: nothing is known
  uint64_t last_waiter_ ABSL_GUARDED_BY(mu_) = 0;
  Waiters waiters_ ABSL_GUARDED_BY(mu_);
};

void ServiceFeed::Service::Subscribe() {
  SubscribeRequest request;
  request.mutable_selector()->set_namespace_(name_.name_space);
  request.mutable_selector()->set_service(name_.service);
  std::unique_ptr<SubscribeStream> stream;
  {
    MutexLock lock(&mu_);
    if (stopped_ || subscribing_) return;
    subscribing_ = true;
    stream.swap(stream_);
    // After a gap the stream begins with a snapshot, else where the one before ended.
    if (std::exchange(lost_, false)) {
      set_.DropPosition();
    } else {
      set_.Resume();
    }
    request.set_epoch(set_.epoch());
    request.set_revision(set_.revision());
  }
  stream.reset();  // the one before, without the lock: no event of it comes after one of the next
  stream = shared_->registry->Subscribe(request, shared_from_this());
  {
    MutexLock lock(&mu_);
    if (!stopped_) stream_.swap(stream);
  }
  stream.reset();  // stopped meanwhile
  MutexLock lock(&mu_);
  subscribing_ = false;
  subscribed_.SignalAll();
}

void ServiceFeed::Service::Stop(const absl::Status& why) {
  std::unique_ptr<SubscribeStream> stream;
  Waiters waiters;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    while (subscribing_) subscribed_.Wait(&mu_);
    stream.swap(stream_);
    waiters = TakeWaiters();
  }
  stream.reset();
  for (auto& [id, waiter] : waiters) std::move(waiter)(why);
}

uint64_t ServiceFeed::Service::Wait(const StatePosition& seen, OnState on_state) {
  absl::StatusOr<ServiceStatePtr> answer = absl::UnavailableError("this server is stopping");
  {
    MutexLock lock(&mu_);
    if (!denied_.ok()) {
      answer = denied_;
    } else if (!stopped_) {
      if (state_ == nullptr || state_->position() == seen) {
        waiters_.emplace(++last_waiter_, std::move(on_state));
        ++shared_->waiters;
        return last_waiter_;
      }
      answer = state_;
    }
  }
  std::move(on_state)(std::move(answer));
  return 0;
}

void ServiceFeed::Service::Cancel(uint64_t id) {
  OnState cancelled;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = waiters_.find(id);
  if (it == waiters_.end()) return;
  cancelled = std::move(it->second);
  waiters_.erase(it);
  --shared_->waiters;
}

ServiceFeed::Service::Waiters ServiceFeed::Service::TakeWaiters() {
  shared_->waiters -= static_cast<int64_t>(waiters_.size());
  return std::exchange(waiters_, {});
}

void ServiceFeed::Service::Answer(Waiters waiters, absl::StatusOr<ServiceStatePtr> with) const {
  if (waiters.empty()) return;
  shared_->Run([waiters = std::move(waiters), with = std::move(with)]() mutable {
    for (auto& [id, waiter] : waiters) std::move(waiter)(with);
  });
}

void ServiceFeed::Service::Show(InstanceSet::Changes changes, bool stale) {
  ServiceState::Parts parts;
  parts.name = name_;
  parts.set = set_;
  parts.stale = stale;
  parts.epoch_seen_seconds = shared_->EpochSeen(set_.epoch());
  if (state_ != nullptr) {
    parts.previous = state_->position();
    const bool same_epoch = state_->set().epoch() == set_.epoch();
    parts.version = same_epoch ? state_->version() + (changes.empty() ? 0 : 1) : 1;
  }
  parts.changes = std::move(changes);
  state_ = std::make_shared<const ServiceState>(std::move(parts));
}

void ServiceFeed::Service::OnEvent(const EventPtr& event) {
  absl::Status gap;
  Waiters waiters;
  ServiceStatePtr state;
  {
    MutexLock lock(&mu_);
    if (stopped_ || lost_) return;
    InstanceSet::Changes changes;
    gap = set_.Apply(*event, &changes);
    lost_ = !gap.ok();
    // Flags alone, before any set, say nothing; nor does an empty set that is stale.
    const bool says = gap.ok() && set_.epoch() != 0 && !(set_.empty() && set_.flags().stale);
    if (says) {
      denied_ = absl::OkStatus();
      const StatePosition next = {set_.epoch(), set_.revision(), set_.flags().stale,
                                  set_.flags().held};
      const bool news = state_ == nullptr || !changes.empty() || state_->stale() != next.stale ||
                        state_->held() != next.held || state_->set().epoch() != next.epoch;
      if (news) {
        Show(std::move(changes), next.stale);
        waiters = TakeWaiters();
        state = state_;
      }
    }
  }
  if (!gap.ok()) return OnEnd(gap);
  Answer(std::move(waiters), std::move(state));
}

void ServiceFeed::Service::OnEnd(const absl::Status& status) {
  const bool denied = IsDenied(status);
  Waiters waiters;
  absl::StatusOr<ServiceStatePtr> answer = absl::UnavailableError("");
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (ReasonOf(status) == registry::v1::ERROR_REASON_POSITION_LOST) lost_ = true;
    if (denied) {
      // Nothing of it is shown any more, nor kept.
      denied_ = status;
      answer = status;
      set_ = InstanceSet();
      state_ = nullptr;
      waiters = TakeWaiters();
    } else if (state_ != nullptr && !state_->stale()) {
      Show({}, /*stale=*/true);
      waiters = TakeWaiters();
      answer = state_;
    }
  }
  Answer(std::move(waiters), std::move(answer));
  Later(denied ? shared_->options.denied_delay : shared_->options.resubscribe_delay);
}

void ServiceFeed::Service::Later(absl::Duration delay) {
  // Refused only when the timer has stopped, with the process.
  shared_->options.timer
      ->ScheduleUnbounded(
          [weak = weak_from_this()] {
            if (auto self = weak.lock()) self->Subscribe();
          },
          delay)
      .IgnoreError();
}

void ServiceFeed::Waiter::Cancel() const {
  const std::shared_ptr<void> service = service_.lock();
  if (service != nullptr && id_ != 0) static_cast<Service*>(service.get())->Cancel(id_);
}

ServiceFeed::ServiceFeed(Registry* registry, Options options)
    : shared_(std::make_shared<Shared>(registry, options)) {
  auto sweep =
      PeriodicTask::Start(options.timer, kSweepPeriod, [shared = shared_.get()] { Sweep(shared); });
  if (sweep.ok()) shared_->sweep = *std::move(sweep);
}

ServiceFeed::~ServiceFeed() { Stop(); }

void ServiceFeed::Stop() {
  if (shared_->sweep != nullptr) shared_->sweep->Stop();
  std::list<Shared::Entry> entries;
  {
    MutexLock lock(&shared_->mu);
    shared_->stopped = true;
    shared_->by_key.clear();
    entries.swap(shared_->entries);
  }
  for (const Shared::Entry& entry : entries) {
    entry.service->Stop(
        Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the server is stopping"));
  }
}

void ServiceFeed::Sweep(Shared* shared) {
  const int64_t before =
      shared->options.timer->clock()->NowNanos() - absl::ToInt64Nanoseconds(shared->options.kept);
  std::list<Shared::Entry> ended;
  {
    MutexLock lock(&shared->mu);
    for (auto it = shared->entries.end(); it != shared->entries.begin();) {
      --it;
      if (it->asked_nanos > before) break;
      if (!it->service->idle()) continue;
      shared->by_key.erase(it->key);
      const auto next = std::next(it);
      ended.splice(ended.end(), shared->entries, it);
      it = next;
    }
  }
  for (const Shared::Entry& entry : ended)
    entry.service->Stop(absl::CancelledError("not asked for"));
}

ServiceFeed::Waiter ServiceFeed::WhenNewer(const ServiceName& name, const StatePosition& seen,
                                           OnState on_state) {
  const std::string key = MapKey(name);
  const int64_t now = shared_->options.timer->clock()->NowNanos();
  std::shared_ptr<Service> service;
  std::shared_ptr<Service> evicted;
  absl::Status refused;
  bool is_new = false;
  {
    MutexLock lock(&shared_->mu);
    auto& entries = shared_->entries;
    const auto it = shared_->by_key.find(key);
    if (it != shared_->by_key.end()) {
      it->second->asked_nanos = now;
      entries.splice(entries.begin(), entries, it->second);
      service = it->second->service;
    } else if (shared_->stopped) {
      refused = Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the server is stopping");
    } else {
      if (entries.size() >= shared_->options.max_services) {
        int looks = 0;
        auto last = entries.end();
        while (last != entries.begin() && looks++ < kMostLooks) {
          if (!(--last)->service->idle()) continue;
          evicted = last->service;
          shared_->by_key.erase(last->key);
          entries.erase(last);
          break;
        }
      }
      if (entries.size() >= shared_->options.max_services) {
        refused = WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                                         absl::StrCat("clients follow ", entries.size(),
                                                      " services, as many as this "
                                                      "server follows at once")),
                                 absl::Seconds(5));
      } else {
        is_new = true;
        service = std::make_shared<Service>(shared_, name);
        entries.push_front({key, service, now});
        shared_->by_key.emplace(key, entries.begin());
      }
    }
  }
  if (evicted != nullptr) evicted->Stop(absl::CancelledError("it made room"));
  if (!refused.ok()) {
    std::move(on_state)(std::move(refused));
    return Waiter();
  }
  if (is_new) service->Subscribe();
  Waiter waiter;
  waiter.service_ = service;
  waiter.id_ = service->Wait(seen, std::move(on_state));
  return waiter;
}

int64_t ServiceFeed::services() const {
  MutexLock lock(&shared_->mu);
  return static_cast<int64_t>(shared_->entries.size());
}

int64_t ServiceFeed::waiters() const { return shared_->waiters; }

}  // namespace failback
