#include "gateway/json/openapi.h"

#include <initializer_list>
#include <set>

#include "absl/strings/str_cat.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/gateway/v1/gateway.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "gateway/http/message_json.h"
#include "google/protobuf/struct.pb.h"
#include "registry/base/version.h"

namespace failback {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Struct;
using google::protobuf::Value;

Value Text(const std::string& text) {
  Value value;
  value.set_string_value(text);
  return value;
}

// An object of the members.
Value Object(std::initializer_list<std::pair<const char*, Value>> members) {
  Value value;
  auto& fields = *value.mutable_struct_value()->mutable_fields();
  for (const auto& [name, member] : members) fields[std::string(name)] = member;
  return value;
}

Value List(std::initializer_list<Value> values) {
  Value list;
  list.mutable_list_value();
  for (const Value& value : values) *list.mutable_list_value()->add_values() = value;
  return list;
}

Value True() {
  Value value;
  value.set_bool_value(true);
  return value;
}

Value Reference(const Descriptor& type) {
  return Object({{"$ref", Text(absl::StrCat("#/components/schemas/", type.full_name()))}});
}

// The schemas of messages, each once, as protobuf's JSON has them.
class Schemas {
 public:
  void Add(const Descriptor& type) {
    if (!known_.insert(&type).second) return;
    Value schema;
    auto& properties =
        *(*schema.mutable_struct_value()->mutable_fields())[std::string("properties")]
             .mutable_struct_value()
             ->mutable_fields();
    for (int i = 0; i < type.field_count(); ++i) {
      properties[type.field(i)->json_name()] = SchemaOf(*type.field(i));
    }
    (*schema.mutable_struct_value()->mutable_fields())[std::string("type")] = Text("object");
    (*all_.mutable_struct_value()->mutable_fields())[type.full_name()] = std::move(schema);
  }

  const Value& all() const { return all_; }

 private:
  Value SchemaOf(const FieldDescriptor& field) {
    if (field.is_map()) {
      return Object({{"type", Text("object")},
                     {"additionalProperties", OneOf(*field.message_type()->field(1))}});
    }
    if (field.is_repeated()) return Object({{"type", Text("array")}, {"items", OneOf(field)}});
    return OneOf(field);
  }

  Value OneOf(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return Object({{"type", Text("boolean")}});
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_UINT32:
        return Object({{"type", Text("integer")}});
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        return Object({{"type", Text("string")}, {"format", Text("int64")}});
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Object({{"type", Text("number")}});
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumOf(field);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return MessageOf(*field.message_type());
      default:
        return Object({{"type", Text("string")}});
    }
  }

  static Value EnumOf(const FieldDescriptor& field) {
    Value names;
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      *names.mutable_list_value()->add_values() = Text(field.enum_type()->value(i)->name());
    }
    return Object({{"type", Text("string")}, {"enum", names}});
  }

  Value MessageOf(const Descriptor& type) {
    const std::string& name = type.full_name();
    if (name == "google.protobuf.Duration") {
      return Object({{"type", Text("string")}, {"example", Text("30s")}});
    }
    if (name == "google.protobuf.Timestamp") {
      return Object({{"type", Text("string")}, {"format", Text("date-time")}});
    }
    if (name == "google.protobuf.Any") return Object({{"type", Text("object")}});
    Add(type);
    return Reference(type);
  }

  std::set<const Descriptor*> known_;
  Value all_;
};

struct Parameter {
  const char* name;
  const char* says;
};

constexpr Parameter kNamespace = {"namespace", "`default` if it is left out"};
constexpr Parameter kTtl = {
    "ttl", "the instance lives on renewals within this time, as `30s`; without: it is persistent"};
constexpr Parameter kWaitFor = {
    "wait_for", "at an agent: `acknowledged` answers when the registry has it; default `accepted`"};
constexpr Parameter kEpoch = {"epoch", "with `revision`: answer when there is another state"};
constexpr Parameter kRevision = {"revision", "of the state that the client has"};
constexpr Parameter kWait = {"wait", "how long to wait for another state, as `30s`; at most 10m"};

class Paths {
 public:
  explicit Paths(Schemas* schemas) : schemas_(schemas) {}

