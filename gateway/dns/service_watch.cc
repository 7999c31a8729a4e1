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
  SubscribeRequest request;
  *request.mutable_selector() = selector_;
  std::unique_ptr<SubscribeStream> stream;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
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
  stream = context_->registry->Subscribe(request, shared_from_this());
  {
    MutexLock lock(&mu_);
    if (!stopped_) stream_.swap(stream);
  }
  stream.reset();  // stopped meanwhile
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
  return shown_.empty() ? last_instance_nanos_ : context_->NowNanos();
}

bool ServiceWatch::Present(int64_t now_nanos) const {
  if (!shown_.empty()) return true;
  return last_instance_nanos_ != 0 &&
         now_nanos - last_instance_nanos_ < absl::ToInt64Nanoseconds(context_->options.kept);
}

ServiceTable::Found ServiceWatch::Look(int64_t now_nanos) {
  ServiceTable::Found found;
  InstanceSet set;
  uint64_t changes = 0;
  {
    MutexLock lock(&mu_);
    found.known.stale = Stale();
    if (denied_) {
      found.known.state = Known::State::kDenied;
      if (retry_nanos_ != 0 && now_nanos >= retry_nanos_) {
        retry_nanos_ = 0;
        Later(absl::ZeroDuration());
      }
      return found;
    }
    if (Unknown(now_nanos)) {
      found.wait =
          now_nanos - began_nanos_ < absl::ToInt64Nanoseconds(context_->options.first_wait);
      return found;
    }
    if (!Present(now_nanos)) {
      found.known.state = Known::State::kAbsent;
      return found;
    }
    found.known.state = Known::State::kPresent;
    if (records_of_ == changes_) {
      found.records = records_;
      found.known.records = records_.get();
      return found;
    }
    set = shown_;
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
    const int64_t now = context_->NowNanos();
    const bool unknown = Unknown(now);
    gap = set_.Apply(*event);
    lost_ = !gap.ok();
    ended_ = lost_;
    if (gap.ok()) {
      // Flags alone, before any set, say nothing.
      if (set_.epoch() != 0) Show(now);
      news = unknown && !Unknown(now);
    }
  }
  if (!gap.ok()) return OnEnd(gap);
  if (news) context_->wake();
}

void ServiceWatch::Show(int64_t now_nanos) {
  denied_ = false;
  if (set_.empty() && set_.flags().stale) return;
  known_ = true;
  // Of an instance that is removed, and of one that is there.
  if (!shown_.empty() || !set_.empty()) last_instance_nanos_ = std::max<int64_t>(1, now_nanos);
  if (shown_.runs() == set_.runs()) return;
  shown_ = set_;
  ++changes_;
}

void ServiceWatch::OnEnd(const absl::Status& status) {
  const bool denied = IsDenied(status);
  bool news = false;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    news = denied && Unknown(context_->NowNanos());
    ended_ = true;
    denied_ = denied;
    retry_nanos_ = 0;
    // What is followed began again.
    if (ReasonOf(status) == registry::v1::ERROR_REASON_POSITION_LOST) lost_ = true;
    if (denied) {
      // Nothing of it is shown any more, nor kept.
      set_ = InstanceSet();
      shown_ = InstanceSet();
      ++changes_;
      last_instance_nanos_ = 0;
      known_ = false;
      records_ = nullptr;
      retry_nanos_ = std::max<int64_t>(
          1, context_->NowNanos() + absl::ToInt64Nanoseconds(context_->options.denied_delay));
    }
  }
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SHUTTING_DOWN) {
    Warn("dns subscription ended",
         {{"service", selector_.namespace_() + "/" + selector_.service()},
          {"status", status.ToString(absl::StatusToStringMode::kWithNoExtraData)}});
  }
  if (news) context_->wake();
  if (!denied) Later(context_->options.resubscribe_delay);
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
