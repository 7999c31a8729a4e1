#include "registry/store/subscription_hub.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/errors.h"
#include "registry/instance_view.h"
#include "registry/selector.h"
#include "registry/serial_notifier.h"
#include "registry/store/filter_index.h"

namespace failback {
namespace {

using Event = SerialNotifier::Event;
using Told = SerialNotifier::Told;

// Services without instances and subscribers whose changes are remembered.
constexpr size_t kMaxIdleTopics = 10000;

// A snapshot in place of a delta has at most so many instances for each change.
constexpr size_t kSnapshotPerChange = 4;

ServiceInstance Parse(const Blob& bytes) {
  ServiceInstance instance;
  instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return instance;
}

// What the key of a removal takes: the first field of an instance's canonical bytes.
size_t KeyBytes(const Blob& instance) {
  const std::string_view bytes = instance.view();
  if (bytes.size() < 3) return bytes.size();
  const size_t first = static_cast<uint8_t>(bytes[1]);
  return first < 0x80 ? first : (first & 0x7f) + (size_t{static_cast<uint8_t>(bytes[2])} << 7);
}

size_t DeltaBytes(const InstanceChange& change) {
  return change.after ? change.after.size() : KeyBytes(change.before);
}

// What a follower with this filter sees of a change; both sides null when nothing.
InstanceChange Seen(const Selector& selector, const InstanceChange& change) {
  const auto seen = [&](const Blob& bytes) {
    return bytes && SelectorMatches(selector, Parse(bytes)) ? bytes : Blob();
  };
  return {seen(change.before), seen(change.after)};
}

void SetKey(const Blob& bytes, InstanceKey* key) {
  EncodedInstance encoded;
  if (!ReadInstance(bytes.view(), &encoded)) {
    *key = Parse(bytes).key();
    return;
  }
  key->set_namespace_(std::string(encoded.view.name_space));
  key->set_service(std::string(encoded.view.service));
  key->set_instance_id(std::string(encoded.view.instance_id));
}

Event MakeDelta(uint64_t epoch, uint64_t base, uint64_t revision,
                const std::vector<InstanceChange>& changes) {
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch);
  event->set_revision(revision);
  auto* delta = event->mutable_delta();
  delta->set_base_revision(base);
  for (const InstanceChange& change : changes) {
    if (change.after) {
      delta->add_upserts()->ParseFromArray(change.after.data(),
                                           static_cast<int>(change.after.size()));
    } else {
      SetKey(change.before, delta->add_removals());
    }
  }
  return event;
}

void KeepMatching(const Selector& selector, std::vector<Blob>* instances) {
  if (!HasFilter(selector)) return;
  const auto other = [&](const Blob& bytes) { return !SelectorMatches(selector, Parse(bytes)); };
  instances->erase(std::remove_if(instances->begin(), instances->end(), other), instances->end());
}

// The net effect of changes in order: per key the first state before and the last after.
std::vector<InstanceChange> Conflate(const std::vector<InstanceChange>& changes,
                                     const Selector& selector) {
  std::map<std::string, InstanceChange> by_key;
  for (const InstanceChange& change : changes) {
    const Blob& either = change.after ? change.after : change.before;
    const auto [it, inserted] = by_key.try_emplace(CanonicalKey(Parse(either).key()), change);
    if (!inserted) it->second.after = change.after;
  }
  std::vector<InstanceChange> net;
  for (const auto& [key, change] : by_key) {
    InstanceChange seen = Seen(selector, change);
    if (seen.before != seen.after) net.push_back(std::move(seen));
  }
  return net;
}

// Whether a delta of these changes has more than `bytes`, about.
bool IsLong(const std::vector<InstanceChange>& changes, size_t bytes) {
  size_t sum = 0;
  for (const InstanceChange& change : changes) {
    sum += DeltaBytes(change);
    if (sum > bytes) return true;
  }
  return false;
}

absl::Status SupersededSubscription(const std::string& id, uint64_t generation) {
  return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                 absl::StrCat("subscription ", id, ": a newer call has the name (generation ",
                              generation, ")"),
                 {{"generation", absl::StrCat(generation)}});
}

