#include "gateway/catalog/followed_set.h"

#include <algorithm>
#include <string>

#include "gateway/catalog/index.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"

namespace failback::catalog {
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

FollowedSet::FollowedSet(std::shared_ptr<FollowContext> context, Selector selector)
    : context_(std::move(context)), selector_(std::move(selector)) {
  view_.version = context_->FirstVersion();
}

void FollowedSet::Start() {
  Later(context_->options.first_wait, &FollowedSet::FirstWaitOver);
  Subscribe();
}

void FollowedSet::Subscribe() {
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

void FollowedSet::Stop() {
  std::unique_ptr<SubscribeStream> stream;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    while (subscribing_) subscribed_.Wait(&mu_);
    stream.swap(stream_);
  }
}

ServiceView FollowedSet::Look() {
  MutexLock lock(&mu_);
  if (view_.knowledge == Knowledge::kDenied && retry_nanos_ != 0 &&
      context_->NowNanos() >= retry_nanos_) {
    retry_nanos_ = 0;
    Later(absl::ZeroDuration(), &FollowedSet::Subscribe);
  }
  return view_;
}

void FollowedSet::OnEvent(const EventPtr& event) {
  absl::Status gap;
  bool changed = false;
  uint64_t version = 0;
  {
    MutexLock lock(&mu_);
    if (stopped_ || lost_) return;
    gap = set_.Apply(*event);
    lost_ = !gap.ok();
    ended_ = lost_;
    if (gap.ok()) {
      // Flags alone, before any set, say nothing.
      changed = set_.epoch() != 0 && Show();
      changed = NoteFlags() || changed;
      if (changed) version = ++view_.version;
    }
  }
  if (!gap.ok()) return OnEnd(gap);
  if (changed) Publish(version);
}

bool FollowedSet::Show() {
  if (set_.empty() && set_.flags().stale) return false;
  const bool known = view_.knowledge == Knowledge::kKnown;
  const bool again = known && epoch_ == set_.epoch();
  if (again && view_.instances->runs() == set_.runs()) return false;
  std::shared_ptr<const InstanceSet::Changes> changes;
  if (again) {
    // Of what is shown: a set that was passed over, as it was empty and stale, is no part of it.
    changes = std::make_shared<const InstanceSet::Changes>(
        InstanceSet::Difference(*view_.instances, set_));
    // What came again after an outage is as it was: those who wait are not woken for it.
    if (changes->empty()) return false;
    view_.base_revision = view_.instances->revision();
  }
  view_.changes = std::move(changes);
  const absl::Time now = context_->options.now();
  view_.index = again              ? NextIndex(view_.index)
                : view_.index == 0 ? FirstIndex(now)
                                   : RestartIndex(view_.index, now);
  view_.knowledge = Knowledge::kKnown;
  view_.instances = std::make_shared<const InstanceSet>(set_);
  view_.renderings = std::make_shared<Renderings>();
  epoch_ = set_.epoch();
  return true;
}

bool FollowedSet::NoteFlags() {
  const bool known = view_.knowledge == Knowledge::kKnown;
  const bool stale = known && Stale();
  const bool held = known && set_.flags().held;
  if (stale == view_.stale() && held == view_.held) return false;
  view_.held = held;
  if (stale != view_.stale()) {
    view_.stale_since = stale ? context_->options.now() : absl::InfiniteFuture();
  }
  return true;
}

void FollowedSet::OnEnd(const absl::Status& status) {
  const bool denied = IsDenied(status);
  bool changed = false;
  uint64_t version = 0;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    ended_ = true;
    retry_nanos_ = 0;
    // What is followed began again.
    if (ReasonOf(status) == registry::v1::ERROR_REASON_POSITION_LOST) lost_ = true;
    if (denied) {
      // Nothing of it is shown any more, nor kept.
      changed = view_.knowledge != Knowledge::kDenied;
      set_ = InstanceSet();
      view_.instances = nullptr;
      view_.changes = nullptr;
      view_.renderings = nullptr;
      view_.held = false;
      view_.stale_since = absl::InfiniteFuture();
      view_.knowledge = Knowledge::kDenied;
      retry_nanos_ = std::max<int64_t>(
          1, context_->NowNanos() + absl::ToInt64Nanoseconds(context_->options.denied_delay));
    }
    changed = NoteFlags() || changed;
    if (changed) version = ++view_.version;
  }
  if (ReasonOf(status) != registry::v1::ERROR_REASON_SHUTTING_DOWN) {
    Warn("subscription of a front door ended",
         {{"service", selector_.namespace_() + "/" + selector_.service()},
          {"status", status.ToString(absl::StatusToStringMode::kWithNoExtraData)}});
  }
  if (changed) Publish(version);
  if (!denied) Later(context_->options.resubscribe_delay, &FollowedSet::Subscribe);
}

void FollowedSet::FirstWaitOver() {
  uint64_t version = 0;
  {
    MutexLock lock(&mu_);
    if (stopped_ || view_.knowledge != Knowledge::kPending) return;
    view_.knowledge = Knowledge::kUnavailable;
    version = ++view_.version;
  }
  Publish(version);
}

void FollowedSet::Publish(uint64_t version) {
  waiters_.Publish(version, context_->options.executor);
  if (on_change_ != nullptr) on_change_();
}

void FollowedSet::Later(absl::Duration delay, void (FollowedSet::*method)()) {
  // Refused only when the timer has stopped, with the process.
  context_->options.timer
      ->NewTimeout(
          [weak = weak_from_this(), method] {
            if (auto self = weak.lock()) ((*self).*method)();
          },
          delay)
      .IgnoreError();
}

}  // namespace failback::catalog
