// The inside of FailbackRegistry: one table of records, one queue, one sender.
//
// failback_core.cc         intents: submitted, queued; the stage of each
// failback_upstream.cc     the upstream session: lost, lapsed, back; resync
// failback_sending.cc      what is queued leaves in batches, and what comes of it
// failback_superseded.cc   registrations that a later incarnation holds
// failback_local_sessions.cc  whether clients on this machine are alive
// failback_subscriptions.cc   watches and their local subscribers
// failback_list.cc         listings
// failback_carried.cc      the registrations that it carries, and how far each has come
// failback_journal.cc      what survives the process
// failback_operator.cc     what an operator sees and does; drain
// failback_statistics.cc   what is counted
// failback_anti_entropy.cc  comparing with the upstream, slowly
// failback_effects.cc      what was decided under the lock, carried out without it
//
// Everything is guarded by one lock. What has to run without it (callbacks, listeners, calls
// to the upstream) is collected as Effects and carried out after.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_CORE_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "registry/base/log.h"
#include "registry/base/pause_watch.h"
#include "registry/failback/batcher.h"
#include "registry/failback/call_gate.h"
#include "registry/failback/failback_registry.h"
#include "registry/failback/failback_stage.h"
#include "registry/failback/former_owners.h"
#include "registry/failback/intent_journal.h"
#include "registry/failback/journal_gate.h"
#include "registry/failback/last_known_sets.h"
#include "registry/failback/ordered_index.h"
#include "registry/failback/record_totals.h"
#include "registry/failback/upstream_session.h"
#include "registry/model/blob.h"
#include "registry/model/shared_limit.h"
#include "registry/watch/serial_notifier.h"
#include "registry/watch/watched_set.h"
#include "retry/mutex.h"
#include "retry/token_bucket.h"

namespace failback {

// Whether what `timeout` stands for is still to come.
inline bool IsArmed(const Timeout& timeout) {
  return timeout && !timeout.IsExpired() && !timeout.IsCancelled();
}

class FailbackRegistry::Core : public std::enable_shared_from_this<FailbackRegistry::Core> {
 public:
  // `journal` may be null.
  static std::shared_ptr<Core> Create(std::unique_ptr<Registry> upstream, Options options,
                                      std::shared_ptr<IntentJournal> journal);
  // For Create().
  Core(Options options, std::shared_ptr<IntentJournal> journal)
      : options_(std::move(options)),
        journal_(std::move(journal)),
        incarnation_(options_.incarnation),
        former_owners_(static_cast<size_t>(options_.max_sessions),
                       absl::ToInt64Nanoseconds(kOwnersAreKept)),
        last_known_(static_cast<size_t>(options_.max_subscriptions), kMaxLastKnownBytes),
        retry_tokens_(options_.retries_per_second, options_.retry_burst) {}

  void Start();
  // Runs every callback that is still owed with CANCELLED and waits for other threads to leave.
  void Shutdown();

