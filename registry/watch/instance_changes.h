// The changes of one service as its followers receive them: what a filter shows of them, their net
// effect, and the event they become.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_
#define FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "registry/model/blob.h"
#include "registry/model/event.h"
#include "registry/model/messages.h"
#include "registry/model/set_flags.h"
#include "registry/watch/commit_result.h"

namespace failback {

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

EventPtr MakeDelta(uint64_t epoch, uint64_t base, uint64_t revision, SetFlags flags,
                   const std::vector<InstanceChange>& changes);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_INSTANCE_CHANGES_H_
