#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "agent/ctl/terminal.h"
#include "agent/ctl/watch_output.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using agent::v1::AgentService;
using agent::v1::CancelRequest;
using agent::v1::CancelResponse;
using agent::v1::CarriedIntent;
using agent::v1::DrainRequest;
using agent::v1::DrainResponse;
using agent::v1::GetStatusRequest;
using agent::v1::GetStatusResponse;
using agent::v1::ListIntentsResponse;
using agent::v1::ListPendingRequest;
using agent::v1::ListPendingResponse;
using agent::v1::PendingOperation;
using agent::v1::RetryRequest;
using agent::v1::RetryResponse;

// How often a drain is asked how far it has come.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);

// For people, beside what is pending; empty when the agent does not say.
std::string Lapses(CtlContext* context) {
  if (context->format != OutputFormat::kTable) return "";
  GetStatusResponse status;
  if (!context->agent().GetStatus(context->NewCall().get(), GetStatusRequest(), &status).ok()) {
    return "";
  }
  return FormatLapses(status, absl::Now());
}

void AddPending(CLI::App* app, CtlAction* action) {
  CLI::App* const command = app->add_subcommand(
      "pending", "what the registry has not acknowledged: in flight, waiting for a retry, parked");
  command->footer(
      "TIMES is the attempt that failed last, of how many there are. Parked operations have had\n"
      "all of them or were refused for good: `failbackctl retry` tries them again,\n"
      "`failbackctl cancel` gives them up.\n"
      "SINCE and TIMES begin again when the agent starts: its journal keeps no times.\n"
      "What was acknowledged in a session that has run out is not pending; a line below says "
      "so.\n\n"
      "Examples:\n"
      "  failbackctl pending\n"
      "  failbackctl pending -o json");
  command->callback([action] {
    *action = [](CtlContext* context) {
      const absl::StatusOr<std::vector<PendingOperation>> listed =
          context->ListAll(context->agent(), &AgentService::StubInterface::ListPending,
                           ListPendingRequest(), &ListPendingResponse::mutable_operations);
      if (!listed.ok()) return context->Report("pending", listed.status());
      const std::vector<PendingOperation>& operations = *listed;
      const std::string table = operations.empty()
                                    ? "nothing pending\n"
                                    : FormatPending(operations, absl::Now(), context->palette);
      return context->ShowList("pending", table + Lapses(context), operations);
    };
  });
}

std::string FormatRetry(const RetryResponse& response, bool waited, const CtlContext& context) {
  if (response.retried() == 0) {
    return "nothing is pending, or it has to be named: see `failbackctl pending`\n";
  }
  std::string text = absl::StrCat("retried ", response.retried());
  if (!waited) return text + "\n";
  absl::StrAppend(&text, ": ", response.done(), " done, ", response.retried() - response.done(),
                  " not\n");
  if (response.remaining_size() == 0) return text;
  return text + FormatPending({response.remaining().begin(), response.remaining().end()},
                              absl::Now(), context.palette);
}

