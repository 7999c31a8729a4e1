#include "registry/etcd/txn_encoder.h"

#include <utility>

#include "etcd/rpc.pb.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::DeleteRangeRequest;
using etcdserverpb::PutRequest;
using etcdserverpb::RangeRequest;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using wire::AppendBytes;
using wire::AppendHead;
using wire::AppendNumber;
using wire::BytesSize;
using wire::NumberSize;

// A RequestOp in `branch` with a request of one key.
void AppendKeyOperation(int branch, int kind, int key_field, std::string_view key,
                        std::string* out) {
  const size_t request = BytesSize(key.size());
  AppendHead(branch, BytesSize(request), out);
  AppendHead(kind, request, out);
  AppendBytes(key_field, key, out);
}

}  // namespace

void TxnEncoder::Compare(std::string_view key, int target, int field, int64_t revision) {
  AppendHead(TxnRequest::kCompareFieldNumber,
             NumberSize(static_cast<uint64_t>(target)) + BytesSize(key.size()) +
                 NumberSize(static_cast<uint64_t>(revision)),
             &bytes_);
  AppendNumber(etcdserverpb::Compare::kTargetFieldNumber, static_cast<uint64_t>(target), &bytes_);
  AppendBytes(etcdserverpb::Compare::kKeyFieldNumber, key, &bytes_);
  AppendNumber(field, static_cast<uint64_t>(revision), &bytes_);
}

void TxnEncoder::CompareModified(std::string_view key, int64_t revision) {
  Compare(key, etcdserverpb::Compare::MOD, etcdserverpb::Compare::kModRevisionFieldNumber,
          revision);
}

void TxnEncoder::CompareCreated(std::string_view key, int64_t revision) {
  Compare(key, etcdserverpb::Compare::CREATE, etcdserverpb::Compare::kCreateRevisionFieldNumber,
          revision);
}

void TxnEncoder::CompareLease(std::string_view key, int64_t lease) {
  Compare(key, etcdserverpb::Compare::LEASE, etcdserverpb::Compare::kLeaseFieldNumber, lease);
}

void TxnEncoder::Put(std::string_view key, std::string_view head, std::string_view rest,
                     int64_t lease) {
  ++operations_;
  const size_t value = head.size() + rest.size();
  const size_t put = BytesSize(key.size()) + BytesSize(value) +
                     (lease == 0 ? 0 : NumberSize(static_cast<uint64_t>(lease)));
  AppendHead(TxnRequest::kSuccessFieldNumber, BytesSize(put), &bytes_);
  AppendHead(RequestOp::kRequestPutFieldNumber, put, &bytes_);
  AppendBytes(PutRequest::kKeyFieldNumber, key, &bytes_);
  AppendHead(PutRequest::kValueFieldNumber, value, &bytes_);
  bytes_.append(head);
  bytes_.append(rest);
  if (lease != 0) {
    AppendNumber(PutRequest::kLeaseFieldNumber, static_cast<uint64_t>(lease), &bytes_);
  }
}

void TxnEncoder::Delete(std::string_view key) {
  ++operations_;
  AppendKeyOperation(TxnRequest::kSuccessFieldNumber, RequestOp::kRequestDeleteRangeFieldNumber,
                     DeleteRangeRequest::kKeyFieldNumber, key, &bytes_);
}

void TxnEncoder::GetElse(std::string_view key) {
  AppendKeyOperation(TxnRequest::kFailureFieldNumber, RequestOp::kRequestRangeFieldNumber,
                     RangeRequest::kKeyFieldNumber, key, &bytes_);
}

std::string TxnEncoder::Take() && {
  operations_ = 0;
  return std::exchange(bytes_, std::string());
}

}  // namespace etcd
}  // namespace failback
