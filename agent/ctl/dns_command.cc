// `failbackctl dns`: what the DNS servers of daemons answer about a name, from what the target
// lists.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "agent/ctl/commands.h"
#include "daemon/admin/text_table.h"
#include "gateway/dns/explain.h"
#include "google/protobuf/struct.pb.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using registry::v1::InstanceRecord;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::RegistryService;
using registry::v1::ServiceInstance;

struct DnsFlags {
  std::string name;
  std::string domain = "failback";
  std::string zone;
  bool only_healthy = false;
};

// Fields of one row, for JSON and YAML.
using Fields = std::vector<std::pair<const char*, std::string>>;

void AddRow(const Fields& fields, ListValue* rows) {
  Struct& row = *rows->add_values()->mutable_struct_value();
  for (const auto& [name, value] : fields) (*row.mutable_fields())[name].set_string_value(value);
}

Struct ToMessage(const dns::Explanation& explained, bool stale) {
  Struct message;
  auto& fields = *message.mutable_fields();
  fields["rcode"].set_string_value(explained.rcode);
  fields["reason"].set_string_value(explained.reason);
  fields["stale"].set_bool_value(stale);
  ListValue* const records = fields["records"].mutable_list_value();
  for (const auto& record : explained.records) {
    AddRow({{"type", record.type}, {"data", record.data}}, records);
  }
  ListValue* const left_out = fields["left_out"].mutable_list_value();
  for (const auto& instance : explained.left_out) {
    AddRow({{"id", instance.id}, {"endpoint", instance.endpoint}, {"why", instance.why}}, left_out);
  }
  return message;
}

std::string ToTable(const dns::Explanation& explained, bool stale) {
  std::string text = absl::StrCat(explained.rcode, "  ", explained.reason, "\n");
  if (stale) absl::StrAppend(&text, "the registry is unavailable: its last known state\n");
  if (!explained.records.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& record : explained.records) rows.push_back({record.type, record.data});
    absl::StrAppend(&text, "\n", FormatTable({"TYPE", "DATA"}, rows));
  }
  if (!explained.left_out.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& left : explained.left_out) rows.push_back({left.id, left.endpoint, left.why});
    absl::StrAppend(&text, "\n", FormatTable({"LEFT OUT", "ENDPOINT", "WHY"}, rows));
  }
  return text;
}

int ExplainName(const DnsFlags& flags, CtlContext* context) {
  const absl::StatusOr<dns::Domain> domain = dns::Domain::Parse(flags.domain);
  if (!domain.ok()) return context->Report("dns", domain.status());
  const dns::Meaning meaning = dns::MeaningOfText(*domain, flags.name);
  std::vector<ServiceInstance> instances;
  bool stale = false;
  if (!meaning.service.empty()) {
    ListRequest request;
    request.mutable_selector()->set_namespace_(meaning.name_space);
    request.mutable_selector()->set_service(meaning.service);
    const absl::Status status =
        context->EachPage(context->registry(), &RegistryService::StubInterface::List, request,
                          [&](ListResponse* page) {
                            stale |= page->stale();
                            for (InstanceRecord& record : *page->mutable_records()) {
                              instances.push_back(std::move(*record.mutable_instance()));
                            }
                          });
    if (!status.ok()) return context->Report("dns", status);
  }
  dns::RecordOptions options;
  options.zone = flags.zone;
  options.unhealthy_if_no_others = !flags.only_healthy;
  const dns::Explanation explained = dns::Explain(*domain, flags.name, instances, options);
  return context->Show("dns", ToTable(explained, stale), ToMessage(explained, stale));
}

}  // namespace

void AddDnsCommand(CLI::App* app, CtlAction* action) {
  auto flags = std::make_shared<DnsFlags>();
  CLI::App* const command = app->add_subcommand(
      "dns", "what DNS answers about a name, and which instances it leaves out");
  command->footer(
      "From what the target lists now; whether it serves DNS does not matter. The flags are the\n"
      "settings of the daemon that answers: dns.domain, zone and dns.unhealthy_if_no_others.\n\n"
      "Examples:\n"
      "  failbackctl dns orders.service.failback\n"
      "  failbackctl dns _orders._tcp.service.staging.failback -o json");
  command->add_option("NAME", flags->name, "as a client asks for it")->required();
  command->add_option("--domain", flags->domain, "the domain of the names [failback]")
      ->type_name("NAME");
  command->add_option("--zone", flags->zone, "instances of other zones have SRV priority 1")
      ->type_name("ZONE");
  command->add_flag("--only-healthy", flags->only_healthy,
                    "no instance is given when none is healthy");
  command->callback(
      [action, flags] { *action = [flags](CtlContext* ctl) { return ExplainName(*flags, ctl); }; });
}

}  // namespace failback
