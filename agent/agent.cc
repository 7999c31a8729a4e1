#include "agent/agent.h"

#include <algorithm>
#include <exception>
#include <map>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/fork_guard.h"
#include "agent/strand.h"
#include "agent/upstreams.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/security/client_security.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_agent {
namespace {

// Fine enough for retries and renewals of seconds.
constexpr absl::Duration kTick = absl::Milliseconds(10);

// Whether this thread is in a callback of the host's: a destructor there must not wait.
thread_local bool in_callback = false;

// Calls the host. If that throws, it is logged, and the next call comes as usual.
template <typename Function, typename Argument>
void CallHost(const Function& function, const Argument& argument) {
  if (function == nullptr) return;
  const bool outer = std::exchange(in_callback, true);
  try {
    function(argument);
  } catch (const std::exception& error) {
    Log(LogLevel::kError, "agent callback threw", {{"what", error.what()}});
  } catch (...) {
    Log(LogLevel::kError, "agent callback threw");
  }
  in_callback = outer;
}

absl::Status Inherited() {
  return absl::FailedPreconditionError(
      "the agent was created before this process was forked: create one after the fork");
}

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

class RegistrationState : public std::enable_shared_from_this<RegistrationState> {
 public:
  RegistrationState(std::weak_ptr<AgentImpl> impl, ServiceInstance instance,
                    std::shared_ptr<Strand> strand, Agent::EventCallback on_event)
      : impl_(std::move(impl)),
        key_(instance.key()),
        strand_(std::move(strand)),
        on_event_(std::move(on_event)),
        instance_(std::move(instance)) {}

  const InstanceKey& key() const { return key_; }
  bool inherited() const { return fork_.inherited(); }

  ServiceInstance instance() const {
    ServiceInstance instance;
    *instance.mutable_key() = key_;
    if (inherited()) return instance;  // the lock may be held by a thread that is not here
    MutexLock lock(&mu_);
    return instance_;
  }

  absl::Status Update(const ServiceInstance& instance);

  // Closes the callback; unregisters, if asked to and no newer handle has the key.
  void End(bool unregister);

  void OnEvent(const IntentEvent& event) {
    strand_->Post([self = shared_from_this(), event] { CallHost(self->on_event_, event); });
  }

 private:
  const ForkGuard fork_;
  const std::weak_ptr<AgentImpl> impl_;
  const InstanceKey key_;
  const std::shared_ptr<Strand> strand_;
  const Agent::EventCallback on_event_;
  mutable Mutex mu_;
  ServiceInstance instance_ ABSL_GUARDED_BY(mu_);
};

class SubscriptionState final : public NotifyListener,
                                public std::enable_shared_from_this<SubscriptionState> {
 public:
  SubscriptionState(std::shared_ptr<Strand> strand, Agent::SnapshotCallback callback)
      : strand_(std::move(strand)), callback_(std::move(callback)) {}

  void OnEvent(const EventPtr& event) override {
    {
      MutexLock lock(&mu_);
      if (event->is_snapshot()) instances_.clear();
      for (const std::string& key : event->removals()) instances_.erase(key);
      event->ForEachInstance([&](const Blob& instance) {
        mu_.AssertHeld();
        instances_[KeyOf(instance)] = instance;
      });
      stale_ = event->flags().stale;
      epoch_ = event->epoch();
      revision_ = event->revision();
    }
    Changed();
  }

  void OnEnd(const absl::Status& status) override {
    {
      MutexLock lock(&mu_);
      end_ = status.ok() ? absl::CancelledError("the subscription was ended") : status;
      stale_ = true;
    }
    Changed();
  }

  bool inherited() const { return fork_.inherited(); }

  ServiceSnapshot Current() const {
    ServiceSnapshot now;
    if (inherited()) {
      now.stale = true;
      now.status = Inherited();
      return now;
    }
    {
      MutexLock lock(&mu_);
      now.stale = stale_;
      now.epoch = epoch_;
      now.revision = revision_;
      now.status = end_;
      now.instances.reserve(instances_.size());
      for (const auto& [key, instance] : instances_) {
        ServiceInstance message = ParseInstance(instance);
        if (!message.has_offline()) now.instances.push_back(std::move(message));
      }
    }
    std::stable_sort(now.instances.begin(), now.instances.end(),
                     [](const auto& a, const auto& b) { return Preference(a) < Preference(b); });
    return now;
  }

  void SetStream(std::unique_ptr<SubscribeStream> stream) { stream_ = std::move(stream); }

  void End() {
    if (inherited()) return ForkGuard::Keep(shared_from_this());
    stream_.reset();
    strand_->Close();
  }

 private:
  // Delivers the newest state once, however many changes came until then.
  void Changed() {
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
      CallHost(self->callback_, self->Current());
    });
  }

  const ForkGuard fork_;
  const std::shared_ptr<Strand> strand_;
  const Agent::SnapshotCallback callback_;
  std::unique_ptr<SubscribeStream> stream_;
  mutable Mutex mu_;
  std::map<std::string, Blob> instances_ ABSL_GUARDED_BY(mu_);  // by canonical key
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;
  // Nothing is known before the first snapshot.
  bool stale_ ABSL_GUARDED_BY(mu_) = true;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

