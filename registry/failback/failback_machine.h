// The failback core as a pure machine: one table of records, one queue, one prober.
//
// It holds no lock, arms no timer, makes no call and knows no thread. A step takes what has
// happened and the time, and says what is to be done (failback_step.h). FailbackRegistry is the
// shell around it: one mutex, one timeout, the calls. The model test is another.
//
//   Effects effects;
//   machine.Step(input::Write{ticket, std::move(batch)}, now, &effects);
//   for (Effects::Call& call : effects.calls) Make(std::move(call));
//
// A step touches the records of the calls that it builds or ends; only a resync, an audit and what
// an operator asks walk over all records.
//
// failback_machine.cc         a step: what came in, what is due, what goes out; calls under way
// failback_intents.cc         intents: submitted, queued; the stage of each
// failback_sending.cc         what is queued leaves in batches, and what comes of it
// failback_superseded.cc      registrations that a later incarnation holds
// failback_upstream.cc        the upstream's session: lost, lapsed, back; resync
// failback_local_sessions.cc  whether clients on this machine are alive
// failback_subscriptions.cc   local subscribers
// failback_watches.cc         the selectors that they follow at the upstream
// failback_list.cc            listings
// failback_journal.cc         what survives the process
// failback_anti_entropy.cc    comparing with the upstream, slowly
// failback_operator.cc        what an operator sees and does
// failback_drain.cc           the end of the session
// failback_carried.cc         the registrations that it carries, and how far each has come
// failback_statistics.cc      what is counted
// failback_invariants.cc      what holds after every step
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_MACHINE_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_MACHINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "registry/base/log.h"
#include "registry/base/pause_watch.h"
#include "registry/failback/alarms.h"
#include "registry/failback/batcher.h"
#include "registry/failback/carried_record.h"
#include "registry/failback/failback_record.h"
#include "registry/failback/failback_statistics.h"
#include "registry/failback/failback_step.h"
#include "registry/failback/former_owners.h"
#include "registry/failback/journal_gate.h"
#include "registry/failback/last_known_sets.h"
#include "registry/failback/ordered_index.h"
#include "registry/failback/pending_range.h"
#include "registry/failback/upstream_machine.h"
#include "retry/token_bucket.h"

namespace failback {

class ListScopes;

class Machine {
 public:
  using Setup = MachineSetup;
  Machine(Setup setup, Moment now);

  // Something has happened. `now` never goes back. What is to be done is added to `*effects`.
  void Step(Input&& input, Moment now, Effects* effects);

  // How things stand, for an operator.
  const std::string& incarnation() const { return incarnation_; }
  int64_t local_sessions() const { return static_cast<int64_t>(sessions_.size()); }
  bool draining() const { return draining_; }
  agent::v1::UpstreamStatus UpstreamStatus(Moment now, const FailbackStatistics& stats) const;
  // Without the journal's.
  FailbackStatistics Stats(Moment now) const;
  std::vector<agent::v1::PendingOperation> Pending(Moment now, const PendingRange& range) const;
  std::vector<IntentJournal::Intent> PresentIntents() const;
  std::vector<CarriedRecord> Carried(Moment now, const std::string& begins) const;

  // What is wrong, by the invariants; empty when nothing is.
  std::string CheckInvariants() const;

 private:
  using Audit = machine::Audit;
  using BatchReply = machine::BatchReply;
  using CallSlot = machine::CallSlot;
  using Check = machine::Check;
  using Listing = machine::Listing;
  using LocalSession = machine::LocalSession;
  using LocalSubscription = machine::LocalSubscription;
  using Record = machine::Record;
  using RecordPtr = machine::RecordPtr;
  using ReplyPtr = machine::ReplyPtr;
  using SubscriptionPtr = machine::SubscriptionPtr;
  using Waiter = machine::Waiter;
  using Watch = machine::Watch;
  using WatchPtr = std::shared_ptr<Watch>;

