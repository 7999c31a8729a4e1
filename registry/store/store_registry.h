// StoreRegistry: the registry itself, over an embedded store.
//
// Choose it where the registrations are to live: inside failback-registry, in a test, or in any
// program that wants a registry of its own. Everything is in memory, in a State; beneath it a
// Storage makes each group of changes durable before any client is notified.
//
// Calls are checked and made canonical on the caller's thread, then decided in groups: everything
// that has queued up is decided in one pass, written in one transaction, and published. With a
// store that waits for a disk a thread of its own does that, so that calls share the cost of a
// sync; a small call that finds nothing queued and the disk quick does it on its caller's thread,
// for whom to wake two threads would take as long as the sync. Without a disk the caller's thread
// does it, before the call returns. One group is one commit and one revision: calls that were
// committed together report the same revision, and a subscriber receives them in one delta. Within
// a group sessions end first, then open, then intents apply in order of arrival. Opening a session
// and forgetting old fences are written, but are no commits of their own.
//
//   StoreRegistry::Options options;
//   options.uri = "sqlite:///var/lib/failback/registry.db";   // or "memory:"
//   options.timer = timer.get();
//   auto registry = StoreRegistry::Open(std::move(options));
//   if (!registry.ok()) return registry.status();
//
// When the store cannot be written (disk full, read-only file) every call that would change
// something is refused with STORE_READ_ONLY, nothing of it is visible, reads and renewals go on;
// the store is tried again with the next call after a second.
//
// Where a thread of its own commits, threads of their own notify subscribers with filters:
// comparing a change with thousands of filters holds up no commit.
//
// Thread safety: as Registry. Callbacks and listeners run without locks, on the calling thread, the
// committing thread, those that compare or the timer's threads. The destructor must not be called
// from one of them.
//
// Invariants:
// 1. A callback or a listener runs only after what it reports is durable.
// 2. A lease never ends early; all instances of a session go in one commit.
// 3. A call that fails has changed nothing; a crash may show what a sync that failed has written.

#ifndef FAILBACK_REGISTRY_STORE_STORE_REGISTRY_H_
#define FAILBACK_REGISTRY_STORE_STORE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/base/outage_log.h"
#include "registry/model/agent_reports.h"
#include "registry/model/batch.h"
#include "registry/model/validation.h"
#include "registry/registry.h"
#include "registry/store/leases.h"
#include "registry/store/sqlite/durability.h"
#include "registry/store/sqlite/storage.h"
#include "registry/store/transaction.h"
#include "registry/store/wakeup.h"
#include "registry/watch/subscription_hub.h"
#include "retry/executor.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"
#include "retry/mutex.h"
#include "retry/task_scope.h"

namespace failback {

class StoreRegistry final : public Registry {
 public:
  struct Options {
    // `memory:` or `sqlite:///absolute/path`.
    std::string uri = "memory:";
    Durability durability = Durability::kFull;
    // Drives leases, and gives the time. Outlives the registry.
    HashedWheelTimer* timer = nullptr;

    absl::Duration default_ttl = absl::Seconds(10);
    absl::Duration min_ttl = absl::Seconds(1);
    absl::Duration max_ttl = absl::Hours(1);

    // The eviction guard (Leases).
    bool guard = true;
    int64_t guard_min_sessions = 20;
    double guard_share = 0.15;
    absl::Duration guard_longest_hold;  // zero: ten times the TTL, at most five minutes

    // 0: no limit. Of each but the second an owner has half at most
    // (registry/model/shared_limit.h).
    int64_t max_instances = 0;
    int64_t max_instances_per_session = 0;
    int64_t max_sessions = 0;
    int64_t max_incarnations = 0;
    int64_t max_tombstones = 0;
    // Instances that are registered without a session, and so have no owner, together have the
    // share of one.
    bool callers_have_names = false;
    uint32_t max_batch = kDefaultMaxBatch;
    // Sent to clients; the server adapter enforces it.
    uint32_t max_request_bytes = 4 << 20;
    // More intents than this waiting for their commit: OVERLOADED.
    int64_t max_queued_intents = 500000;

    // A small call may commit on its caller's thread while writes take less than this, on average.
    // Zero: never. A server's threads wait that long instead of serving others.
    absl::Duration quick_write = absl::Milliseconds(1);

    // How long the log of an SQLite store becomes, in pages of 4 KiB, before it is folded into the
    // file.
    int64_t checkpoint_pages = 4000;

    // Commit on the calling thread even when the store waits for a disk: for tests and tools.
    bool commit_inline = false;

    // Where groups are committed, changes compared with filters, and an SQLite store's log folded
    // into its file; it runs tasks after Execute, not within, and outlives the registry. nullptr:
    // threads of the registry's own.
    Executor* executor = nullptr;

    SubscriptionHub::Options subscriptions;
  };