class AgentImpl : public std::enable_shared_from_this<AgentImpl> {
 public:
  explicit AgentImpl(Agent::Options options) : options_(std::move(options)) {}

  absl::Status Start() {
    HashedWheelTimer::Options timer_options;
    timer_options.tick_duration = kTick;
    timer_options.name = "failback-agent";
    auto timer = HashedWheelTimer::Create(timer_options);
    if (!timer.ok()) return timer.status();
    timer_ = *std::move(timer);
    ClientSecurity::Options security_options;
    security_options.tls = {options_.tls_ca, options_.tls_cert, options_.tls_key};
    security_options.server_name = options_.tls_server_name;
    security_options.token_file = options_.token_file;
    auto security = ClientSecurity::Create(std::move(security_options));
    if (!security.ok()) return security.status();
    UpstreamOptions upstream_options;
    upstream_options.grpc.channel.security = *std::move(security);
    auto upstreams =
        NewUpstreams(options_.registries.empty() ? std::vector<std::string>{options_.registry}
                                                 : options_.registries,
                     timer_.get(), options_.schemes, upstream_options);
    if (!upstreams.ok()) return upstreams.status();
    if (options_.executor == nullptr) own_executor_ = std::make_unique<ThreadPool>(1);
    FailbackRegistry::Options failback;
    failback.client_name = options_.client_name;
    failback.incarnation = options_.incarnation;
    failback.session_ttl = options_.session_ttl;
    failback.retry = options_.retry;
    failback.superseded_period = options_.superseded_period;
    failback.timer = timer_.get();
    failback.on_event = [weak = weak_from_this()](const IntentEvent& event) {
      if (auto self = weak.lock()) self->OnEvent(event);
    };
    auto registry = FailbackGroup::Create(*std::move(upstreams), failback);
    if (!registry.ok()) return registry.status();
    registry_ = *std::move(registry);
    return absl::OkStatus();
  }

  void Stop() {
    if (options_.drain_deadline > absl::ZeroDuration() && !in_callback) DrainAndWait();
    std::unique_ptr<FailbackGroup> registry;
    {
      std::unique_lock<std::shared_mutex> lock(life_);
      registry.swap(registry_);
    }
    registry.reset();
    timer_.reset();
    // A pool cannot join itself: from a callback of its own another thread does, after it.
    if (in_callback && own_executor_ != nullptr) {
      std::thread([pool = std::move(own_executor_)] {}).detach();
    }
    own_executor_.reset();
  }

  bool inherited() const { return fork_.inherited(); }

  // Calls `function` with the registry, which lives meanwhile; not after Stop(), nor in a child.
  template <typename Function>
  void WithRegistry(Function function) {
    if (inherited()) return;
    std::shared_lock<std::shared_mutex> lock(life_);
    if (registry_ != nullptr) function(*registry_);
  }

  std::shared_ptr<Strand> NewStrand() {
    return Strand::Create(options_.executor != nullptr ? options_.executor : own_executor_.get());
  }

