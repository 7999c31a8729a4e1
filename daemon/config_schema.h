// What a configuration message says about its keys: names, help, defaults and bounds.
//
// A configuration is one protobuf message whose fields carry the option `(failback.config.v1.key)`.
// This file reads that by reflection, so that the file, the flags, the environment and `--help` of
// a daemon are one list of keys that cannot drift apart.
//
// Thread safety: all functions are pure, but for the message that they change.

#ifndef FAILBACK_DAEMON_CONFIG_SCHEMA_H_
#define FAILBACK_DAEMON_CONFIG_SCHEMA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "failback/config/v1/config.pb.h"
#include "google/protobuf/message.h"

namespace failback {

// A key that one text sets (or several, when it is a list), and so can be a flag.
struct ConfigKey {
  // As in errors, "retry.backoff.initial".
  std::string path;
  // "--retry-backoff-initial". A name that begins with its parent's is not doubled:
  // `retry.retry_times` is "--retry-times".
  std::string flag;
  // "FAILBACK_RETRY_BACKOFF_INITIAL".
  std::string env;
  // From the configuration message down to the key.
  std::vector<const google::protobuf::FieldDescriptor*> fields;

  const google::protobuf::FieldDescriptor* field() const { return fields.back(); }
  const config::v1::Key& options() const;
};

// All scalar keys and lists of scalars below `descriptor`, in the order of the file. What is inside
// a list of messages is not among them.
std::vector<ConfigKey> ConfigKeys(const google::protobuf::Descriptor* descriptor);

// Whether a field holds one text: a number, a string, a bool, an enum or a Duration; repeated or
// not.
bool IsScalar(const google::protobuf::FieldDescriptor* field);

// "DURATION", "NUMBER", "true|false", "debug|info|warning|error", for `--help`.
std::string ValueName(const google::protobuf::FieldDescriptor* field);

// Sets `field` of `parent` (adds to it, if repeated) from the text of a file, a flag or a variable.
// INVALID_ARGUMENT says what was found and what is allowed, as "'abc' is not a duration; …"; the
// caller adds where.
absl::Status SetFromText(google::protobuf::Message* parent,
                         const google::protobuf::FieldDescriptor* field, const std::string& text);

// The message that holds the key's field.
google::protobuf::Message* MutableParent(google::protobuf::Message* root, const ConfigKey& key);

}  // namespace failback

#endif  // FAILBACK_DAEMON_CONFIG_SCHEMA_H_
