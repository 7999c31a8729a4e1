// Sums over the records of FailbackRegistry, kept in step with each record as it changes, so that
// statistics and bounds need no walk over a hundred thousand of them.
//
// A record is in the sums with its Standing. Code that changes a record replaces the old standing
// by the new one; FailbackRegistry's CheckInvariants() compares the sums with a walk.
//
// Thread safety: none of its own.

#ifndef FAILBACK_REGISTRY_FAILBACK_RECORD_TOTALS_H_
#define FAILBACK_REGISTRY_FAILBACK_RECORD_TOTALS_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/container/btree_map.h"
#include "registry/failback/status_policy.h"

namespace failback {

// What one record adds to the sums. Of what is not in the table: nothing, as default-constructed.
struct Standing {
  OperationKind kind = OperationKind::kRegister;
  bool pending = false;  // not acknowledged, parked or not
  bool parked = false;
  // A later incarnation holds the key, or held it until lately; not pending.
  bool superseded = false;
  bool desired = false;   // an instance that is to be there
  bool followed = false;  // a selector that is
  bool stale = false;     // whose subscribers have been notified
  // When it began to be pending.
  int64_t since_nanos = 0;

  friend bool operator==(const Standing& a, const Standing& b) {
    return a.kind == b.kind && a.pending == b.pending && a.parked == b.parked &&
           a.superseded == b.superseded && a.desired == b.desired && a.followed == b.followed &&
           a.stale == b.stale && a.since_nanos == b.since_nanos;
  }
};

class RecordTotals {
 public:
  // By OperationKind.
  using ByOperation = std::array<int64_t, 4>;

  void Replace(const Standing& before, const Standing& after) {
    Add(after, 1);  // first: a moment that stays keeps its entry
    Add(before, -1);
  }

  // Parked ones are not among the waiting.
  const ByOperation& waiting() const { return waiting_; }
  const ByOperation& parked() const { return parked_; }
  // Both, of all kinds.
  int64_t pending() const { return pending_; }
  int64_t superseded() const { return superseded_; }
  int64_t desired() const { return desired_; }
  int64_t acknowledged() const { return acknowledged_; }
  int64_t followed() const { return followed_; }
  int64_t stale() const { return stale_; }
  // Since when the oldest pending one is, to the millisecond below; nullopt: none is.
  std::optional<int64_t> oldest_nanos() const {
    if (pending_since_.empty()) return std::nullopt;
    return pending_since_.begin()->first * kNanosPerBucket;
  }

  friend bool operator==(const RecordTotals& a, const RecordTotals& b) {
    return a.waiting_ == b.waiting_ && a.parked_ == b.parked_ && a.pending_ == b.pending_ &&
           a.superseded_ == b.superseded_ && a.desired_ == b.desired_ &&
           a.acknowledged_ == b.acknowledged_ && a.followed_ == b.followed_ &&
           a.stale_ == b.stale_ && a.pending_since_ == b.pending_since_;
  }

 private:
  static constexpr int64_t kNanosPerBucket = 1000000;

  void Add(const Standing& standing, int64_t sign) {
    if (standing.desired) {
      desired_ += sign;
      if (!standing.pending && !standing.superseded) acknowledged_ += sign;
    }
    if (standing.superseded) superseded_ += sign;
    if (standing.followed) followed_ += sign;
    if (standing.stale) stale_ += sign;
    if (!standing.pending) return;
    pending_ += sign;
    (standing.parked ? parked_ : waiting_)[static_cast<size_t>(standing.kind)] += sign;
    // Those of one moment share an entry, so a resync of everything makes few.
    const auto bucket = pending_since_.try_emplace(standing.since_nanos / kNanosPerBucket).first;
    if ((bucket->second += sign) == 0) pending_since_.erase(bucket);
  }

  ByOperation waiting_{};
  ByOperation parked_{};
  int64_t pending_ = 0;
  int64_t superseded_ = 0;
  int64_t desired_ = 0;
  int64_t acknowledged_ = 0;
  int64_t followed_ = 0;
  int64_t stale_ = 0;
  absl::btree_map<int64_t, int64_t> pending_since_;  // how many, by millisecond
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_RECORD_TOTALS_H_
