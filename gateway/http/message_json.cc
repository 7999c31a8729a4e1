#include "gateway/http/message_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "failback/rpc/v1/status.pb.h"
#include "gateway/markup/json_writer.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/time_util.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::Duration;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::ListValue;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::Reflection;
using google::protobuf::Struct;
using google::protobuf::Timestamp;
using google::protobuf::Value;
using google::protobuf::util::TimeUtil;
using markup::JsonWriter;

constexpr char kUrlPrefix[] = "type.googleapis.com/";
// In front of the type of a detail whose bytes are no message of that type.
constexpr char kUnreadable[] = "unreadable/";

// Null: not known here.
const Descriptor* TypeOf(const std::string& url) {
  static const auto* const kDetails = new std::map<std::string, const Descriptor*>{
      {"type.googleapis.com/google.rpc.BadRequest", rpc::v1::BadRequest::descriptor()},
      {"type.googleapis.com/google.rpc.ErrorInfo", rpc::v1::ErrorInfo::descriptor()},
      {"type.googleapis.com/google.rpc.RetryInfo", rpc::v1::RetryInfo::descriptor()}};
  if (const auto it = kDetails->find(url); it != kDetails->end()) return it->second;
  absl::string_view name = url;
  if (!absl::ConsumePrefix(&name, kUrlPrefix)) return nullptr;
  return DescriptorPool::generated_pool()->FindMessageTypeByName(std::string(name));
}

bool FindAny(const Descriptor* type, std::set<const Descriptor*>* visited) {
  if (type == Any::descriptor()) return true;
  if (!visited->insert(type).second) return false;
  for (int i = 0; i < type->field_count(); ++i) {
    const Descriptor* const field = type->field(i)->message_type();
    if (field != nullptr && FindAny(field, visited)) return true;
  }
  return false;
}

// Null where the bytes are no message of their type. Details within details are not looked into, so
// that no chain of them makes work.
std::unique_ptr<Message> Opened(const Any& any) {
  const Descriptor* const type = TypeOf(any.type_url());
  std::set<const Descriptor*> visited;
  if (type == nullptr || FindAny(type, &visited)) return nullptr;
  std::unique_ptr<Message> message(MessageFactory::generated_factory()->GetPrototype(type)->New());
  if (!message->ParseFromString(any.value())) return nullptr;
  return message;
}

// Those that have a JSON form of their own, which is no object of their fields.
enum class Kind { kFields, kAny, kDuration, kTimestamp, kStruct, kValue, kList };

Kind KindOf(const Descriptor* type) {
  if (type == Any::descriptor()) return Kind::kAny;
  if (type == Duration::descriptor()) return Kind::kDuration;
  if (type == Timestamp::descriptor()) return Kind::kTimestamp;
  if (type == Struct::descriptor()) return Kind::kStruct;
  if (type == Value::descriptor()) return Kind::kValue;
  if (type == ListValue::descriptor()) return Kind::kList;
  return Kind::kFields;
}

bool InRange(const Duration& duration) {
  const int64_t most = TimeUtil::kDurationMaxSeconds;
  const bool one_sign = (duration.seconds() >= 0 && duration.nanos() >= 0) ||
                        (duration.seconds() <= 0 && duration.nanos() <= 0);
  return duration.seconds() >= -most && duration.seconds() <= most && one_sign &&
         std::abs(int64_t{duration.nanos()}) < 1000000000;
}

bool InRange(const Timestamp& time) {
  return time.seconds() >= TimeUtil::kTimestampMinSeconds &&
         time.seconds() <= TimeUtil::kTimestampMaxSeconds && time.nanos() >= 0 &&
         time.nanos() < 1000000000;
}

class Writer {
 public:
  void Write(const Message& message) {
    switch (KindOf(message.GetDescriptor())) {
      case Kind::kFields:
        json_.BeginObject();
        WriteFields(message);
        json_.EndObject();
        return;
      case Kind::kAny:
        return WriteAny(static_cast<const Any&>(message));
      case Kind::kDuration:
        return WriteTime(static_cast<const Duration&>(message));
      case Kind::kTimestamp:
        return WriteTime(static_cast<const Timestamp&>(message));
      case Kind::kStruct:
        return WriteStruct(static_cast<const Struct&>(message));
      case Kind::kValue:
        return WriteValue(static_cast<const Value&>(message));
      case Kind::kList:
        return WriteList(static_cast<const ListValue&>(message));
    }
  }

