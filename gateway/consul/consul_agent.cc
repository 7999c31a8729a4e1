// The part of Consul's API that is about one agent: /v1/agent.

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/consul/consul_door.h"
#include "gateway/consul/mapping.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

using http::Request;
using http::Responder;
using http::Response;
using markup::JsonWriter;

// Parameters that every change may have, and that change nothing here.
constexpr const char* kCommon[] = {"dc", "token", "pretty"};

absl::Status CheckParameters(const Request& request, const std::vector<std::string>& allowed) {
  for (const auto& [name, value] : request.query) {
    if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) continue;
    if (std::any_of(std::begin(kCommon), std::end(kCommon),
                    [&name = name](const char* common) { return name == common; })) {
      continue;
    }
    std::string names = "dc, token, pretty";
    for (const std::string& known : allowed) absl::StrAppend(&names, ", ", known);
    return InvalidField(Quoted(name), absl::StrCat("is not supported here; allowed: ", names));
  }
  return absl::OkStatus();
}

// As in a path: "pass", "warn", "fail".
CheckStatus StatusInPath(const std::string& verb) {
  return ParseStatus(verb).value_or(CheckStatus::kCritical);
}

}  // namespace

void ConsulDoor::AddChange(const Add& add, const char* pattern, std::vector<std::string> parameters,
                           Change change) {
  const http::Handler handler = [self = shared_from_this(), parameters = std::move(parameters),
                                 change = std::move(change)](const Request& request,
                                                             Responder responder) {
    // It can make a browser send a GET, too.
    if (request.from_another_site) {
      return responder.Send(Error(Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED,
                                          "the request comes from a page of another site")));
    }
    if (self->options_.services == nullptr) {
      return responder.Send(
          Error(501, absl::UnimplementedError(
                         "this is a registry, where Consul clients read; they register at a "
                         "failback-agent, started with --consul")));
    }
    if (absl::Status status = CheckParameters(request, parameters); !status.ok()) {
      return responder.Send(Error(status));
    }
    change(request, [responder = std::move(responder)](const absl::Status& status) mutable {
      responder.Send(status.ok() ? Response::Text("") : Error(status));
    });
  };
  add("PUT", pattern, handler);
  add("GET", pattern, handler);
}

void ConsulDoor::AddAgent(const Add& add) {
  AgentServices* const services = options_.services.get();  // null: AddChange refuses
  AddChange(add, "/v1/agent/service/register", {"replace-existing-checks"},
            [this, services](const Request& request, AgentServices::Done done) {
              const absl::StatusOr<ServiceDefinition> service = ParseService(request.body);
              if (!service.ok()) return std::move(done)(service.status());
              const std::string dc = request.Query("dc");
              services->Register(request.caller, dc.empty() ? options_.datacenter : dc, *service,
                                 std::move(done));
            });
  AddChange(add, "/v1/agent/service/deregister/{id}", {},
            [services](const Request& request, AgentServices::Done done) {
              services->Deregister(request.caller, request.parameters[0], std::move(done));
            });
  AddChange(add, "/v1/agent/service/maintenance/{id}", {"enable", "reason"},
            [services](const Request& request, AgentServices::Done done) {
              const std::string text = request.Query("enable");
              const std::optional<bool> enable = ParseBool(text);
              if (!enable.has_value()) {
                return std::move(done)(
                    InvalidField("enable", absl::StrCat(Quoted(text), " is not true or false")));
              }
              services->SetMaintenance(request.caller, request.parameters[0], *enable,
                                       request.Query("reason"), std::move(done));
            });
  AddChange(add, "/v1/agent/check/register", {},
            [services](const Request& request, AgentServices::Done done) {
              const absl::StatusOr<CheckDefinition> check = ParseCheck(request.body);
              if (!check.ok()) return std::move(done)(check.status());
              services->RegisterCheck(request.caller, *check, std::move(done));
            });
  AddChange(add, "/v1/agent/check/deregister/{id}", {},
            [services](const Request& request, AgentServices::Done done) {
              services->DeregisterCheck(request.caller, request.parameters[0], std::move(done));
            });
  for (const char* verb : {"pass", "warn", "fail"}) {
    AddChange(
        add, absl::StrCat("/v1/agent/check/", verb, "/{id}").c_str(), {"note"},
        [services, status = StatusInPath(verb)](const Request& request, AgentServices::Done done) {
          services->ReportCheck(request.caller, request.parameters[0], status,
                                request.Query("note"), std::move(done));
        });
  }
  AddChange(add, "/v1/agent/check/update/{id}", {},
            [services](const Request& request, AgentServices::Done done) {
              const absl::StatusOr<CheckUpdate> update = ParseCheckUpdate(request.body);
              if (!update.ok()) return std::move(done)(update.status());
              services->ReportCheck(request.caller, request.parameters[0], update->status,
                                    update->output, std::move(done));
            });

  const auto read = [&](const char* pattern,
                        std::string (ConsulDoor::*render)(const Identity&) const,
                        unsigned accepts = Query::kNothingElse) {
    add("GET", pattern,
        [self = shared_from_this(), render, accepts](const Request& request, Responder responder) {
          absl::StatusOr<Query> query =
              ParseQuery(request.query, accepts, self->options_.datacenter);
          if (!query.ok()) return responder.Send(Error(query.status()));
          if (self->options_.access != nullptr) {
            if (auto may = self->options_.access->rules()->JudgeAny(request.caller); !may.ok()) {
              return responder.Send(Error(may));
            }
          }
          responder.Send(Response::Json(((*self).*render)(request.caller)));
        });
  };
  read("/v1/agent/self", &ConsulDoor::AgentSelf);
  read("/v1/agent/members", &ConsulDoor::AgentMembers, Query::kMembers);
  read("/v1/agent/services", &ConsulDoor::AgentServicesJson);
  read("/v1/agent/checks", &ConsulDoor::AgentChecksJson);
}