  // --- A step (failback_machine.cc).
  void On(input::Start&& in);
  void On(const input::OpenSession& in);
  void On(const input::KeepAlive& in);
  void On(const input::CloseSession& in);
  void On(input::Write&& in);
  void On(input::Subscribe in);
  void On(input::Detach in);
  void On(const input::Unsubscribe& in);
  void On(input::List in);
  void On(input::WhenDurable in);
  void On(const input::Retry& in);
  void On(const input::Cancel& in);
  void On(input::Drain in);
  void On(input::Answered&& in);
  void On(const input::Streamed& in);
  void On(const input::Disconnected& in);
  void On(input::Made in);
  void On(const input::Journalled& in);
  void On(input::Tick in);
  void On(input::Closing in);
  void On(const input::Closed& in);
  // Answers everyone; nothing is left.
  void Empty();

  void Answer(Ticket ticket, failback::Answer answer) {
    out_->replies.push_back({ticket, std::move(answer)});
  }
  // All its items are answered: its caller is.
  void Answer(const ReplyPtr& reply);
  // One of its items is, or what held it until now.
  void Release(const ReplyPtr& reply) {
    if (--reply->remaining == 0) Answer(reply);
  }
  void Log(LogLevel level, std::string event, LogFields fields) {
    out_->logs.push_back({level, std::move(event), std::move(fields)});
  }
  [[nodiscard]] Alarm After(absl::Duration delay, TimerTask task) {
    return alarms_.After(now_.nanos, absl::ToInt64Nanoseconds(delay), std::move(task));
  }
  CallId NewCall(CallSlot slot);

  // --- Intents (failback_intents.cc).
  absl::Status StateIntent(LocalSession* session, Intent intent, bool check, bool wait,
                           const ReplyPtr& reply, size_t index);
  // OK, or why the numbers of `session`, whose the record is, do not allow the intent.
  static absl::Status CheckNumber(const LocalSession& session, const Record& record,
                                  const Intent& intent);
  // OK, or which bound a new record, or one for another owner, would exceed.
  absl::Status CheckBounds(const LocalSession* session, const Record* record, bool registers) const;
  // The record takes the intent; `existed`: it was there before.
  void TakeIntent(const RecordPtr& record, Intent intent, LocalSession* session, bool check,
                  bool existed);
  // Gives `record` a new intent: higher generation, no retry of the old one, to be sent.
  void NewGeneration(const RecordPtr& record);
  // The same without sending.
  void TakeNumber(const RecordPtr& record);
  // The one place where a record changes its stage; what follows from that is done here too.
  void Move(Record* record, Stage to);
  // It is to be sent: now, when the call of its key has ended, or when it is in the journal.
  void Enqueue(Record* record);
  // Keeps totals_ in step with `record`, which may have changed.
  void Count(Record* record);
  static Standing StandingOf(const Record& record);
  // How far the intent of an instance has come.
  static registry::v1::IntentState StateOf(const Record& record, bool lapsed);
  // OK, or why there is no room for one more where there are `count`.
  absl::Status CheckRoom(int64_t count, int64_t limit, const char* what) const;
  // OK, or why `session`, or those without one, may hold no further instance.
  absl::Status CheckShare(const LocalSession* session) const;
  // Takes `record` out of the table. Who still waits for it is answered with `status`.
  void Erase(const RecordPtr& record, const absl::Status& status);
  void SetOwner(Record* record, LocalSession* owner, uint64_t owner_generation);
  void CountOwned(const LocalSession* session, int change);
  // The intent of `record` is no longer a checked one; returns what it would have gone back to.
  std::unique_ptr<Check> EndCheck(Record* record);
  void PurgeTombstones();
  // Answers everyone who waits for `record`.
  void Resolve(const RecordPtr& record, const absl::Status& status);
  void Emit(IntentEvent::Kind kind, const Record& record, const absl::Status& status,
            bool refused = false);

