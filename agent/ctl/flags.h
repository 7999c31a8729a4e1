// Flags of failbackctl that several commands have.

#ifndef FAILBACK_AGENT_CTL_FLAGS_H_
#define FAILBACK_AGENT_CTL_FLAGS_H_

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"

namespace failback {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

// `name` VALUE, any number of times; each takes one argument. All targets outlive the command.
void AddRepeated(CLI::App* command, const std::string& name, const std::string& type_name,
                 std::vector<std::string>* values, const std::string& help);

// `--meta KEY=VALUE`, any number of times.
void AddMetadata(CLI::App* command, KeyValues* metadata, const std::string& help);

// `name` DURATION, as 10s or 500ms; positive.
void AddDuration(CLI::App* command, const std::string& name, absl::Duration* value,
                 const std::string& help);

// `--namespace NAMESPACE`.
void AddNamespace(CLI::App* command, std::string* name);

// `--upstream NAME`, for an agent with several.
void AddUpstream(CLI::App* command, std::string* name);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_FLAGS_H_
