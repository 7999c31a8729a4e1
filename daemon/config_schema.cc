#include "daemon/config_schema.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool IsDuration(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type()->full_name() == "google.protobuf.Duration";
}

// LOG_LEVEL_ for LogLevel: the prefix of the names of its values.
std::string EnumPrefix(const EnumDescriptor* type) {
  std::string prefix;
  for (const char c : type->name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  return prefix + "_";
}

// Names as people write them, without the zero value, which means unset.
std::vector<std::string> EnumNames(const EnumDescriptor* type) {
  const std::string prefix = EnumPrefix(type);
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() == 0) continue;
    names.push_back(absl::AsciiStrToLower(type->value(i)->name().substr(prefix.size())));
  }
  return names;
}

absl::Status Invalid(const std::string& text, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("'", absl::Utf8SafeCEscape(text), "' ", problem));
}

absl::Status OutOfRange(const std::string& text, const config::v1::Key& key) {
  if (key.max().empty()) return Invalid(text, absl::StrCat("is less than ", key.min()));
  if (key.min().empty()) return Invalid(text, absl::StrCat("is more than ", key.max()));
  return Invalid(text, absl::StrCat("is not in ", key.min(), "..", key.max()));
}

// Parses with `parse`, and checks the bounds in the key's option. `kind` completes "is not …".
template <typename T, typename Parse>
absl::Status ParseBounded(const std::string& text, const FieldDescriptor* field, const char* kind,
                          Parse parse, T* value) {
  if (!parse(text, value)) return Invalid(text, absl::StrCat("is not ", kind));
  const config::v1::Key& key = field->options().GetExtension(config::v1::key);
  T bound;
  if (!key.min().empty() && parse(key.min(), &bound) && *value < bound) {
    return OutOfRange(text, key);
  }
  if (!key.max().empty() && parse(key.max(), &bound) && *value > bound) {
    return OutOfRange(text, key);
  }
  return absl::OkStatus();
}

bool ParseDuration(const std::string& text, absl::Duration* value) {
  return absl::ParseDuration(text, value) && *value >= absl::ZeroDuration() &&
         *value < absl::InfiniteDuration();
}

// Too many digits for its type, which is out of range like any other number.
bool IsHuge(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

template <typename T>
bool ParseInteger(const std::string& text, T* value) {
  return absl::SimpleAtoi(text, value);
}

bool ParseDouble(const std::string& text, double* value) {
  return absl::SimpleAtod(text, value) && std::isfinite(*value);
}

// Sets a singular field or adds to a repeated one, through the pair of Reflection's methods.
template <typename T>
void Store(Message* parent, const FieldDescriptor* field, T value,
           void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
           void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
  (parent->GetReflection()->*(field->is_repeated() ? add : set))(parent, field, value);
}

template <typename T>
absl::Status StoreInteger(Message* parent, const FieldDescriptor* field, const std::string& text,
                          void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
                          void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
  T value;
  if (IsHuge(text) && !ParseInteger(text, &value)) {
    config::v1::Key key = field->options().GetExtension(config::v1::key);
    if (key.max().empty()) key.set_max(absl::StrCat(std::numeric_limits<T>::max()));
    return OutOfRange(text, key);
  }
  const char* const kind =
      std::numeric_limits<T>::is_signed ? "a whole number" : "a whole number from 0 up";
  absl::Status status = ParseBounded(text, field, kind, ParseInteger<T>, &value);
  if (status.ok()) Store(parent, field, value, set, add);
  return status;
}

void AddKeys(const Descriptor* descriptor, const ConfigKey& parent, std::vector<ConfigKey>* keys) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    ConfigKey key = parent;
    key.fields.push_back(field);
    if (parent.fields.empty()) {
      key.path = field->name();
      key.flag = absl::StrCat("--", absl::StrReplaceAll(field->name(), {{"_", "-"}}));
    } else {
      const std::string prefix = parent.field()->name() + "_";
      const std::string& name = field->name();
      const bool doubled = absl::StartsWith(name, prefix);
      absl::StrAppend(&key.path, ".", name);
      absl::StrAppend(
          &key.flag, "-",
          absl::StrReplaceAll(doubled ? name.substr(prefix.size()) : name, {{"_", "-"}}));
    }
    if (const std::string& flag = key.options().flag(); !flag.empty()) {
      key.flag = absl::StrCat("--", flag);
    }
    key.env = absl::StrCat(
        "FAILBACK_", absl::AsciiStrToUpper(absl::StrReplaceAll(key.flag.substr(2), {{"-", "_"}})));
    if (IsScalar(field)) {
      keys->push_back(key);
    } else if (!field->is_repeated()) {
      AddKeys(field->message_type(), key, keys);
    }
  }
}

