#include "daemon/config_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "daemon/config_schema.h"
#include "daemon/yaml_document.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// What a node is, to complete "is …, not …".
std::string Describe(const YamlNode& node) {
  if (node.is_list()) return "a list";
  if (node.is_map()) return "a map";
  return node.is_text() ? absl::StrCat("'", node.text(), "'") : "nothing";
}

std::string AllowedKeys(const Descriptor* descriptor) {
  std::vector<std::string> names;
  names.reserve(descriptor->field_count());
  for (int i = 0; i < descriptor->field_count(); ++i) names.push_back(descriptor->field(i)->name());
  return absl::StrJoin(names, ", ");
}

class YamlReader {
 public:
  explicit YamlReader(const std::string& name) : name_(name) {}

  absl::Status ReadMessage(const std::string& path, const YamlNode& node, Message* message) {
    if (node.is_nothing()) return absl::OkStatus();
    if (!node.is_map()) return Expected(path, "a map of keys", node);
    const Descriptor* const descriptor = message->GetDescriptor();
    std::map<std::string, int> lines;
    for (size_t i = 0; i < node.size(); ++i) {
      const YamlNode key = node.key(i);
      const YamlNode value = node.value(i);
      absl::Status status = ReadKey(path, key, &lines);
      if (!status.ok()) return status;
      const std::string name = key.text();
      const std::string key_path = path.empty() ? name : absl::StrCat(path, ".", name);
      const FieldDescriptor* field = descriptor->FindFieldByName(name);
      if (field == nullptr) field = descriptor->FindFieldByCamelcaseName(name);
      if (field == nullptr) {
        return Error(key_path, key,
                     absl::StrCat("unknown key; allowed: ", AllowedKeys(descriptor)));
      }
      // The key's line is the better place to name when the value is missing.
      status = ReadField(key_path, value.is_nothing() ? key : value, value, field, message);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Error(const std::string& path, const YamlNode& node,
                     const std::string& problem) const {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, ":", node.line(), ": ", path.empty() ? "" : absl::StrCat(path, ": "), problem));
  }

  absl::Status Expected(const std::string& path, const std::string& what,
                        const YamlNode& node) const {
    return Error(path, node, absl::StrCat("expected ", what, ", found ", Describe(node)));
  }

  // Checks that a map's key is a scalar, and new.
  absl::Status ReadKey(const std::string& path, const YamlNode& key,
                       std::map<std::string, int>* lines) const {
    if (!key.is_text()) return Expected(path, "a key", key);
    const std::string name = key.text();
    const auto [earlier, inserted] = lines->emplace(name, key.line());
    if (inserted) return absl::OkStatus();
    return Error(path.empty() ? name : absl::StrCat(path, ".", name), key,
                 absl::StrCat("given twice; first in line ", earlier->second));
  }

  absl::Status ReadField(const std::string& path, const YamlNode& place, const YamlNode& value,
                         const FieldDescriptor* field, Message* parent) {
    if (field->is_map()) return ReadMap(path, value, field, parent);
    if (field->is_repeated()) return ReadList(path, value, field, parent);
    if (!IsScalar(field)) {
      return ReadMessage(path, value, parent->GetReflection()->MutableMessage(parent, field));
    }
    return ReadScalar(path, place, value, field, parent);
  }

  absl::Status ReadScalar(const std::string& path, const YamlNode& place, const YamlNode& value,
                          const FieldDescriptor* field, Message* parent) const {
    if (value.is_nothing()) {
      return Error(path, place, absl::StrCat("has no value; expected ", ValueName(field)));
    }
    if (!value.is_text()) return Expected(path, ValueName(field), value);
    absl::Status status = SetFromText(parent, field, value.text());
    return status.ok() ? status : Error(path, value, std::string(status.message()));
  }

