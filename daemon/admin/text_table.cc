#include "daemon/admin/text_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "google/protobuf/text_format.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// `healthy` for INSTANCE_STATE_HEALTHY.
std::string StateName(const std::string& name) {
  return absl::AsciiStrToLower(name.substr(name.rfind("STATE_") + sizeof("STATE_") - 1));
}

// Empty for a time that is not set.
std::string Time(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", FromProto(time), absl::UTCTimeZone());
}

std::string Table(const admin::v1::ListServicesResponse& response) {
  Rows rows;
  for (const auto& service : response.services()) {
    const auto& counts = service.instances();
    rows.push_back({service.namespace_(), service.name(), absl::StrCat(counts.total()),
                    absl::StrCat(counts.healthy()), absl::StrCat(counts.unhealthy()),
                    absl::StrCat(counts.draining()), absl::StrCat(counts.offline()),
                    absl::StrCat(counts.pending()), absl::StrCat(counts.parked()),
                    absl::StrCat(counts.superseded()), absl::StrCat(counts.lapsed()),
                    absl::StrCat(counts.held()), absl::StrCat(counts.persistent())});
  }
  return FormatTable({"NAMESPACE", "SERVICE", "INSTANCES", "HEALTHY", "UNHEALTHY", "DRAINING",
                      "OFFLINE", "PENDING", "PARKED", "SUPERSEDED", "LAPSED", "HELD", "PERSISTENT"},
                     rows);
}

std::string Table(const admin::v1::ListInstancesResponse& response) {
  Rows rows;
  for (const auto& row : response.instances()) {
    const auto& instance = row.record().instance();
    rows.push_back({instance.key().instance_id(),
                    absl::StrCat(instance.address(), ":", instance.port()),
                    StateName(admin::v1::InstanceState_Name(row.state())), instance.zone(),
                    row.record().client_name(), Time(row.record().modify_time())});
  }
  return FormatTable({"ID", "ADDRESS", "STATE", "ZONE", "CLIENT", "CHANGED"}, rows);
}

std::string Table(const agent::v1::ListPendingResponse& response) {
  Rows rows;
  for (const auto& row : response.operations()) {
    rows.push_back(
        {row.id(), row.upstream(), StateName(agent::v1::PendingState_Name(row.state())),
         absl::StrCat(row.times()),
         row.has_next_attempt()
             ? absl::FormatTime("%H:%M:%E3SZ", FromProto(row.next_attempt()), absl::UTCTimeZone())
             : "",
         Time(row.since()), ReasonText(StatusFromProto(row.last_status())),
         row.last_status().message()});
  }
  return FormatTable(
      {"ID", "UPSTREAM", "STATE", "TIMES", "NEXT ATTEMPT", "SINCE", "REASON", "LAST STATUS"}, rows);
}

std::string Table(const agent::v1::ListIntentsResponse& response) {
  Rows rows;
  for (const auto& row : response.intents()) {
    const auto& key = row.instance().key();
    rows.push_back({key.namespace_(), key.service(), key.instance_id(), row.upstream(),
                    StateName(registry::v1::IntentState_Name(row.state())),
                    row.last_status().message()});
  }
  return FormatTable({"NAMESPACE", "SERVICE", "ID", "UPSTREAM", "STATE", "LAST STATUS"}, rows);
}

std::string Table(const admin::v1::ListSessionsResponse& response) {
  Rows rows;
  for (const auto& row : response.sessions()) {
    rows.push_back({row.incarnation(), row.client_name(), absl::StrCat(row.rank()),
                    absl::StrCat(row.instances()), absl::FormatDuration(FromProto(row.ttl())),
                    row.held_back() ? absl::StrCat("held until ", Time(row.hold_end_time()))
                                    : Time(row.expire_time())});
  }
  return FormatTable({"INCARNATION", "CLIENT", "RANK", "INSTANCES", "TTL", "ENDS"}, rows);
}

