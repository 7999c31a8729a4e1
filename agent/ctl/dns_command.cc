// `failbackctl dns`: what the target's DNS server answers about a name, and why.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "agent/ctl/commands.h"
#include "daemon/admin/text_table.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

int ExplainName(const std::string& name, CtlContext* context) {
  admin::v1::ExplainDnsNameRequest request;
  request.set_name(name);
  admin::v1::DnsExplanation explained;
  const grpc::Status status =
      context->admin().ExplainDnsName(context->NewCall().get(), request, &explained);
  if (!status.ok()) return context->Report("dns", StatusFromGrpc(status));
  return context->Show("dns", MessageText(explained), explained);
}

}  // namespace

void AddDnsCommand(CLI::App* app, CtlAction* action) {
  auto name = std::make_shared<std::string>();
  CLI::App* const command = app->add_subcommand(
      "dns",
      "what the target's DNS server answers about a name, and which instances it leaves out");
  command->footer(
      "Asks the DNS server of the agent or registry, which has to run with --dns: the answer is\n"
      "of what that server knows and may read, with its domain, zone and limits. Like a question\n"
      "of a client, it makes the server follow the service.\n\n"
      "Examples:\n"
      "  failbackctl dns orders.service.failback\n"
      "  failbackctl dns _orders._tcp.service.staging.failback -o json");
  command->add_option("NAME", *name, "as a client asks for it")->required();
  command->callback(
      [action, name] { *action = [name](CtlContext* ctl) { return ExplainName(*name, ctl); }; });
}

}  // namespace failback
