#include "tests/simulate/etcd/etcd_model.h"

#include <algorithm>
#include <utility>

#include "registry/etcd/error.h"

namespace failback::simulate {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr int kMostOperations = 128;
// etcd looks for leases that have ended twice a second.
constexpr absl::Duration kLeaseCheck = absl::Milliseconds(500);

absl::Status Refused(const std::string& text) { return etcd::FromEtcdText("etcdserver: " + text); }

template <typename T>
bool IsTrue(Compare::CompareResult result, const T& left, const T& right) {
  switch (result) {
    case Compare::EQUAL:
      return left == right;
    case Compare::GREATER:
      return left > right;
    case Compare::LESS:
      return left < right;
    default:
      return left != right;
  }
}

}  // namespace

EtcdModel::EtcdModel(Process* process) : process_(process) {
  process_->After(kLeaseCheck, [this] { EndLeases(); });
}

bool EtcdModel::InRange(const std::string& key, const std::string& begin, const std::string& end) {
  if (end.empty()) return key == begin;
  return key >= begin && (end == std::string(1, '\0') || key < end);
}

etcdserverpb::ResponseHeader EtcdModel::Header() const {
  etcdserverpb::ResponseHeader header;
  header.set_cluster_id(7);
  header.set_member_id(1);
  header.set_revision(revision_);
  return header;
}

EtcdModel::Contents EtcdModel::At(int64_t revision) const {
  if (revision >= revision_) return now_;
  Contents contents;
  for (auto it = history_.begin(); it != history_.end() && it->first <= revision; ++it) {
    for (const mvccpb::Event& event : it->second) {
      if (event.type() == mvccpb::Event::DELETE) {
        contents.erase(event.kv().key());
      } else {
        contents[event.kv().key()] = event.kv();
      }
    }
  }
  return contents;
}

std::vector<mvccpb::Event> EtcdModel::EventsFrom(int64_t first, const std::string& key,
                                                 const std::string& range_end) const {
  std::vector<mvccpb::Event> events;
  for (auto it = history_.lower_bound(first); it != history_.end(); ++it) {
    for (const mvccpb::Event& event : it->second) {
      if (InRange(event.kv().key(), key, range_end)) events.push_back(event);
    }
  }
  return events;
}

absl::StatusOr<RangeResponse> EtcdModel::Range(const RangeRequest& request) const {
  if (request.revision() > revision_) {
    return Refused("mvcc: required revision is a future revision");
  }
  if (request.revision() != 0 && request.revision() < compacted_) {
    return Refused("mvcc: required revision has been compacted");
  }
  RangeResponse response;
  *response.mutable_header() = Header();
  const bool old = request.revision() != 0 && request.revision() < revision_;
  const Contents before = old ? At(request.revision()) : Contents();
  const Contents& contents = old ? before : now_;
  for (auto it = contents.lower_bound(request.key()); it != contents.end(); ++it) {
    const mvccpb::KeyValue& kv = it->second;
    if (!InRange(kv.key(), request.key(), request.range_end())) break;
    if (request.min_create_revision() > kv.create_revision()) continue;
    if (request.max_create_revision() != 0 &&
        request.max_create_revision() < kv.create_revision()) {
      continue;
    }
    response.set_count(response.count() + 1);
    if (request.count_only()) continue;
    if (request.limit() != 0 && response.kvs_size() >= request.limit()) {
      response.set_more(true);
      continue;
    }
    mvccpb::KeyValue& found = *response.add_kvs();
    found = kv;
    if (request.keys_only()) found.clear_value();
  }
  return response;
}

bool EtcdModel::Holds(const Compare& compare) const {
  static const mvccpb::KeyValue kNone;
  const auto it = now_.find(compare.key());
  const bool there = it != now_.end();
  const mvccpb::KeyValue& kv = there ? it->second : kNone;
  switch (compare.target()) {
    case Compare::VERSION:
      return IsTrue(compare.result(), kv.version(), compare.version());
    case Compare::CREATE:
      return IsTrue(compare.result(), kv.create_revision(), compare.create_revision());
    case Compare::MOD:
      return IsTrue(compare.result(), kv.mod_revision(), compare.mod_revision());
    case Compare::LEASE:
      return IsTrue(compare.result(), kv.lease(), compare.lease());
    default:
      return there && IsTrue(compare.result(), kv.value(), compare.value());
  }
}

absl::Status EtcdModel::Check(const RequestOp& operation) const {
  if (!operation.has_request_put()) return absl::OkStatus();
  const int64_t lease = operation.request_put().lease();
  if (lease != 0 && leases_.count(lease) == 0) return Refused("requested lease not found");
  return absl::OkStatus();
}

void EtcdModel::Put(const etcdserverpb::PutRequest& put, int64_t revision) {
  mvccpb::KeyValue& kv = now_[put.key()];
  kv.set_key(put.key());
  kv.set_value(put.value());
  kv.set_lease(put.lease());
  kv.set_version(kv.version() + 1);
  kv.set_mod_revision(revision);
  if (kv.create_revision() == 0) kv.set_create_revision(revision);
  mvccpb::Event& event = history_[revision].emplace_back();
  event.set_type(mvccpb::Event::PUT);
  *event.mutable_kv() = kv;
}

