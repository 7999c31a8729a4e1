// A YAML file read strictly into a configuration message.
//
// The file's tree is walked together with the message's descriptor. Every mismatch is an error that
// names the file, the line, the key and what is allowed:
//
//   agent.yaml:12: retry.retry_tims: unknown key; allowed: retry_times, retry_period, backoff
//
// Scalars are taken as text, so `version: 1.10` in a map of strings is "1.10". A single scalar is
// also taken as a list of one. A key with nothing after it is an error, unless a list, a map or a
// message belongs there.
//
// Thread safety: the functions are pure.

#ifndef FAILBACK_DAEMON_CONFIG_FILE_H_
#define FAILBACK_DAEMON_CONFIG_FILE_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace failback {

// Where each key was set, by its path: "agent.yaml:12", "--listen", "FAILBACK_LISTEN".
using ConfigOrigins = std::map<std::string, std::string>;

// Reads the text of a file into `config`; keys that the text does not have stay as they are. `name`
// is what errors call the file. On an error `config` is half changed.
absl::Status ParseYaml(const std::string& name, const std::string& text,
                       google::protobuf::Message* config, ConfigOrigins* origins);

// Reads a file. An error names it.
absl::Status ParseYamlFile(const std::string& path, google::protobuf::Message* config,
                           ConfigOrigins* origins);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CONFIG_FILE_H_
