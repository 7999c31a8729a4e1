// Subscription, the handle of a service that is followed, and Agent::Subscribe, which makes it.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "agent/agent_impl.h"
#include "agent/fork_guard.h"
#include "agent/shared_subscription.h"
#include "agent/strand.h"
#include "registry/model/blob.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_agent {
namespace {

int Preference(const ServiceInstance& instance) {
  switch (instance.status()) {
    case registry::v1::HEALTH_STATUS_UNHEALTHY:
      return 2;
    case registry::v1::HEALTH_STATUS_DRAINING:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

// One handle: its callback, and its part of what it shares with others of the same selector.
class SubscriptionState final : public SharedSubscription::Follower,
                                public std::enable_shared_from_this<SubscriptionState> {
 public:
  SubscriptionState(const std::shared_ptr<SharedSubscriptions>& all, const std::string& key,
                    std::shared_ptr<Strand> strand, Agent::SnapshotCallback callback)
      : SubscriptionState(all, all->Acquire(key), std::move(strand), std::move(callback)) {}

  // To be called once. `open(listener)` subscribes, if no other handle has.
  template <typename Open>
  void Start(Open open) {
    shared_->Add(shared_from_this());
    if (is_new_) shared_->SetStream(open(shared_));
  }

  bool inherited() const { return fork_.inherited(); }

  ServiceSnapshot Current() const {
    ServiceSnapshot now;
    if (inherited()) {
      now.stale = true;
      now.status = Inherited();
      return now;
    }
    const SharedSubscription::State state = shared_->Current();
    now.stale = state.stale;
    now.epoch = state.instances.epoch();
    now.revision = state.instances.revision();
    now.status = state.end;
    now.instances.reserve(state.instances.size());
    state.instances.ForEach([&](const Blob& instance) {
      ServiceInstance message = ParseInstance(instance);
      if (!message.has_offline()) now.instances.push_back(std::move(message));
    });
    std::stable_sort(now.instances.begin(), now.instances.end(),
                     [](const auto& a, const auto& b) { return Preference(a) < Preference(b); });
    return now;
  }

  void End() {
    if (inherited()) return ForkGuard::Keep(shared_from_this());
    shared_->Remove(this);
    all_->Release(shared_);
    strand_->Close();
  }

  // Delivers the newest state once, however many changes came until then.
  void OnChange() override {
    {
      MutexLock lock(&mu_);
      if (std::exchange(scheduled_, true)) return;
    }
    strand_->Post([weak = weak_from_this()] {
      auto self = weak.lock();
      if (self == nullptr) return;
      {
        MutexLock lock(&self->mu_);
        self->scheduled_ = false;
      }
      if (self->callback_ != nullptr) CallHost(self->callback_, self->Current());
    });
  }

 private:
  SubscriptionState(std::shared_ptr<SharedSubscriptions> all,
                    std::pair<std::shared_ptr<SharedSubscription>, bool> acquired,
                    std::shared_ptr<Strand> strand, Agent::SnapshotCallback callback)
      : all_(std::move(all)),
        shared_(std::move(acquired.first)),
        is_new_(acquired.second),
        strand_(std::move(strand)),
        callback_(std::move(callback)) {}

  const ForkGuard fork_;
  const std::shared_ptr<SharedSubscriptions> all_;
  const std::shared_ptr<SharedSubscription> shared_;
  const bool is_new_;
  const std::shared_ptr<Strand> strand_;
  const Agent::SnapshotCallback callback_;
  mutable Mutex mu_;
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace internal_agent

using internal_agent::SharedSubscription;
using internal_agent::SubscriptionState;

Subscription::Subscription(std::shared_ptr<SubscriptionState> state) : state_(std::move(state)) {}
Subscription::Subscription(Subscription&& other) noexcept : state_(std::move(other.state_)) {}
Subscription::~Subscription() {
  if (state_ != nullptr) state_->End();
}

Subscription& Subscription::operator=(Subscription&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) state_->End();
    state_ = std::move(other.state_);
  }
  return *this;
}

ServiceSnapshot Subscription::Current() const {
  if (state_ != nullptr) return state_->Current();
  ServiceSnapshot none;
  none.stale = true;
  return none;
}

absl::StatusOr<Subscription> Agent::Subscribe(const std::string& service,
                                              SnapshotCallback callback) {
  if (service.empty()) return InvalidField("service", "is required");
  Selector selector;
  selector.set_service(service);
  return Subscribe(selector, std::move(callback));
}

absl::StatusOr<Subscription> Agent::Subscribe(const Selector& selector, SnapshotCallback callback,
                                              const std::string& upstream) {
  if (impl_->inherited()) return internal_agent::Inherited();
  if (absl::Status status = ValidateFollowed(FieldPath("selector"), selector); !status.ok()) {
    return status;
  }
  SubscribeRequest request;
  *request.mutable_selector() = selector;
  request.set_upstream(upstream);
  auto state = std::make_shared<SubscriptionState>(
      impl_->subscriptions(), absl::StrCat(upstream, " ", CanonicalSelector(selector)),
      impl_->NewStrand(), std::move(callback));
  impl_->WithRegistry([&](FailbackGroup& registry) {
    state->Start([&](const std::shared_ptr<SharedSubscription>& listener) {
      return registry.Subscribe(request, listener);
    });
  });
  return Subscription(std::move(state));
}

}  // namespace failback
