#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/store/state.h"

namespace failback {
namespace {

absl::Status Broken(const Record& record, const char* what) {
  return absl::InternalError(absl::StrCat(CanonicalKeyText(record.key()), ": ", what));
}

}  // namespace

// Looks at everything once, counting, and compares the counts with those that are kept.
class State::Checker {
 public:
  explicit Checker(const State& state) : state_(state) {}

  absl::Status CheckRecords() {
    for (const Record* record : state_.by_key_) {
      if (auto status = CheckRecord(*record); !status.ok()) return status;
    }
    if (present_ != state_.instances_) return absl::InternalError("count of instances");
    return absl::OkStatus();
  }

  absl::Status CheckServices() {
    int64_t listed = 0;
    for (const auto& [key, service] : state_.listed_services_) {
      if (service->present.empty()) return absl::InternalError("an empty service is listed");
      listed += service->present.size();
    }
    if (listed != state_.instances_) return absl::InternalError("services list other instances");
    for (const auto& [key, service] : state_.services_) {
      if (service->records != records_[service.get()]) {
        return absl::InternalError("service records");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckIncarnations() {
    if (state_.by_name_.size() != state_.by_rank_.size()) {
      return absl::InternalError("names and ranks");
    }
    for (const auto& [rank, incarnation] : state_.by_rank_) {
      if (rank != incarnation->rank) return absl::InternalError("rank");
      if (auto status = CheckIncarnation(*incarnation); !status.ok()) return status;
    }
    for (const auto& [rank, count] : references_) {
      if (!state_.by_rank_.contains(rank))
        return absl::InternalError("a fence of a forgotten rank");
    }
    return absl::OkStatus();
  }

  absl::Status CheckOwners() {
    if (by_owner_.size() != state_.owners_.size()) return absl::InternalError("owners");
    for (const auto& [totals, sum] : by_owner_) {
      if (totals->incarnations != sum.incarnations || totals->tombstones != sum.tombstones ||
          totals->instances != sum.instances || totals->sessions != sum.sessions ||
          totals->touched || totals->tombstones_more != 0 || totals->instances_more != 0 ||
          totals->sessions_more != 0) {
        return absl::InternalError("counts of an owner");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSessions() {
    for (const auto& [id, session] : state_.sessions_) {
      if (session->id != id || session->incarnation->session != session.get() || session->ending) {
        return absl::InternalError("session");
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckRecord(const Record& record) {
    const RecordVersion& version = record.version;
    if (version.empty()) return Broken(record, "neither instance nor fence nor mark");
    if (record.staged != 0) return Broken(record, "staged outside a transaction");
    if (version.fence.rank != 0) ++references_[version.fence.rank];
    ++records_[record.service];
    if (record.service->key != ServiceKeyOf(record.key())) return Broken(record, "service");
    auto* const key = const_cast<Record*>(&record);  // as the sets hold it
    if (version.instance) {
      ++present_;
      if (record.purge_at_ms != 0) return Broken(record, "present, and due to be purged");
      if (record.service->present.count(key) != 1) {
        return Broken(record, "present, but not in its service");
      }
    } else {
      if (state_.tombstones_.count({record.purge_at_ms, key}) != 1) {
        return Broken(record, "absent, but not due to be purged");
      }
      if (version.owner != nullptr) return Broken(record, "absent, but owned");
      ++tombstones_[version.fence.rank];
    }
    if (version.owner == nullptr) return absl::OkStatus();
    ++references_[version.owner->rank];
    ++owned_[version.owner];
    if (version.fence.rank != version.owner->rank) return Broken(record, "owner's rank");
    if (!version.persistent &&
        (version.owner->session == nullptr || version.owner->session->row != version.session)) {
      return Broken(record, "outlives its session");
    }
    return absl::OkStatus();
  }

  absl::Status CheckIncarnation(const Incarnation& incarnation) {
    const uint64_t rank = incarnation.rank;
    if (rank >= state_.next_rank_) return absl::InternalError("rank");
    if (incarnation.references != references_[rank]) return absl::InternalError("references");
    if (incarnation.tombstones != tombstones_[rank]) return absl::InternalError("tombstones");
    if ((state_.ended_.count({incarnation.last_seen_ms, rank}) == 1) !=
        (incarnation.session == nullptr)) {
      return absl::InternalError("list of ended incarnations");
    }
    const OwnerTotals* const totals = incarnation.totals;
    if (incarnation.owner.empty() ? totals != nullptr
                                  : totals != state_.TotalsOf(incarnation.owner)) {
      return absl::InternalError("totals of an owner");
    }
    if (totals != nullptr) {
      OwnerTotals& sum = by_owner_[totals];
      ++sum.incarnations;
      sum.tombstones += incarnation.tombstones;
      sum.instances += incarnation.owned;
      sum.sessions += incarnation.session != nullptr ? 1 : 0;
    }
    return CheckOwned(incarnation);
  }

  absl::Status CheckOwned(const Incarnation& incarnation) {
    if (const auto* const sorted = incarnation.sorted_owned.get();
        sorted != nullptr && incarnation.to_sort == nullptr &&
        static_cast<int64_t>(sorted->size()) != incarnation.owned) {
      return absl::InternalError("instances of an incarnation by key");
    }
    if (incarnation.owned_more != 0) return absl::InternalError("owned_more");
    int64_t length = 0;
    for (const Record* record = incarnation.first_owned; record != nullptr;
         record = record->next_owned) {
      if (record->version.owner != &incarnation) return Broken(*record, "owner's list");
      ++length;
    }
    if (length != incarnation.owned || length != owned_[&incarnation]) {
      return absl::InternalError("length of the list of owned instances");
    }
    return absl::OkStatus();
  }

  const State& state_;
  int64_t present_ = 0;
  absl::flat_hash_map<uint64_t, int64_t> references_;  // by rank, as the next
  absl::flat_hash_map<uint64_t, int64_t> tombstones_;
  absl::flat_hash_map<const Incarnation*, int64_t> owned_;
  absl::flat_hash_map<const Service*, int64_t> records_;
  absl::flat_hash_map<const OwnerTotals*, OwnerTotals> by_owner_;
};

absl::Status State::CheckInvariants() const {
  Checker checker(*this);
  absl::Status status = checker.CheckRecords();
  if (status.ok()) status = checker.CheckServices();
  if (status.ok()) status = checker.CheckIncarnations();
  if (status.ok()) status = checker.CheckOwners();
  if (status.ok()) status = checker.CheckSessions();
  return status;
}

}  // namespace failback
