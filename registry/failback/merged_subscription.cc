#include "registry/failback/merged_subscription.h"

#include "registry/model/canonical.h"
#include "registry/model/ids.h"

namespace failback {
namespace {

// Epochs are compared for equality only, and must not be those of an earlier run of the process.
uint64_t FirstEpoch() { return Digest64(RandomId()) | 1; }

}  // namespace

MergedSubscription::MergedSubscription(size_t members, const SubscribeRequest& request,
                                       std::shared_ptr<NotifyListener> listener)
    : owner_(OwnerOf(listener.get())),
      notifier_(std::move(listener)),
      epoch_(request.epoch()),
      revision_(request.revision()),
      set_(members, FirstEpoch()),
      apart_(epoch_ != 0 || revision_ != 0) {}

void MergedSubscription::BeginAfter(HashedWheelTimer* timer, absl::Duration grace) {
  auto timeout = timer->ScheduleUnbounded(
      [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->Begin();
      },
      grace);
  MutexLock lock(&mu_);
  if (!timeout.ok() || ended_) return;
  begin_ = *std::move(timeout);
}

void MergedSubscription::OnEvent(size_t member, const Event& event) {
  {
    MutexLock lock(&mu_);
    Publish(set_.Apply(member, event));
  }
  notifier_.Deliver();
}

void MergedSubscription::Begin() {
  {
    MutexLock lock(&mu_);
    if (EventPtr event = set_.Begin(); event != nullptr || !apart_) {
      Publish(std::move(event));
    } else {
      PublishStale();  // nothing is known anywhere
    }
  }
  notifier_.Deliver();
}

// A subscriber that resumes may have received more than was known here when every upstream became
// unavailable: it is notified only that its set is stale, until an upstream has sent the current
// state.
void MergedSubscription::Publish(EventPtr event) {
  if (event == nullptr) return;
  if (!apart_) {
    notifier_.Post(std::move(event));
  } else if (set_.AnyFresh()) {
    apart_ = false;
    notifier_.Post(set_.Current());
  } else {
    PublishStale();
  }
}

void MergedSubscription::PublishStale() {
  if (!std::exchange(sent_stale_, true)) notifier_.Post(StaleAt(epoch_, revision_));
}

void MergedSubscription::End(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    begin_.Cancel();
    notifier_.PostEnd(status);
  }
  notifier_.Deliver();
}

void MergedSubscription::Close() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    begin_.Cancel();
  }
  notifier_.Close();
}

}  // namespace failback
