// A snapshot whose messages are made when they are written.
//
// The snapshot of a large service is megabytes of messages, and a subscriber takes them at its own
// pace: one that has stopped in the middle would keep them all. A lazy snapshot refers to the
// instances as they are stored, shared with the store and with other snapshots, and encodes one
// part after the other as it is asked for. A part is encoded from the stored bytes as they are, so
// making it again costs little more than copying them.
//
// Thread safety: immutable; all methods from any thread.
//
// Invariants:
// 1. parts() is at least 1. The parts have the same epoch and revision, and all but the last say
//    `more`.
// 2. A part is the same every time it is asked for.

#ifndef FAILBACK_REGISTRY_WATCH_LAZY_SNAPSHOT_H_
#define FAILBACK_REGISTRY_WATCH_LAZY_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/watch/set_flags.h"

namespace failback {

class LazySnapshot {
 public:
  virtual ~LazySnapshot() = default;

  virtual uint64_t epoch() const = 0;
  virtual uint64_t revision() const = 0;
  // Of each part.
  virtual SetFlags flags() const = 0;
  virtual size_t instances() const = 0;
  virtual size_t parts() const = 0;

  // The SubscribeResponse of a part below parts(), serialized, and the size of that.
  virtual std::string EncodedPart(size_t part) const = 0;
  virtual size_t PartBytes(size_t part) const = 0;

  // Calls `use` with each instance, serialized.
  virtual void ForEach(absl::FunctionRef<void(std::string_view)> use) const = 0;

  // About how many bytes it takes that no store and no other snapshot has.
  virtual size_t bytes() const = 0;

  // A part as a message.
  virtual std::shared_ptr<const registry::v1::SubscribeResponse> Part(size_t part) const {
    auto message = std::make_shared<registry::v1::SubscribeResponse>();
    message->ParseFromString(EncodedPart(part));
    return message;
  }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_LAZY_SNAPSHOT_H_
