// What a front door knows of a service that it follows: plain values, shared by all who look.
//
// Thread safety: Renderings from any thread; the rest are values.

#ifndef FAILBACK_GATEWAY_CATALOG_VIEW_H_
#define FAILBACK_GATEWAY_CATALOG_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/model/instance_set.h"
#include "retry/mutex.h"

namespace failback::catalog {

// Bytes that were made of one view, each kind once: ten thousand clients that waited for a change
// are answered with the same ones.
//
// Thread safety: all methods from any thread.
class Renderings {
 public:
  using Bytes = std::shared_ptr<const std::string>;

  // `kind` names the door and what the bytes depend on. Of kinds that clients make up not many are
  // kept, and the others made again each time: they take no place from those of the doors.
  Bytes Get(const std::string& kind, absl::FunctionRef<std::string()> render, bool made_up = false);

 private:
  static constexpr size_t kMostMadeUp = 16;

  Mutex mu_;
  size_t made_up_ ABSL_GUARDED_BY(mu_) = 0;  // that are kept
  absl::flat_hash_map<std::string, Bytes> kept_ ABSL_GUARDED_BY(mu_);
};

enum class Knowledge {
  kPending,      // nothing yet, and soon something or kUnavailable
  kUnavailable,  // nothing, as the registry has not answered for `first_wait`
  kDenied,       // the registry does not let this daemon read it
  kTooMany,      // not followed: there are `max_sets` others for which clients wait
  kKnown,
};

// Why there is no answer from what is known: UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED; OK
// when there is one, or, unless this is the `last` look, may be soon.
absl::Status WhyUnknown(Knowledge knowledge, bool last);

// What is known of a service.
struct ServiceView {
  Knowledge knowledge = Knowledge::kPending;
  // Of this view, whatever it says: another one than seen means that something has changed. Grows,
  // also where the set is followed again after it was not.
  uint64_t version = 0;
  // Of the instances (gateway/catalog/index.h); 0 unless known.
  uint64_t index = 0;
  // Since when the set may be out of date; InfiniteFuture: it is not.
  absl::Time stale_since = absl::InfiniteFuture();
  // Sessions of some of its instances are past their TTL, and their end is held back.
  bool held = false;
  // Null unless known.
  std::shared_ptr<const InstanceSet> instances;
  // What made `instances` out of those at `base_revision` of the same epoch. Null: all may differ.
  std::shared_ptr<const InstanceSet::Changes> changes;
  uint64_t base_revision = 0;
  // Of the instances. Null unless known.
  std::shared_ptr<Renderings> renderings;

  bool stale() const { return stale_since != absl::InfiniteFuture(); }
};

}  // namespace failback::catalog

#endif  // FAILBACK_GATEWAY_CATALOG_VIEW_H_
