#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/ctl/commands.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using agent::v1::ReportHealthRequest;
using agent::v1::ReportHealthResponse;
using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

void AddHealth(CLI::App* app, CtlAction* action) {
  auto name = std::make_shared<std::string>();
  CLI::App* const command = app->add_subcommand(
      "health", "ask grpc.health.v1 once, as a probe of Kubernetes does with exec");
  command->footer(
      "At an agent: `liveness` while it runs, `readiness` from when its registry first had all\n"
      "instances until it drains. Exit status 0 when serving, 1 when not, 3 without an "
      "answer.\n\n"
      "Examples:\n"
      "  failbackctl health\n"
      "  failbackctl --target unix:/run/failback/agent.sock health readiness");
  command->add_option("NAME", *name, "what is asked for; none: the server as a whole");
  command->callback([action, name] {
    *action = [name](CtlContext* context) {
      HealthCheckRequest request;
      request.set_service(*name);
      HealthCheckResponse response;
      const grpc::Status status =
          Health::NewStub(context->channel())->Check(context->NewCall().get(), request, &response);
      if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
        return context->Report(
            "health", absl::NotFoundError(
                          absl::StrCat("'", *name,
                                       "' is not known there; an agent has liveness, "
                                       "readiness and startup, a registry goes without a name")));
      }
      if (!status.ok()) return context->Report("health", StatusFromGrpc(status));
      const int shown = context->Show(
          "health",
          absl::AsciiStrToLower(HealthCheckResponse::ServingStatus_Name(response.status())) + "\n",
          response);
      return response.status() == HealthCheckResponse::SERVING ? shown : kCtlFailed;
    };
  });
}

void AddReportHealth(CLI::App* app, CtlAction* action) {
  struct Flags {
    std::string service, name_space, id, check, note;
    bool critical = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command = app->add_subcommand(
      "report-health", "report the health of a static service, for its check of kind ttl");
  command->footer(
      "To be repeated within the TTL of the check.\n\n"
      "Examples:\n"
      "  failbackctl report-health orders\n"
      "  failbackctl report-health orders --critical --note 'no database'");
  command->add_option("SERVICE", flags->service, "its name in the configuration")->required();
  command->add_flag("--critical", flags->critical, "it is not well; without it: it is");
  command->add_option("--note", flags->note, "why, for people")->type_name("TEXT");
  command->add_option("--namespace", flags->name_space, "its namespace")->type_name("NAME");
  command->add_option("--id", flags->id, "which instance, when the agent has several")
      ->type_name("ID");
  command->add_option("--check", flags->check, "which check, when it has several of kind ttl")
      ->type_name("NAME");
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      ReportHealthRequest request;
      request.set_service(flags->service);
      request.set_namespace_(flags->name_space);
      request.set_instance_id(flags->id);
      request.set_check(flags->check);
      request.set_note(flags->note);
      request.set_state(flags->critical ? agent::v1::CHECK_STATE_CRITICAL
                                        : agent::v1::CHECK_STATE_PASSING);
      ReportHealthResponse response;
      const grpc::Status status =
          context->agent().ReportHealth(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("report-health", StatusFromGrpc(status));
      return context->Show(
          "report-health",
          absl::StrCat(flags->service, " is ",
                       FormatEnum(agent::v1::CheckState_descriptor(), response.state()), "\n"),
          response);
    };
  });
}

}  // namespace

void AddHealthCommands(CLI::App* app, CtlAction* action) {
  AddHealth(app, action);
  AddReportHealth(app, action);
}

}  // namespace failback
