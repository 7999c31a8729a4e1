#include "daemon/config_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "daemon/config_schema.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// What a node is, to complete "is …, not …".
std::string Describe(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return absl::StrCat("'", node.Scalar(), "'");
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a map";
    default:
      return "nothing";
  }
}

std::string AllowedKeys(const Descriptor* descriptor) {
  std::vector<std::string> names;
  names.reserve(descriptor->field_count());
  for (int i = 0; i < descriptor->field_count(); ++i) names.push_back(descriptor->field(i)->name());
  return absl::StrJoin(names, ", ");
}

class YamlReader {
 public:
  YamlReader(const std::string& name, ConfigOrigins* origins) : name_(name), origins_(origins) {}

  absl::Status ReadMessage(const std::string& path, const YAML::Node& node, Message* message) {
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsMap()) return Expected(path, "a map of keys", node);
    const Descriptor* const descriptor = message->GetDescriptor();
    std::map<std::string, int> lines;
    for (const auto& entry : node) {
      absl::Status status = ReadKey(path, entry.first, &lines);
      if (!status.ok()) return status;
      const std::string& name = entry.first.Scalar();
      const std::string key_path = path.empty() ? name : absl::StrCat(path, ".", name);
      const FieldDescriptor* field = descriptor->FindFieldByName(name);
      if (field == nullptr) field = descriptor->FindFieldByCamelcaseName(name);
      if (field == nullptr) {
        return Error(key_path, entry.first,
                     absl::StrCat("unknown key; allowed: ", AllowedKeys(descriptor)));
      }
      (*origins_)[key_path] = Where(entry.first);
      // The key's line is the better place to name when the value is missing.
      status = ReadField(key_path, entry.second.IsNull() ? entry.first : entry.second, entry.second,
                         field, message);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::string Where(const YAML::Node& node) const {
    return absl::StrCat(name_, ":", node.Mark().line + 1);
  }

 private:
  absl::Status Error(const std::string& path, const YAML::Node& node,
                     const std::string& problem) const {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(node), ": ", path.empty() ? "" : absl::StrCat(path, ": "), problem));
  }

  absl::Status Expected(const std::string& path, const std::string& what,
                        const YAML::Node& node) const {
    return Error(path, node, absl::StrCat("expected ", what, ", found ", Describe(node)));
  }

  // Checks that a map's key is a scalar, and new.
  absl::Status ReadKey(const std::string& path, const YAML::Node& key,
                       std::map<std::string, int>* lines) const {
    if (!key.IsScalar()) return Expected(path, "a key", key);
    const auto [earlier, inserted] = lines->emplace(key.Scalar(), key.Mark().line + 1);
    if (inserted) return absl::OkStatus();
    return Error(path.empty() ? key.Scalar() : absl::StrCat(path, ".", key.Scalar()), key,
                 absl::StrCat("given twice; first in line ", earlier->second));
  }

  absl::Status ReadField(const std::string& path, const YAML::Node& place, const YAML::Node& value,
                         const FieldDescriptor* field, Message* parent) {
    if (field->is_map()) return ReadMap(path, value, field, parent);
    if (field->is_repeated()) return ReadList(path, value, field, parent);
    if (!IsScalar(field)) {
      return ReadMessage(path, value, parent->GetReflection()->MutableMessage(parent, field));
    }
    return ReadScalar(path, place, value, field, parent);
  }

  absl::Status ReadScalar(const std::string& path, const YAML::Node& place, const YAML::Node& value,
                          const FieldDescriptor* field, Message* parent) const {
    if (value.IsNull()) {
      return Error(path, place, absl::StrCat("has no value; expected ", ValueName(field)));
    }
    if (!value.IsScalar()) return Expected(path, ValueName(field), value);
    absl::Status status = SetFromText(parent, field, value.Scalar());
    return status.ok() ? status : Error(path, value, std::string(status.message()));
  }

  absl::Status ReadList(const std::string& path, const YAML::Node& value,
                        const FieldDescriptor* field, Message* parent) {
    parent->GetReflection()->ClearField(parent, field);
    if (value.IsNull()) return absl::OkStatus();
    if (IsScalar(field) && value.IsScalar()) return ReadScalar(path, value, value, field, parent);
    if (!value.IsSequence()) return Expected(path, "a list", value);
    for (size_t i = 0; i < value.size(); ++i) {
      const YAML::Node item = value[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      (*origins_)[item_path] = Where(item);
      absl::Status status;
      if (IsScalar(field)) {
        status = ReadScalar(item_path, item, item, field, parent);
      } else if (item.IsNull()) {
        status = Expected(item_path, "a map of keys", item);
      } else {
        status = ReadMessage(item_path, item, parent->GetReflection()->AddMessage(parent, field));
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A map of strings; a map field is a list of entry messages to reflection.
  absl::Status ReadMap(const std::string& path, const YAML::Node& value,
                       const FieldDescriptor* field, Message* parent) {
    if (value.IsNull()) return absl::OkStatus();
    if (!value.IsMap()) return Expected(path, "a map", value);
    const Descriptor* const entry_type = field->message_type();
    std::map<std::string, int> lines;
    for (const auto& item : value) {
      absl::Status status = ReadKey(path, item.first, &lines);
      if (!status.ok()) return status;
      const std::string item_path = absl::StrCat(path, "[\"", item.first.Scalar(), "\"]");
      if (item.second.IsNull()) {
        return Error(item_path, item.first, "has no value; write \"\" for an empty one");
      }
      (*origins_)[item_path] = Where(item.first);
      Message* const entry = parent->GetReflection()->AddMessage(parent, field);
      status = SetFromText(entry, entry_type->map_key(), item.first.Scalar());
      if (!status.ok()) return Error(item_path, item.first, std::string(status.message()));
      status = ReadScalar(item_path, item.first, item.second, entry_type->map_value(), entry);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::string& name_;
  ConfigOrigins* const origins_;
};

// Finds where a second document begins. YAML::LoadAll makes documents without end, until memory is
// gone, of some bytes that its parser leaves where they are.
class DocumentCounter : public YAML::EventHandler {
 public:
  bool more_than_one() const { return documents_ > 1; }
  int second_line() const { return second_line_.value_or(0); }

  void OnDocumentStart(const YAML::Mark&) override { ++documents_; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { See(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { See(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    See(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    See(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    See(mark);
  }
  void OnMapEnd() override {}

 private:
  void See(const YAML::Mark& mark) {
    if (more_than_one() && !second_line_.has_value()) second_line_ = mark.line;
  }

  int documents_ = 0;
  std::optional<int> second_line_;
};

// The line, from 0, of a second document.
std::optional<int> SecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentCounter counter;
  while (!counter.more_than_one() && parser.HandleNextDocument(counter)) {
  }
  if (!counter.more_than_one()) return std::nullopt;
  return counter.second_line();
}

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

absl::Status ParseYaml(const std::string& name, const std::string& raw, Message* config,
                       ConfigOrigins* origins) {
  const std::string text = JoinSurrogates(raw);
  try {
    if (const std::optional<int> line = SecondDocument(text)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", *line + 1, ": a second document; one is allowed"));
    }
    YamlReader reader(name, origins);
    return OnOneLine(reader.ReadMessage("", YAML::Load(text), config));
  } catch (const YAML::Exception& e) {
    return OnOneLine(absl::InvalidArgumentError(
        absl::StrCat(name, ":", e.mark.line + 1, ": not YAML: ", e.msg)));
  }
}

absl::Status ParseYamlNode(const std::string& name, const YAML::Node& node, Message* message) {
  ConfigOrigins origins;
  return OnOneLine(YamlReader(name, &origins).ReadMessage("", node, message));
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

absl::Status ParseYamlFile(const std::string& path, Message* config, ConfigOrigins* origins) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  return text.ok() ? ParseYaml(path, *text, config, origins) : text.status();
}

}  // namespace failback
