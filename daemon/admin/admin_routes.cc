#include "daemon/admin/admin_routes.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/admin/message_json.h"
#include "daemon/admin/redact.h"
#include "daemon/admin/text_table.h"
#include "daemon/console/console.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using admin::v1::InstanceState;
using admin::v1::ListInstancesRequest;
using admin::v1::ListInstancesResponse;
using admin::v1::ListServicesRequest;
using admin::v1::ListServicesResponse;
using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;
using google::protobuf::Message;

absl::Status ReadStates(const AdminRequest& request, ListInstancesRequest* list) {
  for (const auto& [key, text] : request.query) {
    if (key != "status" || text.empty()) continue;
    InstanceState state;
    if (!admin::v1::InstanceState_Parse(
            absl::StrCat("INSTANCE_STATE_", absl::AsciiStrToUpper(text)), &state) ||
        state == admin::v1::INSTANCE_STATE_UNSPECIFIED) {
      return InvalidField(
          key, absl::StrCat("'", text,
                            "' is not one of healthy, unhealthy, draining, offline, pending, "
                            "parked, superseded, lapsed, held"));
    }
    list->add_states(state);
  }
  const std::string persistent = request.Query("persistent");
  if (persistent.empty()) return absl::OkStatus();
  if (persistent != "true" && persistent != "false") {
    return InvalidField("persistent", absl::StrCat("'", persistent, "' is not true or false"));
  }
  list->set_persistent(persistent == "true");
  return absl::OkStatus();
}

absl::Status ReadQuery(const AdminRequest& request, ListInstancesRequest* list) {
  list->set_namespace_(request.parameters[0]);
  list->set_service(request.parameters[1]);
  list->set_query(request.Query("query"));
  std::string sort = request.Query("sort");
  if (!sort.empty() && sort.front() == '-') sort = absl::StrCat(sort.substr(1), " desc");
  list->set_order_by(sort);
  return ReadStates(request, list);
}

InstanceKey KeyOf(const AdminRequest& request) {
  InstanceKey key;
  key.set_namespace_(request.parameters[0]);
  key.set_service(request.parameters[1]);
  key.set_instance_id(request.parameters[2]);
  return key;
}

// Runs `list`, unless the client has what it would answer already.
template <typename Run>
void Conditional(const Admin& admin, const AdminRequest& request, AdminServer::Respond respond,
                 Run list) {
  const std::string version = admin.ListVersion();
  // The same list in two shapes is two things.
  const std::string etag =
      version.empty() ? "" : absl::StrCat(version, request.wants_text() ? ".text" : ".json");
  if (!etag.empty() &&
      request.if_none_match.find(absl::StrCat("\"", etag, "\"")) != std::string::npos) {
    AdminResponse unchanged;
    unchanged.etag = etag;
    return std::move(respond)(std::move(unchanged));
  }
  list([etag, respond = std::move(respond)](AdminResponse response) mutable {
    if (!etag.empty() && response.status == 200) response.etag = etag;
    std::move(respond)(std::move(response));
  });
}

void Overview(const Admin& admin, AdminServer* server) {
  server->Handle(
      "GET", "/ready",
      [&admin](const AdminRequest& request, auto respond) {
        const admin::v1::Readiness readiness = admin.GetReadiness();
        AdminResponse response = MessageResponse(request, readiness);
        response.status = readiness.ready() ? 200 : 503;
        response.etag.clear();
        std::move(respond)(std::move(response));
      },
      AdminServer::Turn::kProbe);
  server->Handle("GET", "/overview", [&admin](const AdminRequest& request, auto respond) {
    admin.AnswerOverview({}, Responder<admin::v1::Overview>(request, std::move(respond)));
  });
}

