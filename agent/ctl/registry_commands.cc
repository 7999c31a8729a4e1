#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/bulk_intents.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::IntentResult;
using registry::v1::IntentState;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::ServiceInstance;
using registry::v1::UnregisterRequest;
using registry::v1::UnregisterResponse;

// What register and unregister have in common.
struct IntentFlags {
  IntentState wait_for = registry::v1::INTENT_STATE_UNSPECIFIED;
  bool check = false;

  void AddTo(CLI::App* command) {
    command
        ->add_option_function<std::string>(
            "--wait",
            [this](const std::string& text) {
              if (text == "accepted") {
                wait_for = registry::v1::INTENT_STATE_ACCEPTED;
              } else if (text == "acknowledged") {
                wait_for = registry::v1::INTENT_STATE_ACKNOWLEDGED;
              } else {
                throw CLI::ValidationError(
                    "--wait", absl::StrCat("'", text, "' is not accepted or acknowledged"));
              }
            },
            "return when the agent has accepted it, or the registry acknowledged it [accepted]")
        ->type_name("accepted|acknowledged");
    command->add_flag("--check", check,
                      "one attempt: a failure is the answer, and nothing is retried");
  }

  template <typename Request>
  void Fill(Request* request) const {
    request->set_wait_for(wait_for);
    request->set_check(check);
  }
};

// Prints what became of an intent of one item.
template <typename Response>
int ReportIntent(const CtlContext& context, const std::string& command, const std::string& done,
                 const InstanceKey& key, const std::string& advice, const Response& response) {
  if (response.results_size() != 1) {
    return context.Report(command, absl::InternalError(absl::StrCat(response.results_size(),
                                                                    " results for one instance")));
  }
  const IntentResult& result = response.results(0);
  const absl::Status status = RefusalOf(result, advice);
  if (!status.ok()) return context.Report(command, status);
  return context.Show(
      command,
      absl::StrCat(done, " ", FormatKey(key), ": ",
                   FormatEnum(registry::v1::IntentState_descriptor(), result.state()), "\n"),
      response);
}

struct RegisterFlags : IntentFlags {
  ServiceInstance instance;
  std::optional<uint32_t> port;
  std::optional<uint32_t> weight;
  KeyValues metadata;
  std::string file;

  // The instance that the flags describe.
  ServiceInstance Instance() const {
    ServiceInstance result = instance;
    result.set_port(port.value_or(0));
    if (weight.has_value()) result.set_weight(*weight);
    for (const auto& [name, value] : metadata) (*result.mutable_metadata())[name] = value;
    if (result.key().instance_id().empty()) {
      result.mutable_key()->set_instance_id(absl::StrCat(result.address(), ":", result.port()));
    }
    return result;
  }
};

// The error of a call without an answer. Its deadline bounds the wait for the registry, not the
// intent.
template <typename Request>
absl::Status Unanswered(const CtlContext& context, const Request& request,
                        const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && context.connected() &&
      request.wait_for() == registry::v1::INTENT_STATE_ACKNOWLEDGED) {
    return absl::DeadlineExceededError(
        absl::StrCat("not acknowledged within ", absl::FormatDuration(context.timeout),
                     "; an agent goes on trying, `failbackctl pending` shows how far it is"));
  }
  return StatusFromGrpc(status);
}

absl::StatusOr<RegisterResponse> CallRegister(CtlContext* context, const RegisterRequest& request) {
  RegisterResponse response;
  const grpc::Status status =
      context->registry().Register(context->NewCall().get(), request, &response);
  if (!status.ok()) return Unanswered(*context, request, status);
  return response;
}

absl::StatusOr<UnregisterResponse> CallUnregister(CtlContext* context,
                                                  const UnregisterRequest& request) {
  UnregisterResponse response;
  const grpc::Status status =
      context->registry().Unregister(context->NewCall().get(), request, &response);
  if (!status.ok()) return Unanswered(*context, request, status);
  return response;
}

int RegisterOne(const RegisterFlags& flags, CtlContext* context) {
  RegisterRequest request;
  *request.add_registrations()->mutable_instance() = flags.Instance();
  flags.Fill(&request);
  const absl::StatusOr<RegisterResponse> response = CallRegister(context, request);
  if (!response.ok()) return context->Report("register", response.status());
  return ReportIntent(*context, "register", "registered", request.registrations(0).instance().key(),
                      flags.check
                          ? "repeat it without --check, and the agent retries the others; or "
                            "unregister it"
                          : "",
                      *response);
}

int RegisterFile(const RegisterFlags& flags, CtlContext* context) {
  return RunBulk(
      {"register", "registering", "registered", flags.file, flags.instance.key().namespace_()},
      [&](const ServiceInstance* begin, const ServiceInstance* end) -> BulkResults {
        RegisterRequest request;
        flags.Fill(&request);
        for (const ServiceInstance* item = begin; item != end; ++item) {
          *request.add_registrations()->mutable_instance() = *item;
        }
        absl::StatusOr<RegisterResponse> response = CallRegister(context, request);
        if (!response.ok()) return response.status();
        return std::move(*response->mutable_results());
      },
      context);
}

// What an instance needs on the command line, unless a file has it.
void CheckRegisterFlags(const CLI::App& command, const RegisterFlags& flags) {
  const bool given =
      command.count("SERVICE") + command.count("--address") + command.count("--port") > 0;
  if (!flags.file.empty()) {
    if (given) throw CLI::ValidationError("--file", "the file has service, address and port");
    return;
  }
  for (const char* const flag : {"SERVICE", "--address", "--port"}) {
    if (command.count(flag) == 0) throw CLI::RequiredError(flag);
  }
}

