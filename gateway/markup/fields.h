// Reads the fields of an object that a client has sent, strictly: a field of another type than
// expected, or one that was not asked for, is an error that names it and what is allowed.
//
// Clients of one API write its names in many ways ("ServiceID", "serviceid", "service_id"): case
// and underscores make no difference. A field that was not asked for does no harm as long as it
// says nothing: null, false, zero, an empty text, list or object.
//
// Example:
//
//   absl::StatusOr<google::protobuf::Value> value = ParseJson(body);
//   if (!value.ok()) return value.status();
//   absl::StatusOr<Fields> fields = Fields::Of("", *value);
//   if (!fields.ok()) return fields.status();
//   std::string name = fields->Text("Name");
//   int64_t port = fields->Integer("Port", 0, 65535);
//   absl::Status status = fields->Finish();     // Tags: is not known here; allowed: Name, Port
//
// Thread safety: thread-compatible. Fields refers to the value that it reads.

#ifndef FAILBACK_GATEWAY_MARKUP_FIELDS_H_
#define FAILBACK_GATEWAY_MARKUP_FIELDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/struct.pb.h"

namespace failback::markup {

// INVALID_ARGUMENT (INVALID_FIELD) for what is no JSON, is nested too deeply, or is no UTF-8.
absl::StatusOr<google::protobuf::Value> ParseJson(std::string_view text);

class Fields {
 public:
  // `path` goes before the names in errors: "Checks[0]", or empty. INVALID_ARGUMENT when `value` is
  // no object, or two of its names are the same field.
  static absl::StatusOr<Fields> Of(std::string path, const google::protobuf::Value& value);

  // Each: what an absent field means when it is absent, null or an empty text. After an error they
  // go on.
  std::string Text(const std::string& name);
  // Numbers may come as text, which some clients write.
  std::optional<int64_t> Integer(const std::string& name, int64_t least, int64_t most);
  bool Flag(const std::string& name);
  std::vector<std::string> Texts(const std::string& name);
  // Numbers and booleans as values are taken as their texts.
  std::map<std::string, std::string> TextMap(const std::string& name);
  // Null: absent.
  const google::protobuf::Value* Any(const std::string& name);

  // Whatever it says, it does not matter.
  void Ignore(const std::string& name) { Any(name); }

  // As "Checks[0].TTL".
  std::string PathOf(const std::string& name) const;
  // Notes that a field has a bad value; the first is what Finish returns.
  void Fail(const std::string& name, const std::string& description);

  // The first error; or that a field is there which was not asked for.
  absl::Status Finish();

 private:
  struct Field {
    const std::string* name;
    const google::protobuf::Value* value;
    bool asked = false;
  };

  explicit Fields(std::string path) : path_(std::move(path)) {}

  std::string path_;
  absl::flat_hash_map<std::string, Field> fields_;  // by name without case and underscores
  std::vector<std::string> asked_;
  absl::Status error_;
};

// A text, a number or a boolean as text; nullopt: it is none of these.
std::optional<std::string> ScalarText(const google::protobuf::Value& value);

}  // namespace failback::markup

#endif  // FAILBACK_GATEWAY_MARKUP_FIELDS_H_
