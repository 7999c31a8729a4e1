#include "registry/store/state.h"

#include <algorithm>
#include <utility>

#include "registry/model/canonical.h"

namespace failback {
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
  const RecordVersion& version = record.version;
  if (version.fence.rank == 0) return record.purge_at_ms;
  return record.purge_at_ms +
         std::max<int64_t>(options_.offline_memory_ms - int64_t{version.retention_ms}, 0);
}

void State::Disown(Record* record, Incarnation* owner) {
  --owner->references;
  --owner->owned;
  if (owner->totals != nullptr) --owner->totals->instances;
  if (auto& sorted = owner->sorted_owned; sorted != nullptr) {
    sorted->erase(record);
    if (owner->owned == 0) sorted.reset();
  }
  if (owner->to_sort == record) owner->to_sort = record->next_owned;
  (record->previous_owned != nullptr ? record->previous_owned->next_owned : owner->first_owned) =
      record->next_owned;
  if (record->next_owned != nullptr) record->next_owned->previous_owned = record->previous_owned;
  record->previous_owned = record->next_owned = nullptr;
}

void State::Own(Record* record, Incarnation* owner) {
  ++owner->references;
  ++owner->owned;
  if (owner->totals != nullptr) ++owner->totals->instances;
  record->next_owned = owner->first_owned;
  if (record->next_owned != nullptr) record->next_owned->previous_owned = record;
  owner->first_owned = record;
  if (owner->sorted_owned != nullptr) owner->sorted_owned->insert(record);
}

void State::SetVersion(Record* record, RecordVersion version, int64_t monotonic_ms, bool goes_on) {
  RecordVersion& old = record->version;
  int64_t due_ms = monotonic_ms + (version.fence.rank != 0 ? int64_t{version.retention_ms}
                                                           : options_.offline_memory_ms);
  if (goes_on) due_ms = version.fence.rank != 0 ? record->purge_at_ms : MarkEndMs(*record);
  if (old.fence.rank != version.fence.rank) {
    AddReference(old.fence.rank, -1);
    AddReference(version.fence.rank, +1);
  }
  if (old.owner != version.owner) {
    if (old.owner != nullptr) Disown(record, old.owner);
    if (version.owner != nullptr) Own(record, version.owner);
  }
  const auto is_detached = [](const RecordVersion& one) {
    return one.instance && one.owner == nullptr;
  };
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

}  // namespace failback
