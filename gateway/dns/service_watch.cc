#include "gateway/dns/service_watch.h"

#include <algorithm>

namespace failback::dns {

using catalog::Knowledge;

ServiceWatch::ServiceWatch(std::shared_ptr<WatchContext> context, Selector selector)
    : context_(std::move(context)),
      set_(std::make_shared<catalog::FollowedSet>(context_->follow, std::move(selector))) {}

void ServiceWatch::Start() {
  set_->OnChange([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->OnChange();
  });
  set_->Start();
}

void ServiceWatch::Stop() {
  set_->Stop();
  MutexLock lock(&mu_);
  stopped_ = true;
  while (waking_ > 0) woken_.Wait(&mu_);
}

int64_t ServiceWatch::last_instance_nanos() const {
  MutexLock lock(&mu_);
  return HasInstances() ? context_->NowNanos() : last_instance_nanos_;
}

bool ServiceWatch::Present(int64_t now_nanos) const {
  if (HasInstances()) return true;
  return last_instance_nanos_ != 0 &&
         now_nanos - last_instance_nanos_ < absl::ToInt64Nanoseconds(context_->options.kept);
}

bool ServiceWatch::Answerable(int64_t now_nanos) const {
  switch (view_.knowledge) {
    case Knowledge::kDenied:
      return true;
    case Knowledge::kKnown:
      // Of one that has no instance, while the registry is unavailable, nothing can be said.
      return !view_.stale() || Present(now_nanos);
    default:
      return false;
  }
}

void ServiceWatch::Note(int64_t now_nanos) {
  const bool had_instances = HasInstances();
  view_ = set_->Look();
  if (view_.knowledge == Knowledge::kDenied) {
    last_instance_nanos_ = 0;
    records_ = nullptr;
    records_of_ = nullptr;
  } else if (had_instances || HasInstances()) {
    // Of an instance that is removed, and of one that is there.
    last_instance_nanos_ = std::max<int64_t>(1, now_nanos);
  }
}

ServiceTable::Found ServiceWatch::Look(int64_t now_nanos) {
  ServiceTable::Found found;
  std::shared_ptr<const InstanceSet> instances;
  {
    MutexLock lock(&mu_);
    Note(now_nanos);
    answerable_ = Answerable(now_nanos);
    found.known.stale = view_.stale();
    if (view_.knowledge == Knowledge::kDenied) {
      found.known.state = Known::State::kDenied;
      return found;
    }
    if (!answerable_) {
      found.wait = view_.knowledge == Knowledge::kPending;
      return found;
    }
    if (!Present(now_nanos)) {
      found.known.state = Known::State::kAbsent;
      return found;
    }
    found.known.state = Known::State::kPresent;
    instances = view_.instances;
    if (records_of_ == instances) {
      found.records = records_;
      found.known.records = records_.get();
      return found;
    }
  }
  found.records = std::make_shared<const ServiceRecords>(*instances, context_->options.records);
  found.known.records = found.records.get();
  ++context_->builds;
  MutexLock lock(&mu_);
  records_ = found.records;
  records_of_ = std::move(instances);
  return found;
}

void ServiceWatch::OnChange() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    const int64_t now = context_->NowNanos();
    Note(now);
    const bool before = std::exchange(answerable_, Answerable(now));
    if (before || !answerable_) return;
    ++waking_;
  }
  context_->wake();
  MutexLock lock(&mu_);
  --waking_;
  woken_.SignalAll();
}

}  // namespace failback::dns
