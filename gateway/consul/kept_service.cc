#include "gateway/consul/kept_service.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "gateway/markup/fields.h"
#include "gateway/markup/json_writer.h"
#include "registry/model/errors.h"

namespace failback::consul {
namespace {

using markup::Fields;
using markup::JsonWriter;
using Kind = CheckDefinition::Kind;

void WriteText(const char* name, std::string_view text, JsonWriter* json) {
  if (!text.empty()) json->Key(name).String(text);
}

void WriteDuration(const char* name, absl::Duration duration, JsonWriter* json) {
  if (duration > absl::ZeroDuration()) json->Key(name).String(absl::FormatDuration(duration));
}

void WriteCheckDefinition(const CheckDefinition& check, JsonWriter* json) {
  json->BeginObject();
  WriteText("CheckID", check.id, json);
  WriteText("Name", check.name, json);
  WriteText("Notes", check.notes, json);
  json->Key("Status").String(StatusName(check.status));
  if (check.kind == Kind::kTtl) {
    WriteDuration("TTL", check.ttl, json);
  } else {
    json->Key(KindName(check.kind)).String(check.target);
  }
  WriteDuration("Interval", check.interval, json);
  WriteDuration("Timeout", check.timeout, json);
  WriteText("Method", check.method, json);
  if (check.tls) json->Key("GRPCUseTLS").Bool(true);
  if (check.tls_skip_verify) json->Key("TLSSkipVerify").Bool(true);
  WriteText("TLSServerName", check.tls_server_name, json);
  if (!check.headers.empty()) {
    json->Key("Header").BeginObject();
    for (size_t i = 0; i < check.headers.size();) {
      const std::string& name = check.headers[i].first;
      json->Key(name).BeginArray();
      for (; i < check.headers.size() && check.headers[i].first == name; ++i) {
        json->String(check.headers[i].second);
      }
      json->EndArray();
    }
    json->EndObject();
  }
  json->Key("SuccessBeforePassing").Number(check.passes);
  json->Key("FailuresBeforeCritical").Number(check.failures);
  WriteDuration("DeregisterCriticalServiceAfter", check.deregister_after, json);
  json->EndObject();
}

// As its client would register it.
std::string RegistrationOf(const ServiceDefinition& service) {
  JsonWriter json;
  json.BeginObject();
  json.Key("Name").String(service.name);
  json.Key("ID").String(service.id);
  WriteText("Address", service.address, &json);
  json.Key("Port").Number(service.port);
  json.Key("Tags").BeginArray();
  for (const std::string& tag : service.tags) json.String(tag);
  json.EndArray();
  json.Key("Meta").BeginObject();
  for (const auto& [key, value] : service.meta) json.Key(key).String(value);
  json.EndObject();
  if (service.weight.has_value()) {
    json.Key("Weights").BeginObject().Key("Passing").Number(*service.weight).EndObject();
  }
  if (!service.zone.empty()) {
    json.Key("Locality").BeginObject().Key("Zone").String(service.zone).EndObject();
  }
  json.Key("Checks").BeginArray();
  for (const CheckDefinition& check : service.checks) WriteCheckDefinition(check, &json);
  json.EndArray();
  json.EndObject();
  return std::move(json).Take();
}

}  // namespace

std::string KeptText(const KeptService& service) {
  JsonWriter json;
  json.BeginObject();
  json.Key("Namespace").String(service.name_space);
  json.Key("OwnerKind").Number(static_cast<int>(service.owner.kind));
  json.Key("OwnerNames").BeginArray();
  for (const std::string& name : service.owner.names) json.String(name);
  json.EndArray();
  json.Key("OwnerDigest").String(absl::BytesToHexString(service.owner.token_digest));
  json.Key("Maintenance").Bool(service.maintenance);
  json.Key("Reason").String(service.reason);
  // A text in the text: the registration is read as one of a client is.
  json.Key("Registration").String(RegistrationOf(service.definition));
  json.EndObject();
  return std::move(json).Take();
}

absl::StatusOr<KeptService> ParseKept(std::string_view text) {
  absl::StatusOr<google::protobuf::Value> value = markup::ParseJson(text);
  if (!value.ok()) return value.status();
  absl::StatusOr<Fields> fields = Fields::Of("", *value);
  if (!fields.ok()) return fields.status();
  KeptService kept;
  kept.name_space = fields->Text("Namespace");
  kept.owner.kind = static_cast<Identity::Kind>(fields->Integer("OwnerKind", 0, 2).value_or(0));
  kept.owner.names = fields->Texts("OwnerNames");
  kept.owner.token_digest = absl::HexStringToBytes(fields->Text("OwnerDigest"));
  kept.maintenance = fields->Flag("Maintenance");
  kept.reason = fields->Text("Reason");
  const std::string registration = fields->Text("Registration");
  if (absl::Status status = fields->Finish(); !status.ok()) return status;
  absl::StatusOr<ServiceDefinition> definition = ParseService(registration);
  if (!definition.ok()) return definition.status();
  kept.definition = *std::move(definition);
  return kept;
}

}  // namespace failback::consul