absl::Status TooManyFilters(size_t limit) {
  return Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                 absl::StrCat("filters of one service (limits.max_filters_per_service): at most ",
                              limit, " are followed; end some, or have the limit raised"),
                 {{"limit", absl::StrCat(limit)}});
}

}  // namespace

// One step of a stream, made on first use and shared by all who hear it. It lives as long as
// someone has yet to hear it or keeps what was told.
class SubscriptionHub::Message {
 public:
  Message(uint64_t revision, std::function<Told()> make)
      : revision_(revision), make_(std::move(make)) {}

  uint64_t revision() const { return revision_; }

  // What is told, sharing ownership of this message, which `self` is.
  Told Get(const std::shared_ptr<Message>& self) {
    MutexLock lock(&mu_);
    if (make_) told_ = std::exchange(make_, nullptr)();
    if (told_.event != nullptr) return {Event(self, told_.event.get()), nullptr};
    return {nullptr, SerialNotifier::Snapshot(self, told_.snapshot.get())};
  }

 private:
  const uint64_t revision_;
  Mutex mu_;
  std::function<Told()> make_ ABSL_GUARDED_BY(mu_);
  Told told_ ABSL_GUARDED_BY(mu_);
};

class SubscriptionHub::Member {
 public:
  explicit Member(std::shared_ptr<NotifyListener> listener) : notifier(std::move(listener)) {}

  void Push(std::shared_ptr<Message> message) {
    notifier.PostDeferred([message = std::move(message)] { return message->Get(message); });
  }

  SerialNotifier notifier;

  // Guarded by the hub's lock.
  Group* group = nullptr;  // null when it has ended
  size_t place = 0;        // in group->members
  uint64_t position = 0;   // revision of the newest message queued
  std::string session_id;
  std::string subscription_id;
};

// Those who follow one service with one filter.
struct SubscriptionHub::Group {
  Topic* topic = nullptr;
  std::string name;  // the selector's canonical bytes
  Selector selector;
  bool filtered = false;
  FilterIndex<Group>::Conditions conditions;  // in topic->filters
  std::vector<std::shared_ptr<Member>> members;
  // While a commit is told: the change that was compared last, and what is seen of all.
  uint64_t looked_at = 0;
  std::shared_ptr<std::vector<InstanceChange>> seen;
  // The snapshot told last, as long as someone has it and it is still true.
  std::weak_ptr<Message> snapshot;
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
  FilterIndex<Group> filters;                                       // groups that have one
  Group* unfiltered = nullptr;                                      // the one that has none

  bool is_namespace() const { return name.back() == '\0'; }
};

// A subscription's name within its session.
struct SubscriptionHub::Name {
  uint64_t generation = 0;  // of the newest call
  bool unsubscribed = false;
  std::shared_ptr<Member> member;
  bool unknown = true;  // there was no subscription
};

class SubscriptionHub::Stream : public SubscribeStream {
 public:
  Stream(std::weak_ptr<SubscriptionHub> hub, std::shared_ptr<Member> member)
      : hub_(std::move(hub)), member_(std::move(member)) {}
  ~Stream() override {
    if (const auto hub = hub_.lock()) hub->Remove(member_.get());
    member_->notifier.Close();
  }

 private:
  const std::weak_ptr<SubscriptionHub> hub_;
  const std::shared_ptr<Member> member_;
};

std::shared_ptr<SubscriptionHub> SubscriptionHub::Create(Options options, uint64_t epoch,
                                                         uint64_t revision) {
  return std::shared_ptr<SubscriptionHub>(new SubscriptionHub(options, epoch, revision));
}

SubscriptionHub::SubscriptionHub(Options options, uint64_t epoch, uint64_t revision)
    : options_(options), epoch_(epoch), floor_(revision) {}