  // Registry.
  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done);
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done);
  void CloseSession(const CloseSessionRequest& request, Callback<CloseSessionResponse> done);
  void Write(Batch batch, Callback<BatchResult> done);
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener);
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done);
  void List(const ListRequest& request, Callback<ListResponse> done);
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done);

  // Operator.
  std::string incarnation() const {
    MutexLock lock(&mu_);
    return incarnation_;
  }
  agent::v1::UpstreamStatus UpstreamStatus() const;
  // `session`, if any, is set to the session's state that they are of.
  FailbackStatistics Stats(UpstreamSession::State* session = nullptr) const;
  int64_t local_sessions() const;
  bool draining() const;
  std::vector<agent::v1::PendingOperation> Pending() const;
  std::vector<IntentJournal::Intent> PresentIntents() const;
  std::vector<agent::v1::CarriedIntent> Carried(const std::string& begins) const;
  absl::StatusOr<int64_t> Retry(const std::vector<std::string>& ids);
  absl::StatusOr<int64_t> Cancel(const std::vector<std::string>& ids, int64_t* sent);
  void WhenDurable(absl::AnyInvocable<void(absl::Status) &&> done);
  void Drain(absl::Duration deadline, Callback<agent::v1::DrainResponse> done);

  // What is wrong with the state, by the invariants; empty when nothing is.
  std::string CheckInvariants() const;

 private:
  // Of the sets that no subscriber follows at the moment.
  static constexpr size_t kMaxLastKnownBytes = 64 << 20;
  // An incarnation stays that of the caller who had its last session, as at a registry.
  static constexpr absl::Duration kOwnersAreKept = absl::Hours(24);

  struct Audit;
  struct Record;
  struct Watch;
  struct LocalSession;
  struct Listing;
  struct LocalSubscription;
  class Effects;
  class LocalStream;
  class WatchListener;
  using RecordPtr = std::shared_ptr<Record>;
  using Results = std::vector<registry::v1::IntentResult>;

  // One Register or Unregister of a caller's, until each of its items is answered.
  struct BatchReply {
    Results results;
    size_t remaining = 0;
    absl::AnyInvocable<void(absl::StatusOr<Results>) &&> done;
  };

  // Who waits for one item of a batch.
  struct Waiter {
    std::shared_ptr<BatchReply> reply;
    size_t index;
  };

  // What to return to when a checked intent (Dubbo's `check`) fails.
  struct Check {
    bool existed = false;
    bool present = false;
    bool persistent = false;
    Blob instance;
    // Serial of the local session that owned it; 0: none, or it has ended.
    uint64_t owner = 0;
    uint64_t owner_generation = 0;
    // An attempt for a checked intent that a newer one replaced may have reached the registry.
    bool landed = false;
  };

  // Why an intent counts for nothing until its owner states it again or an operator retries it.
  enum class Doubt : uint8_t {
    kNone,
    // It is from a journal that was put back.
    kOfJournal,
    // It is not in that journal: the registry holds it. Left there, and shown as parked.
    kOfRegistry,
  };

  // The one thing: a key, its last intent, and how far that has come: its stage (Move), and the
  // call in flight.
  struct Record : StageLink, std::enable_shared_from_this<Record> {
    OperationKind kind() const {
      if (watch != nullptr) {
        return present ? OperationKind::kSubscribe : OperationKind::kUnsubscribe;
      }
      return present ? OperationKind::kRegister : OperationKind::kUnregister;
    }
    // The registry has yet to take it. What it has taken stays that while it is sent again.
    bool pending() const {
      switch (stage) {
        case Stage::kHeldBack:
        case Stage::kQueued:
          return acknowledged != generation;
        case Stage::kWaiting:
        case Stage::kParked:
          return true;
        case Stage::kNone:
        case Stage::kSuperseded:
        case Stage::kSettled:
        case Stage::kTombstone:
        case Stage::kGivenUp:
          return false;
      }
      return false;
    }
    // Also while it is tried again.
    bool superseded() const { return stage == Stage::kSuperseded; }
    // For the Batcher.
    size_t sent_bytes() const { return instance.size() + key.size(); }
    bool goes_alone() const { return watch != nullptr || alone; }
    void SetHeld(uint64_t session_serial, bool may_outlive) {
      held_in = static_cast<int64_t>(session_serial);
      outlives = may_outlive;
    }

    // Canonical key of the instance; the watch's name for a subscription.
    std::string key;
    // Desired: there (as `instance`), or gone.
    bool present = false;
    bool persistent = false;
    // Canonical bytes; null when gone and for a subscription.
    Blob instance;
    uint64_t generation = 0;
    // Newest generation that the upstream has.
    uint64_t acknowledged = 0;
    // Generation of the call in flight; 0: none.
    uint64_t in_flight = 0;
    Stage stage = Stage::kNone;
    Doubt doubt = Doubt::kNone;
    // As which it is in Core::totals_.
    Standing standing;
    // In the journal, 0: not; and the write that has yet to become durable, 0: none.
    int64_t row = 0;
    uint64_t unwritten = 0;
    // The session in which the registry was seen to hold what is in doubt and not in the journal.
    uint64_t kept_session = 0;
    // Attempts since it is superseded.
    int superseded_times = 0;
    // The session in which the registry may have an instance of ours under the key; 0: in one of an
    // earlier process. It counts as there until the registry has said that it is gone.
    static constexpr int64_t kNotHeld = -1;
    int64_t held_in = kNotHeld;
    // It may be persistent, and so stay when the session ends.
    bool outlives = false;
    // What the newest Register that was sent has said of that.
    bool sent_persistent = false;
    // The number of this intent was refused and taken again; twice in a row waits.
    bool renumbered = false;
    // The audit during which it changed last.
    uint64_t touched = 0;
    // Goes in a call of its own: a batch was refused for something that one of its items holds.
    bool alone = false;
    // When it began to be pending, superseded or a tombstone.
    int64_t since_nanos = 0;
    // When an attempt for this intent failed first since it was stated or acknowledged.
    static constexpr int64_t kNotFailing = INT64_MIN;
    int64_t failing_since_nanos = kNotFailing;
    // The local session it lives in (which lists it), and that session's own numbering of its
    // intents.
    LocalSession* owner = nullptr;
    uint64_t owner_generation = 0;
    absl::Status last_status;
    std::unique_ptr<RetryTask> retry;
    std::unique_ptr<Check> check;
    // Of the call that stated the intent; null: none, or acknowledged.
    std::unique_ptr<const std::string> trace;
    std::vector<Waiter> waiters;
    std::shared_ptr<Watch> watch;
  };

  // One call to the upstream.
  struct Call {
    OperationKind kind;
    std::string session_id;
    uint64_t session_serial;
    std::vector<std::pair<RecordPtr, uint64_t>> items;  // with the generation that is sent
    Batch batch;                                        // of a Register or an Unregister
    SubscribeRequest subscribe_request;
    uint64_t stream_serial = 0;
    UnsubscribeRequest unsubscribe_request;
    // Of the only item.
    std::string trace;
    std::shared_ptr<Registry> upstream;
  };

  struct LocalSession {
    std::string id;
    std::string owner;  // empty: callers are not distinguished
    uint64_t serial;
    std::string incarnation;
    absl::Duration ttl;
    int64_t deadline_nanos = 0;
    Timeout lease;
    uint64_t lease_serial = 0;             // of the timeout that ends it
    absl::flat_hash_set<Record*> records;  // that it owns
    std::map<std::string, std::shared_ptr<LocalSubscription>> subscriptions;
    std::map<std::string, uint64_t> unsubscribed;  // generation of the Unsubscribe, by id
  };

  struct LocalSubscription {
    uint64_t serial = 0;
    std::shared_ptr<SerialNotifier> notifier;
    std::shared_ptr<Watch> watch;
    std::string owner;  // likewise
    std::string session_id;
    std::string subscription_id;
    uint64_t generation = 0;
    // Where it resumes; 0 and 0: nowhere.
    uint64_t epoch = 0;
    uint64_t revision = 0;
    // It may have seen more than is known here: it is sent nothing of the set until MayHear(), but
    // once that its own is stale.
    bool apart = false;
    bool told_stale = false;

    bool IsAt(const WatchedSet& set) const {
      return epoch == set.told_epoch() && revision == set.told_revision();
    }
    // The set is what the registry says now, or not older than the position.
    bool MayHear(const WatchedSet& set) const {
      if (!set.known()) return false;
      return !set.stale() || (epoch == set.told_epoch() && revision <= set.told_revision());
    }
  };

  // One selector followed at the upstream, for any number of local subscribers.
  struct Watch {
    explicit Watch(bool hold_empty) : set(hold_empty) {}
    Selector selector;
    // Key of its record, and subscription_id at the upstream.
    std::string name;
    std::string canonical_selector;
    std::weak_ptr<Record> record;
    WatchedSet set;
    // kOpening from the call until the first message of its stream; kQuiet when that is long in
    // coming (an agent that has not reached its registry): it no longer counts as a call in flight.
    enum class Phase { kClosed, kOpening, kQuiet, kStreaming };
    Phase phase = Phase::kClosed;
    // The upstream session in which the stream was opened.
    std::string session_id;
    std::unique_ptr<SubscribeStream> stream;
    // Marked stale although its stream is open: the session's renewals got no answer.
    bool silenced = false;
    // Of the newest stream; events of older ones are dropped.
    uint64_t stream_serial = 0;
    Timeout opening_timer;
    Timeout stale_timer;
    Timeout hold_timer;
    Timeout snapshot_timer;  // armed while the journal's copy is older than the set
    std::map<uint64_t, std::shared_ptr<LocalSubscription>> subscribers;  // by serial
    OwnerCounts owners;                                                  // of subscribers
  };

  // One who waits for the drain.
  struct DrainState {
    Callback<agent::v1::DrainResponse> done;
    Timeout deadline;
  };

  // What a drain counts a record as.
  enum class Drained { kNothing, kUnregistered, kRemaining, kPersistent };

  // A thread inside: keeps the core, and lets Shutdown() wait for the others.
  class Entry {
   public:
    explicit Entry(Core* core) : core_(core->shared_from_this()), pass_(&core->gate_) {}
    // False after Shutdown(): leave at once.
    bool ok() const { return pass_.ok(); }

   private:
    const std::shared_ptr<Core> core_;
    const CallGate::Pass pass_;
  };

  // What was decided under the lock and must not be done under it, in the order of the decisions:
  // data, until CarryOut().
  class Effects {
   public:
    // All its items are answered: its caller is.
    void Answer(std::shared_ptr<BatchReply> reply) { all_.emplace_back(std::move(reply)); }
    void Answer(std::unique_ptr<DrainState> drain, absl::StatusOr<agent::v1::DrainResponse> answer);
    // From what is known here, as the registry took too long.
    void Answer(std::shared_ptr<Listing> listing) { all_.emplace_back(std::move(listing)); }
    void Emit(IntentEvent event) {
      all_.emplace_back(std::make_unique<IntentEvent>(std::move(event)));
    }
    void Log(LogLevel level, std::string event, LogFields fields);
    // What was posted to it.
    void Deliver(std::shared_ptr<SerialNotifier> notifier) {
      all_.emplace_back(std::move(notifier));
    }
    // Ends the stream at the upstream by destroying it, after all the rest.
    void End(std::unique_ptr<SubscribeStream> stream) { all_.emplace_back(std::move(stream)); }
    // Asks the registry for the next page.
    void List(std::shared_ptr<Audit> audit) { all_.emplace_back(std::move(audit)); }
    void CloseSession() { all_.emplace_back(SessionEnd()); }

   private:
    friend class Core;
    struct LogLine {
      LogLevel level;
      std::string event;
      LogFields fields;
    };
    struct DrainEnd {
      Callback<agent::v1::DrainResponse> done;
      absl::StatusOr<agent::v1::DrainResponse> answer;
    };
    struct SessionEnd {};
    // Small, whatever it is: there is one of them for each caller that a batch answers.
    using Effect =
        std::variant<std::shared_ptr<BatchReply>, std::unique_ptr<DrainEnd>,
                     std::shared_ptr<Listing>, std::unique_ptr<IntentEvent>,
                     std::unique_ptr<LogLine>, std::shared_ptr<SerialNotifier>,
                     std::unique_ptr<SubscribeStream>, std::shared_ptr<Audit>, SessionEnd>;
    std::vector<Effect> all_;
  };

  // Without the lock; by the thread that has collected them.
  void CarryOut(Effects effects) ABSL_LOCKS_EXCLUDED(mu_);

  // --- Intents (failback_core.cc).
  void StateIntents(Batch batch, absl::AnyInvocable<void(absl::StatusOr<Results>) &&> done);
  absl::Status StateIntent(LocalSession* session, Intent intent, bool check, bool wait,
                           const std::shared_ptr<BatchReply>& reply, size_t index, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives `record` a new intent: higher generation, no retry of the old one, to be sent.
  void NewGeneration(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same without sending.
  void TakeNumber(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The one place where a record changes its stage; what follows from that is done here too.
  void Move(Record* record, Stage to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // It is to be sent: now, when the call of its key has ended, or when it is in the journal.
  void Enqueue(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps totals_ in step with `record`, which may have changed.
  void Count(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Standing StandingOf(const Record& record);
  // How far the intent of an instance has come.
  static registry::v1::IntentState StateOf(const Record& record, bool lapsed);
  // OK, or why there is no room for one more of something of which there are `count`.
  absl::Status CheckRoom(int64_t count, int64_t limit, const char* what) const;
  // OK, or why `session`, or those without one, may hold no further instance.
  absl::Status CheckShare(const LocalSession* session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes `record` out of the table. Who still waits for it is answered with `status`.
  void Erase(const RecordPtr& record, const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetOwner(Record* record, LocalSession* owner, uint64_t owner_generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The intent of `record` is no longer a checked one; returns what it would have gone back to.
  std::unique_ptr<Check> EndCheck(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PurgeTombstones(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers everyone who waits for `record`.
  void Resolve(const RecordPtr& record, const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Emit(IntentEvent::Kind kind, const Record& record, const absl::Status& status,
            Effects* effects, bool refused = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Sending (failback_sending.cc).
  // Sends what is queued, as long as there is room for calls.
  void Pump();
  enum class Next { kCall, kAgain, kIdle };
  // Fills `call` with what goes next. kAgain: nothing yet, but the lock was held long enough.
  Next NextCall(Call* call, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddToCall(const RecordPtr& record, Call* call, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Call call);
  // A call has ended: one status for all its items, or one each.
  void Completed(const Call& call, const absl::Status& status, const Results* results);
  // One attempt for one record has ended. `sent` is false when it failed before it left.
  void AttemptDone(const RecordPtr& record, uint64_t generation, const absl::Status& status,
                   bool sent, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Acknowledged(const RecordPtr& record, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The registry knows a higher number than ours.
  void Renumber(const RecordPtr& record, const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AttemptFailed(const RecordPtr& record, const absl::Status& status, NextStep step, bool sent,
                     Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The checked intent has failed: back to what was desired before.
  void Revert(const RecordPtr& record, const absl::Status& status, bool sent, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Due(const RecordPtr& record);
  // Due once more, after waiting for its token.
  void DueWithToken(const RecordPtr& record);

  // --- Superseded registrations (failback_superseded.cc).
  // An attempt for `record` was refused, as a later incarnation holds its key.
  void Superseded(const RecordPtr& record, const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All of them are tried again after a while.
  void ArmSuperseded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- The upstream's session (failback_upstream.cc).
  void OnSessionChange();
  // The upstream keeps the incarnation that this agent had for another caller.
  void TakeIncarnation(const UpstreamSession::State& state, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Since when what was acknowledged may be gone, by the session as it is now; nullopt: it is not.
  // Holds until the session is renewed, or everything is queued again for another.
  std::optional<absl::Time> LapsedSince(const UpstreamSession::State& session) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Lapsed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return LapsedSince(session_->state()).has_value();
  }
  // Why there is no session, and where to look.
  static absl::Status SessionError(const UpstreamSession::State& session);
  static absl::Status LapseReason(const UpstreamSession::State& session);
  // Why nothing can be sent.
  absl::Status NoSession(const UpstreamSession::State& session) const;
  // That to the callers who asked for one attempt. A session that could not be opened in time says
  // nothing of the caller's own deadline.
  static absl::Status UnsentCheck(const absl::Status& no_session);
  // Reports once that the lease has run out, and once that it is over; then answers those who wait
  // for what is acknowledged.
  void FollowLapse(const UpstreamSession::State& session, bool lost, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues every intent again, in place of what was queued. `lost`: the upstream has none of them.
  void Resync(bool lost, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The session `serial` is a new one: what lay in those before went with them.
  void ForgetHeldBefore(uint64_t serial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Local sessions (failback_local_sessions.cc).
  LocalSession* NewSession(const OpenSessionRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LocalSession* FindSession(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RenewSession(LocalSession* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The timeout `lease_serial` of a session has come.
  void OnLease(const std::string& id, uint64_t lease_serial);
  void StartHeartbeat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What was due at `due_nanos` runs now. True, and every session has its full time again, when
  // this process was away: the renewals that came meanwhile are not read yet.
  bool NoticePause(int64_t due_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `lease_serial` of the timeout that ends it; 0: the caller. `reply`, if any, waits until the end
  // would survive.
  void EndSession(const std::string& id, uint64_t lease_serial, const absl::Status& why,
                  const std::shared_ptr<BatchReply>& reply = nullptr);

  // --- Subscriptions (failback_subscriptions.cc).
  // OK, or which bound one more subscriber of `selector` would exceed.
  absl::Status RoomToFollow(Selector selector, const std::string& owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RecordPtr FindOrCreateWatch(const Selector& selector) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notifies subscribers that are apart that what they have is stale.
  static void TellApart(const Watch& watch, Effects* effects);
  // What a new subscriber is sent at once.
  void TellFirst(LocalSubscription* subscription) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The set of a watch without subscribers is kept for the next one, within bounds.
  void KeepLastKnown(const Watch& watch, const std::string& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False when there is none.
  bool RestoreLastKnown(const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a subscriber off its watch; the last one unsubscribes it.
  void Detach(const std::shared_ptr<LocalSubscription>& subscription, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndSubscription(const std::shared_ptr<LocalSubscription>& subscription,
                       const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendSubscribe(Call call);
  void OnWatchEvent(const std::shared_ptr<Watch>& watch, uint64_t stream_serial,
                    const Event& event);
  void OnWatchEnd(const std::shared_ptr<Watch>& watch, uint64_t stream_serial,
                  const absl::Status& status);
  void Publish(const std::shared_ptr<Watch>& watch, const EventPtr& event, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the watch's stream, if it has one, and the call that opens it; nothing that it still says
  // is used. It is destroyed without the lock.
  void CloseStream(const std::shared_ptr<Watch>& watch, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmStale(const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One event when the upstream stays unavailable, one when it is back or there is a new session.
  void LogSession(const UpstreamSession::State& state, bool lost, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Subscribers are notified of an unavailable upstream also while their streams do not know yet.
  void WatchSession(bool down, bool lost, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmHold(const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmOpening(const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs `work` under the lock after `delay`, unless the core is shut down.
  Timeout After(absl::Duration delay, std::function<void(Core*, Effects*)> work);

  // --- List (failback_list.cc).
  struct Known;
  // What is known of what `request` asks for. With `owner`: only what that local session has
  // stated, which is all that there is.
  Known CollectKnown(const ListRequest& request, const LocalSession* owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A page of that. `away` is why the registry was not asked.
  static absl::StatusOr<ListResponse> ListKnown(const ListRequest& request, const Known& known,
                                                const absl::Status& away);
  // The registry took too long.
  void AnswerLate(Listing* listing) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ListResponse> ListWithout(const ListRequest& request, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ListUnavailable(const ListRequest& request, const absl::Status& why) const;

  // --- The journal (failback_journal.cc). Without one they do nothing.
  void Restore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the intents those that another registry of this process holds.
  void Adopt(const std::vector<IntentJournal::Intent>& intents) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The session in which a client of an earlier process finds what is its own. `owner` is that of a
  // journalled intent.
  LocalSession* FormerSession(const std::string& owner, absl::Duration ttl)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  IntentJournal::Intent ToIntent(const Record& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What checked intents stand in for, and a local session had stated, ends with that session.
  void EndBeforeChecks(uint64_t session_serial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The desired state of `record` is to survive. It is not sent before its write was tried, and is
  // sent also when that failed.
  void Persist(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers `reply` once all that was persisted so far is durable.
  void AwaitJournal(const std::shared_ptr<BatchReply>& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnJournal(uint64_t sequence, const absl::Status& status);
  // The intent of `record` is what it says, whatever the journal was.
  void EndDoubt(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those that wait for what the journal has just reported.
  void ReleaseReplies(const absl::Status& status, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PersistSnapshot(const std::shared_ptr<Watch>& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Now, if it is due.
  void WriteSnapshot(Watch* watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropFromJournal(const std::vector<std::string>& selectors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Anti-entropy (failback_anti_entropy.cc).
  void ArmAudit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Everything was sent again because the upstream had lost it: what it holds beside that is looked
  // at now.
  void AuditSoon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginAudit(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ListPage(const std::shared_ptr<Audit>& audit);
  void OnPage(const std::shared_ptr<Audit>& audit, absl::StatusOr<ListResponse> response);
  void Repair(const Audit& audit, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After a journal was put back: asks the registry what this incarnation has there.
  void AskAboutDoubted(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AskAgainLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the registry's word for it.
  void SettleDoubted(const Audit& audit, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a journal that was put back does not know, and the registry holds, stays there and is
  // shown. Returns how many that are.
  int64_t KeepUnknown(const Audit& audit, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What was kept so, and went with the agent's session: no hand has removed it. From now on it is
  // an intent of the journal, in doubt.
  void LostWithSession(const RecordPtr& record, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Operator (failback_operator.cc).
  std::string PendingId(const Record& record) const;
  absl::StatusOr<std::vector<RecordPtr>> FindPending(const std::vector<std::string>& ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginDrain(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the session when nothing is in its way any more; also after the deadline.
  void AdvanceDrain(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `closed`: the registry has said that the session is over.
  static Drained DrainedAs(const Record& record, bool closed);
  agent::v1::DrainResponse CountDrained(bool closed) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers the one who waits, if any.
  void AnswerDrain(const agent::v1::DrainResponse& response, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The session is over, and all that went with it.
  void FinishDrain(Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Suspended(const Record& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Statistics (failback_statistics.cc).
  // For the registry, with a renewal.
  registry::v1::AgentReport Report() const;
  void CountAttempt(OperationKind kind, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  int64_t NowNanos() const { return options_.timer->clock()->NowNanos(); }

  const Options options_;
  const std::shared_ptr<IntentJournal> journal_;
  // Set once, in Create().
  std::shared_ptr<UpstreamSession> session_;

  CallGate gate_;

  mutable Mutex mu_;
  std::shared_ptr<Registry> upstream_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  // By the record's own key. The order of these and of the next is the same in every process: a
  // simulation with the same seed runs the same.
  using Records = OrderedIndex<RecordPtr>;
  Records records_ ABSL_GUARDED_BY(mu_);
  // Of them, those of each owner, and of all that have a name.
  OwnerCounts records_of_ ABSL_GUARDED_BY(mu_);
  int64_t named_records_ ABSL_GUARDED_BY(mu_) = 0;
  // Those whose intent is a checked one, by key.
  std::map<std::string_view, RecordPtr> checked_ ABSL_GUARDED_BY(mu_);
  // Those that are superseded and neither queued nor in flight, and when they are tried again.
  StageList<Record> superseded_ ABSL_GUARDED_BY(mu_);
  Timeout superseded_timer_ ABSL_GUARDED_BY(mu_);
  int64_t superseded_due_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  // The queue.
  Batcher<Record> batcher_ ABSL_GUARDED_BY(mu_);
  int calls_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
  bool pump_again_ ABSL_GUARDED_BY(mu_) = false;
  // The one of the options, or that which took its place at the upstream.
  std::string incarnation_ ABSL_GUARDED_BY(mu_);
  uint64_t last_generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t seen_session_serial_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t seen_connection_serial_ ABSL_GUARDED_BY(mu_) = 0;
  bool resyncing_ ABSL_GUARDED_BY(mu_) = false;
  bool session_down_ ABSL_GUARDED_BY(mu_) = false;
  bool told_contested_ ABSL_GUARDED_BY(mu_) = false;
  int64_t seen_twins_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t down_since_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  bool told_away_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Time> told_lapsed_ ABSL_GUARDED_BY(mu_);
  // An intent that was acknowledged before the session lapsed is waited for.
  bool lapse_waiters_ ABSL_GUARDED_BY(mu_) = false;

  RecordTotals totals_ ABSL_GUARDED_BY(mu_);
  int64_t listeners_ ABSL_GUARDED_BY(mu_) = 0;  // local subscribers of all watches
  // Ended subscriptions that all local sessions remember.
  int64_t ended_names_ ABSL_GUARDED_BY(mu_) = 0;

  // In the order in which they became that.
  StageList<Record> tombstones_ ABSL_GUARDED_BY(mu_);

  std::map<std::string, std::unique_ptr<LocalSession>> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t last_session_serial_ ABSL_GUARDED_BY(mu_) = 0;
  PauseWatch pause_watch_ ABSL_GUARDED_BY(mu_);
  Timeout heartbeat_ ABSL_GUARDED_BY(mu_);
  FormerOwners former_owners_ ABSL_GUARDED_BY(mu_);

  uint64_t last_watch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_subscription_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, RecordPtr> watches_ ABSL_GUARDED_BY(mu_);  // by selector
  OwnerCounts watches_of_ ABSL_GUARDED_BY(mu_);                    // that each owner follows

  // Which of the records and of the replies wait for the journal.
  JournalGate<RecordPtr, std::shared_ptr<BatchReply>> journal_gate_ ABSL_GUARDED_BY(mu_);
  // Of selectors that have no subscriber now, and those of an earlier process.
  LastKnownSets last_known_ ABSL_GUARDED_BY(mu_);
  // Records in doubt; whether the registry is yet to be asked, and is being asked.
  int64_t doubted_ ABSL_GUARDED_BY(mu_) = 0;
  bool ask_ ABSL_GUARDED_BY(mu_) = false;
  bool asking_ ABSL_GUARDED_BY(mu_) = false;
  Timeout ask_timer_ ABSL_GUARDED_BY(mu_);

  FailbackStatistics::Counters counters_ ABSL_GUARDED_BY(mu_);
  TokenBucket retry_tokens_ ABSL_GUARDED_BY(mu_);
  uint64_t audit_serial_ ABSL_GUARDED_BY(mu_) = 0;
  Timeout audit_timer_ ABSL_GUARDED_BY(mu_);

  // The journal had intents: of an earlier process, which may have registered them.
  bool restored_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool drain_closing_ ABSL_GUARDED_BY(mu_) = false;
  // Once the session is over.
  std::optional<agent::v1::DrainResponse> drained_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<DrainState> drain_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_CORE_H_
