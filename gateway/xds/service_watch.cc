#include "gateway/xds/service_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/xds/service_name.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"

namespace failback::xds {
namespace {

// Below this a pause between two changes is not worth a timer.
constexpr absl::Duration kShortestPause = absl::Milliseconds(5);

// Of names that clients choose.
void Warn(const std::string& event, LogFields fields) {
  static auto* const throttle = new LogThrottle;
  throttle->Log(LogLevel::kWarning, event, std::move(fields));
}

}  // namespace

ServiceWatch::ServiceWatch(std::shared_ptr<WatchContext> context, std::string name)
    : context_(std::move(context)), name_(std::move(name)) {
  const auto fixed = [this](ResourceType type) -> ResourcePtr& {
    return fixed_[static_cast<size_t>(type)];
  };
  fixed(ResourceType::kListener) = NewResource(EncodeListener(name_));
  fixed(ResourceType::kRoute) = NewResource(EncodeRoute(name_));
  fixed(ResourceType::kCluster) = NewResource(EncodeCluster(name_));
}

ServiceWatch::~ServiceWatch() = default;

ResourcePtr ServiceWatch::NewResource(std::string encoded) {
  auto resource = std::make_shared<Resource>();
  resource->version = ++context_->last_version;
  resource->encoded = std::move(encoded);
  return resource;
}

void ServiceWatch::Start() {
  Later(context_->options.first_wait, &ServiceWatch::FirstWaitOver);
  Subscribe();
}

void ServiceWatch::Stop() {
  std::unique_ptr<SubscribeStream> stream;  // ends without the lock
  MutexLock lock(&mu_);
  stopped_ = true;
  stream.swap(stream_);
  context_->unusable -= std::exchange(unusable_, 0);
}

void ServiceWatch::Subscribe() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
  }
  const absl::StatusOr<Selector> selector = ParseServiceName(name_);
  if (!selector.ok()) {
    // There is no such service, nor will there be: its clients' calls fail.
    Warn("xds name is no service",
         {{"name", name_}, {"why", std::string(selector.status().message())}});
    {
      MutexLock lock(&mu_);
      known_ = true;
    }
    return TellNow();
  }
  SubscribeRequest request;
  *request.mutable_selector() = *selector;
  {
    MutexLock lock(&mu_);
    instances_.DropPosition();
    lost_ = false;
  }
  std::unique_ptr<SubscribeStream> stream =
      context_->registry->Subscribe(request, shared_from_this());
  std::unique_ptr<SubscribeStream> old;
  MutexLock lock(&mu_);
  old = std::exchange(stream_, stopped_ ? nullptr : std::move(stream));
}

void ServiceWatch::Add(const std::shared_ptr<Follower>& follower) {
  MutexLock lock(&mu_);
  followers_.push_back(follower);
}

size_t ServiceWatch::Remove(const std::shared_ptr<Follower>& follower) {
  MutexLock lock(&mu_);
  const auto it = std::find(followers_.begin(), followers_.end(), follower);
  if (it != followers_.end()) {
    *it = std::move(followers_.back());
    followers_.pop_back();
  }
  return followers_.size();
}

StreamState::Found ServiceWatch::Find(ResourceType type, const std::string& zone) {
  StreamState::Found found;
  if (type != ResourceType::kEndpoints) {
    found.resource = fixed_[static_cast<size_t>(type)];
    return found;
  }
  MutexLock lock(&mu_);
  if (!known_ && !waited_) return found;
  found.resource = Endpoints(ZoneThatMatters(zone));
  found.placeholder = !known_;
  return found;
}

std::string ServiceWatch::ZoneThatMatters(const std::string& zone) {
  if (!context_->options.zone_aware || zone.empty()) return "";
  if (zones_of_ != state_) {
    zones_of_ = state_;
    zones_.clear();
    for (const auto& [key, endpoint] : endpoints_) zones_.insert(endpoint.zone);
    // Those that no client will ask for any more.
    for (auto it = variants_.begin(); it != variants_.end();) {
      const bool asked_for = it->first.empty() || zones_.count(it->first) > 0;
      it = asked_for ? std::next(it) : variants_.erase(it);
    }
  }
  return zones_.count(zone) > 0 ? zone : "";
}

ResourcePtr ServiceWatch::Endpoints(const std::string& zone) {
  Variant& variant = variants_[zone];
  if (variant.made_of == state_) return variant.resource;
  variant.made_of = state_;
  ++context_->builds;
  std::string encoded =
      EncodeEndpoints(BuildLoadAssignment(name_, endpoints_, zone, context_->options.zone_aware));
  if (variant.resource == nullptr || variant.resource->encoded != encoded) {
    variant.resource = NewResource(std::move(encoded));
  }
  return variant.resource;
}

