// Who follows what: turns commits into the messages that each subscriber receives.
//
// A subscriber follows the instances of a service, or the services of a namespace. To the hub these
// are the same: a topic whose entries appear, change and go. Subscribers of the same topic with the
// same filter are a group and share their messages. Every commit that changes what a group sees
// becomes one delta for the group; a commit that does not is not sent. The last changes of each
// service are kept, so that a subscriber whose stream broke can go on from its revision. Messages
// are made from stored bytes when they are delivered, outside of every lock.
//
//   hub->Publish(std::move(commit), contents, &deliveries, &due);  // in the order of the commits
//   SubscriptionHub::Deliver(deliveries);                          // listeners are called here
//   for (const auto& topic : due) {                                // here or on other threads
//     while (hub->Compare(topic, contents, &deliveries)) {}
//   }
//   SubscriptionHub::Deliver(deliveries);
//
// Comparing changes with filters takes long where there are many, so that is not done with the hub
// locked. Publish notifies those without a filter. For the others the commit waits at its topic,
// and the topic is due: one thread at a time compares what waits, commit by commit, with the
// filters as they were when it began with that commit (they are shared, and copied before they
// change), and locks the hub to send what was seen. Other topics, commits and new subscriptions do
// not wait for it. A comparison has turns, so that a few threads can serve all topics.
//
// A subscriber that joins meanwhile begins with a snapshot, or a delta from the log, that shows all
// commits published so far, and does not get those again. When more than some thousand changes
// wait, commits are merged into their net effect per key and sent as one; but not across the
// position of a subscriber that joined in between.
//
// The state may be ahead of what has been published. Who begins with a snapshot of the state is not
// sent the commits that it shows already.
//
// Thread safety: all methods may be called from any thread; Publish, one call at a time, and so
// Compare of one topic. The `contents` of Publish and Subscribe is called with the hub locked: what
// it locks must not be held when the hub is called. That of Compare is called without. Listeners of
// one subscription are called one at a time, in order; those of different subscriptions may be
// called at the same time.
//
// Invariants:
// 1. A message's base is the revision of the message before it on the same stream.
// 2. No delta is empty, except the first one of a stream that goes on from a position.
// 3. A subscriber is sent each commit that it sees once: in its first message or after it, in
//    order. (Of merged commits, the net effect.)
// 4. After a stream's destructor has returned its listener is not called; destroyed from within
//    the listener, that call is the last.

#ifndef FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_H_
#define FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/set_flags.h"
#include "registry/registry.h"
#include "registry/watch/commit_result.h"
#include "registry/watch/run_pool.h"
#include "retry/mutex.h"

namespace failback {

class SubscriptionHub : public std::enable_shared_from_this<SubscriptionHub> {
 public:
  struct Options {
    // Changes of a service that are kept for those who come back. A service keeps no more than
    // it has instances, where that is less: a snapshot is shorter then.
    size_t max_log = 1000;
    size_t min_log = 16;
    // A snapshot is sent in parts of at most so many instances and about so many bytes. One who
    // stops in the middle holds one part.
    size_t snapshot_part_instances = 2000;
    size_t snapshot_part_bytes = 256 << 10;
    // A commit whose changes take more, about, is sent as a snapshot; so is more that a subscriber
    // has missed.
    DeltaLimits delta;
    // Filters under which one service is followed, half of them by one owner at most; 0: no limit.
    size_t max_filters = 2000;
    // What changes for those who follow a namespace is found from the commits of its services; off:
    // it is published as a topic of its own.
    bool derive_namespaces = true;
    // Changes of a service that wait to be compared with filters: beyond so many those of one key
    // are merged.
    size_t max_waiting = 4000;
    // One turn of Compare looks at a filter so many times, about.
    size_t looks_per_turn = 10000;
    // Names of subscriptions that one session may have, ended ones included.
    size_t max_names_per_session = 10000;
    // Names that are remembered in all whose subscription was ended before it began. Beyond it an
    // Unsubscribe is answered and not remembered: a Subscribe that comes later than it then lives
    // as long as its stream.
    size_t max_unknown_names = 100000;
  };

  // One subscriber.
  class Member;
  using Deliveries = std::vector<std::shared_ptr<Member>>;

  // What is followed. Those that are due have changes that wait for Compare.
  struct Topic;
  using Due = std::vector<std::shared_ptr<Topic>>;

  // Changes up to `revision` are not known.
  static std::shared_ptr<SubscriptionHub> Create(Options options, uint64_t epoch,
                                                 uint64_t revision);
  ~SubscriptionHub();

  // For a hub that gets the commits of some topics only (`namespace NUL service`, or `namespace
  // NUL`), those that it is asked to begin: from now on all changes of `topic` after `revision`
  // will be published. Nothing is done if it is known already.
  void Begin(const std::string& topic, uint64_t revision);
  // Changes of `topic` will not be published any more. False, and nothing is done, if someone
  // follows it.
  bool Forget(const std::string& topic);
  bool IsFollowed(const std::string& topic) const;
  // Ends the streams of those who follow `topic`.
  void EndTopic(const std::string& topic, const absl::Status& status, Deliveries* deliveries);

  // The sessions in which subscriptions have names, living and ended ones.
  std::vector<std::string> Sessions() const;

  // A stream that only ends, with `status`.
  static std::unique_ptr<SubscribeStream> Refuse(std::shared_ptr<NotifyListener> listener,
                                                 const absl::Status& status,
                                                 Deliveries* deliveries);

