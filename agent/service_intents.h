// States intents at a Registry in a local session of its own: in order, in batches, and again
// after a session is lost or a call refused for now.
//
// The newest intent of a key is what counts; what it replaced and was not sent yet is never sent.
//
// Thread safety: all methods from any thread. No lock is held during the registry's calls.

#ifndef FAILBACK_AGENT_SERVICE_INTENTS_H_
#define FAILBACK_AGENT_SERVICE_INTENTS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "retry/periodic_task.h"

namespace failback {

class ServiceIntents : public std::enable_shared_from_this<ServiceIntents> {
 public:
  // `timer` and `registry` outlive the object's Stop().
  ServiceIntents(HashedWheelTimer* timer, Registry* registry, std::string incarnation)
      : timer_(timer), registry_(registry), incarnation_(std::move(incarnation)) {}

  // Opens the session. Of what an earlier process has left in it, all is unregistered of which
  // `wanted`, if given, says no; it gets a CanonicalKey and is called without locks.
  void Start(std::function<bool(const std::string&)> wanted);

  // From now on nothing is sent. What is registered stays.
  void Stop();

  // `instance` is to be registered as it is, or, without a value, not at all. Sent with the next
  // Flush().
  void State(const InstanceKey& key, std::optional<ServiceInstance> instance);

  // Sends the registry what is due.
  void Flush();

  // Whether the session is open.
  bool has_session() const;

 private:
  enum class Progress {
    kDue,      // to be sent to the registry
    kSent,     // sent, and not refused so far
    kRefused,  // to be sent again after a while
  };
  struct Intent {
    InstanceKey key;
    // None: gone.
    std::optional<ServiceInstance> instance;
    Progress progress = Progress::kDue;
  };
  // Some intents of one kind, as a request; the other one is empty.
  struct DueIntents {
    std::string session_id;
    std::vector<std::string> keys;
    RegisterRequest registrations;
    UnregisterRequest deregistrations;
  };

  void OpenSession();
  void Opened(const absl::StatusOr<OpenSessionResponse>& response);
  void ListEarlier(const std::function<bool(const std::string&)>& wanted,
                   const std::string& page_token);
  void Renew();
  // The session is not known any more: a new one, and everything again.
  void Lost(const std::string& session_id);
  // Takes what is due next; false when nothing is.
  bool NextBatch(DueIntents* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename Response>
  void Answered(const DueIntents& batch, const absl::StatusOr<Response>& response);
  // An intent was refused: again later, where that may help.
  void Refused(const std::string& key, const absl::Status& status);
  void TellAgain();
  void After(absl::Duration delay, void (ServiceIntents::*what)())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  HashedWheelTimer* const timer_;
  Registry* const registry_;
  const std::string incarnation_;

  mutable Mutex mu_;
  CondVar idle_;
  // Empty: not open.
  std::string session_id_ ABSL_GUARDED_BY(mu_);
  std::function<bool(const std::string&)> wanted_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool flushing_ ABSL_GUARDED_BY(mu_) = false;
  // By CanonicalKey: what is to be there, and what is gone and not sent yet.
  std::map<std::string, Intent> intents_ ABSL_GUARDED_BY(mu_);
  // Keys of intents_ that are due, in order of arrival.
  std::deque<std::string> due_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<PeriodicTask> renewal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_SERVICE_INTENTS_H_