SubscriptionHub::~SubscriptionHub() = default;

std::unique_ptr<SubscribeStream> SubscriptionHub::Refuse(std::shared_ptr<NotifyListener> listener,
                                                         const absl::Status& status,
                                                         Deliveries* deliveries) {
  auto member = std::make_shared<Member>(std::move(listener));
  member->notifier.PostEnd(status);
  deliveries->push_back(member);
  return std::make_unique<Stream>(std::weak_ptr<SubscriptionHub>(), member);
}

SubscriptionHub::Topic* SubscriptionHub::GetTopic(const std::string& name, uint64_t revision) {
  auto& topic = topics_[name];
  if (topic == nullptr) {
    topic = std::make_unique<Topic>();
    topic->name = name;
    topic->floor = floor_;
    if (topic->is_namespace()) {
      // Changes of a namespace are counted as long as it has a topic.
      topic->floor = revision;
      ++namespaces_;
    }
  }
  return topic.get();
}

// A topic that nobody follows and that has nothing to remember.
void SubscriptionHub::DropIfUnused(Topic* topic) {
  const bool used = !topic->groups.empty() || !topic->log.empty() ||
                    (!topic->is_namespace() && topic->last_change > 0);
  if (used) return;
  Drop(topic);
}

void SubscriptionHub::Drop(Topic* topic) {
  if (topic->is_namespace()) --namespaces_;
  topics_.erase(std::string(topic->name));
}

void SubscriptionHub::Begin(const std::string& topic, uint64_t revision) {
  MutexLock lock(&mu_);
  if (!topics_.contains(topic)) GetTopic(topic, revision)->floor = revision;
}

bool SubscriptionHub::Forget(const std::string& topic) {
  MutexLock lock(&mu_);
  const auto it = topics_.find(topic);
  if (it == topics_.end()) return true;
  if (!it->second->groups.empty()) return false;
  Drop(it->second.get());
  return true;
}

bool SubscriptionHub::IsFollowed(const std::string& topic) const {
  MutexLock lock(&mu_);
  const auto it = topics_.find(topic);
  return it != topics_.end() && !it->second->groups.empty();
}

void SubscriptionHub::EndTopic(const std::string& topic, const absl::Status& status,
                               Deliveries* deliveries) {
  MutexLock lock(&mu_);
  const auto it = topics_.find(topic);
  if (it == topics_.end()) return;
  for (const auto& member : MembersOf(*it->second)) End(member, status, deliveries);
}

std::vector<std::string> SubscriptionHub::Sessions() const {
  std::vector<std::string> sessions;
  MutexLock lock(&mu_);
  sessions.reserve(names_.size());
  for (const auto& [session_id, names] : names_) sessions.push_back(session_id);
  return sessions;
}

