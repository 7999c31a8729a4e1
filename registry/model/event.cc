#include "registry/model/event.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "registry/model/wire_reader.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;
using DeltaMessage = registry::v1::Delta;
using SnapshotMessage = registry::v1::Snapshot;

// A snapshot of at most so many instances for each change is not many times as long as the delta.
constexpr size_t kSnapshotPerChange = 4;

}  // namespace

Event::Event(Kind kind, uint64_t epoch, uint64_t base_revision, uint64_t revision, SetFlags flags)
    : kind_(kind),
      flags_(flags),
      epoch_(epoch),
      base_revision_(base_revision),
      revision_(revision) {}

EventPtr Event::Snapshot(uint64_t epoch, uint64_t revision, SetFlags flags,
                         std::vector<Blob> instances, PartLimits limits) {
  const std::shared_ptr<Event> event(new Event(Kind::kSnapshot, epoch, 0, revision, flags));
  event->instances_ = instances.size();
  event->runs_.push_back(std::make_shared<const Run>(std::move(instances)));
  event->Divide(limits);
  return event;
}

EventPtr Event::SharedSnapshot(uint64_t epoch, uint64_t revision, SetFlags flags, Runs runs,
                               PartLimits limits) {
  const std::shared_ptr<Event> event(new Event(Kind::kSnapshot, epoch, 0, revision, flags));
  for (const auto& run : runs) event->instances_ += run->size();
  event->shares_runs_ = true;
  event->runs_ = std::move(runs);
  event->Divide(limits);
  return event;
}

void Event::Divide(PartLimits limits) {
  parts_.push_back({0, 0, 0});
  size_t part_instances = 0;
  size_t part_bytes = 0;  // of the instances alone
  for (uint32_t run = 0; run < runs_.size(); ++run) {
    for (uint32_t offset = 0; offset < runs_[run]->size(); ++offset) {
      const size_t size = (*runs_[run])[offset].size();
      if (part_instances > 0 &&
          (part_instances >= limits.instances || part_bytes + size > limits.bytes)) {
        parts_.back().bytes += wire::NumberSize(1);  // `more`
        parts_.push_back({run, offset, 0});
        part_instances = part_bytes = 0;
      }
      ++part_instances;
      part_bytes += size;
      parts_.back().bytes += wire::BytesSize(size);
    }
  }
  parts_.shrink_to_fit();
}

EventPtr Event::Delta(uint64_t epoch, uint64_t base_revision, uint64_t revision, SetFlags flags,
                      std::vector<Blob> upserts, std::vector<std::string> removals) {
  const std::shared_ptr<Event> event(
      new Event(Kind::kDelta, epoch, base_revision, revision, flags));
  size_t bytes = base_revision == 0 ? 0 : wire::NumberSize(base_revision);
  for (const Blob& upsert : upserts) bytes += wire::BytesSize(upsert.size());
  for (const std::string& removal : removals) bytes += wire::BytesSize(EncodedKeySize(removal));
  event->parts_.push_back({0, 0, bytes});
  event->instances_ = upserts.size();
  if (!upserts.empty()) {
    event->runs_.push_back(std::make_shared<const Run>(std::move(upserts)));
  }
  event->removals_ = std::move(removals);
  return event;
}

EventPtr Event::Flags(uint64_t epoch, uint64_t revision, SetFlags flags) {
  const std::shared_ptr<Event> event(new Event(Kind::kFlags, epoch, 0, revision, flags));
  event->parts_.push_back({0, 0, 0});
  return event;
}

void Event::ForEachInstance(absl::FunctionRef<void(const Blob&)> use) const {
  for (const auto& run : runs_) {
    for (const Blob& instance : *run) use(instance);
  }
}

template <typename Use>
void Event::ForEachOf(size_t part, Use use) const {
  const Part& begin = parts_[part];
  const Part end =
      IsLast(part) ? Part{static_cast<uint32_t>(runs_.size()), 0, 0} : parts_[part + 1];
  for (uint32_t run = begin.run; run < runs_.size() && run <= end.run; ++run) {
    const size_t first = run == begin.run ? begin.offset : 0;
    const size_t last = run == end.run ? end.offset : runs_[run]->size();
    for (size_t i = first; i < last; ++i) use((*runs_[run])[i].view());
  }
}