std::string ConsulDoor::AgentSelf(const Identity&) const {
  JsonWriter json;
  json.BeginObject();
  json.Key("Config").BeginObject();
  json.Key("Datacenter").String(options_.datacenter);
  json.Key("PrimaryDatacenter").String(options_.datacenter);
  json.Key("NodeName").String(options_.node);
  json.Key("NodeID").String("");
  json.Key("Server").Bool(options_.services == nullptr);
  json.Key("Version").String(options_.version);
  json.EndObject();
  json.Key("Member").BeginObject();
  json.Key("Name").String(options_.node);
  json.Key("Addr").String(options_.address.substr(0, options_.address.rfind(':')));
  json.Key("Status").Number(1);
  json.EndObject();
  json.Key("Meta").BeginObject().EndObject();
  json.EndObject();
  return std::move(json).Take();
}

std::string ConsulDoor::AgentMembers(const Identity&) const {
  JsonWriter json;
  json.BeginArray().BeginObject();
  json.Key("Name").String(options_.node);
  json.Key("Addr").String(options_.address.substr(0, options_.address.rfind(':')));
  json.Key("Tags").BeginObject().Key("dc").String(options_.datacenter).EndObject();
  json.Key("Status").Number(1);  // alive
  json.EndObject().EndArray();
  return std::move(json).Take();
}

std::map<std::string, AgentServices::Shown> ConsulDoor::OwnServices(const Identity& caller) const {
  std::map<std::string, AgentServices::Shown> own;
  if (options_.services == nullptr) return own;
  own = options_.services->Look();
  if (options_.access == nullptr) return own;
  const std::shared_ptr<const AccessRules> rules = options_.access->rules();
  for (auto it = own.begin(); it != own.end();) {
    const InstanceKey& key = it->second.instance.key();
    const bool readable =
        rules->Judge(caller, config::v1::PERMISSION_READ, key.namespace_(), key.service()).ok();
    it = readable ? std::next(it) : own.erase(it);
  }
  return own;
}

std::string ConsulDoor::AgentServicesJson(const Identity& caller) const {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [id, shown] : OwnServices(caller)) {
    const InstanceView view(shown.instance);
    json.Key(id);
    WriteAgentService(ServiceEntry(view), shown.instance.key().namespace_(), &json);
  }
  json.EndObject();
  return std::move(json).Take();
}

std::string ConsulDoor::AgentChecksJson(const Identity& caller) const {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [id, shown] : OwnServices(caller)) {
    const InstanceView view(shown.instance);
    const ServiceEntry entry(view);
    const auto write = [&](const CheckEntry& check) {
      json.Key(check.id);
      WriteCheck(check, entry, &json);
    };
    CheckEntry check;
    check.node = entry.address;  // as everywhere: a node is called by its address
    if (shown.maintenance) {
      check.id = absl::StrCat("_service_maintenance:", id);
      check.name = "Service Maintenance Mode";
      check.status = CheckStatus::kCritical;
      check.notes = shown.reason;
      check.kind = "maintenance";
      write(check);
    }
    for (const AgentServices::CheckState& state : shown.checks) {
      const bool ttl = state.definition.kind == CheckDefinition::Kind::kTtl;
      check.id = state.definition.id;
      check.name = state.definition.name;
      check.status = ttl && shown.lapsed ? CheckStatus::kCritical : state.status;
      check.notes = state.definition.notes;
      check.output = ttl && shown.lapsed ? std::string_view("TTL expired") : state.output;
      check.kind = ttl                                                     ? "ttl"
                   : state.definition.kind == CheckDefinition::Kind::kHttp ? "http"
                   : state.definition.kind == CheckDefinition::Kind::kTcp  ? "tcp"
                                                                           : "grpc";
      write(check);
    }
  }
  json.EndObject();
  return std::move(json).Take();
}

}  // namespace failback::consul