std::string Table(const admin::v1::ListAgentsResponse& response) {
  Rows rows;
  for (const auto& row : response.agents()) {
    const auto& report = row.report();
    rows.push_back({report.name(), report.version(), absl::StrCat(report.intents()),
                    absl::StrCat(report.pending()), absl::StrCat(report.parked()),
                    absl::StrCat(report.superseded()), Time(row.report_time()),
                    absl::StrJoin(row.troubles(), "; ")});
  }
  return FormatTable(
      {"NAME", "VERSION", "INTENTS", "PENDING", "PARKED", "SUPERSEDED", "REPORTED", "TROUBLE"},
      rows);
}

// What the rcode means; a client sees NODATA as NOERROR without answers.
std::string RcodeText(const std::string& rcode) {
  if (rcode == "NODATA") return "NODATA (NOERROR without records)";
  if (rcode == "NXDOMAIN") return "NXDOMAIN (there is no such name)";
  return rcode;
}

std::string Table(const admin::v1::DnsExplanation& explained) {
  std::string text = absl::StrCat(RcodeText(explained.rcode()), ": ", explained.reason(), "\n");
  if (explained.stale()) {
    absl::StrAppend(
        &text,
        "this is the last known state: the registry is unavailable, or the agent is drained\n");
  }
  Rows rows;
  for (const auto& record : explained.records()) rows.push_back({record.type(), record.data()});
  if (!rows.empty()) absl::StrAppend(&text, "\n", FormatTable({"TYPE", "DATA"}, rows));
  rows.clear();
  for (const auto& answer : explained.answers()) {
    rows.push_back({answer.type(), absl::StrCat(answer.records()), absl::StrCat(answer.plain_udp()),
                    absl::StrCat(answer.udp()), absl::StrCat(answer.tcp())});
  }
  if (!rows.empty()) {
    absl::StrAppend(
        &text, "\n",
        FormatTable({"ANSWER", "RECORDS", "BY UDP", "BY UDP WITH EDNS", "BY TCP"}, rows));
  }
  rows.clear();
  for (const auto& left : explained.left_out()) {
    rows.push_back({left.instance_id(), left.endpoint(), left.reason()});
  }
  if (rows.empty()) return text;
  absl::StrAppend(&text, "\n", FormatTable({"LEFT OUT", "ENDPOINT", "WHY"}, rows));
  const int more = explained.total_left_out() - explained.left_out_size();
  if (more > 0) absl::StrAppend(&text, "and ", more, " more\n");
  return text;
}

}  // namespace

std::string TableCell(const std::string& text) {
  return text.empty() ? "-" : MadePrintable(text, ' ');
}

std::string FormatTable(const std::vector<std::string>& header, const Rows& rows,
                        const CellPainter& paint) {
  std::vector<size_t> widths(header.size());
  const auto columns = [](const std::string& cell) {
    return static_cast<size_t>(Utf8Length(cell));  // printable, so it is UTF-8
  };
  const auto measure = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], columns(TableCell(row[i])));
    }
  };
  measure(header);
  for (const auto& row : rows) measure(row);
  std::string table;
  const auto append = [&](size_t number, const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = TableCell(row[i]);
      table += paint == nullptr ? cell : paint(number, header[i], cell);
      if (i + 1 < row.size()) table.append(widths[i] - columns(cell) + 2, ' ');
    }
    table += "\n";
  };
  append(0, header);
  for (size_t i = 0; i < rows.size(); ++i) append(i + 1, rows[i]);
  return table;
}

std::string MessageText(const google::protobuf::Message& message) {
  if (const auto* services = dynamic_cast<const admin::v1::ListServicesResponse*>(&message)) {
    return Table(*services);
  }
  if (const auto* instances = dynamic_cast<const admin::v1::ListInstancesResponse*>(&message)) {
    return Table(*instances);
  }
  if (const auto* pending = dynamic_cast<const agent::v1::ListPendingResponse*>(&message)) {
    return Table(*pending);
  }
  if (const auto* intents = dynamic_cast<const agent::v1::ListIntentsResponse*>(&message)) {
    return Table(*intents);
  }
  if (const auto* sessions = dynamic_cast<const admin::v1::ListSessionsResponse*>(&message)) {
    return Table(*sessions);
  }
  if (const auto* agents = dynamic_cast<const admin::v1::ListAgentsResponse*>(&message)) {
    return Table(*agents);
  }
  if (const auto* explained = dynamic_cast<const admin::v1::DnsExplanation*>(&message)) {
    return Table(*explained);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace failback
