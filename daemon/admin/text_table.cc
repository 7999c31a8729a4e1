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

namespace failback {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// `healthy` for INSTANCE_STATE_HEALTHY.
std::string StateName(const std::string& name) {
  return absl::AsciiStrToLower(name.substr(name.rfind("STATE_") + sizeof("STATE_") - 1));
}

std::string Time(const google::protobuf::Timestamp& time) {
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
         row.last_status().message()});
  }
  return FormatTable({"ID", "UPSTREAM", "STATE", "TIMES", "NEXT ATTEMPT", "LAST STATUS"}, rows);
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
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace failback