void AddRegister(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<RegisterFlags>();
  InstanceKey* const key = flags->instance.mutable_key();
  CLI::App* const command =
      app->add_subcommand("register", "register one instance of a service, or all of a file");
  command->footer(
      "An instance lives until it is unregistered: the registration does not end with this "
      "command.\n"
      "A file is YAML or JSON: a list of instances, as `list -o yaml` prints them; `-` is "
      "standard\n"
      "input. Each that is refused is named on stderr, the others are registered. To repeat is "
      "safe.\n\n"
      "Examples:\n"
      "  failbackctl register orders --address 10.0.0.7 --port 8080\n"
      "  failbackctl register orders --address 10.0.0.7 --port 8080 --id orders-1 \\\n"
      "      --meta version=1.10 --zone eu-west-1a --wait acknowledged\n"
      "  failbackctl register -f instances.yaml\n"
      "  failbackctl -t old:7070 list -o json | failbackctl -t new:7070 register -f -");
  command->add_option("SERVICE", *key->mutable_service(), "the service's name")
      ->type_name("SERVICE");
  command->add_option("--file,-f", flags->file, "register all instances of a file")
      ->type_name("FILE");
  command->add_option("--address", *flags->instance.mutable_address(), "host name or IP address")
      ->type_name("HOST");
  AddNumber(command, "--port", "PORT", "in 1..65535", &flags->port, "1 to 65535");
  command->add_option("--id", *key->mutable_instance_id(), "unique in the service [HOST:PORT]")
      ->type_name("NEW-ID");
  AddNamespace(command, key->mutable_namespace_());
  AddNumber(command, "--weight", "NUMBER", "in 0..65535", &flags->weight,
            "share of the load, 0 to 65535 [100]");
  command->add_option("--zone", *flags->instance.mutable_zone(), "failure domain")
      ->type_name("ZONE");
  AddMetadata(command, &flags->metadata, "metadata of the instance; may be repeated");
  command->add_flag_function(
      "--persistent", [flags](int64_t) { flags->instance.set_persistent(true); },
      "stays registered when the agent is gone");
  flags->AddTo(command);
  command->callback([action, flags, command] {
    CheckRegisterFlags(*command, *flags);
    *action = [flags](CtlContext* context) {
      return flags->file.empty() ? RegisterOne(*flags, context) : RegisterFile(*flags, context);
    };
  });
}

struct UnregisterFlags : IntentFlags {
  InstanceKey key;
  std::string file;
};

int UnregisterOne(const UnregisterFlags& flags, CtlContext* context) {
  UnregisterRequest request;
  *request.add_deregistrations()->mutable_key() = flags.key;
  flags.Fill(&request);
  const absl::StatusOr<UnregisterResponse> response = CallUnregister(context, request);
  if (!response.ok()) return context->Report("unregister", response.status());
  return ReportIntent(*context, "unregister", "unregistered", flags.key,
                      flags.check
                          ? "repeat it without --check, and the agent retries the others; or "
                            "register it again"
                          : "",
                      *response);
}

int UnregisterFile(const UnregisterFlags& flags, CtlContext* context) {
  return RunBulk(
      {"unregister", "unregistering", "unregistered", flags.file, flags.key.namespace_()},
      [&](const ServiceInstance* begin, const ServiceInstance* end) -> BulkResults {
        UnregisterRequest request;
        flags.Fill(&request);
        for (const ServiceInstance* item = begin; item != end; ++item) {
          *request.add_deregistrations()->mutable_key() = item->key();
        }
        absl::StatusOr<UnregisterResponse> response = CallUnregister(context, request);
        if (!response.ok()) return response.status();
        return std::move(*response->mutable_results());
      },
      context);
}

void CheckUnregisterFlags(const CLI::App& command, const UnregisterFlags& flags) {
  const size_t given = command.count("SERVICE") + command.count("--id");
  if (!flags.file.empty()) {
    if (given > 0) throw CLI::ValidationError("--file", "the file has services and ids");
    return;
  }
  for (const char* const flag : {"SERVICE", "--id"}) {
    if (command.count(flag) == 0) throw CLI::RequiredError(flag);
  }
}

void AddUnregister(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<UnregisterFlags>();
  CLI::App* const command = app->add_subcommand(
      "unregister", "remove one instance of a service, or all of a file; one not there is fine");
  command->footer(
      "A file is as for `register`; only the keys of its instances count.\n\n"
      "Examples:\n"
      "  failbackctl unregister orders --id orders-1\n"
      "  failbackctl unregister -f instances.yaml");
  command->add_option("SERVICE", *flags->key.mutable_service(), "the service's name")
      ->type_name("SERVICE");
  command->add_option("--id", *flags->key.mutable_instance_id(), "the instance, as `list` shows it")
      ->type_name("ID");
  command->add_option("--file,-f", flags->file, "unregister all instances of a file")
      ->type_name("FILE");
  AddNamespace(command, flags->key.mutable_namespace_());
  flags->AddTo(command);
  command->callback([action, flags, command] {
    CheckUnregisterFlags(*command, *flags);
    *action = [flags](CtlContext* context) {
      return flags->file.empty() ? UnregisterOne(*flags, context) : UnregisterFile(*flags, context);
    };
  });
}

}  // namespace

void AddRegistryCommands(CLI::App* app, CtlAction* action) {
  AddRegister(app, action);
  AddUnregister(app, action);
  AddListCommand(app, action);
  AddSubscribeCommand(app, action);
}

}  // namespace failback