  // --- Sending (failback_sending.cc).
  // Sends what is queued, as long as there is room for calls.
  void Pump();
  // Those of the queue's head fail, as there is no session.
  void FailQueued();
  void SendNext();
  void AddToCall(const RecordPtr& record, CallSlot* slot, Batch* batch);
  void SendSubscribe(const RecordPtr& record);
  // A call for intents has ended: one status for all its items, or one each.
  void Completed(const CallSlot& call, const failback::Answer& answer);
  // What its answer for one item says of what the registry holds; returns its next step.
  static NextStep NoteHeld(const CallSlot& call, Record* record, const absl::Status& item);
  // One attempt for one record has ended. `sent` is false when it failed before it left.
  void AttemptDone(const RecordPtr& record, uint64_t generation, const absl::Status& status,
                   bool sent);
  void TakeStep(const RecordPtr& record, NextStep step, const absl::Status& status, bool sent);
  void Acknowledged(const RecordPtr& record);
  // The registry knows a higher number than ours.
  void Renumber(const RecordPtr& record, const absl::Status& status);
  void AttemptFailed(const RecordPtr& record, const absl::Status& status, NextStep step, bool sent);
  // The checked intent has failed: back to what was desired before.
  void Revert(const RecordPtr& record, const absl::Status& status, bool sent);
  // It has waited long enough; for a token too.
  void Due(Record* record);

  // --- Superseded registrations (failback_superseded.cc).
  // An attempt for `record` was refused, as a later incarnation holds its key.
  void Superseded(const RecordPtr& record, const absl::Status& status);
  // All of them are tried again after a while.
  void ArmSuperseded();

  // --- The upstream's session (failback_upstream.cc).
  // The prober has taken a step: what it asks for is done, and its news followed.
  void Follow(UpstreamMachine::Effects step);
  void Probe(UpstreamMachine::Call call);
  void OnSessionChange();
  // The upstream keeps the incarnation that this agent had for another caller.
  void TakeIncarnation();
  // Since when what was acknowledged may be gone; nullopt: it is not. Holds until the session is
  // renewed, or everything is queued again for another.
  std::optional<absl::Time> LapsedSince(Moment now) const;
  // A call that shows the credentials of now was answered so.
  void NoteCredentials(const absl::Status& status);
  bool IsAgentRefused() const {
    const UpstreamMachine::State& session = upstream_.state();
    return session.refused() || (session.last_error.ok() && !credentials_error_.ok());
  }
  // Why there is no session, or nothing can be done in it, and where to look.
  absl::Status SessionError() const;
  absl::Status LapseReason() const;
  // Why nothing can be sent.
  absl::Status NoSession() const;
  // That to the callers who asked for one attempt. A session that could not be opened in time says
  // nothing of the caller's own deadline.
  static absl::Status UnsentCheck(const absl::Status& no_session);
  // Reports once that the lease has run out, and once that it is over; then answers those who wait
  // for what is acknowledged.
  void FollowLapse(bool lost);
  void EmitLapse(IntentEvent::Kind kind, const absl::Status& status);
  // One event when the upstream stays unavailable, one when it is back or there is a new session.
  void LogSession(bool lost);
  // Queues every intent again, in place of what was queued. `lost`: the upstream has none of them.
  void Resync(bool lost);
  // False: the old session's end has unsubscribed it, and it is to be forgotten.
  bool ResyncOne(Record* record, bool lost);
  // The session `serial` is a new one: what lay in those before went with them.
  void ForgetHeldBefore(uint64_t serial);

  // --- Local sessions (failback_local_sessions.cc).
  LocalSession* NewSession(const OpenSessionRequest& request);
  LocalSession* FindSession(const std::string& id);
  LocalSession* SessionOf(const std::string& incarnation) const;
  // OK, or why `request` may not open a session, or go on with `known`.
  absl::Status CheckOpen(const OpenSessionRequest& request, const LocalSession* known) const;
  void RenewSession(LocalSession* session);
  // The lease of a session has run out.
  void OnLease(LocalSession* session);
  void StartHeartbeat();
  // What was due at `due_nanos` runs now. True, and every session has its full time again, when
  // this process was away: the renewals that came meanwhile are not read yet.
  bool NoticePause(int64_t due_nanos);
  void EndSession(const std::string& id, const absl::Status& why);
  // What it has stated ends with it, but for what is persistent.
  void EndOwned(const LocalSession& session, const absl::Status& why);
  static absl::Status SessionUnknown(const std::string& id);

