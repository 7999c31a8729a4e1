// Registration, the handle of an instance, and Agent::Register, which makes it.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "agent/agent_impl.h"
#include "agent/fork_guard.h"
#include "agent/strand.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_agent {
namespace {

// Submits the intent that `instance` be registered, and returns what the registry answers at once:
// OK, or why not.
absl::Status SubmitRegister(FailbackGroup& registry, const ServiceInstance& instance) {
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

class RegistrationState final : public KeyOwner,
                                public std::enable_shared_from_this<RegistrationState> {
 public:
  RegistrationState(std::weak_ptr<AgentImpl> impl, ServiceInstance instance,
                    std::shared_ptr<Strand> strand, Agent::EventCallback on_event)
      : impl_(std::move(impl)),
        key_(instance.key()),
        strand_(std::move(strand)),
        on_event_(std::move(on_event)),
        instance_(std::move(instance)) {}

  bool inherited() const { return fork_.inherited(); }

  ServiceInstance instance() const {
    ServiceInstance instance;
    *instance.mutable_key() = key_;
    if (inherited()) return instance;  // the lock may be held by a thread that is not here
    MutexLock lock(&mu_);
    return instance_;
  }

  absl::Status Update(const ServiceInstance& instance) {
    if (inherited()) return Inherited();
    ServiceInstance next = instance;
    NormalizeKey(next.mutable_key());
    if (CanonicalKey(next.key()) != CanonicalKey(key_)) {
      return InvalidField("instance.key",
                          absl::StrCat(KeyText(next.key()), " is not ", KeyText(key_),
                                       ", which this handle registers"));
    }
    absl::Status status = absl::FailedPreconditionError("the agent is destroyed");
    if (auto impl = impl_.lock()) {
      impl->WithRegistry([&](FailbackGroup& registry) { status = SubmitRegister(registry, next); });
    }
    if (status.ok()) {
      MutexLock lock(&mu_);
      instance_ = std::move(next);
    }
    return status;
  }

  // Closes the callback; unregisters, if asked to and no newer handle has the key.
  void End(bool unregister) {
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

  void OnEvent(const IntentEvent& event) override {
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

}  // namespace internal_agent

using internal_agent::RegistrationState;

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

absl::StatusOr<Registration> Agent::Register(const ServiceInstance& instance,
                                             EventCallback on_event) {
  if (impl_->inherited()) return internal_agent::Inherited();
  ServiceInstance desired = instance;
  NormalizeKey(desired.mutable_key());
  auto state =
      std::make_shared<RegistrationState>(impl_, desired, impl_->NewStrand(), std::move(on_event));
  // Before the intent is submitted, or its first events would find no handle.
  const auto before = impl_->Own(KeyText(desired.key()), state);
  absl::Status status;
  impl_->WithRegistry(
      [&](FailbackGroup& registry) { status = internal_agent::SubmitRegister(registry, desired); });
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

}  // namespace failback
