// `failbackctl list`: what a registry lists; at an agent with what the agent carries itself over
// it, as its registries do not list what they have not acknowledged.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/carried_overlay.h"
#include "agent/ctl/commands.h"
#include "agent/ctl/flags.h"
#include "agent/ctl/selector_flags.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using agent::v1::CarriedIntent;
using registry::v1::InstanceRecord;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::RegistryService;

// The words of the column STATUS, and of the console's filter.
constexpr char kStates[] =
    "healthy|unhealthy|draining|offline|pending|parked|superseded|lapsed|held";

struct ListFlags : SelectorFlags {
  bool all_namespaces = false;
  std::vector<std::string> states;
};

void Note(const std::string& text) {
  std::fprintf(stderr, "failbackctl: list: %s\n", text.c_str());
}

// All that one request means, on all pages; adds to `records`.
absl::Status ListPages(CtlContext* context, const ListRequest& request,
                       std::vector<InstanceRecord>* records, bool* stale) {
  return context->EachPage(context->registry(), &RegistryService::StubInterface::List, request,
                           [&](ListResponse* page) {
                             for (InstanceRecord& record : *page->mutable_records()) {
                               records->push_back(std::move(record));
                             }
                             *stale |= page->stale();
                           });
}

// What an agent carries, of one upstream if it is named. UNIMPLEMENTED: the target is a registry.
absl::StatusOr<std::vector<CarriedIntent>> Carried(CtlContext* context,
                                                   const std::string& upstream) {
  std::vector<CarriedIntent> intents;
  const absl::Status status =
      context->EachPage(context->agent(), &agent::v1::AgentService::StubInterface::ListIntents,
                        agent::v1::ListIntentsRequest(), [&](agent::v1::ListIntentsResponse* page) {
                          for (CarriedIntent& intent : *page->mutable_intents()) {
                            if (upstream.empty() || intent.upstream() == upstream) {
                              intents.push_back(std::move(intent));
                            }
                          }
                        });
  if (!status.ok()) return status;
  return intents;
}

// The agent's own incarnation; empty if it does not say.
std::string IncarnationOf(CtlContext* context) {
  agent::v1::GetStatusResponse response;
  const grpc::Status status = context->agent().GetStatus(context->NewCall().get(),
                                                         agent::v1::GetStatusRequest(), &response);
  return status.ok() ? response.incarnation() : "";
}

// Every namespace that a registry's services have.
absl::StatusOr<std::vector<std::string>> RegistryNamespaces(CtlContext* context) {
  admin::v1::ListServicesRequest request;
  request.set_page_size(1);
  admin::v1::ListServicesResponse response;
  const grpc::Status status =
      context->admin().ListServices(context->NewCall().get(), request, &response);
  if (!status.ok()) return StatusFromGrpc(status);
  return std::vector<std::string>(response.namespaces().begin(), response.namespaces().end());
}

// Those that an agent knows of: the default one, and where it registers.
std::vector<std::string> AgentNamespaces(const std::vector<CarriedIntent>& carried) {
  std::set<std::string> names = {kDefaultNamespace};
  for (const CarriedIntent& intent : carried) names.insert(intent.instance().key().namespace_());
  Note(absl::StrCat("an agent knows the namespaces that it registers in, and default: ",
                    absl::StrJoin(names, ", "), "; of all others ask the registry"));
  return {names.begin(), names.end()};
}