absl::Status StoreEnum(Message* parent, const FieldDescriptor* field, const std::string& text) {
  const EnumDescriptor* const type = field->enum_type();
  const EnumValueDescriptor* value =
      type->FindValueByName(EnumPrefix(type) + absl::AsciiStrToUpper(text));
  if (value != nullptr && value->number() == 0) value = nullptr;
  // As protobuf's JSON has it: HEALTH_STATUS_HEALTHY.
  if (value == nullptr) value = type->FindValueByName(text);
  if (value == nullptr) {
    return Invalid(text, absl::StrCat("is not one of ", absl::StrJoin(EnumNames(type), ", ")));
  }
  Store(parent, field, value, &Reflection::SetEnum, &Reflection::AddEnum);
  return absl::OkStatus();
}

}  // namespace

const config::v1::Key& ConfigKey::options() const {
  return field()->options().GetExtension(config::v1::key);
}

std::vector<ConfigKey> ConfigKeys(const Descriptor* descriptor) {
  std::vector<ConfigKey> keys;
  AddKeys(descriptor, ConfigKey(), &keys);
  return keys;
}

bool IsScalar(const FieldDescriptor* field) {
  return field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || IsDuration(field);
}

std::string ValueName(const FieldDescriptor* field) {
  const config::v1::Key& key = field->options().GetExtension(config::v1::key);
  if (!key.value_name().empty()) return key.value_name();
  if (IsDuration(field)) return "DURATION";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true|false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrJoin(EnumNames(field->enum_type()), "|");
    case FieldDescriptor::CPPTYPE_STRING:
      return "TEXT";
    default:
      return "NUMBER";
  }
}

absl::Status SetFromText(Message* parent, const FieldDescriptor* field, const std::string& text) {
  const Reflection* const reflection = parent->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (!IsUtf8(text)) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", absl::CHexEscape(text), "' is not UTF-8"));
      }
      Store(parent, field, text, &Reflection::SetString, &Reflection::AddString);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT32:
      return StoreInteger<int32_t>(parent, field, text, &Reflection::SetInt32,
                                   &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_UINT32:
      return StoreInteger<uint32_t>(parent, field, text, &Reflection::SetUInt32,
                                    &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return StoreInteger<int64_t>(parent, field, text, &Reflection::SetInt64,
                                   &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT64:
      return StoreInteger<uint64_t>(parent, field, text, &Reflection::SetUInt64,
                                    &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value;
      absl::Status status = ParseBounded(text, field, "a number", ParseDouble, &value);
      if (status.ok()) {
        Store(parent, field, value, &Reflection::SetDouble, &Reflection::AddDouble);
      }
      return status;
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return Invalid(text, "is not true or false");
      Store(parent, field, text == "true", &Reflection::SetBool, &Reflection::AddBool);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      return StoreEnum(parent, field, text);
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      if (!IsDuration(field)) break;
      absl::Duration value;
      absl::Status status = ParseBounded(text, field, "a duration; write it as 10s, 500ms or 1m30s",
                                         ParseDuration, &value);
      if (!status.ok()) return status;
      Message* const target = field->is_repeated() ? reflection->AddMessage(parent, field)
                                                   : reflection->MutableMessage(parent, field);
      target->CopyFrom(ToProto(value));
      return absl::OkStatus();
    }
    default:
      break;
  }
  return absl::InternalError(absl::StrCat("a configuration key of type ", field->cpp_type_name()));
}

Message* MutableParent(Message* root, const ConfigKey& key) {
  Message* message = root;
  for (size_t i = 0; i + 1 < key.fields.size(); ++i) {
    message = message->GetReflection()->MutableMessage(message, key.fields[i]);
  }
  return message;
}

}  // namespace failback
