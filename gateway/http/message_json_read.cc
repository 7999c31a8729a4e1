// Reads a message in JSON: what is no field of it is refused where it begins.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gateway/http/message_json.h"
#include "gateway/markup/json_reader.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Duration;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::Timestamp;
using google::protobuf::util::TimeUtil;

using markup::JsonScalar;

// Messages within messages, and lists and maps in them.
constexpr size_t kMostDepth = 32;

// A number, or a text that is one.
template <typename Number>
std::optional<Number> WholeNumber(const JsonScalar& given) {
  const auto fits = [](auto number) -> std::optional<Number> {
    const auto converted = static_cast<Number>(number);
    const bool same =
        static_cast<decltype(number)>(converted) == number && (converted < 0) == (number < 0);
    return same ? std::optional<Number>(converted) : std::nullopt;
  };
  if (const auto* number = std::get_if<int64_t>(&given)) return fits(*number);
  if (const auto* number = std::get_if<uint64_t>(&given)) return fits(*number);
  if (const auto* number = std::get_if<double>(&given)) {
    // Beyond these a conversion is undefined.
    if (!(std::fabs(*number) < 9e18) || std::floor(*number) != *number) return std::nullopt;
    return fits(static_cast<int64_t>(*number));
  }
  Number number = 0;
  const auto* text = std::get_if<std::string>(&given);
  return text != nullptr && absl::SimpleAtoi(*text, &number) ? std::optional(number) : std::nullopt;
}

std::optional<double> RealNumber(const JsonScalar& given) {
  if (const auto* number = std::get_if<int64_t>(&given)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&given)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<double>(&given)) return *number;
  double number = 0;
  const auto* text = std::get_if<std::string>(&given);
  return text != nullptr && absl::SimpleAtod(*text, &number) ? std::optional(number) : std::nullopt;
}

template <typename Number>
std::string WholeNumbers() {
  return absl::StrCat("a whole number from ", std::numeric_limits<Number>::min(), " to ",
                      std::numeric_limits<Number>::max());
}

std::string ShownScalar(const JsonScalar& given) {
  if (const auto* value = std::get_if<bool>(&given)) return *value ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&given)) return absl::StrCat(*number);
  if (const auto* number = std::get_if<uint64_t>(&given)) return absl::StrCat(*number);
  if (const auto* number = std::get_if<double>(&given)) return absl::StrCat(*number);
  const auto* text = std::get_if<std::string>(&given);
  return text != nullptr ? Quoted(*text) : "null";
}

class Reader final : public markup::JsonListener {
 public:
  explicit Reader(Message* message) : root_(message) {}

  const absl::Status& error() const override { return error_; }

  bool Scalar(JsonScalar given) override {
    if (frames_.empty()) return Fail("is no object");
    // As if it were not there.
    const bool null = std::holds_alternative<std::nullptr_t>(given);
    if (null && frames_.back().kind == Frame::kObject) return true;
    const Target target = NextTarget();
    if (target.message == nullptr) return false;
    if (null || (target.field->is_repeated() && !target.element)) return FailValue(given, target);
    return Set(target, given);
  }

  bool BeginObject() override {
    if (frames_.empty()) return Push({root_, nullptr, Frame::kObject});
    const Target target = NextTarget();
    if (target.message == nullptr) return false;
    const FieldDescriptor& field = *target.field;
    if (field.is_map() && !target.element) return Push({target.message, &field, Frame::kMap});
    if (!HasFields(field) || (field.is_repeated() && !target.element)) {
      return FailKind("an object", target);
    }
    const Reflection& reflection = *target.message->GetReflection();
    Message* const inner = field.is_repeated() ? reflection.AddMessage(target.message, &field)
                                               : reflection.MutableMessage(target.message, &field);
    return Push({inner, nullptr, Frame::kObject});
  }
  bool EndObject() override { return Pop(); }

  bool BeginList() override {
    if (frames_.empty()) return Fail("is a list, not an object");
    const Target target = NextTarget();
    if (target.message == nullptr) return false;
    const FieldDescriptor& field = *target.field;
    if (!field.is_repeated() || field.is_map() || target.element) {
      return FailKind("a list", target);
    }
    return Push({target.message, &field, Frame::kList});
  }
  bool EndList() override { return Pop(); }