  // --- Local subscribers (failback_subscriptions.cc).
  // OK, or why there is no such subscription.
  absl::Status Admit(const SubscribeRequest& request, const SubscriptionPtr& subscription);
  // OK, or which bound one more subscriber of `selector` would exceed.
  absl::Status RoomToFollow(Selector selector, const std::string& owner) const;
  // Notifies subscribers that are apart that what they have is stale.
  void TellApart(const Watch& watch);
  // What a new subscriber is sent at once.
  void TellFirst(LocalSubscription* subscription);
  // A late Subscribe with this or a lower generation is not to bring it back.
  void RememberEnd(LocalSession* session, const std::string& name, uint64_t generation);
  // Takes a subscriber off its watch; the last one unsubscribes it.
  void Detach(const SubscriptionPtr& subscription);
  void EndSubscription(const SubscriptionPtr& subscription, const absl::Status& status);
  // The registry refuses the subscription for good: those that end then
  // (registry/refusable_listener.h).
  void EndRefused(const RecordPtr& record);
  static bool IsRefused(const Record& record);
  void Publish(Watch* watch, const EventPtr& event);

  // --- Watches (failback_watches.cc).
  RecordPtr FindOrCreateWatch(const Selector& selector);
  // The last subscriber has left, who was `owner`.
  void Abandon(Watch* watch, const std::string& owner);
  // The set of a watch without subscribers is kept for the next one, within bounds.
  void KeepLastKnown(const Watch& watch, const std::string& owner);
  // False when there is none.
  bool RestoreLastKnown(Watch* watch);
  // An event of its stream, or the end.
  void OnWatchEvent(const WatchPtr& watch, const Event& event);
  void OnWatchEnd(const WatchPtr& watch, const absl::Status& end);
  // Ends the watch's stream, if it has one, and the call that opens it; nothing that it still says
  // is used.
  void CloseStream(Watch* watch);
  void ArmStale(Watch* watch);
  void ArmHold(Watch* watch);
  void ArmOpening(Watch* watch);
  void OnStale(Watch* watch);
  // Subscribers are notified of an unavailable upstream also while their streams do not know yet.
  void WatchSession(bool down, bool lost);

  // --- List (failback_list.cc).
  // What is known of what `request` asks for. With `owner`: only what that local session has
  // stated, which is all that there is. `away` is why the registry was not asked.
  std::unique_ptr<KnownList> CollectKnown(const ListRequest& request, const LocalSession* owner,
                                          const absl::Status& away) const;
  // The parts of that: sets that are followed or were, and own intents.
  void CollectSets(const ListScopes& scopes, KnownList* known) const;
  void CollectOwn(const ListScopes& scopes, const LocalSession* owner, KnownList* known) const;
  void OnListed(std::unique_ptr<Listing> listing, failback::Answer answer);
  absl::Status ListUnavailable(const ListRequest& request, const absl::Status& why) const;

  // --- The journal (failback_journal.cc). Without one they do nothing.
  void Restore(input::Start kept);
  // Makes the intents those that another registry of this process holds.
  void Adopt(const std::vector<IntentJournal::Intent>& intents);
  // The session in which a client of an earlier process finds what is its own. `owner` is that of a
  // journalled intent.
  LocalSession* FormerSession(const std::string& owner, absl::Duration ttl);
  IntentJournal::Intent ToIntent(const Record& record) const;
  // What checked intents stand in for, and a local session had stated, ends with that session.
  void EndBeforeChecks(uint64_t session_serial);
  // The desired state of `record` is to survive. It is not sent before its write was tried, and is
  // sent also when that failed.
  void Persist(const RecordPtr& record);
  void Forget(Record* record);
  // Answers `reply` once all that was persisted so far is durable.
  void AwaitJournal(const ReplyPtr& reply);
  // The intent of `record` is what it says, whatever the journal was.
  void EndDoubt(Record* record);
  // Tells the journal, once, when nothing is in doubt any more.
  void Settle();
  void ReleaseReplies(const absl::Status& status);
  void PersistSnapshot(Watch* watch);
  // Now, if it is due.
  void WriteSnapshot(Watch* watch);
  void DropFromJournal(const std::vector<std::string>& selectors);

