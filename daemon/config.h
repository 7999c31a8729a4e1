// A daemon's configuration from its command line, the environment and a YAML file.
//
// Every scalar key of the configuration message is a flag and an environment variable too; what
// is set in several places is taken from the first of: flag, `FAILBACK_*` variable, file, default.
// A list is taken whole from one place. Flags that every daemon has: --config FILE,
// --validate-config, --version, --help.
//
// Example: the beginning of a daemon.
//
//   ConfigLoader loader({"failback-registry", "Keeps …", "  failback-registry --listen …"},
//                       RegistryConfig::descriptor());
//   if (std::optional<int> exit_status = loader.ParseCommandLine(argc, argv)) return *exit_status;
//   RegistryConfig config;
//   absl::Status status = loader.Load(&config);
//   if (status.ok() && config.session().…) status = loader.ErrorAt("session.min_ttl", "…");
//   if (!status.ok()) return loader.Fail(status);
//
// Thread safety: none; a loader belongs to main().

#ifndef FAILBACK_DAEMON_CONFIG_H_
#define FAILBACK_DAEMON_CONFIG_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/config_schema.h"
#include "google/protobuf/message.h"

namespace failback {

// The exit status for bad input: a bad flag, file or environment, or something that is not there.
inline constexpr int kExitBadInput = 2;

class ConfigLoader {
 public:
  struct Program {
    // As in messages, "failback-agent".
    std::string name;
    // One or two sentences for `--help`.
    std::string summary;
    // Printed at the end of `--help`.
    std::string examples;
  };

  ConfigLoader(Program program, const google::protobuf::Descriptor* descriptor);

  // Reads flags. Returns the exit status when the program has nothing more to do: after --help,
  // --version, or a flag that is wrong (one line on stderr, and kExitBadInput).
  std::optional<int> ParseCommandLine(int argc, const char* const* argv);

  // Reads defaults, file, environment and flags into `config`, an empty message. INVALID_ARGUMENT
  // names the place, the key, what was found and what is allowed. May be called again when the file
  // has changed.
  absl::Status Load(google::protobuf::Message* config);

  // An error about a key found after loading, with the place where it was set; as
  // "agent.yaml:7: services[2].port: 0 is not in 1..65535".
  absl::Status ErrorAt(const std::string& path, const std::string& problem) const;

  // Prints the error as one line on stderr, and returns kExitBadInput.
  int Fail(const absl::Status& status) const;

  // --validate-config was given: check everything, start nothing.
  bool validate_only() const { return validate_only_; }
  const std::string& config_file() const { return config_file_; }

 private:
  // The flag or variable that `path` is taken from; empty if none is given.
  std::string NameOutsideTheFile(const std::string& path) const;

  const Program program_;
  const std::vector<ConfigKey> keys_;

  std::string config_file_;
  bool validate_only_ = false;
  // By ConfigKey::path.
  std::map<std::string, std::vector<std::string>> flags_;
  size_t file_hash_ = 0;  // of the file's text when it was loaded
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_CONFIG_H_
