// Keeps services registered: a Registry that never forgets a failed call.
//
// FailbackRegistry decorates any Registry (its upstream). Register, Unregister, Subscribe and
// Unsubscribe state an intent; it is accepted at once, and carried to the upstream until that
// agrees. A call that fails becomes a retry task on the timing wheel. An agent is this class over a
// GrpcRegistry.
//
// The algorithm is one record per key with the last intent in it (Consul's local state, and unlike
// Dubbo's four maps of failures): desired state, generation, what is in flight, the retry task if
// the last attempt failed. A new intent takes a higher generation, replaces the desired state and
// cancels the waiting retry; a completion that is not of the newest generation acknowledges
// nothing. A registration whose key a later incarnation holds is kept, and tried again slowly: it
// claims the key when that one has gone. Instances and subscriptions are the same kind of record;
// they differ in which call carries them. Calls leave from one queue, in batches, with a bounded
// number in flight.
//
// One prober watches the upstream: it opens the session, renews it at TTL/3, and while the
// upstream is unavailable tries about once a second. Attempts made meanwhile fail at once with the
// prober's last error and go back on the wheel, so an outage costs one call a second and not one
// per record. When the connection is back everything is sent again (resync), in batches.
//
// Example:
//
//   FailbackRegistry::Options options;
//   options.upstream_name = "grpc://127.0.0.1:7070";
//   options.timer = timer.get();
//   auto registry = FailbackRegistry::Create(std::move(upstream), options);
//   (*registry)->Register(request, [](absl::StatusOr<RegisterResponse> accepted) { … });
//
// Sessions opened at this registry are local ones: they show whether a client on the same machine
// is alive. When one ends, the intent for its instances becomes "gone". Without a session an intent
// lives until it is withdrawn.
//
// Thread safety: as Registry. Callbacks and listeners run without locks, on the thread that
// brought the news (an RPC thread of the upstream, the wheel's thread, or the caller's own).
//
// Invariants (tests/registry/failback names them):
//  1. Per key, the last intent wins: once faults stop, the upstream holds exactly the last intents.
//  2. At most one call per key is in flight.
//  3. A completion of an older generation changes no state.
//  4. An intent that is not acknowledged is in flight, queued, on the wheel, parked or superseded:
//     never in none of them. The last two are shown, and re-armed by reconnect, a new intent or
//     Retry().
//  5. A subscriber sees no state twice in a row within an epoch, and no older one after a newer.
//  6. Nothing runs after the destructor has returned. From inside a callback it returns without
//     waiting for callbacks on other threads; what the calling frame still owes follows when it
//     goes on.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_REGISTRY_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/base/disk.h"
#include "registry/failback/carried_record.h"
#include "registry/failback/failback_options.h"
#include "registry/failback/failback_statistics.h"
#include "registry/failback/intent_journal.h"
#include "registry/failback/pending_range.h"
#include "registry/failback/status_policy.h"
#include "registry/registry.h"
#include "retry/backoff.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/retry_rule.h"

namespace failback {

class FailbackRegistry final : public Registry {
 public:
  // What the core goes by is in registry/failback/failback_options.h.
  struct Options : FailbackOptions {
    // Required; outlives the registry. The wheel that everything waits on, and its clock. Its
    // max_pending_timeouts counts what the registry puts on it and refuses none of that.
    HashedWheelTimer* timer = nullptr;
    // Optional. A folder of this registry's own, created if it is not there, where intents and the
    // last known sets survive the process. A second process that uses it is refused. Intents are
    // answered when they are written, and sent when their write was tried: a journal that cannot be
    // written delays nothing but the answer.
    std::string state_dir;
    // With `state_dir`: intents survive a power cut too, for a sync of the disk per group of them.
    bool full_sync = false;
    // With `state_dir`: written on the calling thread. For tests on simulated time.
    bool manual_journal = false;
    Disk* disk = Disk::Real();  // of `state_dir`
    // Optional. Called without locks; must not block.
    std::function<void(const IntentEvent&)> on_event;
  };

  // INVALID_ARGUMENT names the option; FAILED_PRECONDITION names a state directory that cannot be
  // used or is in use. The first session is opened in the background.
  static absl::StatusOr<std::unique_ptr<FailbackRegistry>> Create(
      std::unique_ptr<Registry> upstream, Options options);

  ~FailbackRegistry() override;

  // Registry. Register and Unregister answer ACCEPTED at once unless `wait_for` or `check` ask for
  // more; List asks the upstream, and answers from what is known here, marked stale, when that
  // is unavailable; Subscribe answers from the last known state at once, if there is one.
  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  // Handed to the upstream as it is: an operator's word is no intent of this agent's.
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;

  // What an operator sees and does; as the calls of AgentService.
  std::string incarnation() const;
  agent::v1::UpstreamStatus UpstreamStatus() const;
  FailbackStatistics Stats() const;
  int64_t local_sessions() const;
  bool draining() const;
  // Every intent that is not acknowledged, superseded ones included, by id.
  std::vector<agent::v1::PendingOperation> Pending(const PendingRange& range = {}) const;
  // Tries those of Pending() that are named now, and re-arms parked ones. None named: all but those
  // of a journal that was put back, which may have been unregistered since. Returns how many;
  // NOT_FOUND names an id that is not pending, and nothing is done.
  absl::StatusOr<int64_t> Retry(const std::vector<std::string>& ids);
  // Gives those of Pending() that are named (none named: all) up. Adds to `*sent` how many of them
  // had been sent, and may still take effect.
  absl::StatusOr<int64_t> Cancel(const std::vector<std::string>& ids, int64_t* sent = nullptr);
  // Answers when all that was stated and cancelled so far would survive this process, at once
  // without a state directory. UNAVAILABLE (STORE_READ_ONLY): it would not yet.
  void WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done);

  // What is desired to be there now, as the journal would have it: for another registry's
  // Options::adopt.
  std::vector<IntentJournal::Intent> PresentIntents() const;

  // The same for an operator, with how far each has come, in any order. Those whose canonical keys
  // begin so.
  std::vector<CarriedRecord> Carried(const std::string& begins) const;

  // What the destructor does first: answers every call under way, ends every subscription. Calls
  // that come later are answered with CANCELLED.
  void Shutdown();

  // Takes no new intents, lets owed unregisters finish, then ends the upstream session with all its
  // instances. `done` has what was removed and what may still be there, when all is acknowledged or
  // `deadline` has passed. Then the drain goes on, and the next call waits for it again. While one
  // waits, another is refused (DRAINING). Persistent instances stay, as they are meant to.
  void Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done);

 private:
  friend class FailbackRegistryPeer;  // of the tests
  class Shell;
  // What is wrong inside, by the invariants; empty when nothing is.
  std::string CheckInvariants() const;
  explicit FailbackRegistry(std::shared_ptr<Shell> shell);
  const std::shared_ptr<Shell> shell_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_REGISTRY_H_
