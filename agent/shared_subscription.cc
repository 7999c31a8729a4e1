#include "agent/shared_subscription.h"

#include <algorithm>

namespace failback {
namespace internal_agent {

SharedSubscription::State SharedSubscription::Current() const {
  MutexLock lock(&mu_);
  return state_;
}

bool SharedSubscription::ended() const {
  MutexLock lock(&mu_);
  return !state_.end.ok();
}

void SharedSubscription::Add(const std::shared_ptr<Follower>& follower) {
  {
    MutexLock lock(&mu_);
    followers_.push_back(follower);
    if (!any_) return;
  }
  follower->OnChange();
}

void SharedSubscription::Remove(const Follower* follower) {
  MutexLock lock(&mu_);
  const auto gone = [&](const std::weak_ptr<Follower>& other) {
    const std::shared_ptr<Follower> one = other.lock();
    return one == nullptr || one.get() == follower;
  };
  followers_.erase(std::remove_if(followers_.begin(), followers_.end(), gone), followers_.end());
}

void SharedSubscription::SetStream(std::unique_ptr<SubscribeStream> stream) {
  MutexLock lock(&mu_);
  if (!closed_) stream_.swap(stream);
}

void SharedSubscription::Close() {
  std::unique_ptr<SubscribeStream> stream;  // ends without the lock
  MutexLock lock(&mu_);
  closed_ = true;
  stream.swap(stream_);
}

void SharedSubscription::OnEvent(const EventPtr& event) {
  {
    MutexLock lock(&mu_);
    any_ = true;
    // A stream of this process has no gaps. Were there one, the set would be stale until a snapshot.
    state_.stale = !state_.instances.Apply(*event).ok() || event->flags().stale;
  }
  Notify();
}

void SharedSubscription::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    any_ = true;
    state_.end = status.ok() ? absl::CancelledError("the subscription was ended") : status;
    state_.stale = true;
  }
  Notify();
}

void SharedSubscription::Notify() {
  std::vector<std::weak_ptr<Follower>> followers;
  {
    MutexLock lock(&mu_);
    followers = followers_;
  }
  for (const auto& follower : followers) {
    if (const auto one = follower.lock()) one->OnChange();
  }
}

std::pair<std::shared_ptr<SharedSubscription>, bool> SharedSubscriptions::Acquire(
    const std::string& key) {
  MutexLock lock(&mu_);
  auto& shared = by_key_[key];
  const bool is_new = shared == nullptr || shared->ended();
  if (is_new) shared = std::make_shared<SharedSubscription>();
  ++shared->users_;
  return {shared, is_new};
}

void SharedSubscriptions::Release(const std::shared_ptr<SharedSubscription>& shared) {
  {
    MutexLock lock(&mu_);
    if (--shared->users_ > 0) return;
    const auto it = std::find_if(by_key_.begin(), by_key_.end(),
                                 [&](const auto& entry) { return entry.second == shared; });
    if (it != by_key_.end()) by_key_.erase(it);
  }
  shared->Close();
}

}  // namespace internal_agent
}  // namespace failback
