// Messages as protobuf JSON, error details included.
//
// The details of a status travel under their public names (google.rpc.ErrorInfo), while the
// messages of this project are called failback.rpc.v1.ErrorInfo
// (proto/failback/rpc/v1/status.proto), so protobuf's own conversion fails on each status that says
// why. This one knows them by both names.
//
// A detail of a type that is not known here, or whose bytes are no message of its type, does not
// take the rest along: it is written with its type and its bytes.
//
//   {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_DENIED", …}
//   {"@type": "type.googleapis.com/acme.Unknown", "value": "CAE="}
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_HTTP_MESSAGE_JSON_H_
#define FAILBACK_GATEWAY_HTTP_MESSAGE_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace failback {

enum class JsonStyle { kLine, kPretty };

// All fields that have a value or a default. INTERNAL names the message and says what is wrong,
// when it has no JSON form: a time that no calendar has.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message,
                                        JsonStyle style = JsonStyle::kLine);

// Reads a message in protobuf JSON. A boolean is `true` or `false`: protobuf takes "yes" and "t" too,
// but a request that changes something says what it means. INVALID_ARGUMENT names what is wrong.
absl::Status ParseJson(std::string_view json, google::protobuf::Message* message);

}  // namespace failback

#endif  // FAILBACK_GATEWAY_HTTP_MESSAGE_JSON_H_
