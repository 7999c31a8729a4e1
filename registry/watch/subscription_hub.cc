#include "registry/watch/subscription_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/selector.h"
#include "registry/watch/instance_changes.h"
#include "registry/watch/serial_notifier.h"
#include "registry/watch/subscription_hub_parts.h"

namespace failback {
namespace {

absl::Status SupersededSubscription(const std::string& id, uint64_t generation) {
  return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                 absl::StrCat("subscription ", id, ": a newer call has the name (generation ",
                              generation, ")"),
                 {{"generation", absl::StrCat(generation)}});
}

}  // namespace

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
    : options_(options), epoch_(epoch), published_(revision), floor_(revision) {}

SubscriptionHub::~SubscriptionHub() = default;

std::unique_ptr<SubscribeStream> SubscriptionHub::Refuse(std::shared_ptr<NotifyListener> listener,
                                                         const absl::Status& status,
                                                         Deliveries* deliveries) {
  auto member = std::make_shared<Member>(std::move(listener));
  member->notifier.PostEnd(status);
  deliveries->push_back(member);
  return std::make_unique<Stream>(std::weak_ptr<SubscriptionHub>(), member);
}

std::shared_ptr<SubscriptionHub::Topic> SubscriptionHub::GetTopic(const std::string& name,
                                                                  uint64_t revision) {
  auto& topic = topics_[name];
  if (topic == nullptr) {
    topic = std::make_shared<Topic>();
    topic->name = name;
    topic->floor = floor_;
    if (topic->is_namespace()) {
      // Changes of a namespace are counted as long as it has a topic.
      topic->floor = revision;
      ++namespaces_;
    }
  }
  return topic;
}

// A topic without a follower that has nothing to remember.
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
    const SubscribeRequest& request, std::optional<uint64_t> published, Contents contents,
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
  const uint64_t revision = published.value_or(published_);
  if (const auto it = topics_.find(topic_name); filtered && it != topics_.end()) {
    if (auto status = RoomForFilter(*it->second, name, member->owner); !status.ok()) {
      member->notifier.PostEnd(status);
      return stream;
    }
  }
  if (!request.session_id().empty()) {
    if (auto status = Claim(request, member, deliveries); !status.ok()) {
      member->notifier.PostEnd(status);
      return stream;
    }
  }
  const std::shared_ptr<Topic> topic = GetTopic(topic_name, revision);
  auto& group = topic->groups[name];
  if (group == nullptr) {
    group = std::make_unique<Group>();
    group->topic = topic.get();
    group->name = std::move(name);
    group->selector = selector;
    group->filtered = filtered;
    if (filtered) {
      group->conditions = topic->mutable_filters()->Add(selector, group.get());
      group->since = topic->comparisons;
    } else {
      topic->unfiltered = group.get();
    }
  }
  member->group = group.get();
  member->place = group->members.size();
  group->members.push_back(member);
  if (filtered) {
    if (group->owners.Of(member->owner).value_or(0) == 0) {
      topic->filter_owners.Add(member->owner, 1);
    }
    group->owners.Add(member->owner, 1);
  }
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
        revision, [epoch = epoch_, base = request.revision(), revision, flags = FlagsOf(*topic),
                   selector, missed = std::move(missed)] {
          return MakeDelta(epoch, base, revision, flags, Conflate(missed, selector));
        });
  } else {
    first = group->snapshot.lock();
    // What waits to be compared may make it outdated.
    const bool waits = filtered && topic->comparing;
    if (first == nullptr || (waits && first->revision() < topic->last_change)) {
      first = MakeSnapshot(group.get(), std::make_shared<Present>(contents(topic->name)));
    }
  }
  member->position = first->revision();
  member->Push(std::move(first));
  return stream;
}

// Whether `owner` may follow this topic under the filter `name`.
absl::Status SubscriptionHub::RoomForFilter(const Topic& topic, const std::string& name,
                                            const std::string& owner) const {
  const SharedLimit limit = {"filters of one service", "limits.max_filters_per_service",
                             static_cast<int64_t>(options_.max_filters)};
  const auto group = topic.groups.find(name);
  const bool known = group != topic.groups.end();
  // One that it follows already costs nothing.
  if (known && group->second->owners.Of(owner).value_or(0) > 0) return absl::OkStatus();
  return limit.Check(known ? 0 : static_cast<int64_t>(topic.filters->size()),
                     topic.filter_owners.Of(owner));
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
  member->name = std::make_unique<const Member::NameInSession>(
      Member::NameInSession{request.session_id(), request.subscription_id()});
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
  if (member->name != nullptr) {
    const auto session = names_.find(member->name->session_id);
    if (session != names_.end()) {
      const auto name = session->second.find(member->name->subscription_id);
      if (name != session->second.end() && name->second.member.get() == member) {
        name->second.member = nullptr;
      }
    }
  }
  if (group->filtered) {
    group->owners.Add(member->owner, -1);
    if (group->owners.Of(member->owner) == 0) group->topic->filter_owners.Add(member->owner, -1);
  }
  if (member->place + 1 != group->members.size()) {
    group->members[member->place] = std::move(group->members.back());
    group->members[member->place]->place = member->place;
  }
  group->members.pop_back();  // last: it may hold the last reference to the member
  if (group->members.empty()) {
    Topic* const topic = group->topic;
    const auto it = topic->groups.find(group->name);
    if (group->filtered) {
      topic->mutable_filters()->Remove(group->selector, group->conditions, group);
      if (topic->comparison.filters != nullptr && group->since < topic->comparisons) {
        topic->left.push_back(std::move(it->second));
      }
    } else {
      topic->unfiltered = nullptr;
    }
    topic->groups.erase(it);
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

void SubscriptionHub::ForgetSession(const std::string& session_id, Deliveries* deliveries) {
  MutexLock lock(&mu_);
  EndSession(session_id, deliveries);
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