void ServiceWatch::OnEvent(const EventPtr& event) {
  absl::Status gap;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    InstanceSet::Changes changes;
    gap = instances_.Apply(*event, &changes);
    if (!gap.ok() && std::exchange(lost_, true)) return;
    const bool changed = gap.ok() && Take(changes);
    // An empty first set is news too.
    const bool first = gap.ok() && !known_ && event->kind() != Event::Kind::kFlags;
    known_ |= first;
    if (changed) ++state_;
    if (gap.ok() && (!(changed || first) || !ScheduleTell())) return;
  }
  if (!gap.ok()) return OnEnd(gap);
  TellSoon();
}

bool ServiceWatch::Take(const InstanceSet::Changes& changes) {
  bool changed = false;
  for (const std::string& key : changes.removals) changed |= Erase(key);
  for (const Blob& instance : changes.upserts) changed |= Put(instance);
  if (unusable_ > 0 && !std::exchange(warned_, true)) {
    Warn("xds clients do not get instances with host names",
         {{"service", name_}, {"instances", absl::StrCat(unusable_)}});
  }
  return changed;
}

bool ServiceWatch::Put(const Blob& instance) {
  ServiceEndpoint endpoint = ToEndpoint(ParseInstance(instance));
  const auto [it, inserted] = endpoints_.try_emplace(KeyOf(instance));
  if (!inserted) {
    if (it->second == endpoint) return false;
    Count(it->second, -1);
  }
  Count(endpoint, 1);
  it->second = std::move(endpoint);
  return true;
}

bool ServiceWatch::Erase(const std::string& key) {
  const auto it = endpoints_.find(key);
  if (it == endpoints_.end()) return false;
  Count(it->second, -1);
  endpoints_.erase(it);
  return true;
}

void ServiceWatch::Count(const ServiceEndpoint& endpoint, int64_t change) {
  if (endpoint.usable) return;
  unusable_ += change;
  context_->unusable += change;
}

void ServiceWatch::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
  }
  // What is known stays; the new subscription begins with a snapshot.
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SHUTTING_DOWN) {
    Warn(
        "xds subscription ended",
        {{"name", name_}, {"status", status.ToString(absl::StatusToStringMode::kWithNoExtraData)}});
  }
  Later(context_->options.resubscribe_delay, &ServiceWatch::Subscribe);
}

bool ServiceWatch::ScheduleTell() {
  if (std::exchange(tell_scheduled_, true)) return false;
  if (told_at_nanos_ == kNever) return true;
  const absl::Duration pause =
      context_->options.push_interval_per_instance * static_cast<int64_t>(endpoints_.size());
  const int64_t now = context_->options.timer->clock()->NowNanos();
  const absl::Duration left = pause - absl::Nanoseconds(now - told_at_nanos_);
  if (pause < kShortestPause || left <= absl::ZeroDuration()) return true;
  Later(left, &ServiceWatch::TellSoon);
  return false;
}

void ServiceWatch::TellSoon() {
  Executor* const executor = context_->options.executor;
  if (executor == nullptr) return TellNow();
  // Under the lock: the executor may be gone when this has been stopped.
  MutexLock lock(&mu_);
  if (stopped_) return;
  executor->Execute([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->TellNow();
  });
}

void ServiceWatch::TellNow() {
  std::vector<std::shared_ptr<Follower>> followers;
  {
    MutexLock lock(&mu_);
    tell_scheduled_ = false;
    told_at_nanos_ = context_->options.timer->clock()->NowNanos();
    followers = followers_;
  }
  for (const auto& follower : followers) follower->OnServiceChanged(name_);
}

void ServiceWatch::FirstWaitOver() {
  {
    MutexLock lock(&mu_);
    if (known_ || stopped_) return;
    waited_ = true;
  }
  Warn("xds service is not known yet", {{"name", name_}});
  TellSoon();
}

void ServiceWatch::Later(absl::Duration delay, void (ServiceWatch::*method)()) {
  // Refused only when the timer has stopped, with the process.
  context_->options.timer
      ->NewTimeout(
          [weak = weak_from_this(), method] {
            if (auto self = weak.lock()) (self.get()->*method)();
          },
          delay)
      .IgnoreError();
}

}  // namespace failback::xds
