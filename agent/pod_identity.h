// What a pod knows of itself, through the downward API of Kubernetes.
//
// Thread safety: all functions are pure, but for reading the file.

#ifndef FAILBACK_AGENT_POD_IDENTITY_H_
#define FAILBACK_AGENT_POD_IDENTITY_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "failback/agent/v1/config.pb.h"

namespace failback {

using PodLabels = std::map<std::string, std::string>;

// The labels as the downward API writes them: one `name="value"` a line, the value quoted as in Go.
// INVALID_ARGUMENT names the line.
absl::StatusOr<PodLabels> ParsePodLabels(const std::string& text);

// Reads `pod.labels_file`; none when that is not set.
absl::StatusOr<PodLabels> ReadPodLabels(const agent::v1::Pod& pod, const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_AGENT_POD_IDENTITY_H_