std::unique_ptr<SubscribeStream> SubscriptionHub::Subscribe(
    const SubscribeRequest& request, uint64_t revision, Contents contents,
    std::shared_ptr<NotifyListener> listener, Deliveries* deliveries) {
  auto member = std::make_shared<Member>(std::move(listener));
  auto stream = std::make_unique<Stream>(weak_from_this(), member);
  deliveries->push_back(member);
  const Selector& selector = request.selector();
  const std::string topic_name =
      absl::StrCat(selector.namespace_(), std::string(1, '\0'), selector.service());
  std::string name = CanonicalSelector(selector);
  const bool filtered = HasFilter(selector);
  MutexLock lock(&mu_);
  if (filtered && options_.max_filters > 0) {
    const auto it = topics_.find(topic_name);
    if (it != topics_.end() && it->second->filters.size() >= options_.max_filters &&
        !it->second->groups.contains(name)) {
      member->notifier.PostEnd(TooManyFilters(options_.max_filters));
      return stream;
    }
  }
  if (!request.session_id().empty()) {
    if (auto status = Claim(request, member, deliveries); !status.ok()) {
      member->notifier.PostEnd(status);
      return stream;
    }
  }
  Topic* const topic = GetTopic(topic_name, revision);
  auto& group = topic->groups[name];
  if (group == nullptr) {
    group = std::make_unique<Group>();
    group->topic = topic;
    group->name = std::move(name);
    group->selector = selector;
    group->filtered = filtered;
    if (filtered) {
      group->conditions = topic->filters.Add(selector, group.get());
    } else {
      topic->unfiltered = group.get();
    }
  }
  member->group = group.get();
  member->place = group->members.size();
  group->members.push_back(member);
  ++subscribers_;

  std::shared_ptr<Message> first;
  const auto newer = std::upper_bound(
      topic->log.begin(), topic->log.end(), request.revision(),
      [](uint64_t position, const Topic::Entry& entry) { return position < entry.revision; });
  if (request.epoch() == epoch_ && request.revision() >= topic->floor &&
      request.revision() <= revision &&
      !IsTooLong(*topic, static_cast<size_t>(newer - topic->log.begin()))) {
    std::vector<InstanceChange> missed;
    for (auto it = newer; it != topic->log.end(); ++it) missed.push_back(it->change);
    first = std::make_shared<Message>(
        revision,
        [epoch = epoch_, base = request.revision(), revision, selector,
         missed = std::move(missed)]() -> Told {
          return {MakeDelta(epoch, base, revision, Conflate(missed, selector)), nullptr};
        });
  } else {
    first = group->snapshot.lock();
    if (first == nullptr) first = MakeSnapshot(group.get(), revision, contents);
  }
  member->position = first->revision();
  member->Push(std::move(first));
  return stream;
}

bool SubscriptionHub::IsTooLong(const Topic& topic, size_t newer) const {
  size_t bytes = 0;
  for (size_t i = newer; i < topic.log.size() && bytes <= options_.max_delta_bytes; ++i) {
    bytes += DeltaBytes(topic.log[i].change);
  }
  if (bytes <= options_.max_delta_bytes) return false;
  // Of each key the last change is told.
  absl::flat_hash_map<std::string, size_t> by_key;
  bytes = 0;
  for (size_t i = newer; i < topic.log.size(); ++i) {
    const InstanceChange& change = topic.log[i].change;
    InstanceKey key;
    SetKey(change.after ? change.after : change.before, &key);
    size_t& counted = by_key[CanonicalKey(key)];
    bytes -= counted;
    counted = DeltaBytes(change);
    bytes += counted;
  }
  return bytes > options_.longest_delta_bytes ||
         (bytes > options_.max_delta_bytes &&
          static_cast<size_t>(topic.size) <= kSnapshotPerChange * by_key.size());
}

std::shared_ptr<SubscriptionHub::Message> SubscriptionHub::MakeSnapshot(Group* group,
                                                                        uint64_t revision,
                                                                        Contents contents) {
  const StoredSnapshot::PartLimits limits = {options_.snapshot_part_instances,
                                             options_.snapshot_part_bytes};
  auto message = std::make_shared<Message>(
      revision,
      [epoch = epoch_, revision, selector = group->selector,
       instances = contents(group->topic->name), runs = runs_, limits]() mutable -> Told {
        KeepMatching(selector, &instances);
        return {nullptr,
                std::make_shared<StoredSnapshot>(epoch, revision, instances, limits, runs.get())};
      });
  group->snapshot = message;
  return message;
}

// The name within a session, made if it is new; null when there is no room for it.
SubscriptionHub::Name* SubscriptionHub::GetName(const std::string& session_id,
                                                const std::string& subscription_id) {
  auto& names = names_[session_id];
  if (const auto it = names.find(subscription_id); it != names.end()) return &it->second;
  if (names.size() >= options_.max_names_per_session) {
    // Room is made at the cost of a name that is over, not of one in use.
    const auto over = std::find_if(names.begin(), names.end(), [](const auto& entry) {
      return entry.second.member == nullptr;
    });
    if (over == names.end()) return nullptr;
    if (over->second.unknown) --unknown_names_;
    names.erase(over);
  }
  return &names[subscription_id];
}