  // The newest handle of a key is the one that is notified and unregisters it. Returns the one
  // before.
  std::shared_ptr<RegistrationState> Own(const std::string& key,
                                         std::shared_ptr<RegistrationState> state) {
    MutexLock lock(&mu_);
    return std::exchange(owners_[key], std::move(state));
  }

  bool Disown(const std::string& key, const RegistrationState* state) {
    MutexLock lock(&mu_);
    const auto it = owners_.find(key);
    if (it == owners_.end() || it->second.get() != state) return false;
    owners_.erase(it);
    return true;
  }

 private:
  void OnEvent(const IntentEvent& event) {
    if (event.operation != OperationKind::kRegister) return;
    std::shared_ptr<RegistrationState> state;
    {
      MutexLock lock(&mu_);
      const auto it = owners_.find(event.id.substr(event.id.find(' ') + 1));
      if (it != owners_.end()) state = it->second;
    }
    if (state != nullptr) state->OnEvent(event);
  }

  void DrainAndWait() {
    struct Drained {
      Mutex mu;
      CondVar cv;
      bool done ABSL_GUARDED_BY(mu) = false;
    };
    auto drained = std::make_shared<Drained>();
    WithRegistry([&](FailbackGroup& registry) {
      registry.Drain(options_.drain_deadline,
                     [drained](const absl::StatusOr<agent::v1::DrainResponse>&) {
                       MutexLock lock(&drained->mu);
                       drained->done = true;
                       drained->cv.SignalAll();
                     });
    });
    MutexLock lock(&drained->mu);
    while (!drained->done) drained->cv.Wait(&drained->mu);
  }

  const ForkGuard fork_;
  const Agent::Options options_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<ThreadPool> own_executor_;
  // Held shared during calls into the registry, none of which runs code of the host's.
  std::shared_mutex life_;
  std::unique_ptr<FailbackGroup> registry_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<RegistrationState>> owners_ ABSL_GUARDED_BY(mu_);
};

namespace {

// States that `instance` be registered, and returns what the registry says at once: OK, or why not.
absl::Status StateRegistered(FailbackGroup& registry, const ServiceInstance& instance) {
  // Shared, as an answer may come later: what is refused for a bad request is refused at once.
  auto answer = std::make_shared<std::pair<Mutex, absl::Status>>();
  RegisterRequest request;
  *request.add_registrations()->mutable_instance() = instance;
  registry.Register(request, [answer](absl::StatusOr<RegisterResponse> response) {
    MutexLock lock(&answer->first);
    answer->second =
        response.ok() ? StatusFromProto(response->results(0).status()) : response.status();
  });
  MutexLock lock(&answer->first);
  return answer->second;
}

}  // namespace

absl::Status RegistrationState::Update(const ServiceInstance& instance) {
  if (inherited()) return Inherited();
  ServiceInstance next = instance;
  NormalizeKey(next.mutable_key());
  if (CanonicalKey(next.key()) != CanonicalKey(key_)) {
    return InvalidField("instance.key", absl::StrCat(KeyText(next.key()), " is not ", KeyText(key_),
                                                     ", which this handle registers"));
  }
  absl::Status status = absl::FailedPreconditionError("the agent is gone");
  if (auto impl = impl_.lock()) {
    impl->WithRegistry([&](FailbackGroup& registry) { status = StateRegistered(registry, next); });
  }
  if (status.ok()) {
    MutexLock lock(&mu_);
    instance_ = std::move(next);
  }
  return status;
}

void RegistrationState::End(bool unregister) {
  if (inherited()) return ForkGuard::Keep(shared_from_this());
  strand_->Close();
  auto impl = impl_.lock();
  if (impl == nullptr || !impl->Disown(KeyText(key_), this) || !unregister) return;
  UnregisterRequest request;
  *request.add_deregistrations()->mutable_key() = key_;
  impl->WithRegistry([&](FailbackGroup& registry) {
    registry.Unregister(request, [](const absl::StatusOr<UnregisterResponse>&) {
      // Refused only while draining, which unregisters everything itself.
    });
  });
}

}  // namespace internal_agent

using internal_agent::AgentImpl;
using internal_agent::RegistrationState;
using internal_agent::SubscriptionState;

// --- Registration.