void Services(const Admin& admin, AdminServer* server) {
  HandleList<ListServicesRequest>(
      server, "/services",
      [&admin](const AdminRequest& request, ListServicesRequest list, auto respond) {
        list.set_namespace_(request.Query("namespace"));
        list.set_query(request.Query("query"));
        Conditional(admin, request, std::move(respond), [&](AdminServer::Respond respond) {
          admin.ListServices(list, Responder<ListServicesResponse>(request, std::move(respond)));
        });
      });
  HandleList<ListInstancesRequest>(
      server, "/services/{namespace}/{service}",
      [&admin](const AdminRequest& request, ListInstancesRequest list, auto respond) {
        if (auto status = ReadQuery(request, &list); !status.ok()) {
          return std::move(respond)(AdminResponse::Error(status));
        }
        Conditional(admin, request, std::move(respond), [&](AdminServer::Respond respond) {
          admin.ListInstances(list, Responder<ListInstancesResponse>(request, std::move(respond)));
        });
      });
  server->Handle("GET", "/services/{namespace}/{service}/{instance}",
                 [&admin](const AdminRequest& request, auto respond) {
                   DescribeInstanceRequest describe;
                   *describe.mutable_key() = KeyOf(request);
                   admin.DescribeInstance(
                       describe, Responder<InstanceDescription>(request, std::move(respond)));
                 });
  HandlePost<SetOfflineRequest>(
      server, "/services/{namespace}/{service}/{instance}/offline",
      [&admin](const AdminRequest& request, SetOfflineRequest offline, auto respond) {
        *offline.mutable_key() = KeyOf(request);
        if (auto status = ValidateOperator(offline.by()); !status.ok()) {
          return std::move(respond)(AdminResponse::Error(status));
        }
        offline.set_by(NameOperator(offline.by(), "admin endpoint"));
        admin.SetOffline(offline, Responder<SetOfflineResponse>(request, std::move(respond)));
      });
}

void Dns(const Admin& admin, AdminServer* server) {
  server->Handle("GET", "/dns/{name}", [&admin](const AdminRequest& request, auto respond) {
    admin::v1::ExplainDnsNameRequest explain;
    explain.set_name(request.parameters[0]);
    admin.ExplainDnsName(explain,
                         Responder<admin::v1::DnsExplanation>(request, std::move(respond)));
  });
}

// Paths that only a registry has.
void Fleet(const Admin& admin, AdminServer* server) {
  HandleList<admin::v1::ListSessionsRequest>(
      server, "/sessions",
      [&admin](const AdminRequest& request, admin::v1::ListSessionsRequest list, auto respond) {
        list.set_query(request.Query("query"));
        admin.ListSessions(list,
                           Responder<admin::v1::ListSessionsResponse>(request, std::move(respond)));
      });
  HandleList<admin::v1::ListAgentsRequest>(
      server, "/agents",
      [&admin](const AdminRequest& request, admin::v1::ListAgentsRequest list, auto respond) {
        const std::string trouble = request.Query("trouble");
        if (!trouble.empty() && trouble != "true" && trouble != "false") {
          return std::move(respond)(AdminResponse::Error(
              InvalidField("trouble", absl::StrCat("'", trouble, "' is not true or false"))));
        }
        list.set_trouble(trouble == "true");
        admin.ListAgents(list,
                         Responder<admin::v1::ListAgentsResponse>(request, std::move(respond)));
      });
  HandlePost<admin::v1::SetEvictionGuardRequest>(
      server, "/guard",
      [&admin](const AdminRequest& request, admin::v1::SetEvictionGuardRequest guard,
               auto respond) {
        if (auto status = ValidateOperator(guard.by()); !status.ok()) {
          return std::move(respond)(AdminResponse::Error(status));
        }
        guard.set_by(NameOperator(guard.by(), absl::StrCat("admin endpoint at ", request.peer)));
        admin.SetEvictionGuard(
            guard, Responder<admin::v1::SetEvictionGuardResponse>(request, std::move(respond)));
      });
}

