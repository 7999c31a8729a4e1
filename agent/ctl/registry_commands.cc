#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "grpcpp/grpcpp.h"
#include "registry/errors.h"

namespace failback {
namespace {

using registry::v1::InstanceKey;
using registry::v1::InstanceRecord;
using registry::v1::IntentResult;
using registry::v1::IntentState;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::Selector;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeRequest;
using registry::v1::SubscribeResponse;
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
    command->add_flag("--check", check, "one attempt: a failure is told and nothing is retried");
  }
};

// Prints what became of an intent of one item.
template <typename Response>
int ReportIntent(const CtlContext& context, const std::string& command, const std::string& done,
                 const InstanceKey& key, const Response& response) {
  if (response.results_size() != 1) {
    return context.Report(command, absl::InternalError(absl::StrCat(response.results_size(),
                                                                    " results for one instance")));
  }
  const IntentResult& result = response.results(0);
  const absl::Status status = StatusFromProto(result.status());
  if (!status.ok()) return context.Report(command, status);
  PrintResult(
      context.format,
      absl::StrCat(done, " ", FormatKey(key), ": ",
                   FormatEnum(registry::v1::IntentState_descriptor(), result.state()), "\n"),
      response);
  return kCtlOk;
}

void AddRegister(CLI::App* app, CtlAction* action) {
  struct Flags : IntentFlags {
    ServiceInstance instance;
    int64_t port = 0;
    int64_t weight = -1;
    KeyValues metadata;
  };
  auto flags = std::make_shared<Flags>();
  InstanceKey* const key = flags->instance.mutable_key();
  CLI::App* const command = app->add_subcommand("register", "register one instance of a service");
  command->footer(
      "The instance lives until it is unregistered: the registration does not end with this "
      "command.\n\n"
      "Examples:\n"
      "  failbackctl register orders --address 10.0.0.7 --port 8080\n"
      "  failbackctl register orders --address 10.0.0.7 --port 8080 --id orders-1 \\\n"
      "      --meta version=1.10 --zone eu-west-1a --wait acknowledged");
  command->add_option("SERVICE", *key->mutable_service(), "the service's name")->required();
  command->add_option("--address", *flags->instance.mutable_address(), "host name or IP address")
      ->type_name("HOST")
      ->required();
  command->add_option("--port", flags->port, "1 to 65535")->type_name("PORT")->required();
  command->add_option("--id", *key->mutable_instance_id(), "unique in the service [HOST:PORT]")
      ->type_name("ID");
  command->add_option("--namespace", *key->mutable_namespace_(), "namespace [default]")
      ->type_name("NAMESPACE");
  command->add_option("--weight", flags->weight, "share of the load, 0 to 65535 [100]")
      ->type_name("NUMBER");
  command->add_option("--zone", *flags->instance.mutable_zone(), "failure domain")
      ->type_name("ZONE");
  AddMetadata(command, &flags->metadata, "metadata of the instance; may be repeated");
  command->add_flag_function(
      "--persistent", [flags](int64_t) { flags->instance.set_persistent(true); },
      "stays registered when the agent is gone");
  flags->AddTo(command);
  command->callback([action, flags] {
    // The daemon decides what is in range, and says so in its words; only what its message
    // cannot carry is refused here.
    if (flags->port < 0 || flags->port > UINT32_MAX) {
      throw CLI::ValidationError("--port", absl::StrCat(flags->port, " is not in 1..65535"));
    }
    if (flags->weight < -1 || flags->weight > UINT32_MAX) {
      throw CLI::ValidationError("--weight", absl::StrCat(flags->weight, " is not in 0..65535"));
    }
    *action = [flags](CtlContext* context) {
      RegisterRequest request;
      ServiceInstance& instance = *request.add_registrations()->mutable_instance();
      instance = flags->instance;
      instance.set_port(static_cast<uint32_t>(flags->port));
      if (flags->weight >= 0) instance.set_weight(static_cast<uint32_t>(flags->weight));
      for (const auto& [name, value] : flags->metadata)
        (*instance.mutable_metadata())[name] = value;
      if (instance.key().instance_id().empty()) {
        instance.mutable_key()->set_instance_id(
            absl::StrCat(instance.address(), ":", instance.port()));
      }
      request.set_wait_for(flags->wait_for);
      request.set_check(flags->check);
      RegisterResponse response;
      const grpc::Status status =
          context->registry().Register(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("register", StatusFromGrpc(status));
      return ReportIntent(*context, "register", "registered", instance.key(), response);
    };
  });
}

void AddUnregister(CLI::App* app, CtlAction* action) {
  struct Flags : IntentFlags {
    InstanceKey key;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app->add_subcommand("unregister", "remove one instance of a service; one not there is fine");
  command->footer(
      "Examples:\n"
      "  failbackctl unregister orders --id orders-1");
  command->add_option("SERVICE", *flags->key.mutable_service(), "the service's name")->required();
  command->add_option("--id", *flags->key.mutable_instance_id(), "the instance, as `list` shows it")
      ->type_name("ID")
      ->required();
  command->add_option("--namespace", *flags->key.mutable_namespace_(), "namespace [default]")
      ->type_name("NAMESPACE");
  flags->AddTo(command);
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      UnregisterRequest request;
      *request.add_deregistrations()->mutable_key() = flags->key;
      request.set_wait_for(flags->wait_for);
      request.set_check(flags->check);
      UnregisterResponse response;
      const grpc::Status status =
          context->registry().Unregister(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("unregister", StatusFromGrpc(status));
      return ReportIntent(*context, "unregister", "unregistered", flags->key, response);
    };
  });
}

