// The inside of failback::Agent: the registries, the timer and the callbacks that its handles
// share. Internal to the agent; registration.cc and subscription.cc have the handles.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_AGENT_AGENT_IMPL_H_
#define FAILBACK_AGENT_AGENT_IMPL_H_

#include <exception>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agent/agent.h"
#include "agent/fork_guard.h"
#include "agent/shared_subscription.h"
#include "agent/strand.h"
#include "registry/base/log.h"
#include "registry/failback/failback_group.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {
namespace internal_agent {

// Whether this thread is in a callback of the host's: a destructor there must not wait.
inline thread_local bool in_callback = false;

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

// What an agent and its handles answer in a child of the process that made them.
absl::Status Inherited();

// The handle of a key: notified of what becomes of its intent.
class KeyOwner {
 public:
  virtual ~KeyOwner() = default;
  virtual void OnEvent(const IntentEvent& event) = 0;
};

class AgentImpl : public std::enable_shared_from_this<AgentImpl> {
 public:
  explicit AgentImpl(Agent::Options options) : options_(std::move(options)) {}

  absl::Status Start();
  void Stop();

  bool inherited() const { return fork_.inherited(); }

  // Calls `function` with the registry, which lives meanwhile; not after Stop(), nor in a child.
  template <typename Function>
  void WithRegistry(Function function) {
    if (inherited()) return;
    std::shared_lock<std::shared_mutex> lock(registry_mu_);
    if (registry_ != nullptr) function(*registry_);
  }

  const std::shared_ptr<SharedSubscriptions>& subscriptions() const { return subscriptions_; }

  std::shared_ptr<Strand> NewStrand() {
    return Strand::Create(options_.executor != nullptr ? options_.executor : own_executor_.get());
  }

  // The newest handle of a key is the one that is notified and unregisters it. Returns the one
  // before.
  std::shared_ptr<KeyOwner> Own(const std::string& key, std::shared_ptr<KeyOwner> owner) {
    MutexLock lock(&mu_);
    return std::exchange(owners_[key], std::move(owner));
  }

  // False: a newer handle has the key.
  bool Disown(const std::string& key, const KeyOwner* owner) {
    MutexLock lock(&mu_);
    const auto it = owners_.find(key);
    if (it == owners_.end() || it->second.get() != owner) return false;
    owners_.erase(it);
    return true;
  }

 private:
  void OnEvent(const IntentEvent& event);
  void DrainAndWait();

  const ForkGuard fork_;
  const Agent::Options options_;
  // Handles may outlive the agent.
  const std::shared_ptr<SharedSubscriptions> subscriptions_ =
      std::make_shared<SharedSubscriptions>();
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<ThreadPool> own_executor_;
  // Held shared during calls into the registry, none of which runs code of the host's.
  std::shared_mutex registry_mu_;
  std::unique_ptr<FailbackGroup> registry_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<KeyOwner>> owners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal_agent
}  // namespace failback

#endif  // FAILBACK_AGENT_AGENT_IMPL_H_
