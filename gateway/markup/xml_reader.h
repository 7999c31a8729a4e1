// Reads XML into the values that JSON would have, with expat.
//
// An element with text is a text, one with elements in it an object, and elements of one name in a
// row a list. Attributes are fields whose names begin with `@`; the text beside them is the field
// `$`. This is how Eureka writes the same as JSON:
//
//   <port enabled="true">8080</port>                  "port": {"$": "8080", "@enabled": "true"}
//
// A document type is refused, so no entity can be declared and none be expanded; so are more than
// `kMaxXmlElements` elements and attributes, and elements deeper than `kMaxXmlDepth`. What is read
// is bounded before it is kept; how long the text may be is up to the caller. Comments, processing
// instructions and space between elements are left out.
//
// Example:
//
//   absl::StatusOr<google::protobuf::Value> value = ParseXml("<instance><app>A</app></instance>");
//   if (!value.ok()) return value.status();           // {"instance": {"app": "A"}}
//
// Thread safety: the function is pure.

#ifndef FAILBACK_GATEWAY_MARKUP_XML_READER_H_
#define FAILBACK_GATEWAY_MARKUP_XML_READER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "google/protobuf/struct.pb.h"

namespace failback::markup {

inline constexpr int kMaxXmlElements = 4096;
inline constexpr int kMaxXmlDepth = 16;

// INVALID_ARGUMENT (INVALID_FIELD), with the line, for what is no XML or is refused.
absl::StatusOr<google::protobuf::Value> ParseXml(std::string_view text);

}  // namespace failback::markup

#endif  // FAILBACK_GATEWAY_MARKUP_XML_READER_H_
