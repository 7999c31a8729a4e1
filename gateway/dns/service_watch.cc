#include "gateway/dns/service_watch.h"

#include <algorithm>
#include <string>

#include "registry/base/log.h"
#include "registry/model/errors.h"

namespace failback::dns {
namespace {

// Of names that clients choose.
void Warn(const std::string& event, LogFields fields) {
  static auto* const throttle = new LogThrottle;
  throttle->Log(LogLevel::kWarning, event, std::move(fields));
}

bool IsDenied(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

}  // namespace

ServiceWatch::ServiceWatch(std::shared_ptr<WatchContext> context, Selector selector)
    : context_(std::move(context)),
      selector_(std::move(selector)),
      began_nanos_(context_->NowNanos()) {}

void ServiceWatch::Subscribe() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    subscribing_ = true;
    lost_ = false;
    set_.DropPosition();  // the stream begins with a snapshot
  }
  SubscribeRequest request;
  *request.mutable_selector() = selector_;
  std::unique_ptr<SubscribeStream> stream =
      context_->registry->Subscribe(request, shared_from_this());
  {
    MutexLock lock(&mu_);
    if (!stopped_) stream_.swap(stream);
  }
  stream.reset();  // the one before, or, stopped meanwhile, this one: without the lock
  MutexLock lock(&mu_);
  subscribing_ = false;
  subscribed_.SignalAll();
}

void ServiceWatch::Stop() {
  std::unique_ptr<SubscribeStream> stream;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    while (subscribing_) subscribed_.Wait(&mu_);
    stream.swap(stream_);
  }
}

int64_t ServiceWatch::last_instance_nanos() const {
  MutexLock lock(&mu_);
  return set_.empty() ? last_instance_nanos_ : context_->NowNanos();
}

ServiceTable::Found ServiceWatch::Look(int64_t now_nanos) {
  ServiceTable::Found found;
  InstanceSet set;
  uint64_t changes = 0;
  {
    MutexLock lock(&mu_);
    found.known.stale = ended_ || set_.flags().stale;
    if (denied_) {
      found.known.state = Known::State::kDenied;
      return found;
    }
    const bool was_there =
        last_instance_nanos_ != 0 &&
        now_nanos - last_instance_nanos_ < absl::ToInt64Nanoseconds(context_->options.kept);
    const bool present = !set_.empty() || was_there;
    if (!known_ || (!present && found.known.stale)) {
      found.wait =
          now_nanos - began_nanos_ < absl::ToInt64Nanoseconds(context_->options.first_wait);
      return found;
    }
    found.known.state = present ? Known::State::kPresent : Known::State::kAbsent;
    if (!present) return found;
    if (records_of_ == changes_) {
      found.records = records_;
      found.known.records = records_.get();
      return found;
    }
    set = set_;
    changes = changes_;
  }
  found.records = std::make_shared<const ServiceRecords>(set, context_->options.records);
  found.known.records = found.records.get();
  ++context_->builds;
  MutexLock lock(&mu_);
  records_ = found.records;
  records_of_ = changes;
  return found;
}

void ServiceWatch::OnEvent(const EventPtr& event) {
  absl::Status gap;
  bool news = false;
  {
    MutexLock lock(&mu_);
    if (stopped_ || lost_) return;
    const bool had = !set_.empty();
    gap = set_.Apply(*event);
    lost_ = !gap.ok();
    ended_ = lost_;
    if (gap.ok() && event->kind() != Event::Kind::kFlags) {
      ++changes_;
      news = !known_ || denied_;
      known_ = true;
      denied_ = false;
      // Of an instance that went, and of one that is there.
      if (had || !set_.empty()) last_instance_nanos_ = std::max<int64_t>(1, context_->NowNanos());
    } else if (gap.ok()) {
      // An empty set that was of no use may be the truth now.
      news = known_ && set_.empty() && !set_.flags().stale;
    }
  }
  if (!gap.ok()) return OnEnd(gap);
  if (news) context_->wake();
}

void ServiceWatch::OnEnd(const absl::Status& status) {
  const bool denied = IsDenied(status);
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    ended_ = true;
    denied_ = denied;
    if (denied) {
      // Nothing of it is shown any more, nor kept.
      set_ = InstanceSet();
      ++changes_;
      last_instance_nanos_ = 0;
      known_ = false;
      records_ = nullptr;
    }
  }
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SHUTTING_DOWN) {
    Warn("dns subscription ended", {{"service", selector_.namespace_() + "/" + selector_.service()},
                                    {"status", status.ToString()}});
  }
  if (denied) context_->wake();
  Later(denied ? context_->options.denied_delay : context_->options.resubscribe_delay);
}

void ServiceWatch::Later(absl::Duration delay) {
  // Refused only when the timer has stopped, with the process.
  context_->options.timer
      ->NewTimeout(
          [weak = weak_from_this()] {
            if (auto self = weak.lock()) self->Subscribe();
          },
          delay)
      .IgnoreError();
}

}  // namespace failback::dns
