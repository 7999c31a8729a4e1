#include "registry/store/sqlite/row_checksum.h"

#include <string>

#include "registry/model/canonical.h"

namespace failback {
namespace {

template <size_t kCount>
uint64_t SumOf(const uint64_t (&numbers)[kCount]) {
  return Digest64(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

}  // namespace

int64_t Checksum(const RecordRow& row) {
  uint64_t sum = SumOf(
      {static_cast<uint64_t>(row.id), row.fence_rank, row.fence_generation, row.fence_digest,
       row.owner_rank, static_cast<uint64_t>(row.session), uint64_t{row.retention_ms},
       static_cast<uint64_t>(row.create_ms), static_cast<uint64_t>(row.modify_ms),
       (row.instance ? 1u : 0u) | (row.fence_registers ? 2u : 0u) | (row.persistent ? 4u : 0u),
       Digest64(row.key.data(), row.key.size()),
       row.instance ? Digest64(row.instance.data(), row.instance.size()) : 0});
  // A row without a mark has the sum that it had before there were marks.
  if (row.offline) sum ^= Digest64(row.offline.data(), row.offline.size());
  return static_cast<int64_t>(sum);
}

int64_t Checksum(const SessionRow& row) {
  return static_cast<int64_t>(
      SumOf({static_cast<uint64_t>(row.id), row.rank, static_cast<uint64_t>(row.ttl_ms),
             uint64_t{row.ends_with_stream}, Digest64(row.session_id)}));
}

int64_t Checksum(const IncarnationRow& row) {
  uint64_t sum = SumOf({row.rank, static_cast<uint64_t>(row.last_seen_ms), Digest64(row.name),
                        Digest64(row.client_name)});
  // A row without an owner has the sum that it had before there were owners.
  if (!row.owner.empty()) sum ^= SumOf({Digest64(row.owner)});
  return static_cast<int64_t>(sum);
}

int64_t Checksum(const StoreHead& head) {
  const StoreIdentity& identity = head.identity;
  uint64_t sum =
      SumOf({identity.epoch, identity.revision, identity.next_rank, head.writes,
             uint64_t{head.clean}, static_cast<uint64_t>(DurabilityNumber(head.durability)),
             Digest64(identity.store_id), Digest64(head.boot_id)});
  // Up to schema 6 the count of sessions was in its place, and up to schema 4 nothing.
  if (head.row_sum.has_value()) sum ^= SumOf({*head.row_sum});
  return static_cast<int64_t>(sum);
}

uint64_t RecordPart(int64_t checksum, uint64_t create_revision, uint64_t modify_revision) {
  return SumOf({1, static_cast<uint64_t>(checksum), create_revision, modify_revision});
}

uint64_t SessionPart(int64_t checksum) { return SumOf({2, static_cast<uint64_t>(checksum)}); }

uint64_t IncarnationPart(int64_t checksum) { return SumOf({3, static_cast<uint64_t>(checksum)}); }

}  // namespace failback