size_t Event::PartBytes(size_t part) const {
  return (epoch_ == 0 ? 0 : wire::NumberSize(epoch_)) +
         (revision_ == 0 ? 0 : wire::NumberSize(revision_)) +
         (kind_ == Kind::kFlags ? 0 : wire::BytesSize(parts_[part].bytes)) +
         (flags_.stale ? wire::NumberSize(1) : 0) + (flags_.held ? wire::NumberSize(1) : 0);
}

std::string Event::EncodedPart(size_t part) const {
  std::string out;
  out.reserve(PartBytes(part));
  if (epoch_ != 0) wire::AppendNumber(SubscribeResponse::kEpochFieldNumber, epoch_, &out);
  if (revision_ != 0) wire::AppendNumber(SubscribeResponse::kRevisionFieldNumber, revision_, &out);
  if (kind_ == Kind::kSnapshot) {
    wire::AppendHead(SubscribeResponse::kSnapshotFieldNumber, parts_[part].bytes, &out);
    ForEachOf(part, [&](std::string_view instance) {
      wire::AppendBytes(SnapshotMessage::kInstancesFieldNumber, instance, &out);
    });
    if (!IsLast(part)) wire::AppendNumber(SnapshotMessage::kMoreFieldNumber, 1, &out);
  } else if (kind_ == Kind::kDelta) {
    wire::AppendHead(SubscribeResponse::kDeltaFieldNumber, parts_[part].bytes, &out);
    if (base_revision_ != 0) {
      wire::AppendNumber(DeltaMessage::kBaseRevisionFieldNumber, base_revision_, &out);
    }
    ForEachOf(part, [&](std::string_view instance) {
      wire::AppendBytes(DeltaMessage::kUpsertsFieldNumber, instance, &out);
    });
    for (const std::string& removal : removals_) {
      wire::AppendHead(DeltaMessage::kRemovalsFieldNumber, EncodedKeySize(removal), &out);
      AppendEncodedKey(removal, &out);
    }
  }
  if (flags_.stale) wire::AppendNumber(SubscribeResponse::kStaleFieldNumber, 1, &out);
  if (flags_.held) wire::AppendNumber(SubscribeResponse::kHeldFieldNumber, 1, &out);
  return out;
}

size_t Event::bytes() const {
  size_t bytes = sizeof(*this) + runs_.capacity() * sizeof(runs_[0]) +
                 parts_.capacity() * sizeof(Part) + removals_.capacity() * sizeof(std::string);
  for (const std::string& removal : removals_) bytes += removal.size();
  if (!shares_runs_) bytes += instances_ * sizeof(Blob);
  return bytes;
}

KeyNames KeyNamesOf(const Blob& instance) {
  KeyNames names;
  wire::Reader fields(instance.view());
  for (wire::Field field; fields.Next(&field);) {
    if (!field.Is(ServiceInstance::kKeyFieldNumber, wire::kBytes)) continue;
    wire::Reader key(field.bytes);
    for (wire::Field name; key.Next(&name);) {
      if (name.Is(InstanceKey::kNamespaceFieldNumber, wire::kBytes)) {
        names.name_space = name.bytes;
      } else if (name.Is(InstanceKey::kServiceFieldNumber, wire::kBytes)) {
        names.service = name.bytes;
      } else if (name.Is(InstanceKey::kInstanceIdFieldNumber, wire::kBytes)) {
        names.instance_id = name.bytes;
      }
    }
    break;  // it is the first
  }
  return names;
}

std::string KeyOf(const Blob& instance) {
  const KeyNames names = KeyNamesOf(instance);
  return CanonicalKey(names.name_space, names.service, names.instance_id);
}

ServiceInstance ParseInstance(const Blob& instance) {
  ServiceInstance message;
  message.ParseFromArray(instance.data(), static_cast<int>(instance.size()));
  return message;
}

size_t MostDeltaBytes(size_t changes, size_t instances, const DeltaLimits& limits) {
  return instances <= kSnapshotPerChange * changes ? limits.bytes : limits.most_bytes;
}

bool IsBetterAsSnapshot(const Event& delta, size_t instances) {
  const size_t changes = delta.instances() + delta.removals().size();
  return delta.PartBytes(0) > MostDeltaBytes(changes, instances, DeltaLimits());
}

EventPtr StaleAt(uint64_t epoch, uint64_t revision) {
  return Event::Flags(epoch, revision, {/*stale=*/true, /*held=*/false});
}

}  // namespace failback