  struct Statistics {
    std::string store_id;
    uint64_t epoch = 0;
    uint64_t revision = 0;
    int64_t instances = 0;
    int64_t services = 0;    // that have instances
    int64_t tombstones = 0;  // fences without an instance
    int64_t sessions = 0;
    int64_t incarnations = 0;
    int64_t subscribers = 0;
    int64_t groups = 0;   // committed
    int64_t intents = 0;  // decided
    int64_t expired_sessions = 0;
    Leases::Statistics leases;
    // OK, or why the store could last not be written.
    absl::Status write_status;
    // How long the store took to write a group, in nanoseconds, and how many intents were in one.
    Histogram write_nanos{kLatencyBoundsNanos};
    Histogram group_intents{kBatchBounds};
    std::vector<Storage::File> files;
  };

  // INVALID_ARGUMENT, which says what is allowed, for a URI that Open does not know.
  static absl::Status CheckUri(const std::string& uri);

  // INVALID_ARGUMENT for a bad option or URI; FAILED_PRECONDITION for a store that is in use or of
  // a newer version; PERMISSION_DENIED, NOT_FOUND or UNAVAILABLE for a path that cannot be used;
  // DATA_LOSS for a file that is damaged. The message is one line and names the path.
  static absl::StatusOr<std::unique_ptr<StoreRegistry>> Open(Options options);

  // As Open, on a storage of the caller's: for tests.
  static absl::StatusOr<std::unique_ptr<StoreRegistry>> OpenOn(Options options,
                                                               std::unique_ptr<Storage> storage);

  // Runs every callback not yet run with CANCELLED and ends every stream so. Sessions stay in the
  // store.
  ~StoreRegistry() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;

  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_.load(std::memory_order_acquire); }
  const std::string& store_id() const { return store_id_; }

  // The sessions that were opened with ends_with_stream: the server adapter then closes them when
  // the stream that renewed it last ends.
  std::vector<std::string> StreamSessions() const;

  // Switches the eviction guard, until the registry starts again. Off: what it holds is ended at
  // once; how many sessions those are is returned.
  // `by`: the operator, for the log and the history of what ends.
  int64_t SetEvictionGuard(bool on, std::string_view by = "");
  // Ends at once what the eviction guard holds now; how many sessions those are is returned. The
  // guard goes on.
  int64_t ReleaseHeldSessions(std::string_view by = "");

  // The rules have shut an owner of sessions out (OpenSessionRequest.owner), whom people call
  // `name`: for the history of what expires. Empty: it is let in again. What it has.
  State::Holdings SetRevoked(const std::string& owner, const std::string& name);

  // Does not wait for a disk.
  Statistics Stats() const;

  // What an operator is shown. Every service, sorted by namespace and name, with counts by state: a
  // service that has not changed since it was asked for last costs nothing.
  std::vector<admin::v1::ServiceSummary> ServiceSummaries() const;
  // The sessions that are alive; what agents have reported of themselves with their renewals, since
  // this process started.
  absl::StatusOr<admin::v1::ListSessionsResponse> ListSessions(
      const admin::v1::ListSessionsRequest& request) const;
  absl::StatusOr<admin::v1::ListAgentsResponse> ListAgents(
      const admin::v1::ListAgentsRequest& request) const;
  struct AgentCounts {
    int64_t agents = 0;
    int64_t in_trouble = 0;
  };
  AgentCounts CountAgents() const;
  // Another one whenever the eviction guard holds something else.
  std::string hold_serial() const;
  // One instance with its session and what is remembered of it. NOT_FOUND when that is nothing.
  absl::StatusOr<admin::v1::InstanceDescription> Describe(const InstanceKey& key) const;

  // The first invariant of the state that does not hold, or OK. Stops commits while it looks.
  absl::Status CheckInvariants() const;

 private:
  struct WriteOp;
  struct OpenOp;
  struct EndOp;
  struct SetOfflineOp;
  struct PurgeOp;
  struct ProbeOp;
  struct Group;
  struct Decided;
  class Effects;

  StoreRegistry(Options options, std::unique_ptr<Storage> storage);
  absl::Status Start();

  Moment Now() const;
  absl::Duration ClampTtl(const google::protobuf::Duration& ttl) const;

