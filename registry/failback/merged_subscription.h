// One subscription at every upstream of a group, merged into one stream for the subscriber
// (registry/watch/merged_set.h has the rules).
//
//   auto merged = std::make_shared<MergedSubscription>(members.size(), request, listener);
//   auto stream = std::make_unique<MergedSubscription::Stream>(merged);
//   merged->BeginAfter(timer, grace);
//   for (…) {
//     stream->Add(member.Subscribe(…, std::make_shared<MergedSubscription::Source>(merged, i)));
//   }
//   return stream;
//
// Thread safety: all methods of MergedSubscription and Source from any thread.

#ifndef FAILBACK_REGISTRY_FAILBACK_MERGED_SUBSCRIPTION_H_
#define FAILBACK_REGISTRY_FAILBACK_MERGED_SUBSCRIPTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/model/event.h"
#include "registry/registry.h"
#include "registry/watch/merged_set.h"
#include "registry/watch/owned_listener.h"
#include "registry/watch/serial_notifier.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

class MergedSubscription : public std::enable_shared_from_this<MergedSubscription> {
 public:
  // The subscriber resumes from the position of `request`, if that has one.
  MergedSubscription(size_t members, const SubscribeRequest& request,
                     std::shared_ptr<NotifyListener> listener);

  // Receives the events of one member.
  class Source final : public OwnedListener {
   public:
    Source(std::shared_ptr<MergedSubscription> merged, size_t member)
        : merged_(std::move(merged)), member_(member) {}
    const std::string& owner() const override { return merged_->owner_; }
    void OnEvent(const EventPtr& event) override { merged_->OnEvent(member_, *event); }
    void OnEnd(const absl::Status& status) override { merged_->End(status); }

   private:
    const std::shared_ptr<MergedSubscription> merged_;
    const size_t member_;
  };

  // The subscriber's handle, which holds those at the members.
  class Stream final : public SubscribeStream {
   public:
    explicit Stream(std::shared_ptr<MergedSubscription> merged) : merged_(std::move(merged)) {}
    ~Stream() override {
      streams_.clear();
      merged_->Close();
    }
    void Add(std::unique_ptr<SubscribeStream> stream) { streams_.push_back(std::move(stream)); }

   private:
    const std::shared_ptr<MergedSubscription> merged_;
    std::vector<std::unique_ptr<SubscribeStream>> streams_;
  };

  // Begins after `grace` with what is known by then.
  void BeginAfter(HashedWheelTimer* timer, absl::Duration grace);

  void End(const absl::Status& status);

 private:
  void OnEvent(size_t member, const Event& event);
  void Begin();
  void Publish(EventPtr event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishStale() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close();

  const std::string owner_;
  SerialNotifier notifier_;
  const uint64_t epoch_;  // where the subscriber resumes
  const uint64_t revision_;
  Mutex mu_;
  MergedSet set_ ABSL_GUARDED_BY(mu_);
  // The subscriber resumes, and has not been sent what is known here.
  bool apart_ ABSL_GUARDED_BY(mu_);
  bool sent_stale_ ABSL_GUARDED_BY(mu_) = false;
  Timeout begin_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_MERGED_SUBSCRIPTION_H_
