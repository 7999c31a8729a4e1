// One message of a subscription as it comes from the wire: a part of an event.
//
// The bytes of a SubscribeResponse are read where they are. What makes it a step of its stream is
// known at once, before any instance is looked at; instances become canonical bytes
// (registry/model/canonical.h) without a message in between. One that is not encoded as protobuf's
// serializers do it, or that has fields of a later version, is parsed for itself, within bounds.
//
//   absl::StatusOr<EventPart> part = EventPart::Read(bytes);
//   if (!part.ok()) return part.status();
//   if (absl::Status status = order.Check(*part); !status.ok()) return status;
//   if (absl::Status status = part->AddInstances(&instances); !status.ok()) return status;
//
// Errors are INTERNAL: the sender is at fault, and asking again may help.
//
// Thread safety: immutable. A part is valid as long as the bytes that it was read from.

#ifndef FAILBACK_REGISTRY_MODEL_EVENT_PART_H_
#define FAILBACK_REGISTRY_MODEL_EVENT_PART_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/set_flags.h"

namespace failback {

class EventPart {
 public:
  // More bytes or fields are not taken of one instance: the largest that may be registered, and
  // what a registry adds to it.
  static constexpr size_t kMaxInstanceBytes = (64 << 10) + 4096;
  static constexpr size_t kMaxInstanceFields = 1024;

  static absl::StatusOr<EventPart> Read(std::string_view bytes);

  Event::Kind kind() const { return kind_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t revision() const { return revision_; }
  uint64_t base_revision() const { return base_revision_; }  // of a delta
  bool more() const { return more_; }                        // of a snapshot: its next part follows
  SetFlags flags() const { return flags_; }

  // Adds the instances of a snapshot, or the upserts of a delta. A key has a service, and no name
  // in it a NUL.
  absl::Status AddInstances(std::vector<Blob>* instances) const;

  // Adds the canonical keys of a delta's removals.
  absl::Status AddRemovals(std::vector<std::string>* removals) const;

 private:
  EventPart() = default;

  // Takes the message of the snapshot or the delta.
  absl::Status ReadBody(Event::Kind kind, std::string_view body);

  Event::Kind kind_ = Event::Kind::kFlags;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
  uint64_t base_revision_ = 0;
  bool more_ = false;
  SetFlags flags_;
  std::string_view body_;
  size_t instances_ = 0;
  size_t removals_ = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_EVENT_PART_H_
