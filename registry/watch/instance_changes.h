// The changes of one service as its followers receive them: what a filter shows of them, their net
// effect, and the message they become. Instances are stored bytes.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_
#define FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "registry/model/blob.h"
#include "registry/registry.h"
#include "registry/watch/commit_result.h"
#include "registry/watch/set_flags.h"

namespace failback {

ServiceInstance ParseInstance(const Blob& bytes);

// The key of the instance in `bytes`.
void SetKey(const Blob& bytes, InstanceKey* key);

// About what a change takes in a delta.
size_t DeltaBytes(const InstanceChange& change);

// Whether a delta of these changes has more than `bytes`, about.
bool IsLong(const std::vector<InstanceChange>& changes, size_t bytes);

// Those that `selector` means.
std::vector<Blob> Matching(const Selector& selector, const std::vector<Blob>& instances);

// The net effect of changes in order: per key the first state before and the last after. Keys that
// are as they were are left out.
std::vector<InstanceChange> NetChanges(const std::vector<InstanceChange>& changes);

// The same, as a follower with this filter sees it.
std::vector<InstanceChange> Conflate(const std::vector<InstanceChange>& changes,
                                     const Selector& selector);

std::shared_ptr<const SubscribeResponse> MakeDelta(uint64_t epoch, uint64_t base, uint64_t revision,
                                                   SetFlags flags,
                                                   const std::vector<InstanceChange>& changes);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_
