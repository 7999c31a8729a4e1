#include "registry/store/state.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "registry/base/log.h"
#include "registry/base/utf8.h"
#include "registry/model/canonical.h"
#include "registry/model/ids.h"
#include "registry/model/offline_mark.h"
#include "registry/model/stored_text.h"

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

void Count(const Version& version, StateCounts* counts) {
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

// `ns/service/id` of a canonical key, for messages.
std::string Readable(std::string_view canonical) {
  std::string text(canonical);
  std::replace(text.begin(), text.end(), '\0', '/');
  return text;
}

}  // namespace

Version Version::WithoutInstance() const {
  Version left;
  left.offline = offline;
  left.fence = fence;
  left.retention_ms = retention_ms;
  return left;
}

Blob Version::Shown() const { return WithMark(instance, offline); }

Record* Record::New(const HashedKey& key) {
  void* const memory = ::operator new(sizeof(Record) + key.text.size());
  auto* const record = new (memory) Record(key);
  std::memcpy(static_cast<void*>(record + 1), key.text.data(), key.text.size());
  return record;
}

void Record::Delete(Record* record) {
  record->~Record();
  ::operator delete(record);
}

State::State(Options options) : options_(options) {}

State::~State() {
  for (Record* record : by_key_) Record::Delete(record);
}

Record* State::FindRecord(const HashedKey& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : *it;
}

Record* State::NewRecord(const HashedKey& key) {
  Record* const record = Record::New(key);
  record->row = next_record_row_++;
  record->service = GetService(ServiceKeyOf(record->key()));
  ++record->service->records;
  by_key_.insert(record);
  return record;
}

void State::DeleteRecord(Record* record) {
  by_key_.erase(record);
  if (--record->service->records == 0) {
    if (last_service_ == record->service) last_service_ = nullptr;
    services_.erase(record->service->key);
  }
  Record::Delete(record);
}

Service* State::GetService(std::string_view service_key) {
  if (last_service_ != nullptr && last_service_->key == service_key) return last_service_;
  const auto it = services_.find(service_key);
  if (it != services_.end()) return last_service_ = it->second.get();
  auto service = std::make_unique<Service>();
  service->key = std::string(service_key);
  last_service_ = service.get();
  services_.emplace(last_service_->key, std::move(service));
  return last_service_;
}

void State::AddIncarnation(std::unique_ptr<Incarnation> incarnation) {
  const std::string owner = std::exchange(incarnation->owner, "");
  SetOwner(incarnation.get(), owner);
  by_name_.emplace(incarnation->name, incarnation.get());
  const uint64_t rank = incarnation->rank;
  by_rank_.emplace(rank, std::move(incarnation));
}

void State::Forget(Incarnation* incarnation) {
  ended_.erase({incarnation->last_seen_ms, incarnation->rank});
  by_name_.erase(incarnation->name);
  if (OwnerTotals* const totals = incarnation->totals; totals != nullptr) {
    if (--totals->incarnations == 0) owners_.erase(std::string(totals->name));
  }
  by_rank_.erase(uint64_t{incarnation->rank});
}

void State::SetOwner(Incarnation* incarnation, const std::string& owner) {
  incarnation->owner = owner;
  if (owner.empty()) return;
  auto it = owners_.find(owner);
  if (it == owners_.end()) {
    auto made = std::make_unique<OwnerTotals>();
    made->name = owner;
    const absl::string_view name = made->name;
    it = owners_.emplace(name, std::move(made)).first;
  }
  incarnation->totals = it->second.get();
  ++incarnation->totals->incarnations;
  incarnation->totals->tombstones += incarnation->tombstones;
  incarnation->totals->instances += incarnation->owned;
  if (incarnation->session != nullptr) ++incarnation->totals->sessions;
}

const OwnerTotals* State::TotalsOf(const std::string& owner) const {
  const auto it = owners_.find(owner);
  return it == owners_.end() ? nullptr : it->second.get();
}