Registration::Registration(std::shared_ptr<RegistrationState> state) : state_(std::move(state)) {}
Registration::Registration(Registration&& other) noexcept : state_(std::move(other.state_)) {}
Registration::~Registration() { Unregister(); }

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    Unregister();
    state_ = std::move(other.state_);
  }
  return *this;
}

ServiceInstance Registration::instance() const {
  return state_ == nullptr ? ServiceInstance() : state_->instance();
}

absl::Status Registration::Update(const ServiceInstance& instance) {
  if (state_ == nullptr) return absl::FailedPreconditionError("the registration handle is empty");
  return state_->Update(instance);
}

void Registration::Unregister() {
  if (auto state = std::move(state_)) state->End(/*unregister=*/true);
}

void Registration::Release() {
  if (auto state = std::move(state_)) state->End(/*unregister=*/false);
}

// --- Subscription.

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

// --- Agent.

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options) {
  if (options.drain_deadline < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drain_deadline: ", absl::FormatDuration(options.drain_deadline), " is negative"));
  }
  auto impl = std::make_shared<AgentImpl>(std::move(options));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Agent(std::shared_ptr<AgentImpl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  if (impl_->inherited()) {
    ForkGuard::Keep(impl_);
  } else {
    impl_->Stop();
  }
}

absl::StatusOr<Registration> Agent::Register(const ServiceInstance& instance,
                                             EventCallback on_event) {
  if (impl_->inherited()) return internal_agent::Inherited();
  ServiceInstance desired = instance;
  NormalizeKey(desired.mutable_key());
  auto state =
      std::make_shared<RegistrationState>(impl_, desired, impl_->NewStrand(), std::move(on_event));
  // Before the intent is stated, or its first events would find no handle.
  const std::shared_ptr<RegistrationState> before = impl_->Own(KeyText(desired.key()), state);
  absl::Status status;
  impl_->WithRegistry([&](FailbackGroup& registry) {
    status = internal_agent::StateRegistered(registry, desired);
  });
  if (!status.ok()) {
    if (before != nullptr) {
      impl_->Own(KeyText(desired.key()), before);
    } else {
      impl_->Disown(KeyText(desired.key()), state.get());
    }
    return status;
  }
  return Registration(std::move(state));
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
  auto state = std::make_shared<SubscriptionState>(impl_->NewStrand(), std::move(callback));
  SubscribeRequest request;
  *request.mutable_selector() = selector;
  request.set_upstream(upstream);
  impl_->WithRegistry(
      [&](FailbackGroup& registry) { state->SetStream(registry.Subscribe(request, state)); });
  return Subscription(std::move(state));
}

void Agent::Drain(absl::Duration deadline,
                  std::function<void(const agent::v1::DrainResponse&)> done) {
  // Nothing here is the child's to unregister.
  if (impl_->inherited()) return internal_agent::CallHost(done, agent::v1::DrainResponse());
  auto strand = impl_->NewStrand();
  impl_->WithRegistry([&](FailbackGroup& registry) {
    registry.Drain(deadline, [strand, done = std::move(done)](
                                 absl::StatusOr<agent::v1::DrainResponse> response) {
      const agent::v1::DrainResponse drained =
          response.ok() ? *std::move(response) : agent::v1::DrainResponse();
      strand->Post([done, drained] { internal_agent::CallHost(done, drained); });
    });
  });
}

std::vector<agent::v1::UpstreamStatus> Agent::Status() const {
  std::vector<agent::v1::UpstreamStatus> statuses;
  impl_->WithRegistry([&](FailbackGroup& registry) { statuses = registry.UpstreamStatuses(); });
  return statuses;
}

std::vector<agent::v1::PendingOperation> Agent::Pending() const {
  std::vector<agent::v1::PendingOperation> pending;
  impl_->WithRegistry([&](FailbackGroup& registry) { pending = registry.Pending(); });
  return pending;
}

std::vector<FailbackStatistics> Agent::Stats() const {
  std::vector<FailbackStatistics> stats;
  impl_->WithRegistry([&](FailbackGroup& registry) { stats = registry.Stats(); });
  return stats;
}

}  // namespace failback