// The flags that make a Selector.
struct SelectorFlags {
  Selector selector;
  std::vector<std::string> zones;
  KeyValues metadata;
  bool healthy = false;
  std::string upstream;

  void AddTo(CLI::App* command) {
    command->add_option("--namespace", *selector.mutable_namespace_(), "namespace [default]")
        ->type_name("NAMESPACE");
    AddRepeated(command, "--zone", "ZONE", &zones, "only this zone; may be repeated");
    AddMetadata(command, &metadata, "only with this metadata; may be repeated");
    command->add_flag("--healthy", healthy, "only instances to be used now");
    AddUpstream(command, &upstream);
  }

  Selector ToProto() const {
    Selector result = selector;
    for (const std::string& zone : zones) result.add_zones(zone);
    for (const auto& [name, value] : metadata) (*result.mutable_metadata())[name] = value;
    if (healthy) result.add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
    return result;
  }
};

void AddList(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<SelectorFlags>();
  CLI::App* const command =
      app->add_subcommand("list", "list instances of all services, or of one");
  command->footer(
      "Examples:\n"
      "  failbackctl list\n"
      "  failbackctl list orders --zone eu-west-1a -o json");
  command->add_option("SERVICE", *flags->selector.mutable_service(), "only this service");
  flags->AddTo(command);
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      ListRequest request;
      *request.mutable_selector() = flags->ToProto();
      request.set_upstream(flags->upstream);
      std::vector<InstanceRecord> records;
      bool stale = false;
      do {
        ListResponse response;
        const grpc::Status status =
            context->registry().List(context->NewCall().get(), request, &response);
        if (!status.ok()) return context->Report("list", StatusFromGrpc(status));
        for (InstanceRecord& record : *response.mutable_records()) {
          records.push_back(std::move(record));
        }
        stale = stale || response.stale();
        request.set_page_token(response.next_page_token());
      } while (!request.page_token().empty());
      if (stale) {
        std::fprintf(stderr,
                     "failbackctl: list: the agent cannot reach the registry; this is the last it "
                     "knew\n");
      }
      if (context->format == OutputFormat::kTable) {
        Print(FormatRecords(records, absl::Now()));
      } else {
        Print(FormatList(context->format, MessagePointers(records)));
      }
      return kCtlOk;
    };
  });
}

void AddSubscribe(CLI::App* app, CtlAction* action) {
  struct Flags : SelectorFlags {
    int64_t count = 0;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      app->add_subcommand("subscribe", "follow a service, or the list of services");
  command->footer(
      "Tells what is there, then each change. Without SERVICE the services of the namespace are\n"
      "followed, with their numbers of instances. With -o json each message is one line, with -o "
      "yaml one document.\n\n"
      "Examples:\n"
      "  failbackctl subscribe orders\n"
      "  failbackctl subscribe --namespace staging\n"
      "  failbackctl subscribe orders --count 1 -o json");
  command->add_option("SERVICE", *flags->selector.mutable_service(),
                      "the service's name [the list of services]");
  command->add_option("--count", flags->count, "exit after so many messages; 0: never [0]")
      ->type_name("NUMBER")
      ->check(CLI::NonNegativeNumber);
  flags->AddTo(command);
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      SubscribeRequest request;
      *request.mutable_selector() = flags->ToProto();
      request.set_upstream(flags->upstream);
      const std::unique_ptr<grpc::ClientContext> call = context->NewStream();
      const auto stream = context->registry().Subscribe(call.get(), request);
      SubscribeResponse event;
      int64_t seen = 0;
      while (stream->Read(&event)) {
        switch (context->format) {
          case OutputFormat::kTable:
            Print(FormatEvent(event, absl::Now()));
            break;
          case OutputFormat::kJson:
            Print(FormatJson(event, JsonStyle::kLine) + "\n");
            break;
          case OutputFormat::kYaml:
            Print("---\n" + FormatYaml(event));
            break;
        }
        if (flags->count > 0 && ++seen >= flags->count) {
          call->TryCancel();
          stream->Finish();
          return kCtlOk;
        }
      }
      const grpc::Status status = stream->Finish();
      return status.ok() ? kCtlOk : context->Report("subscribe", StatusFromGrpc(status));
    };
  });
}

}  // namespace

void AddRegistryCommands(CLI::App* app, CtlAction* action) {
  AddRegister(app, action);
  AddUnregister(app, action);
  AddList(app, action);
  AddSubscribe(app, action);
}

}  // namespace failback
