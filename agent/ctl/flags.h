// Flags of failbackctl that several commands have.

#ifndef FAILBACK_AGENT_CTL_FLAGS_H_
#define FAILBACK_AGENT_CTL_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"

namespace failback {

using KeyValues = std::map<std::string, std::string>;

// `name` VALUE, any number of times; each takes one argument. All targets outlive the command.
void AddRepeated(CLI::App* command, const std::string& name, const std::string& type_name,
                 std::vector<std::string>* values, const std::string& help);

// `--meta KEY=VALUE`, any number of times, each key once.
void AddMetadata(CLI::App* command, KeyValues* metadata, const std::string& help);

// `name` NUMBER. `allowed` completes "is not …" for what the type cannot hold; the daemon decides
// which of the others it takes, and says so in its words.
void AddNumber(CLI::App* command, const std::string& name, const std::string& type_name,
               const std::string& allowed, std::optional<uint32_t>* value, const std::string& help);

// `name` DURATION, as 10s or 500ms; positive.
void AddDuration(CLI::App* command, const std::string& name, absl::Duration* value,
                 const std::string& help);

// `--namespace NAMESPACE`.
void AddNamespace(CLI::App* command, std::string* name);

// `--upstream NAME`, for an agent with several.
void AddUpstream(CLI::App* command, std::string* name);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_FLAGS_H_