  // Publishes what there is of a topic now: the service's instances, or the namespace's services as
  // MakeServiceEntry. Asked when a snapshot is needed.
  struct Present {
    std::vector<Blob> entries;
    uint64_t revision = 0;  // not before what has been published
  };
  using Contents = absl::FunctionRef<Present(const std::string& topic)>;

  // Follows `request.selector`, which is valid and canonical, from `revision`, up to which the
  // topic's changes have been published; nullopt: where all topics have one order of revisions,
  // that of the last Publish.
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::optional<uint64_t> revision, Contents contents,
                                             std::shared_ptr<NotifyListener> listener,
                                             Deliveries* deliveries);

  // Ends the named subscription of a session that is alive.
  absl::Status Unsubscribe(const UnsubscribeRequest& request, Deliveries* deliveries);

  // Ends the subscriptions of a session that has ended, and forgets their names.
  void ForgetSession(const std::string& session_id, Deliveries* deliveries);

  // Takes in what a commit changed, notifies followers without a filter, and ends the streams
  // of sessions that it ended. `contents` is what there is after it. Topics that are due now are
  // added to `due`. Each is the caller's until Compare returns false for it, and no other's.
  void Publish(CommitResult commit, Contents contents, Deliveries* deliveries, Due* due);

  // One turn with a topic that is due: compares what waits with its filters, notifies those who see
  // it. True: there is more to do, now or after others had their turn.
  bool Compare(const std::shared_ptr<Topic>& topic, Contents contents, Deliveries* deliveries);

  // The services (`namespace NUL service`) of which sessions are held now. Those who follow one
  // with which this begins or ends are notified.
  using Topics = absl::flat_hash_set<std::string>;
  void SetHeld(Topics services, Deliveries* deliveries);

  // Ends every stream.
  void EndAll(const absl::Status& status, Deliveries* deliveries);

  // Calls listeners with what is queued for them. Call without locks.
  static void Deliver(const Deliveries& deliveries);

  int64_t subscribers() const;

 private:
  class Message;
  class Stream;
  struct Group;
  struct Name;
  struct Waiting;
  struct Comparison;

  using Changes = std::shared_ptr<const std::vector<InstanceChange>>;
  using SharedPresent = std::shared_ptr<const Present>;

  SubscriptionHub(Options options, uint64_t epoch, uint64_t revision);

  // The topic of this name, made at `revision` if it is new.
  std::shared_ptr<Topic> GetTopic(const std::string& name, uint64_t revision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropIfUnused(Topic* topic) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(Topic* topic) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<ServiceChange> NamespaceChanges(const CommitResult& commit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Changes are taken from [begin, end).
  template <typename Iterator>
  void Log(Topic* topic, uint64_t revision, Iterator begin, Iterator end, int64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether `seen`, of a service that has `size` instances then, is better sent as a snapshot.
  bool IsTooLong(const std::vector<InstanceChange>& seen, int64_t size) const;
  // Whether what came after `newer` of a topic's log is.
  bool IsTooLong(const Topic& topic, size_t newer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Schedules the topic's groups with filters.
  void Await(const std::shared_ptr<Topic>& topic, Waiting waiting, Due* due)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Merges what waits.
  void Merge(Topic* topic) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False when nothing waits: the topic is not due any more.
  bool BeginComparison(Topic* topic) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One turn of the comparison under way; true: it is through.
  bool LookAtFilters(Topic* topic) const;
  // Sends a group what it sees of the commit `revision`; not empty.
  void PublishDelta(Group* group, uint64_t revision, const Changes& seen, Deliveries* deliveries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same by what there is, then or later.
  void PublishSnapshot(Group* group, uint64_t revision, const SharedPresent& present,
                       Deliveries* deliveries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SetFlags FlagsOf(const Topic& topic) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellFlags(const Topic& topic, Deliveries* deliveries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of what `group` sees of `present`.
  std::shared_ptr<Message> MakeSnapshot(Group* group, SharedPresent present)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Name* GetName(const std::string& session_id, const std::string& subscription_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RoomForFilter(const Topic& topic, const std::string& name,
                             const std::string& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Claim(const SubscribeRequest& request, const std::shared_ptr<Member>& member,
                     Deliveries* deliveries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(Member* member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const std::shared_ptr<Member>& member, const absl::Status& status,
           Deliveries* deliveries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Deliveries MembersOf(const Topic& topic);
  void EndSession(const std::string& session_id, Deliveries* deliveries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(Member* member);

  const Options options_;
  const uint64_t epoch_;
  const std::shared_ptr<RunPool> runs_ = std::make_shared<RunPool>();

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Topic>> topics_ ABSL_GUARDED_BY(mu_);
  int64_t namespaces_ ABSL_GUARDED_BY(mu_) = 0;  // topics of that kind
  uint64_t published_ ABSL_GUARDED_BY(mu_);
  // Changes of services without a topic are not known up to this revision.
  uint64_t floor_ ABSL_GUARDED_BY(mu_);
  Topics held_ ABSL_GUARDED_BY(mu_);
  // By session, by subscription id.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, Name>> names_
      ABSL_GUARDED_BY(mu_);
  size_t unknown_names_ ABSL_GUARDED_BY(mu_) = 0;  // that never had a subscription
  int64_t subscribers_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_H_
