// How a SubscriptionHub turns commits, and what is held, into messages.

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "registry/model/selector.h"
#include "registry/watch/instance_changes.h"
#include "registry/watch/subscription_hub_parts.h"

namespace failback {
namespace {

// Services without instances and subscribers whose changes are remembered.
constexpr size_t kMaxIdleTopics = 10000;

}  // namespace

bool SubscriptionHub::IsTooLong(const Topic& topic, size_t newer) const {
  size_t bytes = 0;
  for (size_t i = newer; i < topic.log.size() && bytes <= options_.delta.bytes; ++i) {
    bytes += DeltaBytes(topic.log[i].change);
  }
  if (bytes <= options_.delta.bytes) return false;
  // Of each key the last change is sent.
  absl::flat_hash_map<std::string, size_t> by_key;
  bytes = 0;
  for (size_t i = newer; i < topic.log.size(); ++i) {
    const InstanceChange& change = topic.log[i].change;
    size_t& counted = by_key[KeyOf(change.after ? change.after : change.before)];
    bytes -= counted;
    counted = DeltaBytes(change);
    bytes += counted;
  }
  return bytes > MostDeltaBytes(by_key.size(), static_cast<size_t>(topic.size), options_.delta);
}

bool SubscriptionHub::IsTooLong(const std::vector<InstanceChange>& seen, int64_t size) const {
  return IsLong(seen, MostDeltaBytes(seen.size(), static_cast<size_t>(size), options_.delta));
}

std::shared_ptr<SubscriptionHub::Message> SubscriptionHub::MakeSnapshot(Group* group,
                                                                        SharedPresent present) {
  const PartLimits limits = {options_.snapshot_part_instances, options_.snapshot_part_bytes};
  const uint64_t revision = present->revision;
  auto message =
      std::make_shared<Message>(revision, [epoch = epoch_, revision, flags = FlagsOf(*group->topic),
                                           filtered = group->filtered, selector = group->selector,
                                           present = std::move(present), runs = runs_, limits] {
        std::vector<Blob> matching;
        if (filtered) matching = Matching(selector, present->entries);
        return Event::SharedSnapshot(epoch, revision, flags,
                                     runs->Split(filtered ? matching : present->entries), limits);
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
    // Entries of one revision stay or go together as far as a reader can see: from the floor on
    // nothing is missing.
    const size_t excess = topic->log.size() - bound;
    topic->floor = topic->log[excess - 1].revision;
    topic->log.erase(topic->log.begin(), topic->log.begin() + excess);
  }
}

void SubscriptionHub::Await(const std::shared_ptr<Topic>& topic, Waiting waiting, Due* due) {
  topic->waiting_changes += waiting.changes->size();
  topic->waiting.push_back(std::move(waiting));
  if (topic->waiting_changes > 2 * topic->merged + options_.max_waiting &&
      !topic->comparison.asks) {
    Merge(topic.get());
  }
  if (!std::exchange(topic->comparing, true)) due->push_back(topic);
}

void SubscriptionHub::Merge(Topic* topic) {
  // The positions of those who have joined since. What is merged begins after it.
  std::vector<uint64_t> joined;
  for (const auto& [name, group] : topic->groups) {
    if (!group->filtered) continue;
    // It may show something that comes and goes within what is merged.
    group->snapshot.reset();
    for (const auto& member : group->members) {
      if (member->position >= topic->waiting.front().first) joined.push_back(member->position);
    }
  }
  std::sort(joined.begin(), joined.end());
  const std::list<Waiting> waiting = std::exchange(topic->waiting, {});
  topic->waiting_changes = 0;
  for (auto it = waiting.begin(); it != waiting.end();) {
    Waiting merged = *it;
    std::vector<InstanceChange> all(merged.changes->begin(), merged.changes->end());
    const auto next_joined = std::lower_bound(joined.begin(), joined.end(), merged.first);
    for (++it; it != waiting.end() && (next_joined == joined.end() || *next_joined >= it->last);
         ++it) {
      merged.last = it->last;
      merged.size = it->size;
      all.insert(all.end(), it->changes->begin(), it->changes->end());
    }
    if (merged.first != merged.last) {
      merged.changes = std::make_shared<const std::vector<InstanceChange>>(NetChanges(all));
    }
    if (merged.changes->empty()) continue;
    topic->waiting_changes += merged.changes->size();
    topic->waiting.push_back(std::move(merged));
  }
  topic->merged = topic->waiting_changes;
}

bool SubscriptionHub::Compare(const std::shared_ptr<Topic>& topic, Contents contents,
                              Deliveries* deliveries) {
  Comparison& comparison = topic->comparison;
  if (comparison.filters == nullptr) {
    MutexLock lock(&mu_);
    if (!BeginComparison(topic.get())) return false;
  }
  if (!LookAtFilters(topic.get())) return true;

  const Waiting& taken = comparison.taken;
  std::vector<Group*> at_length;
  std::vector<std::pair<Group*, Changes>> in_short;
  for (Group* const group : comparison.seeing) {
    Changes seen = std::exchange(group->seen, nullptr);
    if (IsTooLong(*seen, taken.size)) {
      at_length.push_back(group);
    } else {
      in_short.emplace_back(group, std::move(seen));
    }
  }
  SharedPresent present;
  if (!at_length.empty()) {
    {
      MutexLock lock(&mu_);
      comparison.asks = true;
    }
    present = std::make_shared<Present>(contents(topic->name));
  }

  Comparison through;  // destroyed without the lock
  MutexLock lock(&mu_);
  for (const auto& [group, seen] : in_short) {
    PublishDelta(group, taken.last, seen, deliveries);
  }
  for (Group* const group : at_length) PublishSnapshot(group, taken.last, present, deliveries);
  through = std::exchange(comparison, Comparison());
  // As the one reference then left says that it is not shared.
  if (through.filters == topic->filters) through.filters.reset();
  topic->left.clear();
  topic->comparing = !topic->waiting.empty();
  return topic->comparing;
}

bool SubscriptionHub::BeginComparison(Topic* topic) {
  if (topic->filters->size() == 0) topic->waiting.clear();
  if (topic->waiting.empty()) {
    topic->waiting_changes = topic->merged = 0;
    topic->comparing = false;
    return false;
  }
  topic->comparison.taken = std::move(topic->waiting.front());
  topic->waiting.pop_front();
  topic->waiting_changes -= topic->comparison.taken.changes->size();
  if (topic->waiting.empty()) topic->merged = 0;
  topic->comparison.filters = topic->filters;
  ++topic->comparisons;
  return true;
}

bool SubscriptionHub::LookAtFilters(Topic* topic) const {
  Comparison& comparison = topic->comparison;
  const std::vector<InstanceChange>& changes = *comparison.taken.changes;
  ServiceInstance before;
  ServiceInstance after;
  size_t looks = 0;
  while (comparison.next < changes.size() && looks < options_.looks_per_turn) {
    const InstanceChange& change = changes[comparison.next++];
    ++topic->looked;
    ++looks;
    const auto look = [&](Group* group) {
      if (std::exchange(group->looked_at, topic->looked) == topic->looked) return;
      ++looks;
      InstanceChange seen;
      if (change.before && SelectorMatches(group->selector, before)) seen.before = change.before;
      if (change.after && SelectorMatches(group->selector, after)) seen.after = change.after;
      if (seen.before == seen.after) return;
      if (group->seen == nullptr) {
        group->seen = std::make_shared<std::vector<InstanceChange>>();
        comparison.seeing.push_back(group);
      }
      group->seen->push_back(std::move(seen));
    };
    if (change.before) before = ParseInstance(change.before);
    if (change.after) after = ParseInstance(change.after);
    if (change.before) comparison.filters->ForEachCandidate(before, look);
    if (change.after) comparison.filters->ForEachCandidate(after, look);
  }
  return comparison.next == changes.size();
}

void SubscriptionHub::PublishSnapshot(Group* group, uint64_t revision, const SharedPresent& present,
                                      Deliveries* deliveries) {
  group->snapshot.reset();
  std::shared_ptr<Message> message;
  for (const auto& member : group->members) {
    if (member->position >= revision) continue;  // its snapshot shows this commit
    if (message == nullptr) message = MakeSnapshot(group, present);
    member->position = message->revision();
    member->Push(message);
    deliveries->push_back(member);
  }
}

void SubscriptionHub::PublishDelta(Group* group, uint64_t revision, const Changes& seen,
                                   Deliveries* deliveries) {
  group->snapshot.reset();
  const SetFlags flags = FlagsOf(*group->topic);
  // Members that have received the same so far share a message.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Message>> by_base;
  std::shared_ptr<Message> message;
  uint64_t base = 0;
  for (const auto& member : group->members) {
    if (member->position >= revision) continue;  // its snapshot shows this commit
    if (message == nullptr || member->position != base) {
      base = member->position;
      auto& shared = by_base[base];
      if (shared == nullptr) {
        shared = std::make_shared<Message>(revision, [epoch = epoch_, base, revision, flags, seen] {
          return MakeDelta(epoch, base, revision, flags, *seen);
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

void SubscriptionHub::Publish(CommitResult commit, Contents contents, Deliveries* deliveries,
                              Due* due) {
  MutexLock lock(&mu_);
  published_ = std::max(published_, commit.revision);
  if (namespaces_ > 0 && options_.derive_namespaces) {
    for (ServiceChange& change : NamespaceChanges(commit)) {
      commit.services.push_back(std::move(change));
    }
  }
  for (ServiceChange& service : commit.services) {
    const std::shared_ptr<Topic> topic = GetTopic(service.service, commit.revision);
    auto& instances = service.instances;
    if (topic->groups.empty()) {
      Log(topic.get(), commit.revision, std::make_move_iterator(instances.begin()),
          std::make_move_iterator(instances.end()), service.size_after);
      if (service.size_after == 0 && topics_.size() > kMaxIdleTopics) {
        floor_ = std::max(floor_, topic->last_change);
        topics_.erase(service.service);
      }
      continue;
    }
    Log(topic.get(), commit.revision, instances.begin(), instances.end(), service.size_after);
    const auto changes = std::make_shared<const std::vector<InstanceChange>>(std::move(instances));
    if (changes->empty()) continue;
    if (Group* const group = topic->unfiltered; group != nullptr) {
      if (IsTooLong(*changes, service.size_after)) {
        PublishSnapshot(group, commit.revision, std::make_shared<Present>(contents(topic->name)),
                        deliveries);
      } else {
        PublishDelta(group, commit.revision, changes, deliveries);
      }
    }
    if (topic->filters->size() > 0) {
      Await(topic, {commit.revision, commit.revision, changes, service.size_after}, due);
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
  const auto notify = [&](const Topics& some, const Topics& others) {
    mu_.AssertHeld();
    for (const std::string& service : some) {
      if (others.contains(service)) continue;
      if (const auto it = topics_.find(service); it != topics_.end())
        TellFlags(*it->second, deliveries);
    }
  };
  notify(before, held_);
  notify(held_, before);
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
        message = std::make_shared<Message>(member->position,
                                            [epoch = epoch_, revision = member->position, flags] {
                                              return Event::Flags(epoch, revision, flags);
                                            });
      }
      member->Push(message);
      deliveries->push_back(member);
    }
  }
}

}  // namespace failback
