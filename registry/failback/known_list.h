// The answer to a List from what an agent knows, while its registry does not answer.
//
// It is collected in a step of the machine, which shares the instances' bytes, and made into a page
// without a lock.
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_REGISTRY_FAILBACK_KNOWN_LIST_H_
#define FAILBACK_REGISTRY_FAILBACK_KNOWN_LIST_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/failback/last_known_sets.h"
#include "registry/model/blob.h"
#include "registry/model/messages.h"

namespace failback {

// What is known of what a List asks for, the later over the earlier.
struct KnownList {
  ListRequest request;
  // Why the registry was not asked: the answer where nothing is known.
  absl::Status away;

  // Sets that no subscriber follows now, oldest first.
  std::vector<LastKnownSets::Set> kept;
  // What subscriptions show. By canonical key, as what follows.
  std::map<std::string, Blob> followed;
  // Own intents; nullopt: the instance is to be gone.
  std::map<std::string, std::optional<InstanceRecord>> own;
  // There is a set, or an own intent, of what is asked for.
  bool any = false;
  // There is nothing else: what a local session, or this agent, has stated.
  bool complete = false;
  // Of a local session, which is never behind.
  bool stale = true;
  registry::v1::ListCoverage coverage = registry::v1::LIST_COVERAGE_UNSPECIFIED;
};

// A page of it.
absl::StatusOr<ListResponse> PageOf(const KnownList& known);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_KNOWN_LIST_H_
