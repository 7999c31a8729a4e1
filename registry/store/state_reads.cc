// What a State answers. Looks at nothing that a transaction changes while it decides.

#include <algorithm>
#include <limits>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "registry/model/canonical.h"
#include "registry/store/state.h"
#include "registry/watch/commit_result.h"

namespace failback {
namespace {

using google::protobuf::internal::WireFormatLite;

// The status in a canonical instance, whose fields come in the order of their numbers.
int StatusIn(const Blob& instance) {
  google::protobuf::io::CodedInputStream coded(reinterpret_cast<const uint8_t*>(instance.data()),
                                               static_cast<int>(instance.size()));
  constexpr int kStatus = registry::v1::ServiceInstance::kStatusFieldNumber;
  while (const uint32_t tag = coded.ReadTag()) {
    if (WireFormatLite::GetTagFieldNumber(tag) > kStatus) break;
    uint64_t status = 0;
    if (WireFormatLite::GetTagFieldNumber(tag) == kStatus && coded.ReadVarint64(&status)) {
      return static_cast<int>(status);
    }
    if (!WireFormatLite::SkipField(&coded, tag)) break;
  }
  return registry::v1::HEALTH_STATUS_UNSPECIFIED;
}

void Count(const RecordVersion& version, StateCounts* counts) {
  ++counts->total;
  if (version.persistent) ++counts->persistent;
  if (version.offline) {
    ++counts->offline;
    return;
  }
  switch (StatusIn(version.instance)) {
    case registry::v1::HEALTH_STATUS_UNHEALTHY:
      ++counts->unhealthy;
      break;
    case registry::v1::HEALTH_STATUS_DRAINING:
      ++counts->draining;
      break;
    default:
      ++counts->healthy;
  }
}

bool HasPrefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

const Session* State::FindSession(std::string_view session_id) const {
  const auto it = sessions_.find(session_id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

std::vector<const Session*> State::Sessions() const {
  std::vector<const Session*> sessions;
  sessions.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) sessions.push_back(session.get());
  return sessions;
}

std::vector<Blob> State::Instances(std::string_view service_key) const {
  std::vector<Blob> instances;
  const auto it = listed_services_.find(service_key);
  if (it == listed_services_.end()) return instances;
  instances.reserve(it->second->present.size());
  for (const Record* record : it->second->present) instances.push_back(record->version.Shown());
  return instances;
}

std::vector<Blob> State::Services(std::string_view name_space) const {
  const std::string prefix = std::string(name_space) + '\0';
  std::vector<Blob> services;
  for (auto it = listed_services_.lower_bound(prefix);
       it != listed_services_.end() && HasPrefix(it->first, prefix); ++it) {
    services.push_back(
        MakeServiceEntry(it->first, static_cast<int64_t>(it->second->present.size())));
  }
  return services;
}

const Record* State::FindInstance(std::string_view key) const {
  const auto service = listed_services_.find(ServiceKeyOf(key));
  if (service == listed_services_.end()) return nullptr;
  const auto it = service->second->present.find(key);
  return it == service->second->present.end() ? nullptr : *it;
}

std::vector<State::NamedChange> State::ChangesOf(std::string_view begins) const {
  std::vector<NamedChange> changes;
  // Of incarnations that have another name now, the one at the time of the entry.
  absl::flat_hash_map<uint64_t, std::string> names;
  changes_.ForEachNewestFirst([&](const ChangeLog::Entry& entry) {
    if (entry.kind == ChangeLog::Kind::kRenamed) {
      names[entry.rank] = std::string(entry.former_name.view());
      return;
    }
    if (entry.instance.view().substr(0, begins.size()) != begins) return;
    const auto former = names.find(entry.rank);
    changes.push_back({entry, entry.rank == 0         ? ""
                              : former != names.end() ? former->second
                                                      : NameOf(entry.rank)});
  });
  return changes;
}

ListItem State::MakeItem(const Record& record) {
  const RecordVersion& version = record.version;
  ListItem item;
  item.instance = version.Shown();
  if (version.owner != nullptr) {
    item.incarnation = version.owner->name;
    item.client_name = version.owner->client_name;
    item.rank = version.owner->rank;
    item.generation = version.fence.generation;
  }
  item.create_revision = version.create_revision;
  item.modify_revision = version.modify_revision;
  item.create_ms = version.create_ms;
  item.modify_ms = version.modify_ms;
  return item;
}

bool State::SortOwned(const Incarnation& incarnation, size_t max) {
  auto& sorted = incarnation.sorted_owned;
  Record*& next = incarnation.to_sort;
  if (sorted == nullptr && incarnation.first_owned != nullptr) {
    sorted = std::make_unique<absl::btree_set<Record*, RecordById>>();
    next = incarnation.first_owned;
  }
  // What comes meanwhile is put into the set itself, and before the first of the list.
  for (; next != nullptr && max > 0; --max, next = next->next_owned) sorted->insert(next);
  return next == nullptr;
}

bool State::PrepareList(const std::string& incarnation, size_t max) const {
  const auto it = by_name_.find(incarnation);
  return it == by_name_.end() || SortOwned(*it->second, max);
}

std::vector<std::string> State::ServicesOwned(std::string_view incarnation, std::string_view after,
                                              size_t max) const {
  std::vector<std::string> services;
  const auto it = by_name_.find(incarnation);
  if (it == by_name_.end()) return services;
  SortOwned(*it->second, std::numeric_limits<size_t>::max());
  const auto* const owned = it->second->sorted_owned.get();
  if (owned == nullptr) return services;
  // From service to service, past the instances of each.
  std::string key(after);
  while (services.size() < max) {
    const auto record = owned->upper_bound(std::string_view(key += '\1'));
    if (record == owned->end()) break;
    key = (*record)->service->key;
    services.push_back(key);
  }
  return services;
}

ListPage State::List(const ListQuery& query) const {
  ListPage page;
  size_t bytes = 0;
  // Takes the record, or says that the page is full.
  const auto take = [&](const Record& record) {
    ++page.looked;
    if (page.items.size() >= query.max_items ||
        (!page.items.empty() && bytes + record.version.instance.size() > query.max_bytes)) {
      return false;
    }
    bytes += record.version.instance.size();
    page.items.push_back(MakeItem(record));
    const Incarnation* const owner = record.version.owner;
    if (query.with_sessions && owner != nullptr && owner->session != nullptr) {
      page.items.back().session_id = owner->session->id;
    }
    page.next_after = std::string(record.key());
    return true;
  };

  if (!query.incarnation.empty()) {
    const auto it = by_name_.find(query.incarnation);
    if (it == by_name_.end()) return page;
    SortOwned(*it->second, std::numeric_limits<size_t>::max());
    const auto* const owned = it->second->sorted_owned.get();
    if (owned == nullptr) return page;
    for (const ServiceRange& range : query.ranges) {
      const std::string end = range.end();
      if (query.after >= end) continue;
      ++page.looked;
      // The keys of a service begin with its own.
      const std::string_view after = std::max<std::string_view>(query.after, range.begin());
      for (auto record = owned->upper_bound(after); record != owned->end(); ++record) {
        if ((*record)->service->key >= end) break;
        if (!take(**record)) return page;
      }
    }
    page.next_after.clear();
    return page;
  }

  for (const ServiceRange& range : query.ranges) {
    const std::string end = range.end();
    if (query.after >= end) continue;
    ++page.looked;
    const std::string_view first =
        std::max<std::string_view>(range.begin(), ServiceKeyOf(query.after));
    for (auto it = listed_services_.lower_bound(first);
         it != listed_services_.end() && it->first < end; ++it) {
      ++page.looked;
      const auto& present = it->second->present;
      for (auto record = present.upper_bound(std::string_view(query.after));
           record != present.end(); ++record) {
        if (!take(**record)) return page;
      }
    }
  }
  page.next_after.clear();
  return page;
}

std::vector<std::string> State::ListedServices(std::string_view after, size_t max) const {
  std::vector<std::string> keys;
  for (auto it = listed_services_.upper_bound(after);
       it != listed_services_.end() && keys.size() < max; ++it) {
    keys.emplace_back(it->first);
  }
  return keys;
}

StateCounts State::CountOf(std::string_view service_key) const {
  const auto it = listed_services_.find(service_key);
  if (it == listed_services_.end()) return StateCounts();
  const Service& service = *it->second;
  if (!service.counted) {
    service.counts = StateCounts();
    for (const Record* record : service.present) Count(record->version, &service.counts);
    service.counted = true;
  }
  return service.counts;
}

std::string State::NameOf(uint64_t rank) const {
  const auto it = by_rank_.find(rank);
  return it == by_rank_.end() ? "" : it->second->DisplayName();
}

std::string State::OwnerOf(std::string_view incarnation) const {
  const auto it = by_name_.find(incarnation);
  return it == by_name_.end() ? "" : it->second->owner;
}

int64_t State::NextPurgeMs() const {
  return tombstones_.empty() ? std::numeric_limits<int64_t>::max() : tombstones_.begin()->first;
}

}  // namespace failback