State::Holdings State::SetRevoked(const std::string& owner, Blob name) {
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return {};
  it->second->revoked = std::move(name);
  return {it->second->sessions, it->second->instances};
}

void State::CountTombstone(uint64_t rank, int64_t change) {
  if (rank == 0) return;
  Incarnation& incarnation = *by_rank_.find(rank)->second;
  incarnation.tombstones += change;
  if (incarnation.totals != nullptr) incarnation.totals->tombstones += change;
}

void State::AddReference(uint64_t rank, int64_t change) {
  if (rank != 0) by_rank_.find(rank)->second->references += change;
}

int64_t State::MarkEndMs(const Record& record) const {
  const Version& version = record.version;
  if (version.fence.rank == 0) return record.purge_at_ms;
  return record.purge_at_ms +
         std::max<int64_t>(options_.offline_memory_ms - int64_t{version.retention_ms}, 0);
}

void State::SetVersion(Record* record, Version version, int64_t monotonic_ms, bool goes_on) {
  Version& old = record->version;
  int64_t due_ms = monotonic_ms + (version.fence.rank != 0 ? int64_t{version.retention_ms}
                                                           : options_.offline_memory_ms);
  if (goes_on) due_ms = version.fence.rank != 0 ? record->purge_at_ms : MarkEndMs(*record);
  if (old.fence.rank != version.fence.rank) {
    AddReference(old.fence.rank, -1);
    AddReference(version.fence.rank, +1);
  }
  if (old.owner != version.owner) {
    if (old.owner != nullptr) {
      --old.owner->references;
      --old.owner->owned;
      if (old.owner->totals != nullptr) --old.owner->totals->instances;
      if (auto& sorted = old.owner->sorted_owned; sorted != nullptr) {
        sorted->erase(record);
        if (old.owner->owned == 0) sorted.reset();
      }
      if (old.owner->to_sort == record) old.owner->to_sort = record->next_owned;
      (record->previous_owned != nullptr ? record->previous_owned->next_owned
                                         : old.owner->first_owned) = record->next_owned;
      if (record->next_owned != nullptr) {
        record->next_owned->previous_owned = record->previous_owned;
      }
    }
    record->previous_owned = nullptr;
    record->next_owned = nullptr;
    if (version.owner != nullptr) {
      ++version.owner->references;
      ++version.owner->owned;
      if (version.owner->totals != nullptr) ++version.owner->totals->instances;
      record->next_owned = version.owner->first_owned;
      if (record->next_owned != nullptr) record->next_owned->previous_owned = record;
      version.owner->first_owned = record;
      if (version.owner->sorted_owned != nullptr) version.owner->sorted_owned->insert(record);
    }
  }
  const auto is_detached = [](const Version& one) { return one.instance && one.owner == nullptr; };
  detached_ += int64_t{is_detached(version)} - int64_t{is_detached(old)};
  if (record->purge_at_ms != 0) {
    tombstones_.erase({record->purge_at_ms, record});
    record->purge_at_ms = 0;
    CountTombstone(old.fence.rank, -1);
  }
  Service* const service = record->service;
  service->counted = false;
  if (old.instance && !version.instance) {
    --instances_;
    service->present.erase(record);
    if (service->present.empty()) listed_services_.erase(service->key);
  } else if (!old.instance && version.instance) {
    ++instances_;
    if (service->present.empty()) listed_services_.emplace(service->key, service);
    service->present.insert(record);
  }
  if (!version.instance && !version.empty()) {
    record->purge_at_ms = std::max<int64_t>(due_ms, 1);
    tombstones_.insert({record->purge_at_ms, record});
    CountTombstone(version.fence.rank, +1);
  }
  record->version = std::move(version);
}

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