  // `request` and `response` null: none.
  void Add(const char* path, const char* method, const char* says,
           std::initializer_list<const char*> in_path, std::initializer_list<Parameter> query,
           const Descriptor* request, const Descriptor* response) {
    Value operation = Object({{"summary", Text(says)}});
    auto& fields = *operation.mutable_struct_value()->mutable_fields();
    auto& parameters = *fields[std::string("parameters")].mutable_list_value();
    for (const char* name : in_path) {
      *parameters.add_values() = Object({{"name", Text(name)},
                                         {"in", Text("path")},
                                         {"required", True()},
                                         {"description", Text("a slash in it is %2F")},
                                         {"schema", Object({{"type", Text("string")}})}});
    }
    for (const Parameter& parameter : query) {
      *parameters.add_values() = Object({{"name", Text(parameter.name)},
                                         {"in", Text("query")},
                                         {"description", Text(parameter.says)},
                                         {"schema", Object({{"type", Text("string")}})}});
    }
    if (request != nullptr) {
      fields[std::string("requestBody")] =
          Object({{"content", Content("application/json", *request)}});
    }
    Value ok = Object({{"description", Text("done")}});
    if (response != nullptr) {
      (*ok.mutable_struct_value()->mutable_fields())[std::string("content")] =
          Content("application/json", *response);
    }
    fields[std::string("responses")] =
        Object({{"200", ok},
                {"default", Object({{"description", Text("an error (RFC 9457)")},
                                    {"content", Content("application/problem+json",
                                                        *gateway::v1::Problem::descriptor())}})}});
    (*(*all_.mutable_struct_value()->mutable_fields())[std::string(path)]
          .mutable_struct_value()
          ->mutable_fields())[std::string(method)] = std::move(operation);
  }

  const Value& all() const { return all_; }

 private:
  Value Content(const char* type, const Descriptor& message) {
    schemas_->Add(message);
    return Object({{type, Object({{"schema", Reference(message)}})}});
  }

  Schemas* const schemas_;
  Value all_;
};

void AddPaths(Paths* paths) {
  const auto* const instance = registry::v1::ServiceInstance::descriptor();
  const auto* const registered = gateway::v1::Registered::descriptor();
  constexpr char kInstance[] = "/v1/services/{service}/instances/{id}";
  constexpr char kRenew[] = "/v1/services/{service}/instances/{id}/renew";
  paths->Add("/v1/services", "get",
             "The services of a namespace; with `Accept: text/event-stream` it is followed", {},
             {kNamespace, kEpoch, kRevision, kWait}, nullptr,
             gateway::v1::ServiceList::descriptor());
  paths->Add("/v1/services/{service}", "get",
             "The instances of a service; with `Accept: text/event-stream` it is followed: events "
             "`snapshot` (Service) and `delta` (ServiceDelta), resumed by Last-Event-ID",
             {"service"}, {kNamespace, kEpoch, kRevision, kWait}, nullptr,
             gateway::v1::Service::descriptor());
  paths->Add(kInstance, "put", "Registers an instance, updates it, and renews it",
             {"service", "id"}, {kNamespace, kTtl, kWaitFor}, instance, registered);
  paths->Add(kInstance, "delete", "Unregisters an instance", {"service", "id"},
             {kNamespace, kWaitFor}, nullptr, registered);
  paths->Add(kRenew, "post", "Renews an instance that was put with `ttl`; 404: put it again",
             {"service", "id"}, {kNamespace, kTtl}, nullptr, registered);
  paths->Add("/v1/pending", "get", "What an agent's registry has not acknowledged", {},
             {{"page_token", "`nextPageToken` of the page before"}}, nullptr,
             agent::v1::ListPendingResponse::descriptor());
  paths->Add("/v1/pending/retry", "post", "Tries what is pending at an agent now", {}, {},
             agent::v1::RetryRequest::descriptor(), agent::v1::RetryResponse::descriptor());
  paths->Add("/v1/prometheus", "get", "All instances, for Prometheus' http_sd", {},
             {kNamespace, {"service", "only this one; may be repeated"}}, nullptr, nullptr);
  paths->Add("/v1/tickets", "post",
             "A ticket for an address that a browser's EventSource follows, as `?ticket=`", {}, {},
             gateway::v1::TicketRequest::descriptor(), gateway::v1::Ticket::descriptor());
}

}  // namespace

std::string OpenApiDocument() {
  Schemas schemas;
  schemas.Add(*gateway::v1::ServiceDelta::descriptor());
  Paths paths(&schemas);
  AddPaths(&paths);
  const Value document = Object(
      {{"openapi", Text("3.0.3")},
       {"info", Object({{"title", Text("Failback")}, {"version", Text(kVersion)}})},
       {"paths", paths.all()},
       {"components",
        Object({{"schemas", schemas.all()},
                {"securitySchemes", Object({{"bearer", Object({{"type", Text("http")},
                                                               {"scheme", Text("bearer")}})}})}})},
       {"security", List({Object({{"bearer", List({})}})})}});
  return MessageJson(document.struct_value()).value_or("{}");
}

}  // namespace failback
