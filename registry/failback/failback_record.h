// What the failback machine keeps: records, the watches and local sessions that they belong to, and
// the calls under way. Only the machine's own files use this.
//
// Thread safety: none of their own.

#ifndef FAILBACK_REGISTRY_FAILBACK_FAILBACK_RECORD_H_
#define FAILBACK_REGISTRY_FAILBACK_FAILBACK_RECORD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/failback/alarms.h"
#include "registry/failback/failback_stage.h"
#include "registry/failback/failback_step.h"
#include "registry/failback/record_totals.h"
#include "registry/failback/status_policy.h"
#include "registry/model/blob.h"
#include "registry/model/shared_limit.h"
#include "registry/watch/watched_set.h"
#include "retry/retry_rule.h"

namespace failback::machine {

struct LocalSession;
struct Watch;

// One call that states intents or waits for the journal, until each of its items is answered.
struct BatchReply {
  enum class As { kBatch, kCloseSession, kDurable };
  Ticket ticket = 0;
  As as = As::kBatch;
  std::vector<registry::v1::IntentResult> results;
  size_t remaining = 0;
};
using ReplyPtr = std::shared_ptr<BatchReply>;

// Who waits for one item of a batch.
struct Waiter {
  ReplyPtr reply;
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

// Dubbo's FailedRegisteredTask and its siblings, as data: how often an intent has failed, and when
// it is tried again (while it is waiting).
struct Retry {
  RetryRule rule;
  Alarm due;
};

// The one thing: a key, its last intent, and how far that has come: its stage (Machine::Move), and
// the call in flight.
struct Record : StageLink, std::enable_shared_from_this<Record> {
  OperationKind kind() const {
    if (watch != nullptr) return present ? OperationKind::kSubscribe : OperationKind::kUnsubscribe;
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
  // As which it is in Machine::totals_.
  Standing standing;
  // In the journal, 0: not; and the write that has yet to become durable, 0: none.
  int64_t row = 0;
  uint64_t unwritten = 0;
  // Of what is in doubt and not in the journal: the session in which the registry was seen to hold
  // it, and since when it has been seen not to; 0: it holds it.
  uint64_t kept_session = 0;
  int64_t missed_nanos = 0;
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
  std::unique_ptr<Retry> retry;
  std::unique_ptr<Check> check;
  // Of the call that stated the intent; null: none, or acknowledged.
  std::unique_ptr<const std::string> trace;
  std::vector<Waiter> waiters;
  std::shared_ptr<Watch> watch;
};
using RecordPtr = std::shared_ptr<Record>;

struct LocalSubscription {
  SubscriptionId id = 0;
  std::shared_ptr<Watch> watch;
  std::string owner;  // empty: callers are not distinguished
  std::string session_id;
  std::string subscription_id;
  uint64_t generation = 0;
  bool ends_when_refused = false;
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
using SubscriptionPtr = std::shared_ptr<LocalSubscription>;

struct LocalSession {
  std::string id;
  std::string owner;  // empty: callers are not distinguished
  uint64_t serial;
  std::string incarnation;
  absl::Duration ttl;
  Alarm lease;
  absl::flat_hash_set<Record*> records;  // that it owns
  std::map<std::string, SubscriptionPtr> subscriptions;
  std::map<std::string, uint64_t> unsubscribed;  // generation of the Unsubscribe, by id
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
  // 0: none. What older ones still say is not used.
  StreamId stream = 0;
  // Marked stale although its stream is open: the session's renewals got no answer.
  bool silenced = false;
  Alarm opening;
  Alarm stale;
  Alarm hold;
  Alarm snapshot;  // armed while the journal's copy is older than the set
  std::map<SubscriptionId, SubscriptionPtr> subscribers;
  OwnerCounts owners;  // of subscribers
};

// What one listing of the upstream has shown so far.
struct Audit {
  uint64_t serial = 0;
  uint64_t epoch = 0;
  // Asked for what a journal that was put back cannot know.
  bool about_doubted = false;
  // In which session it began.
  uint64_t session = 0;
  ListRequest request;
  // The registry's policy may hide some of it: what is not listed is not known to be missing.
  bool part = false;
  struct Listed {
    std::string instance;  // canonical
    uint64_t generation = 0;
    bool persistent = false;
  };
  // By canonical key.
  absl::flat_hash_map<std::string, Listed> listed;
};

// A List of a client's that the registry was asked. Answered once: by it, or when it takes too
// long.
struct Listing {
  Ticket ticket = 0;
  bool answered = false;
  ListRequest request;
  Alarm late;
};

// A call under way, by its id. It keeps its records.
struct CallSlot {
  enum class Kind { kFree, kIntents, kOpen, kRenew, kClose, kAudit, kListing };
  Kind kind = Kind::kFree;
  OperationKind operation = OperationKind::kRegister;  // of kIntents
  std::string session_id;
  uint64_t session_serial = 0;
  std::vector<std::pair<RecordPtr, uint64_t>> items;  // with the generation that was sent
  std::unique_ptr<Audit> audit;
  std::unique_ptr<Listing> listing;
};

// One who waits for the drain.
struct DrainWaiter {
  Ticket ticket;
  Alarm deadline;
};

}  // namespace failback::machine

#endif  // FAILBACK_REGISTRY_FAILBACK_FAILBACK_RECORD_H_