  absl::Status ReadList(const std::string& path, const YamlNode& value,
                        const FieldDescriptor* field, Message* parent) {
    parent->GetReflection()->ClearField(parent, field);
    if (value.is_nothing()) return absl::OkStatus();
    if (IsScalar(field) && value.is_text()) return ReadScalar(path, value, value, field, parent);
    if (!value.is_list()) return Expected(path, "a list", value);
    for (size_t i = 0; i < value.size(); ++i) {
      const YamlNode item = value.item(i);
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      absl::Status status;
      if (IsScalar(field)) {
        status = ReadScalar(item_path, item, item, field, parent);
      } else if (item.is_nothing()) {
        status = Expected(item_path, "a map of keys", item);
      } else {
        status = ReadMessage(item_path, item, parent->GetReflection()->AddMessage(parent, field));
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A map of strings; a map field is a list of entry messages to reflection.
  absl::Status ReadMap(const std::string& path, const YamlNode& value, const FieldDescriptor* field,
                       Message* parent) {
    if (value.is_nothing()) return absl::OkStatus();
    if (!value.is_map()) return Expected(path, "a map", value);
    const Descriptor* const entry_type = field->message_type();
    std::map<std::string, int> lines;
    for (size_t i = 0; i < value.size(); ++i) {
      const YamlNode key = value.key(i);
      absl::Status status = ReadKey(path, key, &lines);
      if (!status.ok()) return status;
      const std::string item_path = absl::StrCat(path, "[\"", key.text(), "\"]");
      if (value.value(i).is_nothing()) {
        return Error(item_path, key, "has no value; write \"\" for an empty one");
      }
      Message* const entry = parent->GetReflection()->AddMessage(parent, field);
      status = SetFromText(entry, entry_type->map_key(), key.text());
      if (!status.ok()) return Error(item_path, key, std::string(status.message()));
      status = ReadScalar(item_path, key, value.value(i), entry_type->map_value(), entry);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::string& name_;
};

// The bytes of `\ud83d`.
constexpr size_t kUnit = 6;

// The number in such an escape at `at`.
std::optional<uint32_t> UnitAt(const std::string& text, size_t at) {
  if (at + kUnit > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  uint32_t unit = 0;
  for (size_t i = at + 2; i < at + kUnit; ++i) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(text[i]))) return std::nullopt;
    const char digit = absl::ascii_tolower(static_cast<unsigned char>(text[i]));
    unit = unit << 4 | static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return unit;
}

// An error is one line, also where it repeats what the file says.
absl::Status OnOneLine(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{"\n", "\\n"}, {"\r", "\\r"}}));
}

}  // namespace

std::string JoinSurrogates(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || (text[begin] != '[' && text[begin] != '{')) return text;
  std::string joined;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (!quoted || text[i] != '\\') {
      joined += text[i];
      continue;
    }
    const std::optional<uint32_t> high = UnitAt(text, i);
    const std::optional<uint32_t> low = high.has_value() ? UnitAt(text, i + kUnit) : std::nullopt;
    if (low.has_value() && *high >= 0xd800 && *high < 0xdc00 && *low >= 0xdc00 && *low < 0xe000) {
      const uint32_t code = 0x10000 + ((*high - 0xd800) << 10 | (*low - 0xdc00));
      for (const int shift : {18, 12, 6, 0}) {
        const uint32_t bits = code >> shift & (shift == 18 ? 0x07 : 0x3f);
        joined += static_cast<char>((shift == 18 ? 0xf0 : 0x80) | bits);
      }
      i += 2 * kUnit - 1;
    } else {
      joined += text[i];  // and what it escapes, which may be a quote
      if (++i < text.size()) joined += text[i];
    }
  }
  return joined;
}

absl::Status ParseYaml(const std::string& name, const std::string& text, Message* config) {
  const absl::StatusOr<YamlDocument> document = YamlDocument::Parse(name, JoinSurrogates(text));
  if (!document.ok()) return document.status();
  return ParseYamlNode(name, document->root(), config);
}

absl::Status ParseYamlNode(const std::string& name, const YamlNode& node, Message* message) {
  return OnOneLine(YamlReader(name).ReadMessage("", node, message));
}

std::string PlaceInYaml(const std::string& name, const std::string& text, const std::string& path) {
  const absl::StatusOr<YamlDocument> document = YamlDocument::Parse(name, JoinSurrogates(text));
  if (!document.ok()) return "";
  const YamlNode place = document->Nearest(path);
  return place == document->root() ? "" : absl::StrCat(name, ":", place.line());
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             std::fclose);
  std::string text;
  if (file != nullptr) {
    char buffer[4096];
    size_t size;
    while ((size = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
      text.append(buffer, size);
    }
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be read: ", std::generic_category().message(errno)));
  }
  return text;
}

absl::Status ParseYamlFile(const std::string& path, Message* config) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  return text.ok() ? ParseYaml(path, *text, config) : text.status();
}

}  // namespace failback
