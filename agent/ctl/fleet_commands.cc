// Commands about a registry as a whole: its sessions, the agents behind them, its eviction guard.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/admin_output.h"
#include "agent/ctl/commands.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using admin::v1::AdminService;
using admin::v1::AgentSummary;
using admin::v1::ListAgentsRequest;
using admin::v1::ListAgentsResponse;
using admin::v1::ListSessionsRequest;
using admin::v1::ListSessionsResponse;
using admin::v1::SessionSummary;
using admin::v1::SetEvictionGuardRequest;
using admin::v1::SetEvictionGuardResponse;

void AddSessions(CLI::App* app, CtlAction* action) {
  auto query = std::make_shared<std::vector<std::string>>();
  CLI::App* const command = app->add_subcommand("sessions", "the sessions of a registry");
  command->footer(
      "Registries over one etcd list the same sessions.\n\n"
      "One that is held is past its TTL, and ends when ENDS says at the latest; `failbackctl "
      "guard\n"
      "release` ends what is held now.\n\n"
      "Examples:\n"
      "  failbackctl sessions --target 127.0.0.1:7070\n"
      "  failbackctl sessions host-17 --target 127.0.0.1:7070");
  command->add_option("WORD", *query, "all of them in the incarnation or the client's name")
      ->type_name("WORD");
  command->callback([action, query] {
    *action = [query](CtlContext* context) {
      ListSessionsRequest request;
      for (const std::string& word : *query) absl::StrAppend(request.mutable_query(), word, " ");
      const absl::StatusOr<std::vector<SessionSummary>> sessions =
          context->ListAll(context->admin(), &AdminService::StubInterface::ListSessions, request,
                           &ListSessionsResponse::mutable_sessions);
      if (!sessions.ok()) return context->Report("sessions", sessions.status());
      return context->ShowList("sessions", FormatSessions(*sessions, absl::Now(), context->palette),
                               *sessions);
    };
  });
}

void AddAgents(CLI::App* app, CtlAction* action) {
  auto trouble = std::make_shared<bool>(false);
  CLI::App* const command = app->add_subcommand(
      "agents", "the agents of a registry: what each carries, and what is wrong");
  command->footer(
      "Agents report with their renewals. One is in trouble when something is parked or "
      "superseded,\n"
      "when an operation has been pending for a minute, or when its renewals are overdue. Of a\n"
      "long reason the end is shown: `failbackctl status` at the agent has the whole. One whose\n"
      "session has ended is not listed any more. A registry over etcd lists those that renew\n"
      "there; ask each.\n\n"
      "Examples:\n"
      "  failbackctl agents --target 127.0.0.1:7070\n"
      "  failbackctl agents --trouble -o json --target 127.0.0.1:7070");
  command->add_flag("--trouble", *trouble, "only those in trouble");
  command->callback([action, trouble] {
    *action = [trouble](CtlContext* context) {
      ListAgentsRequest request;
      request.set_trouble(*trouble);
      const absl::StatusOr<std::vector<AgentSummary>> agents =
          context->ListAll(context->admin(), &AdminService::StubInterface::ListAgents, request,
                           &ListAgentsResponse::mutable_agents);
      if (!agents.ok()) return context->Report("agents", agents.status());
      const std::string table = agents->empty() && *trouble
                                    ? "no agent is in trouble\n"
                                    : FormatAgents(*agents, absl::Now(), context->palette);
      return context->ShowList("agents", table, *agents);
    };
  });
}

void AddGuard(CLI::App* app, CtlAction* action) {
  auto what = std::make_shared<std::string>();
  CLI::App* const command =
      app->add_subcommand("guard", "switch a registry's eviction guard, or end what it holds");
  command->footer(
      "on, off: until the registry starts again; off ends what is held. release: what is held now\n"
      "ends, and the guard goes on. Over etcd there is no guard: etcd ends leases by itself.\n\n"
      "Examples:\n"
      "  failbackctl guard release --target 127.0.0.1:7070");
  command->add_option("WHAT", *what, "on, off or release")
      ->type_name("on|off|release")
      ->required()
      ->check([](const std::string& text) {
        return text == "on" || text == "off" || text == "release"
                   ? ""
                   : absl::StrCat("'", text, "' is not on, off or release");
      });
  command->callback([action, what] {
    *action = [what](CtlContext* context) {
      SetEvictionGuardRequest request;
      if (*what == "release") {
        request.set_release(true);
      } else {
        request.set_enabled(*what == "on");
      }
      request.set_by(Operator());
      SetEvictionGuardResponse response;
      const grpc::Status status =
          context->admin().SetEvictionGuard(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("guard", StatusFromGrpc(status));
      return context->Show(
          "guard",
          absl::StrCat("guard ",
                       FormatEnum(admin::v1::EvictionGuardState_descriptor(), response.state()),
                       ", released ", response.released(),
                       response.released() == 1 ? " session\n" : " sessions\n"),
          response);
    };
  });
}

}  // namespace

void AddFleetCommands(CLI::App* app, CtlAction* action) {
  AddSessions(app, action);
  AddAgents(app, action);
  AddGuard(app, action);
}

}  // namespace failback
