// A YAML file read strictly into a configuration message.
//
// The file's tree is walked together with the message's descriptor. Every mismatch is an error that
// names the file, the line, the key and what is allowed:
//
//   agent.yaml:12: retry.retry_tims: unknown key; allowed: retry_times, retry_period, backoff
//
// Scalars are taken as text, so `version: 1.10` in a map of strings is "1.10". A single scalar is
// also taken as a list of one. A name may also be written as protobuf's JSON has it (`instanceId`).
// A key with nothing after it is an error, unless a list, a map or a
// message belongs there.
//
// Thread safety: the functions are pure.

#ifndef FAILBACK_DAEMON_CONFIG_FILE_H_
#define FAILBACK_DAEMON_CONFIG_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/yaml_document.h"
#include "google/protobuf/message.h"

namespace failback {

// Reads the text of a file into `config`; keys that the text does not have stay as they are. `name`
// is what errors call the file. On an error `config` is half changed.
absl::Status ParseYaml(const std::string& name, const std::string& text,
                       google::protobuf::Message* config);

// Reads a file. An error names it.
absl::Status ParseYamlFile(const std::string& path, google::protobuf::Message* config);

// Where `path`, as `services[2].port`, was set in a text that ParseYaml has taken, as
// "agent.yaml:12". What is missing has no place of its own: that of the nearest thing around it, or
// empty if there is none. The text is read again: places are asked for in errors only, and to
// remember all of them takes many times the memory of the text.
std::string PlaceInYaml(const std::string& name, const std::string& text, const std::string& path);

// YAML has no pairs of escapes for one character, which JSON writes for all beyond the first 65,536
// (`\ud83d\ude00`): a text that is a list or a map in brackets, as JSON is, with such pairs as the
// characters that they are.
std::string JoinSurrogates(const std::string& text);

// Reads one node of a document that the caller has parsed.
absl::Status ParseYamlNode(const std::string& name, const YamlNode& node,
                           google::protobuf::Message* message);

// All of a file. INVALID_ARGUMENT names it.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CONFIG_FILE_H_