void AddRetry(CLI::App* app, CtlAction* action) {
  struct Flags {
    std::vector<std::string> ids;
    std::string upstream;
    absl::Duration wait = absl::ZeroDuration();
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command = app->add_subcommand(
      "retry", "try pending operations now; parked ones have all retries again");
  command->footer(
      "With --wait it prints how the attempts ended; exit status 1 when one did not succeed.\n"
      "What is in doubt since the agent's journal was put back may have been unregistered: it is\n"
      "retried only where it is named.\n\n"
      "Examples:\n"
      "  failbackctl retry\n"
      "  failbackctl retry --wait 10s\n"
      "  failbackctl retry 'register default/orders/orders-1'");
  command
      ->add_option("ID", flags->ids,
                   "operations, as `pending` shows them; none: all that are in no doubt")
      ->type_name("OPERATION");
  AddDuration(command, "--wait", &flags->wait, "until the attempts have ended, at most so long");
  AddUpstream(command, &flags->upstream);
  command->callback([action, flags] {
    *action = [flags](CtlContext* context) {
      RetryRequest request;
      for (const std::string& id : flags->ids) request.mutable_selector()->add_ids(id);
      request.mutable_selector()->set_upstream(flags->upstream);
      const bool waits = flags->wait > absl::ZeroDuration();
      if (waits) *request.mutable_wait() = ToProto(flags->wait);
      // The way there needs time too.
      context->timeout += flags->wait;
      RetryResponse response;
      const grpc::Status status =
          context->agent().Retry(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("retry", StatusFromGrpc(status));
      const int shown = context->Show(
          "retry", FormatRetry(response, waits, *context) + Lapses(context), response);
      return waits && response.done() < response.retried() ? kCtlFailed : shown;
    };
  });
}

void AddIntents(CLI::App* app, CtlAction* action) {
  using registry::v1::IntentState;
  auto states = std::make_shared<std::vector<std::string>>();
  CLI::App* const command = app->add_subcommand(
      "intents", "what an agent registers, and how far each registration has come");
  command->footer(
      "From the agent's memory: whatever its registries know, or allow to be read.\n\n"
      "Examples:\n"
      "  failbackctl intents\n"
      "  failbackctl intents --state pending --state parked\n"
      "  failbackctl intents --state superseded --state lapsed -o json");
  AddRepeated(command, "--state", "pending|parked|acknowledged|superseded|lapsed", states.get(),
              "only in this state; may be repeated");
  command->callback([action, states] {
    agent::v1::ListIntentsRequest request;
    for (const std::string& text : *states) {
      const std::string word = text == "pending" ? "accepted" : text;
      IntentState state;
      if (text == "accepted" ||
          !registry::v1::IntentState_Parse(
              absl::StrCat("INTENT_STATE_", absl::AsciiStrToUpper(word)), &state) ||
          state == registry::v1::INTENT_STATE_UNSPECIFIED) {
        throw CLI::ValidationError(
            "--state",
            absl::StrCat("'", text,
                         "' is not pending, parked, acknowledged, superseded or lapsed"));
      }
      request.add_states(state);
    }
    *action = [request](CtlContext* context) {
      const absl::StatusOr<std::vector<CarriedIntent>> intents =
          context->ListAll(context->agent(), &AgentService::StubInterface::ListIntents, request,
                           &ListIntentsResponse::mutable_intents);
      if (!intents.ok()) return context->Report("intents", intents.status());
      return context->ShowList("intents", FormatIntents(*intents, context->palette), *intents);
    };
  });
}

void AddCancel(CLI::App* app, CtlAction* action) {
  struct Flags {
    std::vector<std::string> ids;
    std::string upstream;
    bool all = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* const command = app->add_subcommand(
      "cancel", "give pending operations up, until a new intent for the same key");
  command->footer(
      "One that is in flight may have been sent, and take effect all the same. To cancel a "
      "register\n"
      "gives up the instance: what the registry holds of it stays as it is, until the session "
      "ends\n"
      "or `failbackctl unregister`.\n\n"
      "Examples:\n"
      "  failbackctl cancel 'register default/orders/orders-1'\n"
      "  failbackctl cancel --all");
  command->add_option("ID", flags->ids, "operations, as `pending` shows them")
      ->type_name("OPERATION");
  command->add_flag("--all", flags->all, "everything pending");
  AddUpstream(command, &flags->upstream);
  command->callback([action, flags] {
    if (flags->ids.empty() != flags->all) {
      throw CLI::ValidationError("ID", "name pending operations, or give --all");
    }
    *action = [flags](CtlContext* context) {
      CancelRequest request;
      for (const std::string& id : flags->ids) request.mutable_selector()->add_ids(id);
      request.mutable_selector()->set_upstream(flags->upstream);
      request.set_all(flags->all);
      CancelResponse response;
      const grpc::Status status =
          context->agent().Cancel(context->NewCall().get(), request, &response);
      if (!status.ok()) return context->Report("cancel", StatusFromGrpc(status));
      const std::string sent =
          response.sent() == 0
              ? ""
              : absl::StrCat("; ", response.sent(), " had been sent, and may still take effect");
      return context->Show("cancel", absl::StrCat("cancelled ", response.cancelled(), sent, "\n"),
                           response);
    };
  });
}

// What the agent has not unregistered yet; nullopt when it does not say.
std::optional<int64_t> LeftToDrain(CtlContext* context) {
  GetStatusResponse response;
  if (!context->agent().GetStatus(context->NewCall().get(), GetStatusRequest(), &response).ok()) {
    return std::nullopt;
  }
  uint64_t left = 0;
  for (const auto& upstream : response.upstreams()) {
    left += upstream.acknowledged() + upstream.pending();
  }
  return static_cast<int64_t>(left);
}

// Drains, with a bar at a terminal.
grpc::Status Drain(CtlContext* context, absl::Duration deadline, DrainResponse* response) {
  DrainRequest request;
  *request.mutable_deadline() = ToProto(deadline);
  const std::optional<int64_t> total =
      TerminalAt(STDERR_FILENO).has_value() ? LeftToDrain(context) : std::nullopt;
  // The agent's answer takes up to the deadline; the way there needs time too.
  context->timeout += deadline;
  const std::unique_ptr<grpc::ClientContext> call = context->NewCall();
  if (!total.has_value()) return context->agent().Drain(call.get(), request, response);
  grpc::Status status;
  absl::Notification done;
  context->agent().async()->Drain(call.get(), &request, response, [&](grpc::Status result) {
    status = std::move(result);
    done.Notify();
  });
  Progress progress("draining", *total);
  while (!done.WaitForNotificationWithTimeout(kProgressInterval)) {
    progress.Set(*total - LeftToDrain(context).value_or(*total));
  }
  return status;
}

void AddDrain(CLI::App* app, CtlAction* action) {
  auto deadline = std::make_shared<absl::Duration>(absl::Seconds(10));
  CLI::App* const command = app->add_subcommand(
      "drain",
      "unregister all but persistent instances; the agent takes no new intents from now on");
  command->footer(
      "Exit status 1 when something that is not persistent is still registered after the "
      "deadline.\n"
      "Persistent instances stay: `failbackctl unregister` takes them out, before.\n"
      "A drain ends with the process: an agent with a state directory registers again what it\n"
      "carried when it starts. A drained agent takes intents again only after a restart.\n\n"
      "Examples:\n"
      "  failbackctl drain --deadline 20s");
  AddDuration(command, "--deadline", deadline.get(), "wait for the registry at most so long [10s]");
  command->callback([action, deadline] {
    *action = [deadline](CtlContext* context) {
      DrainResponse response;
      const grpc::Status status = Drain(context, *deadline, &response);
      if (!status.ok()) return context->Report("drain", StatusFromGrpc(status));
      const int shown = context->Show("drain", FormatDrained(response, context->palette), response);
      if (response.remaining() == 0) return shown;
      std::fprintf(stderr,
                   "failbackctl: drain: the registry has not acknowledged within %s that what "
                   "remains is gone; `failbackctl status` shows whether it can be reached. The "
                   "agent tries on until it ends, and then the session's TTL removes what is not "
                   "persistent\n",
                   absl::FormatDuration(*deadline).c_str());
      return kCtlFailed;
    };
  });
}

}  // namespace

void AddAgentCommands(CLI::App* app, CtlAction* action) {
  AddPending(app, action);
  AddIntents(app, action);
  AddRetry(app, action);
  AddCancel(app, action);
  AddDrain(app, action);
}

}  // namespace failback