// Takes a name within a session; the stream that had it ends.
absl::Status SubscriptionHub::Claim(const SubscribeRequest& request,
                                    const std::shared_ptr<Member>& member, Deliveries* deliveries) {
  Name* const name = GetName(request.session_id(), request.subscription_id());
  if (name == nullptr) {
    return Refusal(
        registry::v1::ERROR_REASON_LIMIT_REACHED,
        absl::StrCat("subscriptions in one session: at most ", options_.max_names_per_session,
                     " are allowed; end some, or have the registry's limit raised"),
        {{"limit", absl::StrCat(options_.max_names_per_session)}});
  }
  const uint64_t generation = request.generation();
  if (generation != 0 &&
      (generation < name->generation || (generation == name->generation && name->unsubscribed))) {
    return SupersededSubscription(request.subscription_id(), name->generation);
  }
  if (name->member != nullptr) {
    End(name->member,
        Refusal(registry::v1::ERROR_REASON_REPLACED,
                absl::StrCat("subscription ", request.subscription_id(),
                             ": a newer stream has taken over")),
        deliveries);
  }
  if (name->unknown && name->unsubscribed) --unknown_names_;
  *name = {std::max(generation, name->generation), false, member, false};
  member->session_id = request.session_id();
  member->subscription_id = request.subscription_id();
  return absl::OkStatus();
}

absl::Status SubscriptionHub::Unsubscribe(const UnsubscribeRequest& request,
                                          Deliveries* deliveries) {
  MutexLock lock(&mu_);
  const uint64_t generation = request.generation();
  const auto session = names_.find(request.session_id());
  const bool known = session != names_.end() && session->second.contains(request.subscription_id());
  // Without a number there is nothing that a late Subscribe could be compared with.
  if (!known && (generation == 0 || unknown_names_ >= options_.max_unknown_names)) {
    return absl::OkStatus();
  }
  Name* const name = GetName(request.session_id(), request.subscription_id());
  if (name == nullptr) return absl::OkStatus();
  if (generation != 0 && generation < name->generation) {
    return SupersededSubscription(request.subscription_id(), name->generation);
  }
  if (!known) ++unknown_names_;
  name->generation = std::max(generation, name->generation);
  name->unsubscribed = true;
  if (name->member != nullptr) End(name->member, absl::OkStatus(), deliveries);
  return absl::OkStatus();
}

// Takes the member out of its group and its name.
void SubscriptionHub::Leave(Member* member) {
  if (member->group == nullptr) return;
  Group* const group = member->group;
  member->group = nullptr;
  --subscribers_;
  if (!member->session_id.empty()) {
    const auto session = names_.find(member->session_id);
    if (session != names_.end()) {
      const auto name = session->second.find(member->subscription_id);
      if (name != session->second.end() && name->second.member.get() == member) {
        name->second.member = nullptr;
      }
    }
  }
  if (member->place + 1 != group->members.size()) {
    group->members[member->place] = std::move(group->members.back());
    group->members[member->place]->place = member->place;
  }
  group->members.pop_back();  // last: it may hold the last reference to the member
  if (group->members.empty()) {
    Topic* const topic = group->topic;
    const std::string name = group->name;
    if (group->filtered) {
      topic->filters.Remove(group->selector, group->conditions, group);
    } else {
      topic->unfiltered = nullptr;
    }
    topic->groups.erase(name);
    DropIfUnused(topic);
  }
}

void SubscriptionHub::End(const std::shared_ptr<Member>& member, const absl::Status& status,
                          Deliveries* deliveries) {
  const std::shared_ptr<Member> keep = member;
  Leave(keep.get());
  keep->notifier.PostEnd(status);
  deliveries->push_back(keep);
}

