// Takes secrets out of a configuration before it is shown: passwords in URIs, and the values of
// headers and the arguments of commands that checks send along. Files are named, not read. Pure.

#ifndef FAILBACK_DAEMON_ADMIN_REDACT_H_
#define FAILBACK_DAEMON_ADMIN_REDACT_H_

#include <string>

#include "google/protobuf/message.h"

namespace failback {

void RedactConfig(google::protobuf::Message* config);

// `etcd://user:***@host` for `etcd://user:password@host`.
std::string RedactUri(const std::string& text);

}  // namespace failback

#endif  // FAILBACK_DAEMON_ADMIN_REDACT_H_
