#include "registry/model/event_part.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/base/utf8.h"
#include "registry/model/canonical.h"
#include "registry/model/instance_view.h"
#include "registry/model/wire_bounds.h"
#include "registry/model/wire_reader.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;
using DeltaMessage = registry::v1::Delta;
using SnapshotMessage = registry::v1::Snapshot;

absl::Status Wrong(const std::string& what) {
  return absl::InternalError(absl::StrCat("the registry's SubscribeResponse ", what));
}

absl::Status WrongItem(const char* field, size_t index, std::string_view what) {
  return Wrong(absl::StrCat("is wrong: ", field, "[", index, "] ",
                            absl::string_view(what.data(), what.size())));
}

int InstancesField(Event::Kind kind) {
  if (kind == Event::Kind::kSnapshot) return SnapshotMessage::kInstancesFieldNumber;
  return DeltaMessage::kUpsertsFieldNumber;
}

// A key with a service, as an item of a message: memory for items is kept by it.
constexpr size_t kLeastItemBytes = 5;

bool IsKey(std::string_view name_space, std::string_view service, std::string_view instance_id) {
  constexpr auto kNone = std::string_view::npos;
  return !service.empty() && name_space.find('\0') == kNone && service.find('\0') == kNone &&
         instance_id.find('\0') == kNone;
}

constexpr std::string_view kNoKey = "has no key with a service, or a NUL in it";

// The canonical bytes of an instance that has to be parsed; null, with `why`, if it cannot be.
Blob ParseCanonical(std::string_view bytes, std::string* why) {
  const WireBounds bounds = {EventPart::kMaxInstanceBytes, EventPart::kMaxInstanceFields};
  if (auto status = CheckWire(*ServiceInstance::descriptor(), bytes, bounds); !status.ok()) {
    *why = absl::StrCat("is too large: ", status.message());
    return Blob();
  }
  ServiceInstance instance;
  if (!instance.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    *why = "is no ServiceInstance";
    return Blob();
  }
  const InstanceKey& key = instance.key();
  if (!IsKey(key.namespace_(), key.service(), key.instance_id())) {
    *why = kNoKey;
    return Blob();
  }
  return Blob(CanonicalInstance(instance));
}

}  // namespace

absl::StatusOr<EventPart> EventPart::Read(std::string_view bytes) {
  EventPart part;
  wire::Reader fields(bytes);
  for (wire::Field field; fields.Next(&field);) {
    absl::Status status;
    if (field.Is(SubscribeResponse::kEpochFieldNumber, wire::kVarint)) {
      part.epoch_ = field.value;
    } else if (field.Is(SubscribeResponse::kRevisionFieldNumber, wire::kVarint)) {
      part.revision_ = field.value;
    } else if (field.Is(SubscribeResponse::kStaleFieldNumber, wire::kVarint)) {
      part.flags_.stale = field.value != 0;
    } else if (field.Is(SubscribeResponse::kHeldFieldNumber, wire::kVarint)) {
      part.flags_.held = field.value != 0;
    } else if (field.Is(SubscribeResponse::kSnapshotFieldNumber, wire::kBytes)) {
      status = part.ReadBody(Event::Kind::kSnapshot, field.bytes);
    } else if (field.Is(SubscribeResponse::kDeltaFieldNumber, wire::kBytes)) {
      status = part.ReadBody(Event::Kind::kDelta, field.bytes);
    }
    if (!status.ok()) return status;
  }
  if (!fields.ok()) return Wrong("cannot be read");
  return part;
}

absl::Status EventPart::ReadBody(Event::Kind kind, std::string_view body) {
  // No serializer writes a field of this kind twice, nor two of a oneof.
  if (kind_ != Event::Kind::kFlags) return Wrong("has two events");
  kind_ = kind;
  body_ = body;
  const bool snapshot = kind == Event::Kind::kSnapshot;
  const int instances = InstancesField(kind);
  wire::Reader fields(body);
  for (wire::Field field; fields.Next(&field);) {
    if (field.Is(instances, wire::kBytes)) {
      ++instances_;
    } else if (snapshot && field.Is(SnapshotMessage::kMoreFieldNumber, wire::kVarint)) {
      more_ = field.value != 0;
    } else if (!snapshot && field.Is(DeltaMessage::kBaseRevisionFieldNumber, wire::kVarint)) {
      base_revision_ = field.value;
    } else if (!snapshot && field.Is(DeltaMessage::kRemovalsFieldNumber, wire::kBytes)) {
      ++removals_;
    }
  }
  return fields.ok() ? absl::OkStatus() : Wrong("cannot be read");
}

absl::Status EventPart::AddInstances(std::vector<Blob>* instances) const {
  const bool snapshot = kind_ == Event::Kind::kSnapshot;
  const int number = InstancesField(kind_);
  if (instances->empty()) instances->reserve(std::min(instances_, body_.size() / kLeastItemBytes));
  size_t index = 0;
  EncodedInstance encoded;
  std::string why;
  wire::Reader fields(body_);
  for (wire::Field field; fields.Next(&field);) {
    if (!field.Is(number, wire::kBytes)) continue;
    const InstanceView& view = encoded.view;
    if (ReadSentInstance(field.bytes, &encoded) && IsText(view) &&
        IsKey(view.name_space, view.service, view.instance_id)) {
      instances->emplace_back(encoded.CanonicalSize(),
                              [&encoded](char* out) { encoded.WriteCanonical(out); });
    } else if (Blob parsed = ParseCanonical(field.bytes, &why); parsed) {
      instances->push_back(std::move(parsed));
    } else {
      return WrongItem(snapshot ? "snapshot.instances" : "delta.upserts", index, why);
    }
    ++index;
  }
  return absl::OkStatus();
}

absl::Status EventPart::AddRemovals(std::vector<std::string>* removals) const {
  if (kind_ != Event::Kind::kDelta) return absl::OkStatus();
  removals->reserve(std::min(removals_, body_.size() / kLeastItemBytes));
  size_t index = 0;
  wire::Reader fields(body_);
  for (wire::Field field; fields.Next(&field);) {
    if (!field.Is(DeltaMessage::kRemovalsFieldNumber, wire::kBytes)) continue;
    KeyNames names;
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
    if (!key.ok() || !IsUtf8(names.name_space) || !IsUtf8(names.service) ||
        !IsUtf8(names.instance_id)) {
      return WrongItem("delta.removals", index, "is no InstanceKey");
    }
    if (!IsKey(names.name_space, names.service, names.instance_id)) {
      return WrongItem("delta.removals", index, kNoKey);
    }
    removals->push_back(CanonicalKey(names.name_space, names.service, names.instance_id));
    ++index;
  }
  return absl::OkStatus();
}

}  // namespace failback