  // --- Anti-entropy (failback_anti_entropy.cc).
  void ArmAudit();
  // Everything was sent again because the upstream had lost it: what it holds beside that is looked
  // at now.
  void AuditSoon();
  void BeginAudit();
  void ListPage(std::unique_ptr<Audit> audit);
  void OnPage(std::unique_ptr<Audit> audit, const failback::Answer& answer);
  void Repair(const Audit& audit);
  enum class Found { kAsItIs, kMissing, kDifferent, kExtra };
  Found RepairOne(const Audit& audit, const RecordPtr& record);
  // What was cancelled, or is not known here, is kept for as long as the registry holds the key.
  bool IsGone(const Audit& audit, Record* record) const;
  void NoteGone(const RecordPtr& record);
  // After a journal was put back: asks the registry what this incarnation has there.
  void AskAboutDoubted();
  void AskAgainLater();
  // Takes the registry's word for it.
  void SettleDoubted(const Audit& audit);
  enum class Word { kAsBefore, kTaken, kParked };
  Word SettleOne(const Audit& audit, const RecordPtr& record);
  // What a journal that was put back does not know, and the registry holds, stays there and is
  // shown. Returns how many that are.
  int64_t KeepUnknown(const Audit& audit);
  void LeaveThere(const Audit& audit, const Audit::Listed& listed, const RecordPtr& record);
  // What was kept so, and went with the agent's session: no hand has removed it. From now on it is
  // an intent of the journal, in doubt.
  void LostWithSession(const RecordPtr& record);

  // --- Operator (failback_operator.cc).
  std::string PendingId(const Record& record) const;
  agent::v1::PendingOperation PendingRow(Moment now, std::string id, const Record& record) const;
  absl::StatusOr<std::vector<RecordPtr>> FindPending(const std::vector<std::string>& ids) const;
  // True: it had been sent, and may still take effect.
  bool CancelOne(const RecordPtr& record);

  // --- Drain: a phase, not an intent (failback_drain.cc).
  void BeginDrain();
  // Ends the session when nothing is in its way any more; also after the deadline.
  void AdvanceDrain();
  // What a drain counts a record as. `closed`: the registry has said that the session is over.
  enum class Drained { kNothing, kUnregistered, kRemaining, kPersistent };
  static Drained DrainedAs(const Record& record, bool closed);
  // How the last attempt for what remains ended, or at ending its session; OK: neither has failed.
  absl::Status WhyRemaining(const Record& record) const;
  agent::v1::DrainResponse CountDrained(bool closed) const;
  // Answers the one who waits, if any.
  void AnswerDrain(const agent::v1::DrainResponse& response);
  // The session is over, and all that went with it.
  void FinishDrain();
  bool Suspended(const Record& record) const {
    return draining_ && (record.present || record.watch != nullptr);
  }

  // --- Statistics (failback_statistics.cc).
  // For the registry, with a renewal.
  registry::v1::AgentReport Report() const;
  void CountAttempt(OperationKind kind, const absl::Status& status);

  // --- Invariants (failback_invariants.cc). Each adds to `*wrong` what is.
  void CheckLists(std::string* wrong) const;
  bool MayBeSent(const Record& record) const;
  void CheckRecord(const Record& record, std::string* wrong) const;
  void CheckWatch(const Record& record, std::string* wrong) const;
  void CheckTotals(std::string* wrong) const;
  void CheckSessions(std::string* wrong) const;

  // Of the sets that no subscriber follows at the moment.
  static constexpr size_t kMaxLastKnownBytes = 64 << 20;
  // An incarnation stays that of the caller who had its last session, as at a registry.
  static constexpr absl::Duration kOwnersAreKept = absl::Hours(24);