  bool Name(std::string name) override {
    Frame& frame = frames_.back();
    if (frame.kind == Frame::kMap) {
      frame.key = std::move(name);
      return frame.keys.insert(frame.key).second || Fail("is there twice");
    }
    const Descriptor& type = *frame.message->GetDescriptor();
    frame.field = type.FindFieldByCamelcaseName(name);
    if (frame.field == nullptr) frame.field = type.FindFieldByName(name);
    if (frame.field == nullptr) {
      return Fail(absl::StrCat("has no field ", Quoted(name), "; allowed are ", NamesOf(type)));
    }
    if (std::find(frame.seen.begin(), frame.seen.end(), frame.field) != frame.seen.end()) {
      return Fail("is there twice");
    }
    frame.seen.push_back(frame.field);
    return true;
  }

 private:
  struct Frame {
    enum Kind { kObject, kMap, kList };

    Message* message;
    const FieldDescriptor* field;  // the map, the list, or the member that is being read
    Kind kind;
    std::string key = {};                           // of the map's entry that is being read
    int size = 0;                                   // elements of the list that have begun
    std::vector<const FieldDescriptor*> seen = {};  // of an object
    std::set<std::string> keys = {};                // of a map
  };
  // Where the next value goes.
  struct Target {
    Message* message = nullptr;
    const FieldDescriptor* field = nullptr;
    bool element = false;  // of a list
  };

  static bool HasFields(const FieldDescriptor& field) {
    const Descriptor* const type = field.message_type();
    return type != nullptr && !field.is_map() && type != Duration::descriptor() &&
           type != Timestamp::descriptor();
  }

  static std::string NamesOf(const Descriptor& type) {
    std::string names;
    for (int i = 0; i < type.field_count(); ++i) {
      absl::StrAppend(&names, i == 0 ? "" : ", ", type.field(i)->json_name());
    }
    return names;
  }