void EtcdModel::Delete(const std::string& key, int64_t revision) {
  now_.erase(key);
  mvccpb::Event& event = history_[revision].emplace_back();
  event.set_type(mvccpb::Event::DELETE);
  event.mutable_kv()->set_key(key);
  event.mutable_kv()->set_mod_revision(revision);
}

absl::StatusOr<TxnResponse> EtcdModel::Txn(const TxnRequest& request) {
  if (request.compare_size() > kMostOperations || request.success_size() > kMostOperations ||
      request.failure_size() > kMostOperations) {
    return Refused("too many operations in txn request");
  }
  std::set<std::string> put;
  for (const RequestOp& operation : request.success()) {
    if (operation.has_request_put() && !put.insert(operation.request_put().key()).second) {
      return Refused("duplicate key given in txn request");
    }
  }
  TxnResponse response;
  response.set_succeeded(std::all_of(request.compare().begin(), request.compare().end(),
                                     [this](const Compare& compare) { return Holds(compare); }));
  const auto& operations = response.succeeded() ? request.success() : request.failure();
  for (const RequestOp& operation : operations) {
    if (absl::Status status = Check(operation); !status.ok()) return status;
  }
  const int64_t revision = revision_ + 1;
  for (const RequestOp& operation : operations) {
    auto& done = *response.add_responses();
    if (operation.has_request_range()) {
      absl::StatusOr<RangeResponse> range = Range(operation.request_range());
      if (!range.ok()) return range.status();
      *done.mutable_response_range() = *std::move(range);
    } else if (operation.has_request_put()) {
      Put(operation.request_put(), revision);
      done.mutable_response_put();
    } else {
      const auto& deletion = operation.request_delete_range();
      std::vector<std::string> keys;
      for (const auto& [key, kv] : now_) {
        if (InRange(key, deletion.key(), deletion.range_end())) keys.push_back(key);
      }
      for (const std::string& key : keys) Delete(key, revision);
      done.mutable_response_delete_range()->set_deleted(static_cast<int64_t>(keys.size()));
    }
  }
  const bool changed = history_.count(revision) > 0;
  if (changed) revision_ = revision;
  *response.mutable_header() = Header();
  if (changed && listener_) listener_();
  return response;
}

int64_t EtcdModel::LeaseGrant(int64_t ttl_seconds) {
  const int64_t lease = ++last_lease_;
  leases_[lease].ttl_seconds = ttl_seconds;
  LeaseKeepAlive(lease);
  return lease;
}

int64_t EtcdModel::LeaseKeepAlive(int64_t lease) {
  const auto it = leases_.find(lease);
  if (it == leases_.end()) return 0;
  it->second.deadline_nanos =
      process_->clock().NowNanos() + it->second.ttl_seconds * int64_t{1000000000};
  return it->second.ttl_seconds;
}

std::set<std::string> EtcdModel::KeysOf(int64_t lease) const {
  std::set<std::string> keys;
  for (const auto& [key, kv] : now_) {
    if (kv.lease() == lease) keys.insert(key);
  }
  return keys;
}

void EtcdModel::EndLease(int64_t lease) {
  leases_.erase(lease);
  const std::set<std::string> keys = KeysOf(lease);
  if (keys.empty()) return;
  const int64_t revision = revision_ + 1;
  for (const std::string& key : keys) Delete(key, revision);
  revision_ = revision;
  if (listener_) listener_();
}

absl::Status EtcdModel::LeaseRevoke(int64_t lease) {
  if (leases_.count(lease) == 0) return Refused("requested lease not found");
  EndLease(lease);
  return absl::OkStatus();
}

etcdserverpb::LeaseTimeToLiveResponse EtcdModel::LeaseTimeToLive(int64_t lease, bool keys) const {
  etcdserverpb::LeaseTimeToLiveResponse response;
  *response.mutable_header() = Header();
  response.set_id(lease);
  const auto it = leases_.find(lease);
  if (it == leases_.end()) {
    response.set_ttl(-1);
    return response;
  }
  const int64_t left = it->second.deadline_nanos - process_->timer()->clock()->NowNanos();
  response.set_ttl(std::max<int64_t>(left / 1000000000, 0));
  response.set_grantedttl(it->second.ttl_seconds);
  if (!keys) return response;
  for (const std::string& key : KeysOf(lease)) response.add_keys(key);
  return response;
}

void EtcdModel::EndLeases() {
  const int64_t now = process_->clock().NowNanos();
  std::vector<int64_t> over;
  for (const auto& [lease, state] : leases_) {
    if (state.deadline_nanos <= now) over.push_back(lease);
  }
  for (const int64_t lease : over) EndLease(lease);
  process_->After(kLeaseCheck, [this] { EndLeases(); });
}

void EtcdModel::Compact(int64_t revision) {
  compacted_ = std::max(compacted_, std::min(revision, revision_));
}

}  // namespace failback::simulate