  const Setup setup_;
  const FailbackOptions& options_ = setup_.options;
  JournalQueue* const journal_ = setup_.sinks.journal;
  EventQueues* const subscribers_ = setup_.sinks.subscribers;

  // Of the step under way; the trace of the call that it is of.
  Moment now_;
  Effects* out_ = nullptr;
  std::string trace_;

  // Outlives all that has an alarm.
  Alarms alarms_;
  UpstreamMachine upstream_;
  bool closed_ = false;

  // Calls under way, by id; those that are free.
  std::vector<CallSlot> calls_;
  std::vector<CallId> free_calls_;
  bool making_ = false;  // input::Made is yet to come

  // By the record's own key. The order of these and of the next is the same in every process: a
  // simulation with the same seed runs the same.
  using Records = OrderedIndex<RecordPtr>;
  Records records_;
  // Of them, those of each owner, and of all that have a name.
  OwnerCounts records_of_;
  int64_t named_records_ = 0;
  // Those whose intent is a checked one, by key.
  std::map<std::string_view, RecordPtr> checked_;
  // Those that are superseded and neither queued nor in flight, and when they are tried again.
  StageList<Record> superseded_;
  Alarm superseded_alarm_;
  // The queue.
  Batcher<Record> batcher_;
  int calls_in_flight_ = 0;
  // The one of the options, or that which took its place at the upstream.
  std::string incarnation_;
  uint64_t last_generation_ = 0;
  uint64_t seen_session_serial_ = 0;
  uint64_t seen_connection_serial_ = 0;
  bool resyncing_ = false;
  bool session_down_ = false;
  bool told_contested_ = false;
  int64_t seen_twins_ = 0;
  int64_t down_since_nanos_ = 0;
  bool told_away_ = false;
  // Why the last call was refused that was made with the credentials of now. The session does not
  // show it: its renewals go through a stream that was opened with those of then.
  absl::Status credentials_error_;
  // NoSession(), until the session changes; OK: not made yet.
  absl::Status no_session_;
  std::optional<absl::Time> told_lapsed_;
  // An intent that was acknowledged before the session lapsed is waited for.
  bool lapse_waiters_ = false;

  RecordTotals totals_;
  StageList<Record> tombstones_;  // in the order in which they became that

  std::map<std::string, std::unique_ptr<LocalSession>> sessions_;
  uint64_t last_session_serial_ = 0;
  PauseWatch pause_watch_;
  Alarm heartbeat_;
  FormerOwners former_owners_;

  // Local subscribers of all watches, and ended subscriptions that all local sessions remember.
  std::map<SubscriptionId, SubscriptionPtr> subscriptions_;  // ended in this order, too
  int64_t ended_names_ = 0;
  uint64_t last_watch_ = 0;
  std::map<std::string, RecordPtr> watches_;  // by selector
  OwnerCounts watches_of_;                    // that each owner follows
  // Of the upstream's streams, whose each is.
  absl::flat_hash_map<StreamId, WatchPtr> streams_;
  StreamId last_stream_ = 0;

  // Which of the records and of the replies wait for the journal.
  JournalGate<RecordPtr, ReplyPtr> journal_gate_;
  absl::Status journal_error_;
  // Of selectors that have no subscriber now, and those of an earlier process.
  LastKnownSets last_known_;
  // Records in doubt; whether the journal is to be told when none is any more; whether the registry
  // is yet to be asked, and is being asked.
  int64_t doubted_ = 0;
  bool unsettled_ = false;
  bool ask_ = false;
  bool asking_ = false;
  Alarm ask_alarm_;

  FailbackStatistics::Counters counters_;
  TokenBucket retry_tokens_;
  uint64_t audit_serial_ = 0;
  Alarm audit_alarm_;

  // The journal had intents: of an earlier process, which may have registered them.
  bool restored_ = false;
  bool draining_ = false;
  bool drain_closing_ = false;
  // Once the session is over.
  std::optional<agent::v1::DrainResponse> drained_;
  std::optional<machine::DrainWaiter> drain_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_MACHINE_H_