void SubscriptionHub::Remove(Member* member) {
  MutexLock lock(&mu_);
  Leave(member);
}

template <typename Iterator>
void SubscriptionHub::Log(Topic* topic, uint64_t revision, Iterator begin, Iterator end,
                          int64_t size) {
  topic->last_change = revision;
  topic->size = size;
  const size_t bound = std::clamp(static_cast<size_t>(size), options_.min_log, options_.max_log);
  if (static_cast<size_t>(end - begin) > bound) {
    topic->log.clear();
    topic->floor = revision;
    return;
  }
  for (; begin != end; ++begin) topic->log.push_back({revision, *begin});
  if (topic->log.size() > 2 * bound) {
    // Entries of one revision stay or go together as far as a reader can tell: from the floor on
    // nothing is missing.
    const size_t excess = topic->log.size() - bound;
    topic->floor = topic->log[excess - 1].revision;
    topic->log.erase(topic->log.begin(), topic->log.begin() + excess);
  }
}

void SubscriptionHub::TellFiltered(Topic* topic, uint64_t revision,
                                   const std::vector<InstanceChange>& changes, int64_t size,
                                   Contents contents, Deliveries* deliveries) {
  std::vector<Group*> seeing;
  ServiceInstance before;
  ServiceInstance after;
  for (const InstanceChange& change : changes) {
    ++looked_;
    const auto look = [&](Group* group) {
      if (std::exchange(group->looked_at, looked_) == looked_) return;
      InstanceChange seen;
      if (change.before && SelectorMatches(group->selector, before)) seen.before = change.before;
      if (change.after && SelectorMatches(group->selector, after)) seen.after = change.after;
      if (seen.before == seen.after) return;
      if (group->seen == nullptr) {
        group->seen = std::make_shared<std::vector<InstanceChange>>();
        seeing.push_back(group);
      }
      group->seen->push_back(std::move(seen));
    };
    if (change.before) before = Parse(change.before);
    if (change.after) after = Parse(change.after);
    if (change.before) topic->filters.ForEachCandidate(before, look);
    if (change.after) topic->filters.ForEachCandidate(after, look);
  }
  for (Group* const group : seeing) {
    Tell(group, revision, std::exchange(group->seen, nullptr), size, contents, deliveries);
  }
}

void SubscriptionHub::Tell(Group* group, uint64_t revision, const Changes& seen, int64_t size,
                           Contents contents, Deliveries* deliveries) {
  group->snapshot.reset();
  const bool many = static_cast<size_t>(size) <= kSnapshotPerChange * seen->size();
  if (!IsLong(*seen, many ? options_.max_delta_bytes : options_.longest_delta_bytes)) {
    return TellDelta(group, revision, seen, deliveries);
  }
  const std::shared_ptr<Message> message = MakeSnapshot(group, revision, contents);
  for (const auto& member : group->members) {
    member->position = revision;
    member->Push(message);
    deliveries->push_back(member);
  }
}

void SubscriptionHub::TellDelta(Group* group, uint64_t revision, const Changes& seen,
                                Deliveries* deliveries) {
  // Members that have heard the same so far share a message.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Message>> by_base;
  std::shared_ptr<Message> message;
  uint64_t base = 0;
  for (const auto& member : group->members) {
    if (message == nullptr || member->position != base) {
      base = member->position;
      auto& shared = by_base[base];
      if (shared == nullptr) {
        shared =
            std::make_shared<Message>(revision, [epoch = epoch_, base, revision, seen]() -> Told {
              return {MakeDelta(epoch, base, revision, *seen), nullptr};
            });
      }
      message = shared;
    }
    member->position = revision;
    member->Push(message);
    deliveries->push_back(member);
  }
}

