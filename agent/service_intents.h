// States intents at a Registry in a local session of its own: in order, in batches, and again
// after a session is lost or a call refused for now.
//
// The newest intent of a key is what counts; what it replaced and was not sent yet is never sent.
// An instance is kept as its canonical bytes, which the registry shares.
//
// Thread safety: all methods from any thread. No lock is held during the registry's calls.

#ifndef FAILBACK_AGENT_SERVICE_INTENTS_H_
#define FAILBACK_AGENT_SERVICE_INTENTS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/model/batch.h"
#include "registry/model/blob.h"
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

  // A valid instance, to be registered under its key as it is; null: it is not to be registered.
  // Sent with the next Flush().
  struct Wanted {
    Blob instance;  // CanonicalRegistration
    bool persistent = false;
  };
  // `key` is a CanonicalKey.
  void State(const std::string& key, Wanted wanted);

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
    Wanted wanted;
    Progress progress = Progress::kDue;
  };

  void OpenSession();
  void Opened(const absl::StatusOr<OpenSessionResponse>& response);
  void ListEarlier(const std::function<bool(const std::string&)>& wanted,
                   const std::string& page_token);
  void Renew();
  // The session is not known any more: a new one, and everything again.
  void Lost(const std::string& session_id);
  // What is due next, of one kind; empty when nothing is.
  Batch NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answered(const std::string& session_id, const std::vector<std::string>& keys,
                const absl::StatusOr<BatchResult>& result);
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
  // The keys in intents_ of those that are due, in order of arrival.
  std::deque<const std::string*> due_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<PeriodicTask> renewal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_SERVICE_INTENTS_H_