admin::v1::WheelStatus WheelStatusOf(const HashedWheelTimer& timer) {
  const HashedWheelTimer::Statistics statistics = timer.Stats();
  admin::v1::WheelStatus status;
  status.set_pending(statistics.pending);
  status.set_fired(statistics.fired);
  status.set_cancelled(statistics.cancelled);
  status.set_failed(statistics.failed);
  *status.mutable_worst_lateness() = ToProto(statistics.worst_lateness);
  return status;
}

void Logging(AdminServer* server) {
  const auto answer = [](const AdminRequest& request) {
    admin::v1::Logging logging;
    logging.set_level(LogLevelName(GetLogLevel()));
    return MessageResponse(request, logging);
  };
  server->Handle("GET", "/logging", [answer](const AdminRequest& request, auto respond) {
    std::move(respond)(answer(request));
  });
  HandlePost<admin::v1::Logging>(
      server, "/logging",
      [answer](const AdminRequest& request, const admin::v1::Logging& wanted, auto respond) {
        for (const LogLevel level :
             {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
          if (wanted.level() != LogLevelName(level)) continue;
          SetLogLevel(level);
          return std::move(respond)(answer(request));
        }
        std::move(respond)(AdminResponse::Error(InvalidField(
            "level",
            absl::StrCat("'", wanted.level(), "' is not one of debug, info, warning, error"))));
      });
}

// The same for the same content, although JSON has the entries of a map in any order.
std::string ContentTag(const Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return absl::StrCat(absl::Hex(Digest64(bytes)));
}

// Protobuf takes "yes" and "t" for true. A request that changes something says what it means.
absl::Status CheckBooleans(const google::protobuf::Struct& given,
                           const google::protobuf::Descriptor& type, const std::string& path) {
  using google::protobuf::FieldDescriptor;
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

AdminResponse MessageResponse(const AdminRequest& request, const Message& message) {
  const bool text = request.wants_text();
  AdminResponse response;
  if (text) {
    response = AdminResponse::Text(MessageText(message));
  } else {
    absl::StatusOr<std::string> json = MessageJson(message);
    if (!json.ok()) return AdminResponse::Error(json.status());
    response = AdminResponse::Json(*std::move(json));
  }
  response.etag = absl::StrCat(ContentTag(message), text ? ".text" : ".json");
  return response;
}

absl::StatusOr<int32_t> ReadPageSize(const AdminRequest& request) {
  const std::string text = request.Query("page_size");
  int32_t number = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &number) && number >= 0)) return number;
  return InvalidField("page_size", absl::StrCat("'", text, "' is not a number from 0 up"));
}

absl::Status ParseBody(const AdminRequest& request, Message* message) {
  if (request.body.empty()) return absl::OkStatus();
  google::protobuf::Struct given;
  auto status = google::protobuf::util::JsonStringToMessage(request.body, message);
  if (status.ok()) status = google::protobuf::util::JsonStringToMessage(request.body, &given);
  if (!status.ok()) return InvalidField("body", std::string(status.message()));
  return CheckBooleans(given, *message->GetDescriptor(), "");
}

void AddAdminRoutes(const AdminSources& sources, AdminServer* server) {
  HandleConsole(server);
  Overview(*sources.admin, server);
  Services(*sources.admin, server);
  Dns(*sources.admin, server);
  if (sources.admin->kind() == admin::v1::DAEMON_KIND_REGISTRY) Fleet(*sources.admin, server);
  Logging(server);
  server->Handle("GET", "/config",
                 [config = sources.config](const AdminRequest& request, auto respond) {
                   const std::unique_ptr<Message> message = config();
                   RedactConfig(message.get());
                   std::move(respond)(MessageResponse(request, *message));
                 });
  server->Handle("GET", "/debug/wheel",
                 [timer = sources.timer](const AdminRequest& request, auto respond) {
                   std::move(respond)(MessageResponse(request, WheelStatusOf(*timer)));
                 });
}

}  // namespace failback