  // What has no JSON form; empty: nothing.
  const std::string& error() const { return error_; }
  std::string Take() && { return std::move(json_).Take(); }

 private:
  // Of one element of a field; -1: the field is not repeated.
  static constexpr int kSingle = -1;

  void WriteFields(const Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    const Reflection& reflection = *message.GetReflection();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.is_repeated()) {
        json_.Key(field.json_name());
        if (field.is_map()) {
          WriteMap(message, field);
        } else {
          json_.BeginArray();
          const int size = reflection.FieldSize(message, &field);
          for (int at = 0; at < size; ++at) WriteField(message, field, at);
          json_.EndArray();
        }
      } else if (!field.has_presence() || reflection.HasField(message, &field)) {
        json_.Key(field.json_name());
        WriteField(message, field, kSingle);
      }
    }
  }

  // In the order of its keys.
  void WriteMap(const Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    const FieldDescriptor& key = *field.message_type()->map_key();
    const FieldDescriptor& value = *field.message_type()->map_value();
    std::vector<std::pair<std::string, const Message*>> entries;
    const int size = reflection.FieldSize(message, &field);
    entries.reserve(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      entries.emplace_back(KeyOf(entry, key), &entry);
    }
    std::sort(entries.begin(), entries.end());
    json_.BeginObject();
    for (const auto& [name, entry] : entries) {
      json_.Key(name);
      WriteField(*entry, value, kSingle);
    }
    json_.EndObject();
  }

  static std::string KeyOf(const Message& entry, const FieldDescriptor& key) {
    const Reflection& reflection = *entry.GetReflection();
    switch (key.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.GetString(entry, &key);
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.GetBool(entry, &key) ? "true" : "false";
      case FieldDescriptor::CPPTYPE_INT32:
        return std::to_string(reflection.GetInt32(entry, &key));
      case FieldDescriptor::CPPTYPE_UINT32:
        return std::to_string(reflection.GetUInt32(entry, &key));
      case FieldDescriptor::CPPTYPE_INT64:
        return std::to_string(reflection.GetInt64(entry, &key));
      default:
        return std::to_string(reflection.GetUInt64(entry, &key));
    }
  }

  void WriteField(const Message& message, const FieldDescriptor& field, int at) {
    const Reflection& reflection = *message.GetReflection();
    const bool single = at == kSingle;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Write(single ? reflection.GetMessage(message, &field)
                            : reflection.GetRepeatedMessage(message, &field, at));
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string scratch;
        const std::string& text =
            single ? reflection.GetStringReference(message, &field, &scratch)
                   : reflection.GetRepeatedStringReference(message, &field, at, &scratch);
        if (field.type() == FieldDescriptor::TYPE_BYTES) {
          json_.String(absl::Base64Escape(text));
        } else {
          json_.String(text);
        }
        return;
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        json_.Bool(single ? reflection.GetBool(message, &field)
                          : reflection.GetRepeatedBool(message, &field, at));
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        return WriteEnum(field, single ? reflection.GetEnumValue(message, &field)
                                       : reflection.GetRepeatedEnumValue(message, &field, at));
      case FieldDescriptor::CPPTYPE_INT32:
        json_.Number(single ? reflection.GetInt32(message, &field)
                            : reflection.GetRepeatedInt32(message, &field, at));
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        json_.Number(single ? reflection.GetUInt32(message, &field)
                            : reflection.GetRepeatedUInt32(message, &field, at));
        return;
      // A number of JavaScript's does not hold them.
      case FieldDescriptor::CPPTYPE_INT64:
        json_.String(std::to_string(single ? reflection.GetInt64(message, &field)
                                           : reflection.GetRepeatedInt64(message, &field, at)));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        json_.String(std::to_string(single ? reflection.GetUInt64(message, &field)
                                           : reflection.GetRepeatedUInt64(message, &field, at)));
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return WriteNumber(single ? reflection.GetDouble(message, &field)
                                  : reflection.GetRepeatedDouble(message, &field, at));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return WriteNumber(single ? reflection.GetFloat(message, &field)
                                  : reflection.GetRepeatedFloat(message, &field, at));
    }
  }

  void WriteEnum(const FieldDescriptor& field, int number) {
    const EnumValueDescriptor* const value = field.enum_type()->FindValueByNumber(number);
    if (value != nullptr) {
      json_.String(value->name());
    } else {
      json_.Number(number);
    }
  }

  // The shortest text that is read as the same number.
  template <typename Number>
  void WriteNumber(Number number) {
    if (std::isnan(number)) {
      json_.String("NaN");
    } else if (std::isinf(number)) {
      json_.String(number > 0 ? "Infinity" : "-Infinity");
    } else {
      char text[32];
      json_.Raw(
          {text, static_cast<size_t>(std::to_chars(text, text + sizeof(text), number).ptr - text)});
    }
  }

  template <typename Time>
  void WriteTime(const Time& time) {
    if (InRange(time)) {
      json_.String(TimeUtil::ToString(time));
      return;
    }
    if (error_.empty()) {
      error_ = absl::StrCat(Time::descriptor()->name(), " of ", time.seconds(), " s and ",
                            time.nanos(), " ns");
    }
    json_.Null();
  }

  void WriteAny(const Any& any) {
    json_.BeginObject();
    if (any.type_url().empty()) {
      json_.EndObject();
      return;
    }
    const std::unique_ptr<Message> message = Opened(any);
    if (message == nullptr) {
      const bool known = TypeOf(any.type_url()) != nullptr;
      json_.Key("@type").String(absl::StrCat(known ? kUnreadable : "", any.type_url()));
      json_.Key("value").String(absl::Base64Escape(any.value()));
    } else {
      json_.Key("@type").String(any.type_url());
      if (KindOf(message->GetDescriptor()) == Kind::kFields) {
        WriteFields(*message);
      } else {
        json_.Key("value");
        Write(*message);
      }
    }
    json_.EndObject();
  }

  void WriteStruct(const Struct& object) {
    json_.BeginObject();
    for (const auto& [name, value] :
         std::map<std::string, Value>(object.fields().begin(), object.fields().end())) {
      json_.Key(name);
      WriteValue(value);
    }
    json_.EndObject();
  }

  void WriteList(const ListValue& list) {
    json_.BeginArray();
    for (const Value& value : list.values()) WriteValue(value);
    json_.EndArray();
  }

  void WriteValue(const Value& value) {
    switch (value.kind_case()) {
      case Value::kStringValue:
        json_.String(value.string_value());
        return;
      case Value::kNumberValue:
        return WriteNumber(value.number_value());
      case Value::kBoolValue:
        json_.Bool(value.bool_value());
        return;
      case Value::kStructValue:
        return WriteStruct(value.struct_value());
      case Value::kListValue:
        return WriteList(value.list_value());
      default:
        json_.Null();
    }
  }

  JsonWriter json_;
  std::string error_;
};

