#include "agent/ctl/followed_set.h"

#include <utility>

namespace failback {
namespace {

using registry::v1::SubscribeResponse;

// A whole event as one message.
SubscribeResponse AsOne(const Event& event) {
  SubscribeResponse whole;
  for (size_t i = 0; i < event.parts(); ++i) {
    SubscribeResponse part;
    part.ParseFromString(event.EncodedPart(i));
    whole.MergeFrom(part);
  }
  if (event.is_snapshot()) whole.mutable_snapshot()->clear_more();
  return whole;
}

}  // namespace

absl::StatusOr<std::optional<SubscribeResponse>> FollowedSet::Apply(
    const SubscribeResponse& message) {
  absl::StatusOr<EventPtr> event = reader_.Read(message.SerializeAsString());
  InstanceSet::Changes changes;
  const bool was_stale = stale();
  const uint64_t epoch_before = epoch();
  if (event.ok() && *event == nullptr) return std::nullopt;
  const absl::Status status = event.ok() ? set_.Apply(**event, &changes) : event.status();
  if (!status.ok()) {
    set_.DropPosition();
    return status;
  }
  const bool changed = !std::exchange(known_, true) || was_stale != stale() ||
                       epoch_before != epoch() || !changes.empty();
  if (!changed) return std::nullopt;
  return AsOne(**event);
}

void FollowedSet::Restart() {
  reader_ = EventReader(epoch(), revision());
  set_.Resume();
}

}  // namespace failback
