#include "registry/watch/set_snapshot.h"

#include <utility>

#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::Snapshot;

// A longer delta is a snapshot, provided that this is not many times as long; one beyond the second
// bound is one in any case, as it would come near the 4 MiB that a gRPC client takes.
constexpr size_t kLongDelta = 256 << 10;
constexpr size_t kLongestDelta = 1 << 20;
constexpr size_t kSnapshotPerChange = 4;

}  // namespace

SetSnapshot::SetSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags,
                         std::vector<Instance> instances)
    : epoch_(epoch), revision_(revision), flags_(flags), instances_(std::move(instances)) {
  parts_.push_back({0, 0});
  for (size_t i = 0; i < instances_.size(); ++i) {
    const size_t size = wire::BytesSize(instances_[i]->ByteSizeLong());
    const PartOf& last = parts_.back();
    if (i > last.begin && (i - last.begin >= kPartInstances || last.bytes + size > kPartBytes)) {
      parts_.back().bytes += wire::NumberSize(1);  // `more`
      parts_.push_back({i, 0});
    }
    parts_.back().bytes += size;
  }
}

size_t SetSnapshot::PartBytes(size_t part) const {
  return (epoch_ == 0 ? 0 : wire::NumberSize(epoch_)) +
         (revision_ == 0 ? 0 : wire::NumberSize(revision_)) +
         (flags_.stale ? wire::NumberSize(1) : 0) + (flags_.held ? wire::NumberSize(1) : 0) +
         wire::BytesSize(parts_[part].bytes);
}

std::string SetSnapshot::EncodedPart(size_t part) const {
  std::string out;
  out.reserve(PartBytes(part));
  if (epoch_ != 0) wire::AppendNumber(SubscribeResponse::kEpochFieldNumber, epoch_, &out);
  if (revision_ != 0) wire::AppendNumber(SubscribeResponse::kRevisionFieldNumber, revision_, &out);
  wire::AppendHead(SubscribeResponse::kSnapshotFieldNumber, parts_[part].bytes, &out);
  for (size_t i = parts_[part].begin; i < EndOf(part); ++i) {
    wire::AppendHead(Snapshot::kInstancesFieldNumber, instances_[i]->ByteSizeLong(), &out);
    instances_[i]->AppendToString(&out);
  }
  if (!IsLast(part)) wire::AppendNumber(Snapshot::kMoreFieldNumber, 1, &out);
  if (flags_.stale) wire::AppendNumber(SubscribeResponse::kStaleFieldNumber, 1, &out);
  if (flags_.held) wire::AppendNumber(SubscribeResponse::kHeldFieldNumber, 1, &out);
  return out;
}

std::shared_ptr<const SubscribeResponse> SetSnapshot::Part(size_t part) const {
  auto message = std::make_shared<SubscribeResponse>();
  message->set_epoch(epoch_);
  message->set_revision(revision_);
  flags_.Put(message.get());
  Snapshot& snapshot = *message->mutable_snapshot();
  for (size_t i = parts_[part].begin; i < EndOf(part); ++i) {
    *snapshot.add_instances() = *instances_[i];
  }
  snapshot.set_more(!IsLast(part));
  return message;
}

void SetSnapshot::ForEach(absl::FunctionRef<void(std::string_view)> use) const {
  std::string encoded;
  for (const Instance& instance : instances_) {
    instance->SerializeToString(&encoded);
    use(encoded);
  }
}

size_t SetSnapshot::bytes() const {
  return sizeof(*this) + instances_.capacity() * sizeof(Instance) +
         parts_.capacity() * sizeof(PartOf);
}

bool TellsAsSnapshot(const registry::v1::Delta& delta, size_t instances) {
  const size_t bytes = delta.ByteSizeLong();
  if (bytes <= kLongDelta) return false;
  const size_t changes = static_cast<size_t>(delta.upserts_size() + delta.removals_size());
  return bytes > kLongestDelta || instances <= kSnapshotPerChange * changes;
}

std::shared_ptr<const SubscribeResponse> StaleAt(uint64_t epoch, uint64_t revision) {
  auto event = std::make_shared<SubscribeResponse>();
  event->set_epoch(epoch);
  event->set_revision(revision);
  event->set_stale(true);
  return event;
}

}  // namespace failback
