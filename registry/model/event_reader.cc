#include "registry/model/event_reader.h"

#include <string>
#include <utility>

#include "registry/model/event_part.h"

namespace failback {

absl::StatusOr<EventPtr> EventReader::Read(std::string_view message) {
  const absl::StatusOr<EventPart> part = EventPart::Read(message);
  if (!part.ok()) return part.status();
  if (absl::Status status = order_.Check(*part); !status.ok()) return status;
  if (part->kind() == Event::Kind::kFlags) {
    return Event::Flags(part->epoch(), part->revision(), part->flags());
  }
  if (absl::Status status = part->AddInstances(&parts_); !status.ok()) return status;
  if (part->kind() == Event::Kind::kSnapshot) {
    if (part->more()) return nullptr;
    return Event::Snapshot(part->epoch(), part->revision(), part->flags(),
                           std::exchange(parts_, {}));
  }
  std::vector<std::string> removals;
  if (absl::Status status = part->AddRemovals(&removals); !status.ok()) return status;
  return Event::Delta(part->epoch(), part->base_revision(), part->revision(), part->flags(),
                      std::exchange(parts_, {}), std::move(removals));
}

}  // namespace failback