// What a commit means to those who follow the services of a namespace.
std::vector<ServiceChange> SubscriptionHub::NamespaceChanges(const CommitResult& commit) const {
  std::map<std::string, ServiceChange> by_namespace;
  for (const ServiceChange& service : commit.services) {
    int64_t size_before = service.size_after;
    for (const InstanceChange& change : service.instances) {
      size_before += (change.before ? 1 : 0) - (change.after ? 1 : 0);
    }
    if (size_before == service.size_after) continue;
    const std::string name = service.service.substr(0, service.service.find('\0') + 1);
    if (!topics_.contains(name)) continue;
    ServiceChange& change = by_namespace[name];
    change.service = name;
    change.instances.push_back({MakeServiceEntry(service.service, size_before),
                                MakeServiceEntry(service.service, service.size_after)});
    change.size_after =
        std::numeric_limits<int64_t>::max();  // not known: the log has its full size
  }
  std::vector<ServiceChange> changes;
  changes.reserve(by_namespace.size());
  for (auto& [name, change] : by_namespace) changes.push_back(std::move(change));
  return changes;
}

void SubscriptionHub::Publish(CommitResult commit, Contents contents, Deliveries* deliveries) {
  if (commit.services.empty() && commit.ended_sessions.empty()) return;
  MutexLock lock(&mu_);
  if (namespaces_ > 0 && options_.derive_namespaces) {
    for (ServiceChange& change : NamespaceChanges(commit)) {
      commit.services.push_back(std::move(change));
    }
  }
  for (ServiceChange& service : commit.services) {
    Topic* const topic = GetTopic(service.service, commit.revision);
    auto& instances = service.instances;
    if (topic->groups.empty()) {
      Log(topic, commit.revision, std::make_move_iterator(instances.begin()),
          std::make_move_iterator(instances.end()), service.size_after);
      if (service.size_after == 0 && topics_.size() > kMaxIdleTopics) {
        floor_ = std::max(floor_, topic->last_change);
        topics_.erase(service.service);
      }
      continue;
    }
    Log(topic, commit.revision, instances.begin(), instances.end(), service.size_after);
    const auto changes = std::make_shared<const std::vector<InstanceChange>>(std::move(instances));
    if (topic->unfiltered != nullptr && !changes->empty()) {
      Tell(topic->unfiltered, commit.revision, changes, service.size_after, contents, deliveries);
    }
    if (topic->filters.size() > 0) {
      TellFiltered(topic, commit.revision, *changes, service.size_after, contents, deliveries);
    }
  }
  for (const std::string& session_id : commit.ended_sessions) EndSession(session_id, deliveries);
}

void SubscriptionHub::EndSession(const std::string& session_id, Deliveries* deliveries) {
  const auto it = names_.find(session_id);
  if (it == names_.end()) return;
  const auto names = std::move(it->second);
  names_.erase(it);
  for (const auto& [id, name] : names) {
    if (name.unknown) --unknown_names_;
    if (name.member == nullptr) continue;
    End(name.member,
        Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                absl::StrCat("session of subscription ", id, " has ended")),
        deliveries);
  }
}

SubscriptionHub::Deliveries SubscriptionHub::MembersOf(const Topic& topic) {
  Deliveries members;
  for (const auto& [name, group] : topic.groups) {
    members.insert(members.end(), group->members.begin(), group->members.end());
  }
  return members;
}

void SubscriptionHub::EndAll(const absl::Status& status, Deliveries* deliveries) {
  MutexLock lock(&mu_);
  // First who, then the end: topics go with their last member.
  Deliveries members;
  for (const auto& [name, topic] : topics_) {
    const Deliveries more = MembersOf(*topic);
    members.insert(members.end(), more.begin(), more.end());
  }
  for (const auto& member : members) End(member, status, deliveries);
}

void SubscriptionHub::Deliver(const Deliveries& deliveries) {
  for (const auto& member : deliveries) member->notifier.Deliver();
}

int64_t SubscriptionHub::subscribers() const {
  MutexLock lock(&mu_);
  return subscribers_;
}

}  // namespace failback
