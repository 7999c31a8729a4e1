// How a SubscriptionHub turns commits, and what is held, into messages.

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "registry/canonical.h"
#include "registry/selector.h"
#include "registry/store/instance_changes.h"
#include "registry/store/subscription_hub_parts.h"

namespace failback {
namespace {

using Told = SerialNotifier::Told;

// Services without instances and subscribers whose changes are remembered.
constexpr size_t kMaxIdleTopics = 10000;

}  // namespace

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
                                                                        Contents contents) {
  const StoredSnapshot::PartLimits limits = {options_.snapshot_part_instances,
                                             options_.snapshot_part_bytes};
  Present present = contents(group->topic->name);
  const uint64_t revision = present.revision;
  auto message = std::make_shared<Message>(
      revision,
      [epoch = epoch_, revision, flags = FlagsOf(*group->topic), selector = group->selector,
       instances = std::move(present.entries), runs = runs_, limits]() mutable -> Told {
        KeepMatching(selector, &instances);
        return {nullptr, std::make_shared<StoredSnapshot>(epoch, revision, flags, instances, limits,
                                                          runs.get())};
      });
  group->snapshot = message;
  return message;
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
    if (change.before) before = ParseInstance(change.before);
    if (change.after) after = ParseInstance(change.after);
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
  const std::shared_ptr<Message> message = MakeSnapshot(group, contents);
  for (const auto& member : group->members) {
    if (member->position >= revision) continue;  // its snapshot shows this commit
    member->position = message->revision();
    member->Push(message);
    deliveries->push_back(member);
  }
}

void SubscriptionHub::TellDelta(Group* group, uint64_t revision, const Changes& seen,
                                Deliveries* deliveries) {
  const SetFlags flags = FlagsOf(*group->topic);
  // Members that have heard the same so far share a message.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Message>> by_base;
  std::shared_ptr<Message> message;
  uint64_t base = 0;
  for (const auto& member : group->members) {
    if (member->position >= revision) continue;  // its snapshot shows this commit
    if (message == nullptr || member->position != base) {
      base = member->position;
      auto& shared = by_base[base];
      if (shared == nullptr) {
        shared = std::make_shared<Message>(
            revision, [epoch = epoch_, base, revision, flags, seen]() -> Told {
              return {MakeDelta(epoch, base, revision, flags, *seen), nullptr};
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
  MutexLock lock(&mu_);
  published_ = std::max(published_, commit.revision);
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

SetFlags SubscriptionHub::FlagsOf(const Topic& topic) const {
  return {false, !held_.empty() && held_.contains(topic.name)};
}

void SubscriptionHub::SetHeld(Topics services, Deliveries* deliveries) {
  MutexLock lock(&mu_);
  const Topics before = std::exchange(held_, std::move(services));
  const auto tell = [&](const Topics& some, const Topics& others) {
    for (const std::string& service : some) {
      if (others.contains(service)) continue;
      if (const auto it = topics_.find(service); it != topics_.end())
        TellFlags(*it->second, deliveries);
    }
  };
  tell(before, held_);
  tell(held_, before);
}

// A message without event: the set is as it was.
void SubscriptionHub::TellFlags(const Topic& topic, Deliveries* deliveries) {
  const SetFlags flags = FlagsOf(topic);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Message>> by_position;
  for (const auto& [name, group] : topic.groups) {
    group->snapshot.reset();
    for (const auto& member : group->members) {
      auto& message = by_position[member->position];
      if (message == nullptr) {
        message = std::make_shared<Message>(
            member->position, [epoch = epoch_, revision = member->position, flags]() -> Told {
              auto event = std::make_shared<SubscribeResponse>();
              event->set_epoch(epoch);
              event->set_revision(revision);
              flags.Put(event.get());
              return {std::move(event), nullptr};
            });
      }
      member->Push(message);
      deliveries->push_back(member);
    }
  }
}

}  // namespace failback
