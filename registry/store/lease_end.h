// Why a lease has ended its session: for the log and the history.

#ifndef FAILBACK_REGISTRY_STORE_LEASE_END_H_
#define FAILBACK_REGISTRY_STORE_LEASE_END_H_

#include <cstdint>

#include "registry/model/blob.h"

namespace failback {

struct LeaseEnd {
  enum class Cause : uint8_t {
    kTtl,          // not renewed in time
    kLongestHold,  // the eviction guard held it for as long as it may
    kHoldOver,     // the guard held it until few enough were missing
    kReleased,     // the guard held it, and an operator has released it
    kGuardOff,     // the guard held it, and an operator has switched the guard off
  };

  Cause cause = Cause::kTtl;
  Blob by;  // the operator

  // Decided by an operator, and not to be held again.
  bool decided() const { return cause == Cause::kReleased || cause == Cause::kGuardOff; }

  friend bool operator==(const LeaseEnd& a, const LeaseEnd& b) {
    return a.cause == b.cause && a.by == b.by;
  }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_LEASE_END_H_