  // The names that lead to what is being read: "registrations[2].metadata".
  std::string Path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      if (frame.kind == Frame::kMap) {
        if (!frame.key.empty()) absl::StrAppend(&path, "[", Quoted(frame.key), "]");
      } else if (frame.kind == Frame::kList) {
        if (frame.size > 0) absl::StrAppend(&path, "[", frame.size - 1, "]");
      } else if (frame.field != nullptr) {
        absl::StrAppend(&path, path.empty() ? "" : ".", frame.field->json_name());
      }
    }
    return path.empty() ? "body" : path;
  }

  bool Fail(const std::string& what) {
    error_ = InvalidField(Path(), what);
    return false;
  }
  bool FailKind(const char* given, const Target& target) {
    return Fail(absl::StrCat("is ", given, ", not ", Wanted(target)));
  }
  bool FailValue(const JsonScalar& given, const Target& target) {
    return Fail(absl::StrCat(ShownScalar(given), " is not ", Wanted(target)));
  }

  bool Push(Frame frame) {
    if (frames_.size() >= kMostDepth) return Fail("is nested too deeply");
    frames_.push_back(std::move(frame));
    return true;
  }
  bool Pop() {
    frames_.pop_back();
    if (!frames_.empty() && frames_.back().kind == Frame::kObject) frames_.back().field = nullptr;
    return true;
  }

  Target NextTarget() {
    Frame& frame = frames_.back();
    switch (frame.kind) {
      case Frame::kObject:
        return {frame.message, frame.field, false};
      case Frame::kList:
        ++frame.size;
        return {frame.message, frame.field, true};
      case Frame::kMap:
        break;
    }
    Message* const entry = frame.message->GetReflection()->AddMessage(frame.message, frame.field);
    const JsonScalar name = frame.key;
    if (!Set({entry, frame.field->message_type()->map_key(), false}, name)) return {};
    return {entry, frame.field->message_type()->map_value(), false};
  }

  // What `target` takes, for an error.
  static std::string Wanted(const Target& target) {
    const FieldDescriptor& field = *target.field;
    if (field.is_map() && !target.element) return "an object";
    if (field.is_repeated() && !target.element) return "a list";
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return field.type() == FieldDescriptor::TYPE_BYTES ? "a text in base64" : "a text";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "one of true, false";
      case FieldDescriptor::CPPTYPE_INT32:
        return WholeNumbers<int32_t>();
      case FieldDescriptor::CPPTYPE_UINT32:
        return WholeNumbers<uint32_t>();
      case FieldDescriptor::CPPTYPE_INT64:
        return WholeNumbers<int64_t>();
      case FieldDescriptor::CPPTYPE_UINT64:
        return WholeNumbers<uint64_t>();
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return "a number";
      case FieldDescriptor::CPPTYPE_ENUM:
        return absl::StrCat("one of ", EnumNames(field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    if (field.message_type() == Duration::descriptor()) return "a duration, as \"30s\"";
    if (field.message_type() == Timestamp::descriptor()) {
      return "a time, as \"2026-01-31T12:00:00Z\"";
    }
    return "an object";
  }

  static std::string EnumNames(const FieldDescriptor& field) {
    std::string names;
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      absl::StrAppend(&names, i == 0 ? "" : ", ", field.enum_type()->value(i)->name());
    }
    return names;
  }

  template <typename Value, typename Setter, typename Adder>
  bool Put(const Target& target, const JsonScalar& given, const std::optional<Value>& value,
           Setter set, Adder add) {
    if (!value.has_value()) return FailValue(given, target);
    const Reflection& reflection = *target.message->GetReflection();
    if (target.element) {
      (reflection.*add)(target.message, target.field, *value);
    } else {
      (reflection.*set)(target.message, target.field, *value);
    }
    return true;
  }

  bool Set(const Target& target, const JsonScalar& given) {
    switch (target.field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return Put(target, given, TextOf(*target.field, given), &Reflection::SetString,
                   &Reflection::AddString);
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(target, given, BoolOf(given), &Reflection::SetBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(target, given, WholeNumber<int32_t>(given), &Reflection::SetInt32,
                   &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(target, given, WholeNumber<uint32_t>(given), &Reflection::SetUInt32,
                   &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(target, given, WholeNumber<int64_t>(given), &Reflection::SetInt64,
                   &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(target, given, WholeNumber<uint64_t>(given), &Reflection::SetUInt64,
                   &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Put(target, given, RealNumber(given), &Reflection::SetDouble,
                   &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(target, given, RealNumber(given), &Reflection::SetFloat, &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_ENUM:
        return Put(target, given, EnumOf(*target.field, given), &Reflection::SetEnumValue,
                   &Reflection::AddEnumValue);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    const Descriptor* const type = target.field->message_type();
    const auto* const text = std::get_if<std::string>(&given);
    const Reflection& reflection = *target.message->GetReflection();
    const auto inner = [&] {
      return target.element ? reflection.AddMessage(target.message, target.field)
                            : reflection.MutableMessage(target.message, target.field);
    };
    const bool taken =
        text != nullptr && ((type == Duration::descriptor() &&
                             TimeUtil::FromString(*text, static_cast<Duration*>(inner()))) ||
                            (type == Timestamp::descriptor() &&
                             TimeUtil::FromString(*text, static_cast<Timestamp*>(inner()))));
    return taken || FailValue(given, target);
  }

  static std::optional<std::string> TextOf(const FieldDescriptor& field, const JsonScalar& given) {
    const auto* const text = std::get_if<std::string>(&given);
    if (text == nullptr) return std::nullopt;
    if (field.type() != FieldDescriptor::TYPE_BYTES) return *text;
    std::string bytes;
    if (absl::Base64Unescape(*text, &bytes) || absl::WebSafeBase64Unescape(*text, &bytes)) {
      return bytes;
    }
    return std::nullopt;
  }

  // A request that changes something says what it means: no "yes", no 1.
  static std::optional<bool> BoolOf(const JsonScalar& given) {
    const auto* const value = std::get_if<bool>(&given);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }

  static std::optional<int> EnumOf(const FieldDescriptor& field, const JsonScalar& given) {
    if (const auto* const name = std::get_if<std::string>(&given)) {
      const EnumValueDescriptor* const value = field.enum_type()->FindValueByName(*name);
      return value == nullptr ? std::nullopt : std::optional(value->number());
    }
    return WholeNumber<int32_t>(given);
  }

  Message* const root_;
  std::vector<Frame> frames_;
  absl::Status error_;
};

}  // namespace

absl::Status ParseJson(std::string_view json, Message* message) {
  message->Clear();
  Reader reader(message);
  return markup::ReadJson(json, &reader);
}

}  // namespace failback
