// Reads JSON as a row of events, so that a listener refuses what it does not want where it begins,
// and nothing is kept of it.
//
// The text is JSON as RFC 8259 has it, whole and in UTF-8: no comments, no trailing commas, no other
// quotes. Its nesting costs no stack; what a listener does with it is the listener's to bound.
//
// Example:
//
//   class Ports final : public JsonListener { … bool Number(JsonNumber number) override { … } };
//   Ports ports;
//   absl::Status status = ReadJson(R"({"port": 8080})", &ports);   // Begin, Name, Number, End
//
// Thread safety: pure.

#ifndef FAILBACK_GATEWAY_MARKUP_JSON_READER_H_
#define FAILBACK_GATEWAY_MARKUP_JSON_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"

namespace failback::markup {

// A value that holds no others.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

// Each method says whether to go on; if not, `error` says why.
class JsonListener {
 public:
  virtual ~JsonListener() = default;
  // Whole numbers come as int64_t if they are negative, else as uint64_t where they fit.
  virtual bool Scalar(JsonScalar value) = 0;
  virtual bool BeginObject() = 0;
  // Of a member, before its value.
  virtual bool Name(std::string name) = 0;
  virtual bool EndObject() = 0;
  virtual bool BeginList() = 0;
  virtual bool EndList() = 0;
  virtual const absl::Status& error() const = 0;
};

// INVALID_ARGUMENT (INVALID_FIELD `body`) says what is wrong and where, on one short line; or the
// listener's error.
absl::Status ReadJson(std::string_view text, JsonListener* listener);

}  // namespace failback::markup

#endif  // FAILBACK_GATEWAY_MARKUP_JSON_READER_H_
