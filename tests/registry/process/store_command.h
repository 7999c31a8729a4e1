// `failback-registry backup`, `restore` and `check`, and what they leave.

#ifndef FAILBACK_TESTS_REGISTRY_PROCESS_STORE_COMMAND_H_
#define FAILBACK_TESTS_REGISTRY_PROCESS_STORE_COMMAND_H_

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {

inline RunResult RegistryCommand(std::vector<std::string> args) {
  args.insert(args.begin(), RegistryBinary());
  return RunProcess(args);
}

// The value that a summary has for `name`.
inline std::string Field(const std::string& summary, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(summary, '\n')) {
    if (absl::StartsWith(line, absl::StrCat(name, " "))) {
      return std::string(line.substr(line.find_last_of(' ') + 1));
    }
  }
  return "";
}

// The names in `folder` that contain `text`.
inline std::vector<std::string> FilesLike(const std::string& folder, const std::string& text) {
  const RunResult list = RunProcess({"/bin/ls", "-A", folder});
  std::vector<std::string> files;
  for (const absl::string_view name : absl::StrSplit(list.out, '\n', absl::SkipEmpty())) {
    if (absl::StrContains(name, text)) files.emplace_back(name);
  }
  return files;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_PROCESS_STORE_COMMAND_H_
