// A model of etcd: one history of revisions, transactions that compare first, leases, watches, and
// compaction. What is remembered is all in one map of events, so that what a key was at a revision
// is a walk and nothing to be kept right.
//
//   EtcdModel etcd(&process);
//   absl::StatusOr<TxnResponse> done = etcd.Txn(request);
//   etcd.OnRevision([&] { … });    // something is new: take it with EventsFrom
//
// Refusals have etcd's texts (registry/etcd/error.h reads them).
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_ETCD_ETCD_MODEL_H_
#define FAILBACK_TESTS_SIMULATE_ETCD_ETCD_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "etcd/rpc.pb.h"
#include "tests/simulate/process.h"

namespace failback::simulate {

class EtcdModel {
 public:
  using Contents = std::map<std::string, mvccpb::KeyValue>;

  // `process`: whose timer ends leases. While it is stopped nothing is asked of the model.
  explicit EtcdModel(Process* process);

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) const;
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);
  int64_t LeaseGrant(int64_t ttl_seconds);
  absl::Status LeaseRevoke(int64_t lease);
  etcdserverpb::LeaseTimeToLiveResponse LeaseTimeToLive(int64_t lease, bool keys) const;
  // The time to live in seconds; 0: there is no such lease.
  int64_t LeaseKeepAlive(int64_t lease);
  // Forgets what there was before `revision`.
  void Compact(int64_t revision);

  int64_t revision() const { return revision_; }
  int64_t compacted() const { return compacted_; }
  etcdserverpb::ResponseHeader Header() const;
  // Of a range of keys, what happened from `first` on, by revision. `first` is not compacted.
  std::vector<mvccpb::Event> EventsFrom(int64_t first, const std::string& key,
                                        const std::string& range_end) const;
  // All that is there.
  const Contents& now() const { return now_; }
  // All that was there at `revision`.
  Contents At(int64_t revision) const;
  // Called after each revision.
  void OnRevision(std::function<void()> listener) { listener_ = std::move(listener); }

  static bool InRange(const std::string& key, const std::string& begin, const std::string& end);

 private:
  struct Lease {
    int64_t ttl_seconds;
    int64_t deadline_nanos;
  };

  bool Holds(const etcdserverpb::Compare& compare) const;
  absl::Status Check(const etcdserverpb::RequestOp& operation) const;
  void Put(const etcdserverpb::PutRequest& put, int64_t revision);
  void Delete(const std::string& key, int64_t revision);
  void EndLeases();
  void EndLease(int64_t lease);
  std::set<std::string> KeysOf(int64_t lease) const;

  Process* const process_;
  int64_t revision_ = 1;
  int64_t compacted_ = 0;
  int64_t last_lease_ = 1000;
  Contents now_;
  std::map<int64_t, std::vector<mvccpb::Event>> history_;
  std::map<int64_t, Lease> leases_;
  std::function<void()> listener_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_ETCD_ETCD_MODEL_H_