  // Adds to the group that is committed next, or commits on this thread.
  template <typename Operation>
  void Submit(Operation operation);
  // What becomes of an operation: not taken, committed by the thread that brought it, or queued;
  // the first one queued asks for a turn of the thread that commits.
  enum class Admission { kRefused, kHere, kQueued, kQueuedFirst };
  template <typename Operation>
  Admission Admit(Operation& operation, absl::Status* refused) ABSL_LOCKS_EXCLUDED(queue_mu_);
  template <typename Operation>
  bool MayCommitHere(const Operation& operation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mu_);
  // Whether CommitTurn is to be scheduled, which the caller then does without the lock.
  bool WantsTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mu_);
  void ScheduleTurn();
  void CommitTurn();
  // `checkpoint_due`: the storage wants it.
  void EndTurn(bool checkpoint_due);
  // By the thread that has set committing_.
  void CommitInTurn(Group group);
  void RunCheckpoint();
  absl::StatusOr<ListResponse> ListNow(const ListRequest& request) const;
  static InstanceRecord ToRecord(const ListItem& item, ServiceInstance instance);
  // Decides, writes and publishes a group; what it owes to callers goes to `effects`.
  void CommitGroup(Group group, Effects* effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  Decided Decide(Group* group, State::Transaction* transaction, Moment now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  static absl::Status DecideWrite(WriteOp* write, State::Transaction* transaction);
  absl::Status Persist(const State::Transaction& transaction, Moment now, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  void Publish(State::Transaction* transaction, int64_t intents, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  CommitResult Commit(State::Transaction* transaction, int64_t intents, Effects* effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  // Notifies those who follow what is due with a filter.
  void Compare(const SubscriptionHub::Due& due);
  void CompareLater(std::shared_ptr<SubscriptionHub::Topic> topic);
  bool CompareOnce(const std::shared_ptr<SubscriptionHub::Topic>& topic);
  // For the hub, which may be locked: mu_ is taken after its lock.
  SubscriptionHub::Present Present(const std::string& topic) const;
  bool HasSession(const std::string& session_id) const;
  void Answer(Group group, Decided decided, Effects* effects);
  OpenSessionResponse OpenedResponse(const State::Transaction::Opened& opened,
                                     absl::Duration ttl) const;
  void OnLeasesDue(std::vector<std::string> session_ids);
  // Of sessions that have ended: empty.
  std::vector<admin::v1::SessionSummary> SummariesOf(
      const std::vector<std::string>& session_ids) const;
  // Two processes renew the session: one line in the log, for the operator.
  void LogContested(const std::string& session_id) const;
  void CountHeld(std::vector<admin::v1::ServiceSummary>* services) const;
  // Looks for the services of sessions that are held, and notifies subscribers.
  void LookAtHeld();
  SubscriptionHub::Topics HeldServices() const;
  void AddLease(const std::string& session_id, admin::v1::SessionSummary* session) const;
  std::vector<admin::v1::AgentSummary> Agents() const;
  void SchedulePurge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);

  const Options options_;
  const std::unique_ptr<Storage> storage_;
  const bool inline_;
  std::string store_id_;  // constant after Start
  uint64_t epoch_ = 0;    // likewise
  std::atomic<uint64_t> revision_{0};
  std::shared_ptr<SubscriptionHub> hub_;  // likewise

  // One group is decided and written at a time. Held before mu_.
  mutable Mutex writer_mu_;
  absl::Status write_status_ ABSL_GUARDED_BY(mu_);
  OutageLog write_outage_ ABSL_GUARDED_BY(mu_);
  Histogram write_nanos_ ABSL_GUARDED_BY(mu_){kLatencyBoundsNanos};
  Histogram group_intents_ ABSL_GUARDED_BY(mu_){kBatchBounds};
  int64_t write_again_ms_ ABSL_GUARDED_BY(writer_mu_) = 0;
  int64_t incarnations_purged_ms_ ABSL_GUARDED_BY(writer_mu_) = 0;
  // How far the incarnations have been looked at, while that is under way.
  std::optional<State::EndedPlace> purged_to_ ABSL_GUARDED_BY(writer_mu_);
  bool purge_on_ ABSL_GUARDED_BY(writer_mu_) = false;  // the last purge has left something

  // Readers hold mu_; a commit holds writer_mu_ while it decides and both while it changes the
  // state, so that deciding needs no mu_.
  mutable Mutex mu_;
  std::unique_ptr<State> state_;

  Mutex queue_mu_;
  std::unique_ptr<Group> queue_ ABSL_GUARDED_BY(queue_mu_);
  // A thread commits what it has taken; others queue up.
  bool committing_ ABSL_GUARDED_BY(queue_mu_) = false;
  bool scheduled_ ABSL_GUARDED_BY(queue_mu_) = false;       // CommitTurn is
  bool checkpoint_due_ ABSL_GUARDED_BY(queue_mu_) = false;  // the storage wants it
  bool stopping_ ABSL_GUARDED_BY(queue_mu_) = false;

  Wakeup purge_;
  Wakeup probe_;      // of a store that could not be written
  Wakeup held_look_;  // every second while sessions are held

  std::atomic<int64_t> groups_{0};
  std::atomic<int64_t> intents_{0};
  std::atomic<int64_t> expired_sessions_{0};
  // A moving average of how long writes take; not quick until some were.
  std::atomic<int64_t> write_estimate_nanos_{int64_t{1000} * 1000 * 1000};

  std::unique_ptr<Leases> leases_;
  AgentReports agent_reports_;
  // Both null when the caller's thread commits.
  std::unique_ptr<TaskScope> committer_;
  std::unique_ptr<TaskScope> comparers_;  // of changes with filters
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_STORE_REGISTRY_H_
