#include "agent/pod_identity.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace failback {

absl::StatusOr<PodLabels> ParsePodLabels(const std::string& text) {
  PodLabels labels;
  int number = 0;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    ++number;
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    std::string value;
    if (equals == std::string::npos || equals == 0 || line.size() < equals + 3 ||
        line[equals + 1] != '"' || line.back() != '"' ||
        !absl::CUnescape(line.substr(equals + 2, line.size() - equals - 3), &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": '", line, "' is not name=\"value\""));
    }
    labels[line.substr(0, equals)] = value;
  }
  return labels;
}

absl::StatusOr<PodLabels> ReadPodLabels(const agent::v1::Pod& pod, const ConfigLoader& loader) {
  if (pod.labels_file().empty()) return PodLabels();
  std::ifstream file(pod.labels_file());
  std::ostringstream text;
  if (!file.is_open()) {
    return loader.ErrorAt("pod.labels_file", absl::StrCat(pod.labels_file(), " cannot be read: ",
                                                          std::generic_category().message(errno)));
  }
  // An empty file leaves the stream in error, and there are no labels then.
  text << file.rdbuf();
  absl::StatusOr<PodLabels> labels = ParsePodLabels(text.str());
  if (labels.ok()) return labels;
  return loader.ErrorAt("pod.labels_file", absl::StrCat(pod.labels_file(), ": ",
                                                        std::string(labels.status().message())));
}

}  // namespace failback