int List(const ListFlags& flags, CtlContext* context) {
  const absl::StatusOr<std::vector<CarriedIntent>> carried = Carried(context, flags.upstream);
  const std::string incarnation = carried.ok() ? IncarnationOf(context) : "";
  std::vector<std::string> namespaces = {flags.selector.namespace_()};
  if (flags.all_namespaces) {
    absl::StatusOr<std::vector<std::string>> all =
        carried.ok() ? AgentNamespaces(*carried)
        : absl::IsUnimplemented(carried.status())
            ? RegistryNamespaces(context)
            : absl::StatusOr<std::vector<std::string>>(carried.status());
    if (!all.ok()) return context->Report("list", all.status());
    namespaces = *std::move(all);
  }
  std::vector<InstanceRecord> records;
  bool stale = false;
  absl::Status unread;  // how the first listing that failed did
  for (const std::string& name_space : namespaces) {
    ListRequest request;
    *request.mutable_selector() = flags.ToProto();
    request.mutable_selector()->set_namespace_(name_space);
    request.set_upstream(flags.upstream);
    std::vector<InstanceRecord> listed;
    const absl::Status status = ListPages(context, request, &listed, &stale);
    // An agent that may not read, or cannot, still knows what it carries.
    const bool known = carried.ok() && !carried->empty();
    if (!status.ok() && !known) return context->Report("list", status);
    unread.Update(status);
    if (carried.ok()) {
      // Of the healthy ones the registry says which; how far each has come is the agent's to say.
      registry::v1::Selector meant = request.selector();
      meant.clear_statuses();
      std::vector<CarriedIntent> wanted;
      std::copy_if(
          carried->begin(), carried->end(), std::back_inserter(wanted),
          [&](const CarriedIntent& intent) { return SelectorMatches(meant, intent.instance()); });
      CarriedOverlay overlay;
      overlay.all = !status.ok();
      overlay.add = !flags.healthy;
      overlay.incarnation = incarnation;
      OverlayCarried(wanted, overlay, &listed);
    }
    if (!status.ok() && !listed.empty()) {
      Note(absl::StrCat("the registry does not list ", name_space.empty() ? "these" : name_space,
                        " (", FormatMessage(std::string(status.message())),
                        "): what the agent carries is shown alone"));
    }
    std::move(listed.begin(), listed.end(), std::back_inserter(records));
  }
  // An empty list would say that there is nothing, which is not known.
  if (!unread.ok() && records.empty()) return context->Report("list", unread);
  if (stale) Note("this is the last the agent knew of its registry: `failbackctl status` says why");
  if (!flags.states.empty()) {
    const auto unwanted = [&](const InstanceRecord& record) {
      return std::none_of(flags.states.begin(), flags.states.end(),
                          [&](const std::string& state) { return HasState(record, state); });
    };
    records.erase(std::remove_if(records.begin(), records.end(), unwanted), records.end());
  }
  return context->ShowList(
      "list",
      FormatRecords(records, absl::Now(), context->palette,
                    flags.all_namespaces ? NamespaceColumn::kShow : NamespaceColumn::kHide),
      records);
}

}  // namespace

void AddListCommand(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* const command =
      app->add_subcommand("list", "list instances of all services, or of one");
  command->footer(
      "At an agent what it carries itself is listed too, whether its registry has acknowledged it\n"
      "or not; for callers who may administer. STATUS says which, and --state narrows to it.\n\n"
      "Examples:\n"
      "  failbackctl list\n"
      "  failbackctl list orders --zone eu-west-1a -o json\n"
      "  failbackctl list --state pending --state parked\n"
      "  failbackctl -t 127.0.0.1:7070 list -A");
  command->add_option("SERVICE", *flags->selector.mutable_service(), "only this service")
      ->type_name("SERVICE");
  flags->AddTo(command);
  AddRepeated(command, "--state", kStates, &flags->states,
              "only with this STATUS; may be repeated");
  command->add_flag("--all-namespaces,-A", flags->all_namespaces,
                    "of all namespaces that the registry has; at an agent, of those it knows");
  command->callback([action, flags] {
    if (flags->all_namespaces && !flags->selector.namespace_().empty()) {
      throw CLI::ValidationError("--all-namespaces", "not together with --namespace");
    }
    const std::vector<std::string> known = absl::StrSplit(kStates, '|');
    for (const std::string& state : flags->states) {
      if (std::find(known.begin(), known.end(), state) != known.end()) continue;
      throw CLI::ValidationError(
          "--state", absl::StrCat("'", state, "' is not one of ", absl::StrJoin(known, ", ")));
    }
    *action = [flags](CtlContext* context) { return List(*flags, context); };
  });
}

}  // namespace failback
