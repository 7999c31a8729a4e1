#include "daemon/admin/admin_routes.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/admin/admin_guard.h"
#include "daemon/admin/redact.h"
#include "daemon/admin/text_table.h"
#include "daemon/console/console.h"
#include "gateway/http/message_json.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
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

absl::Status ReadStates(const http::Request& request, ListInstancesRequest* list) {
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

absl::Status ReadQuery(const http::Request& request, ListInstancesRequest* list) {
  list->set_namespace_(request.parameters[0]);
  list->set_service(request.parameters[1]);
  list->set_query(request.Query("query"));
  std::string sort = request.Query("sort");
  if (!sort.empty() && sort.front() == '-') sort = absl::StrCat(sort.substr(1), " desc");
  list->set_order_by(sort);
  return ReadStates(request, list);
}

InstanceKey KeyOf(const http::Request& request) {
  InstanceKey key;
  key.set_namespace_(request.parameters[0]);
  key.set_service(request.parameters[1]);
  key.set_instance_id(request.parameters[2]);
  return key;
}

// Runs `list`, unless the client has what it would answer already.
template <typename Run>
void Conditional(const Admin& admin, const http::Request& request, http::Responder respond,
                 Run list) {
  const std::string version = admin.ListVersion();
  // The same list in two shapes is two things.
  const std::string etag =
      version.empty() ? "" : absl::StrCat(version, request.wants_text() ? ".text" : ".json");
  if (!etag.empty() && request.Header("If-None-Match").find(absl::StrCat("\"", etag, "\"")) !=
                           std::string_view::npos) {
    http::Response unchanged;
    unchanged.etag = etag;
    return std::move(respond)(std::move(unchanged));
  }
  list([etag, respond = std::move(respond)](http::Response response) mutable {
    if (!etag.empty() && response.status == 200) response.etag = etag;
    std::move(respond)(std::move(response));
  });
}

void Overview(const Admin& admin, http::Server* server) {
  server->Handle(
      "GET", "/ready",
      [&admin](const http::Request& request, auto respond) {
        const admin::v1::Readiness readiness = admin.GetReadiness();
        http::Response response = MessageResponse(request.wants_text(), readiness);
        response.status = readiness.ready() ? 200 : 503;
        response.etag.clear();
        std::move(respond)(std::move(response));
      },
      http::Server::Turn::kProbe);
  server->Handle("GET", "/overview", [&admin](const http::Request& request, auto respond) {
    admin.AnswerOverview({}, Responder<admin::v1::Overview>(request, std::move(respond)));
  });
}

void Services(const Admin& admin, http::Server* server) {
  HandleList<ListServicesRequest>(
      server, "/services",
      [&admin](const http::Request& request, ListServicesRequest list, auto respond) {
        list.set_namespace_(request.Query("namespace"));
        list.set_query(request.Query("query"));
        Conditional(admin, request, std::move(respond), [&](AdminRespond respond) {
          admin.ListServices(list, Responder<ListServicesResponse>(request, std::move(respond)));
        });
      });
  HandleList<ListInstancesRequest>(
      server, "/services/{namespace}/{service}",
      [&admin](const http::Request& request, ListInstancesRequest list, auto respond) {
        if (auto status = ReadQuery(request, &list); !status.ok()) {
          return std::move(respond)(AdminError(status));
        }
        Conditional(admin, request, std::move(respond), [&](AdminRespond respond) {
          admin.ListInstances(list, Responder<ListInstancesResponse>(request, std::move(respond)));
        });
      });
  server->Handle("GET", "/services/{namespace}/{service}/{instance}",
                 [&admin](const http::Request& request, auto respond) {
                   DescribeInstanceRequest describe;
                   *describe.mutable_key() = KeyOf(request);
                   admin.DescribeInstance(
                       describe, Responder<InstanceDescription>(request, std::move(respond)));
                 });
  HandlePost<SetOfflineRequest>(
      server, "/services/{namespace}/{service}/{instance}/offline",
      [&admin](const http::Request& request, SetOfflineRequest offline, auto respond) {
        *offline.mutable_key() = KeyOf(request);
        if (auto status = ValidateOperator(offline.by()); !status.ok()) {
          return std::move(respond)(AdminError(status));
        }
        offline.set_by(NameOperator(offline.by(), "admin endpoint"));
        admin.SetOffline(offline, Responder<SetOfflineResponse>(request, std::move(respond)));
      });
}

void Dns(const Admin& admin, http::Server* server) {
  server->Handle("GET", "/dns/{name}", [&admin](const http::Request& request, auto respond) {
    admin::v1::ExplainDnsNameRequest explain;
    explain.set_name(request.parameters[0]);
    admin.ExplainDnsName(explain,
                         Responder<admin::v1::DnsExplanation>(request, std::move(respond)));
  });
}

// Paths that only a registry has.
void Fleet(const Admin& admin, http::Server* server) {
  HandleList<admin::v1::ListSessionsRequest>(
      server, "/sessions",
      [&admin](const http::Request& request, admin::v1::ListSessionsRequest list, auto respond) {
        list.set_query(request.Query("query"));
        admin.ListSessions(list,
                           Responder<admin::v1::ListSessionsResponse>(request, std::move(respond)));
      });
  HandleList<admin::v1::ListAgentsRequest>(
      server, "/agents",
      [&admin](const http::Request& request, admin::v1::ListAgentsRequest list, auto respond) {
        const std::string trouble = request.Query("trouble");
        if (!trouble.empty() && trouble != "true" && trouble != "false") {
          return std::move(respond)(AdminError(
              InvalidField("trouble", absl::StrCat("'", trouble, "' is not true or false"))));
        }
        list.set_trouble(trouble == "true");
        admin.ListAgents(list,
                         Responder<admin::v1::ListAgentsResponse>(request, std::move(respond)));
      });
  HandlePost<admin::v1::SetEvictionGuardRequest>(
      server, "/guard",
      [&admin](const http::Request& request, admin::v1::SetEvictionGuardRequest guard,
               auto respond) {
        if (auto status = ValidateOperator(guard.by()); !status.ok()) {
          return std::move(respond)(AdminError(status));
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

void Logging(http::Server* server) {
  const auto answer = [](const http::Request& request) {
    admin::v1::Logging logging;
    logging.set_level(LogLevelName(GetLogLevel()));
    return MessageResponse(request.wants_text(), logging);
  };
  server->Handle("GET", "/logging", [answer](const http::Request& request, auto respond) {
    std::move(respond)(answer(request));
  });
  HandlePost<admin::v1::Logging>(
      server, "/logging",
      [answer](const http::Request& request, const admin::v1::Logging& wanted, auto respond) {
        for (const LogLevel level :
             {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
          if (wanted.level() != LogLevelName(level)) continue;
          SetLogLevel(level);
          return std::move(respond)(answer(request));
        }
        std::move(respond)(AdminError(InvalidField(
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

}  // namespace

http::Response MessageResponse(bool text, const Message& message) {
  http::Response response;
  if (text) {
    response = http::Response::Text(MessageText(message));
  } else {
    absl::StatusOr<std::string> json = MessageJson(message);
    if (!json.ok()) return AdminError(json.status());
    response = http::Response::Json(*std::move(json));
  }
  response.etag = absl::StrCat(ContentTag(message), text ? ".text" : ".json");
  return response;
}

absl::StatusOr<int32_t> ReadPageSize(const http::Request& request) {
  const std::string text = request.Query("page_size");
  int32_t number = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &number) && number >= 0)) return number;
  return InvalidField("page_size", absl::StrCat("'", text, "' is not a number from 0 up"));
}

absl::Status ParseBody(const http::Request& request, Message* message) {
  return request.body.empty() ? absl::OkStatus() : ParseJson(request.body, message);
}

void AddAdminRoutes(const AdminSources& sources, http::Server* server) {
  HandleConsole(server);
  Overview(*sources.admin, server);
  Services(*sources.admin, server);
  Dns(*sources.admin, server);
  if (sources.admin->kind() == admin::v1::DAEMON_KIND_REGISTRY) Fleet(*sources.admin, server);
  Logging(server);
  server->Handle("GET", "/config",
                 [config = sources.config](const http::Request& request, auto respond) {
                   const std::unique_ptr<Message> message = config();
                   RedactConfig(message.get());
                   std::move(respond)(MessageResponse(request.wants_text(), *message));
                 });
  server->Handle("GET", "/debug/wheel",
                 [timer = sources.timer](const http::Request& request, auto respond) {
                   std::move(respond)(MessageResponse(request.wants_text(), WheelStatusOf(*timer)));
                 });
}

}  // namespace failback