// JSON without spaces, on lines of its own for each member and element.
std::string Indented(std::string_view json) {
  std::string out;
  size_t depth = 0;
  const auto new_line = [&] { out.append("\n").append(depth, ' '); };
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    switch (c) {
      case '"': {
        size_t end = at + 1;
        while (json[end] != '"') end += json[end] == '\\' ? 2 : 1;
        out.append(json.substr(at, end + 1 - at));
        at = end;
        break;
      }
      case '{':
      case '[':
        out.push_back(c);
        if (json[at + 1] == '}' || json[at + 1] == ']') {
          out.push_back(json[++at]);
          break;
        }
        ++depth;
        new_line();
        break;
      case '}':
      case ']':
        --depth;
        new_line();
        out.push_back(c);
        break;
      case ',':
        out.push_back(c);
        new_line();
        break;
      case ':':
        out.append(": ");
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> MessageJson(const Message& message, JsonStyle style) {
  Writer writer;
  writer.Write(message);
  if (!writer.error().empty()) {
    return absl::InternalError(
        absl::StrCat(message.GetTypeName(), " has no JSON form: ", writer.error()));
  }
  const std::string json = WithControlsEscaped(std::move(writer).Take());
  return style == JsonStyle::kPretty ? Indented(json) : json;
}

}  // namespace failback
