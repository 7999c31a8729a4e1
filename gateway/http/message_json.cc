#include "gateway/http/message_json.h"

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "failback/rpc/v1/status.pb.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/type.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/type_resolver.h"
#include "google/protobuf/util/type_resolver_util.h"
#include "google/protobuf/wrappers.pb.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using google::protobuf::Any;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::Reflection;
using google::protobuf::util::TypeResolver;

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

// Wraps the bytes of each Any that the conversion would fail on, as DetailResolver has them.
class Wrapper {
 public:
  bool MayHoldAny(const Descriptor* type) {
    const auto [it, is_new] = known_.emplace(type, false);
    if (is_new) {
      std::set<const Descriptor*> visited;
      it->second = FindAny(type, &visited);
    }
    return it->second;
  }

  void Wrap(Message* message) {
    if (message->GetDescriptor() == Any::descriptor()) return WrapAny(static_cast<Any*>(message));
    const Reflection* const reflection = message->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection->ListFields(*message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->message_type() == nullptr || !MayHoldAny(field->message_type())) continue;
      if (!field->is_repeated()) {
        Wrap(reflection->MutableMessage(message, field));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        Wrap(reflection->MutableRepeatedMessage(message, field, i));
      }
    }
  }

 private:
  // Whether the conversion finds a message of its type in it. Details within details are not looked
  // into, so that no chain of them makes work.
  bool IsReadable(const Any& any) {
    const Descriptor* const type = TypeOf(any.type_url());
    if (type == nullptr || MayHoldAny(type)) return false;
    const std::unique_ptr<Message> message(
        MessageFactory::generated_factory()->GetPrototype(type)->New());
    return message->ParseFromString(any.value());
  }

  void WrapAny(Any* any) {
    if (any->type_url().empty()) return any->clear_value();
    if (IsReadable(*any)) return;
    google::protobuf::BytesValue bytes;
    bytes.set_value(any->value());
    any->set_value(bytes.SerializeAsString());
    if (TypeOf(any->type_url()) != nullptr) {
      any->set_type_url(absl::StrCat(kUnreadable, any->type_url()));
    }
  }

  std::map<const Descriptor*, bool> known_;
};

// Knows details by their public names, and any other type as `bytes value = 1`.
class DetailResolver final : public TypeResolver {
 public:
  google::protobuf::util::Status ResolveMessageType(const std::string& url,
                                                    google::protobuf::Type* type) override {
    if (const Descriptor* const known = TypeOf(url); known != nullptr) {
      return pool_->ResolveMessageType(absl::StrCat(kUrlPrefix, known->full_name()), type);
    }
    type->set_name(url);
    google::protobuf::Field* const field = type->add_fields();
    field->set_kind(google::protobuf::Field::TYPE_BYTES);
    field->set_cardinality(google::protobuf::Field::CARDINALITY_OPTIONAL);
    field->set_number(1);
    field->set_name("value");
    field->set_json_name("value");
    return {};
  }

  google::protobuf::util::Status ResolveEnumType(const std::string& url,
                                                 google::protobuf::Enum* type) override {
    return pool_->ResolveEnumType(url, type);
  }

 private:
  const std::unique_ptr<TypeResolver> pool_{
      google::protobuf::util::NewTypeResolverForDescriptorPool("type.googleapis.com",
                                                               DescriptorPool::generated_pool())};
};

// Whether `json` may have a value for a boolean below `type`: a name of one is in it.
bool NamesBoolean(std::string_view json, const Descriptor& type,
                  std::set<const Descriptor*>* visited) {
  if (!visited->insert(&type).second) return false;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL &&
        (json.find(field.name()) != std::string_view::npos ||
         json.find(field.json_name()) != std::string_view::npos)) {
      return true;
    }
    if (field.message_type() != nullptr && NamesBoolean(json, *field.message_type(), visited)) {
      return true;
    }
  }
  return false;
}

// Protobuf takes "yes" and "t" for true. A request that changes something says what it means.
absl::Status CheckBooleans(const google::protobuf::Struct& given,
                           const google::protobuf::Descriptor& type, const std::string& path) {
  using google::protobuf::Value;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    for (const std::string* name : {&field.json_name(), &field.name()}) {
      const auto it = given.fields().find(*name);
      if (it == given.fields().end()) continue;
      const Value& value = it->second;
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
        if (value.has_bool_value() || value.has_null_value()) continue;
        const bool is_short = value.has_string_value() && value.string_value().size() <= 64;
        return InvalidField(
            path + *name,
            absl::StrCat(is_short ? absl::StrCat("\"", value.string_value(), "\"") : "its value",
                         " is not one of true, false"));
      }
      if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || !value.has_struct_value()) {
        continue;
      }
      absl::Status status =
          CheckBooleans(value.struct_value(), *field.message_type(), path + *name + ".");
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseJson(std::string_view json, Message* message) {
  const google::protobuf::StringPiece text(json.data(), json.size());
  auto status = google::protobuf::util::JsonStringToMessage(text, message);
  if (!status.ok()) return InvalidField("body", std::string(status.message()));
  std::set<const Descriptor*> visited;
  if (!NamesBoolean(json, *message->GetDescriptor(), &visited)) return absl::OkStatus();
  google::protobuf::Struct given;
  status = google::protobuf::util::JsonStringToMessage(text, &given);
  if (!status.ok()) return InvalidField("body", std::string(status.message()));
  return CheckBooleans(given, *message->GetDescriptor(), "");
}

absl::StatusOr<std::string> MessageJson(const Message& message, JsonStyle style) {
  static auto* const resolver = new DetailResolver;
  std::string bytes;
  Wrapper wrapper;
  if (wrapper.MayHoldAny(message.GetDescriptor())) {
    const std::unique_ptr<Message> copy(message.New());
    copy->CopyFrom(message);
    wrapper.Wrap(copy.get());
    bytes = copy->SerializeAsString();
  } else {
    bytes = message.SerializeAsString();
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = style == JsonStyle::kPretty;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::BinaryToJsonString(
      resolver, absl::StrCat(kUrlPrefix, message.GetDescriptor()->full_name()), bytes, &json,
      options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat(message.GetTypeName(), " has no JSON form: ", std::string(status.message())));
  }
  while (!json.empty() && json.back() == '\n') json.pop_back();
  return WithControlsEscaped(std::move(json));
}

}  // namespace failback
