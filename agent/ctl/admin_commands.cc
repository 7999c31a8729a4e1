#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/admin_output.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using admin::v1::DescribeInstanceRequest;
using admin::v1::InstanceDescription;
using admin::v1::SetOfflineRequest;
using admin::v1::SetOfflineResponse;
using registry::v1::InstanceKey;

void AddKey(CLI::App* command, InstanceKey* key) {
  command->add_option("SERVICE", *key->mutable_service(), "the service's name")
      ->type_name("SERVICE")
      ->required();
  command->add_option("--id", *key->mutable_instance_id(), "the instance, as `list` shows it")
      ->type_name("ID")
      ->required();
  AddNamespace(command, key->mutable_namespace_());
}

// At a registry, of what it does not hold: who may carry it.
void TellCarriers(CtlContext* context) {
  const auto agents = context->ListAll(
      context->admin(), &admin::v1::AdminService::StubInterface::ListAgents,
      admin::v1::ListAgentsRequest(), &admin::v1::ListAgentsResponse::mutable_agents);
  if (!agents.ok()) return;  // an agent has no agents
  std::fprintf(stderr, "failbackctl: describe: %s\n", FormatCarriers(*agents).c_str());
}

void AddDescribe(CLI::App* app, CtlAction* action) {
  auto key = std::make_shared<InstanceKey>();
  CLI::App* const command =
      app->add_subcommand("describe", "one instance: its session, what is pending, what happened");
  command->footer(
      "Examples:\n"
      "  failbackctl describe orders --id orders-1");
  AddKey(command, key.get());
  command->callback([action, key] {
    *action = [key](CtlContext* context) {
      DescribeInstanceRequest request;
      *request.mutable_key() = *key;
      InstanceDescription response;
      const grpc::Status status =
          context->admin().DescribeInstance(context->NewCall().get(), request, &response);
      const bool absent = status.error_code() == grpc::StatusCode::NOT_FOUND ||
                          (status.ok() && !response.has_instance());
      const int shown =
          status.ok()
              ? context->Show("describe",
                              FormatDescription(response, *key, absl::Now(), context->palette),
                              response)
              : context->Report("describe", StatusFromGrpc(status));
      if (absent) TellCarriers(context);
      return shown;
    };
  });
}

// An agent passes on what its registry answers; a mark is not tried again.
absl::Status MarkError(const CtlContext& context, const grpc::Status& error) {
  absl::Status status = StatusFromGrpc(error);
  const registry::v1::ErrorReason reason = ReasonOf(status);
  const bool away = reason == registry::v1::ERROR_REASON_UNSPECIFIED ||
                    reason == registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE;
  if (!absl::IsUnavailable(status) || !away || !context.connected()) return status;
  return absl::UnavailableError(absl::StrCat(
      FormatMessage(std::string(status.message())),
      "; a mark is tried once: set it again when `failbackctl status` shows the registry ready"));
}

void AddMark(CLI::App* app, CtlAction* action, const std::string& name, bool offline,
             const std::string& help, const std::string& explanation) {
  auto request = std::make_shared<SetOfflineRequest>();
  CLI::App* const command = app->add_subcommand(name, help);
  command->footer(absl::StrCat(explanation, "Examples:\n  failbackctl ", name,
                               " orders --id orders-1", offline ? " --reason 'leaks memory'" : ""));
  AddKey(command, request->mutable_key());
  AddUpstream(command, request->mutable_upstream());
  if (offline) {
    command->add_option("--reason", *request->mutable_reason(), "why, for people")
        ->type_name("TEXT");
  }
  command->callback([action, request, name, offline] {
    *action = [request, name, offline](CtlContext* context) {
      request->set_offline(offline);
      request->set_by(Operator());
      SetOfflineResponse response;
      const grpc::Status status =
          context->admin().SetOffline(context->NewCall().get(), *request, &response);
      if (!status.ok()) return context->Report(name, MarkError(*context, status));
      return context->Show(name,
                           absl::StrCat(FormatKey(request->key()), " is ", name,
                                        response.unchanged() ? " already\n" : "\n"),
                           response);
    };
  });
}

}  // namespace

void AddAdminCommands(CLI::App* app, CtlAction* action) {
  AddDescribe(app, action);
  AddMark(
      app, action, "offline", true, "take an instance out of rotation",
      "What its owner registered stays as it is; clients get it as one not to be used. The mark\n"
      "is there until `failbackctl online`, until the instance is unregistered, or a day after it\n"
      "went with its session. Through an agent it is the agent's token that has to be allowed to\n"
      "administer; to use your own, name the registry with --target.\n\n");
  AddMark(app, action, "online", false, "put an instance back into rotation", "");
}

}  // namespace failback
