// Which intent wins: the fencing table of docs/protocol.md, for every store.
//
// A store keeps for each key the fence of the newest intent that it accepted. Decide compares an
// intent of a session with it; what is accepted and changes something is then written together
// with the fence that FenceOf gives.
//
//   const Verdict verdict = Decide(fence, rank, intent, /*already=*/instance == intent.instance);
//   if (!verdict.status.ok()) return Refuse(verdict.status);
//   if (verdict.applies) Write(intent.instance, FenceOf(rank, verdict, intent));
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_MODEL_FENCING_H_
#define FAILBACK_REGISTRY_MODEL_FENCING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/model/blob.h"

namespace failback {

// A fence without an instance is kept for the session's TTL, and at least this long.
inline constexpr absl::Duration kMinFenceRetention = absl::Seconds(60);
// An incarnation that nothing refers to keeps its rank this long.
inline constexpr absl::Duration kIncarnationMemory = absl::Hours(24);

// The newest intent that was accepted for a key.
struct Fence {
  uint64_t rank = 0;  // 0: none
  uint64_t generation = 0;
  uint64_t digest = 0;  // of the instance; 0 for a deregistration
  bool registers = false;

  friend bool operator==(const Fence& a, const Fence& b) {
    return a.rank == b.rank && a.generation == b.generation && a.digest == b.digest &&
           a.registers == b.registers;
  }
};

// A wish for one key, checked and canonical (registry/model/batch.h).
struct Intent {
  absl::Status status;  // not OK: refused by validation
  bool registers = false;
  bool persistent = false;
  std::string key;      // canonical
  size_t key_hash = 0;  // HashedKey's; 0: not taken yet
  // Canonical; null for a deregistration. Of one that is refused: the instance, or the key, as it
  // came.
  Blob instance;
  uint64_t digest = 0;  // of `instance`
  uint64_t generation = 0;
};

struct IntentOutcome {
  absl::Status status;
  uint64_t generation = 0;  // under which the intent is held
};

struct Verdict {
  absl::Status status;      // why the intent is refused, or OK
  uint64_t generation = 0;  // under which it is held
  bool applies = false;     // there is something to write
};

// An intent of the incarnation with `rank`. `already`: the key is as the intent wishes, in the
// session that it comes from.
Verdict Decide(const Fence& fence, uint64_t rank, const Intent& intent, bool already);

// The fence of an intent that has won.
inline Fence FenceOf(uint64_t rank, const Verdict& verdict, const Intent& intent) {
  return {rank, verdict.generation, intent.digest, intent.registers};
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_FENCING_H_
