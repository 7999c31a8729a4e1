// What a commit changed, as followers of services and namespaces receive it.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_WATCH_COMMIT_RESULT_H_
#define FAILBACK_REGISTRY_WATCH_COMMIT_RESULT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "registry/model/blob.h"

namespace failback {

struct InstanceChange {
  Blob before;  // null: was absent
  Blob after;   // null: is absent
};

// For those who follow one service.
struct ServiceChange {
  std::string service;  // namespace NUL service
  std::vector<InstanceChange> instances;
  int64_t size_after = 0;  // instances of the service
};

struct CommitResult {
  uint64_t revision = 0;
  std::vector<ServiceChange> services;
  std::vector<std::string> ended_sessions;
};

// A service as those who follow its namespace see it: `namespace NUL service` and how many
// instances it has. Null when it has none.
Blob MakeServiceEntry(std::string_view service_key, int64_t instances);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_COMMIT_RESULT_H_
