// The parts of a SubscriptionHub: what its files share, and no other.

#ifndef FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_PARTS_H_
#define FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_PARTS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "registry/model/event.h"
#include "registry/model/shared_limit.h"
#include "registry/watch/filter_index.h"
#include "registry/watch/owned_listener.h"
#include "registry/watch/serial_notifier.h"
#include "registry/watch/subscription_hub.h"
#include "retry/mutex.h"

namespace failback {

// One step of a stream, made on first use and shared by all who receive it. It lives as long as a
// subscriber has yet to receive it or keeps it.
class SubscriptionHub::Message {
 public:
  Message(uint64_t revision, std::function<EventPtr()> make)
      : revision_(revision), make_(std::move(make)) {}

  uint64_t revision() const { return revision_; }

  // The event, sharing ownership of this message, which `self` is.
  EventPtr Get(const std::shared_ptr<Message>& self) {
    MutexLock lock(&mu_);
    if (make_) event_ = std::exchange(make_, nullptr)();
    return EventPtr(self, event_.get());
  }

 private:
  const uint64_t revision_;
  Mutex mu_;
  std::function<EventPtr()> make_ ABSL_GUARDED_BY(mu_);
  EventPtr event_ ABSL_GUARDED_BY(mu_);
};

class SubscriptionHub::Member {
 public:
  explicit Member(std::shared_ptr<NotifyListener> listener)
      : owner(OwnerOf(listener.get())), notifier(std::move(listener)) {}

  void Push(std::shared_ptr<Message> message) {
    notifier.PostDeferred([message = std::move(message)] { return message->Get(message); });
  }

  const std::string owner;
  SerialNotifier notifier;

  // Guarded by the hub's lock.
  Group* group = nullptr;  // null when it has ended
  size_t place = 0;        // in group->members
  uint64_t position = 0;   // revision of the newest message queued
  // Null: it has none.
  struct NameInSession {
    std::string session_id;
    std::string subscription_id;
  };
  std::unique_ptr<const NameInSession> name;
};

// Those who follow one service with one filter.
struct SubscriptionHub::Group {
  Topic* topic = nullptr;
  std::string name;  // the selector's canonical bytes
  Selector selector;
  bool filtered = false;
  FilterIndex<Group>::Conditions conditions;  // in topic->filters
  std::vector<std::shared_ptr<Member>> members;
  OwnerCounts owners;  // of members, if it is filtered
  // The snapshot sent last, as long as a subscriber has it and, when nothing of the topic waits to
  // be compared, it is still true.
  std::weak_ptr<Message> snapshot;
  uint64_t since = 0;  // topic->comparisons when it was made
  // Of the thread that compares: the change that it looked at last, and what is seen of all.
  uint64_t looked_at = 0;
  std::shared_ptr<std::vector<InstanceChange>> seen;
};

// What the groups of a topic that have filters are to be sent.
struct SubscriptionHub::Waiting {
  // Revisions of the commits: one, or several that were merged. No member's position is in
  // [first, last).
  uint64_t first = 0;
  uint64_t last = 0;
  Changes changes;
  int64_t size = 0;  // instances after it
};

// A comparison of changes with filters, under way. Begun and ended with the hub locked; in between
// it is its thread's, and the groups that it finds are kept, also those that are left meanwhile.
struct SubscriptionHub::Comparison {
  Waiting taken;
  std::shared_ptr<const FilterIndex<Group>> filters;  // null: none is under way
  size_t next = 0;                                    // of taken.changes
  std::vector<Group*> seeing;
  // A snapshot is on its way, of a revision that is not known yet: nothing is merged until then.
  // Guarded by the hub's lock.
  bool asks = false;
};

// A service that someone follows, or that has changed; or a namespace whose services someone
// follows.
struct SubscriptionHub::Topic {
  struct Entry {
    uint64_t revision;
    InstanceChange change;
  };
  std::string name;  // `namespace NUL service`, or `namespace NUL`
  std::vector<Entry> log;
  uint64_t floor = 0;  // changes up to this revision may be missing
  uint64_t last_change = 0;
  int64_t size = 0;  // instances after the last change
  absl::flat_hash_map<std::string, std::unique_ptr<Group>> groups;  // by name
  // Groups that have one. Shared with the comparison under way: copied before it changes then.
  std::shared_ptr<FilterIndex<Group>> filters = std::make_shared<FilterIndex<Group>>();
  OwnerCounts filter_owners;    // of filters: each of those who follow one has it
  Group* unfiltered = nullptr;  // the one that has none

  // Commits that the groups with filters have yet to be sent, in order.
  // Empty nearly always, and then no memory: there is one for each service.
  std::list<Waiting> waiting;
  size_t waiting_changes = 0;
  size_t merged = 0;       // of them, when they were merged last
  bool comparing = false;  // a caller of Publish has the topic
  Comparison comparison;
  uint64_t comparisons = 0;                  // begun
  uint64_t looked = 0;                       // changes, by comparisons
  std::vector<std::unique_ptr<Group>> left;  // ended, and in the comparison under way

  bool is_namespace() const { return name.back() == '\0'; }
  // To be changed with the hub locked.
  FilterIndex<Group>* mutable_filters() {
    if (filters.use_count() > 1) filters = std::make_shared<FilterIndex<Group>>(*filters);
    return filters.get();
  }
};

// A subscription's name within its session.
struct SubscriptionHub::Name {
  uint64_t generation = 0;  // of the newest call
  bool unsubscribed = false;
  std::shared_ptr<Member> member;
  bool unknown = true;  // there was no subscription
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_SUBSCRIPTION_HUB_PARTS_H_