ListItem State::MakeItem(const Record& record) {
  const Version& version = record.version;
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

// Builds the state from rows, and refuses what no transaction can have written.
class State::Loader : public StoreReader {
 public:
  Loader(State* state, Moment now) : state_(state), now_(now) {}

  absl::Status OnIncarnation(IncarnationRow row) override {
    if (row.rank == 0 || row.rank > kMost || row.name.empty()) {
      return Bad("incarnation", row.rank, "has no rank or name");
    }
    if (row.last_seen_ms < -kMost || row.last_seen_ms > kMost) {
      return Bad("incarnation", row.rank, "was seen at no possible time");
    }
    if (state_->by_rank_.contains(row.rank) || state_->by_name_.contains(row.name)) {
      return Bad("incarnation", row.rank, "is there twice");
    }
    auto incarnation = std::make_unique<Incarnation>();
    incarnation->rank = row.rank;
    incarnation->name = std::move(row.name);
    incarnation->client_name = MadeUtf8(std::move(row.client_name));
    incarnation->owner = std::move(row.owner);
    incarnation->stored_ms = row.last_seen_ms;
    incarnation->last_seen_ms = row.last_seen_ms + state_->options_.seen_slack_ms;
    state_->AddIncarnation(std::move(incarnation));
    state_->next_rank_ = std::max(state_->next_rank_, row.rank + 1);
    return absl::OkStatus();
  }

  absl::Status OnSession(SessionRow row) override {
    const auto incarnation = state_->by_rank_.find(row.rank);
    if (incarnation == state_->by_rank_.end()) {
      return Bad("session", row.id, absl::StrCat("is of rank ", row.rank, ", which is not there"));
    }
    if (row.id <= 0 || row.id > kMost || row.session_id.empty() || row.ttl_ms <= 0) {
      return Bad("session", row.id, "has no id or no TTL");
    }
    if (incarnation->second->session != nullptr || state_->sessions_.contains(row.session_id)) {
      return Bad("session", row.id, "is there twice");
    }
    auto session = std::make_unique<Session>();
    session->row = row.id;
    session->id = std::move(row.session_id);
    session->incarnation = incarnation->second.get();
    session->ttl_ms = std::min(row.ttl_ms, kLongestTtlMs);
    session->ends_with_stream = row.ends_with_stream;
    session->incarnation->session = session.get();
    if (session->incarnation->totals != nullptr) ++session->incarnation->totals->sessions;
    if (session->incarnation->owner.empty()) {
      // From before the owner was kept with the incarnation; it is stored when the session ends.
      state_->SetOwner(session->incarnation, SessionOwner(session->id));
      session->incarnation->stored_ms = 0;
    }
    const std::string_view id = session->id;
    state_->sessions_.emplace(id, std::move(session));
    state_->next_session_row_ = std::max(state_->next_session_row_, row.id + 1);
    return absl::OkStatus();
  }

  absl::Status OnRecord(RecordRow row) override {
    if (row.id <= 0 || row.id > kMost || !IsCanonicalKey(row.key)) {
      return Bad("record", row.id, "has no id or no key");
    }
    if (row.session < 0 || row.session > kMost) {
      return Bad("record", row.id, "is of no possible session");
    }
    const HashedKey key(row.key);
    if (state_->FindRecord(key) != nullptr) return Bad("record", row.id, "is there twice");
    Version version;
    version.instance = std::move(row.instance);
    version.offline = std::move(row.offline);
    version.fence = {row.fence_rank, row.fence_generation, row.fence_digest, row.fence_registers};
    version.session = row.session;
    version.create_revision = row.create_revision;
    version.modify_revision = row.modify_revision;
    version.create_ms = row.create_ms;
    version.modify_ms = row.modify_ms;
    version.retention_ms = row.retention_ms;
    version.persistent = row.persistent;
    if (version.empty())
      return Bad("record", row.id, "has neither an instance nor a fence nor a mark");
    if (version.offline) version.offline = MendMark(row.key, version.offline);
    if (version.fence.rank != 0 && !state_->by_rank_.contains(version.fence.rank)) {
      return Bad("record", row.id,
                 absl::StrCat("is of rank ", version.fence.rank, ", which is not there"));
    }
    if (row.owner_rank != 0) {
      const auto owner = state_->by_rank_.find(row.owner_rank);
      if (owner == state_->by_rank_.end() || !version.instance ||
          version.fence.rank != row.owner_rank) {
        return Bad("record", row.id, "has an owner that does not fit");
      }
      version.owner = owner->second.get();
      if (!version.persistent &&
          (version.owner->session == nullptr || version.owner->session->row != version.session)) {
        version = version.WithoutInstance();  // it went with its session
      }
    }
    if (version.instance && HasUnreadableText(version.instance.view())) {
      LogUnreadable("left out", row.key);
      version = version.WithoutInstance();
    }
    state_->next_session_row_ = std::max(state_->next_session_row_, row.session + 1);
    state_->next_record_row_ = std::max(state_->next_record_row_, row.id + 1);
    if (version.empty()) return absl::OkStatus();
    Record* const record = state_->NewRecord(key);
    record->row = row.id;
    state_->SetVersion(record, std::move(version), now_.monotonic_ms);
    return absl::OkStatus();
  }

 private:
  // Sums of what rows hold have room.
  static constexpr int64_t kMost = int64_t{1} << 53;
  static constexpr int64_t kLongestTtlMs = int64_t{366} * 24 * 3600 * 1000;

  // One record that no client can parse would make every listing with it unreadable.
  void LogUnreadable(const char* what, std::string_view key) {
    constexpr int kMostLines = 20;
    if (++unreadable_ > kMostLines) return;
    Log(LogLevel::kError, "a stored record holds text that is not UTF-8",
        {{"instance", Readable(key)}, {"what", what}});
  }

  Blob MendMark(std::string_view key, const Blob& mark) {
    const std::string mended = ReadableMark(mark.view());
    if (mended == mark.view()) return mark;
    LogUnreadable("mark mended", key);
    return Blob(mended);
  }

  template <typename Id>
  static absl::Status Bad(const char* what, Id id, const std::string& why) {
    return absl::DataLossError(absl::StrCat(what, " ", id, " ", why));
  }

  State* const state_;
  const Moment now_;
  int unreadable_ = 0;
};

absl::Status State::Load(Storage* storage, Moment now) {
  const StoreIdentity identity = storage->identity();
  store_id_ = identity.store_id;
  epoch_ = identity.epoch;
  revision_ = identity.revision;
  next_rank_ = std::max<uint64_t>(identity.next_rank, 1);
  Loader loader(this, now);
  if (auto status = storage->Read(&loader); !status.ok()) return status;
  for (const auto& [rank, incarnation] : by_rank_) {
    if (incarnation->session == nullptr) ended_.emplace(incarnation->last_seen_ms, rank);
  }
  return absl::OkStatus();
}

absl::Status State::CheckInvariants() const {
  const auto broken = [](std::string_view key, const std::string& what) {
    return absl::InternalError(absl::StrCat(Readable(key), ": ", what));
  };
  int64_t present = 0;
  absl::flat_hash_map<uint64_t, int64_t> references;
  absl::flat_hash_map<uint64_t, int64_t> tombstones;
  absl::flat_hash_map<const Incarnation*, int64_t> owned;
  absl::flat_hash_map<const Service*, int64_t> records;
  for (const Record* record : by_key_) {
    const Version& version = record->version;
    if (version.empty()) return broken(record->key(), "neither instance nor fence nor mark");
    if (record->staged != 0) return broken(record->key(), "staged outside a transaction");
    if (version.fence.rank != 0) ++references[version.fence.rank];
    ++records[record->service];
    if (record->service->key != ServiceKeyOf(record->key()))
      return broken(record->key(), "service");
    if (version.instance) {
      ++present;
      if (record->purge_at_ms != 0) return broken(record->key(), "present, and due to be purged");
      if (record->service->present.count(const_cast<Record*>(record)) != 1) {
        return broken(record->key(), "present, but not in its service");
      }
    } else {
      if (tombstones_.count({record->purge_at_ms, const_cast<Record*>(record)}) != 1) {
        return broken(record->key(), "absent, but not due to be purged");
      }
      if (version.owner != nullptr) return broken(record->key(), "absent, but owned");
      ++tombstones[version.fence.rank];
    }
    if (version.owner != nullptr) {
      ++references[version.owner->rank];
      ++owned[version.owner];
      if (version.fence.rank != version.owner->rank) return broken(record->key(), "owner's rank");
      if (!version.persistent &&
          (version.owner->session == nullptr || version.owner->session->row != version.session)) {
        return broken(record->key(), "outlives its session");
      }
    }
  }
  if (present != instances_) return absl::InternalError("count of instances");
  if (by_name_.size() != by_rank_.size()) return absl::InternalError("names and ranks");
  int64_t listed = 0;
  for (const auto& [key, service] : listed_services_) {
    if (service->present.empty()) return absl::InternalError("an empty service is listed");
    listed += service->present.size();
  }
  if (listed != instances_) return absl::InternalError("services list other instances");
  for (const auto& [key, service] : services_) {
    if (service->records != records[service.get()]) return absl::InternalError("service records");
  }
  absl::flat_hash_map<const OwnerTotals*, OwnerTotals> by_owner;
  for (const auto& [rank, incarnation] : by_rank_) {
    if (rank != incarnation->rank || rank >= next_rank_) return absl::InternalError("rank");
    if (incarnation->references != references[rank]) return absl::InternalError("references");
    if (incarnation->tombstones != tombstones[rank]) return absl::InternalError("tombstones");
    if ((ended_.count({incarnation->last_seen_ms, rank}) == 1) !=
        (incarnation->session == nullptr)) {
      return absl::InternalError("list of ended incarnations");
    }
    const OwnerTotals* const totals = incarnation->totals;
    if (incarnation->owner.empty() ? totals != nullptr : totals != TotalsOf(incarnation->owner)) {
      return absl::InternalError("totals of an owner");
    }
    if (totals != nullptr) {
      OwnerTotals& sum = by_owner[totals];
      ++sum.incarnations;
      sum.tombstones += incarnation->tombstones;
      sum.instances += incarnation->owned;
      sum.sessions += incarnation->session != nullptr ? 1 : 0;
    }
    if (const auto* const sorted = incarnation->sorted_owned.get();
        sorted != nullptr && incarnation->to_sort == nullptr &&
        static_cast<int64_t>(sorted->size()) != incarnation->owned) {
      return absl::InternalError("instances of an incarnation by key");
    }
    if (incarnation->owned_more != 0) return absl::InternalError("owned_more");
    int64_t length = 0;
    for (const Record* record = incarnation->first_owned; record != nullptr;
         record = record->next_owned) {
      if (record->version.owner != incarnation.get()) return broken(record->key(), "owner's list");
      ++length;
    }
    if (length != incarnation->owned || length != owned[incarnation.get()]) {
      return absl::InternalError("length of the list of owned instances");
    }
  }
  if (by_owner.size() != owners_.size()) return absl::InternalError("owners");
  for (const auto& [totals, sum] : by_owner) {
    if (totals->incarnations != sum.incarnations || totals->tombstones != sum.tombstones ||
        totals->instances != sum.instances || totals->sessions != sum.sessions || totals->touched ||
        totals->tombstones_more != 0 || totals->instances_more != 0 || totals->sessions_more != 0) {
      return absl::InternalError("counts of an owner");
    }
  }
  for (const auto& [id, session] : sessions_) {
    if (session->id != id || session->incarnation->session != session.get() || session->ending) {
      return absl::InternalError("session");
    }
  }
  for (const auto& [rank, count] : references) {
    if (!by_rank_.contains(rank)) return absl::InternalError("a fence of a forgotten rank");
  }
  return absl::OkStatus();
}

}  // namespace failback
