#include "registry/admin/text_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "google/protobuf/text_format.h"
#include "registry/proto_time.h"
#include "registry/utf8.h"

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

Rows ServiceRows(const admin::v1::ListServicesResponse& response) {
  Rows rows = {{"NAMESPACE", "SERVICE", "INSTANCES", "HEALTHY", "UNHEALTHY", "DRAINING", "OFFLINE",
                "PENDING", "PARKED", "SUPERSEDED", "LAPSED", "HELD", "PERSISTENT"}};
  for (const auto& service : response.services()) {
    const auto& counts = service.instances();
    rows.push_back({service.namespace_(), service.name(), absl::StrCat(counts.total()),
                    absl::StrCat(counts.healthy()), absl::StrCat(counts.unhealthy()),
                    absl::StrCat(counts.draining()), absl::StrCat(counts.offline()),
                    absl::StrCat(counts.pending()), absl::StrCat(counts.parked()),
                    absl::StrCat(counts.superseded()), absl::StrCat(counts.lapsed()),
                    absl::StrCat(counts.held()), absl::StrCat(counts.persistent())});
  }
  return rows;
}

Rows InstanceRows(const admin::v1::ListInstancesResponse& response) {
  Rows rows = {{"ID", "ADDRESS", "STATE", "ZONE", "CLIENT", "CHANGED"}};
  for (const auto& row : response.instances()) {
    const auto& instance = row.record().instance();
    rows.push_back({instance.key().instance_id(),
                    absl::StrCat(instance.address(), ":", instance.port()),
                    StateName(admin::v1::InstanceState_Name(row.state())), instance.zone(),
                    row.record().client_name(), Time(row.record().modify_time())});
  }
  return rows;
}

Rows PendingRows(const agent::v1::ListPendingResponse& response) {
  Rows rows = {{"ID", "UPSTREAM", "STATE", "TIMES", "NEXT ATTEMPT", "LAST STATUS"}};
  for (const auto& row : response.operations()) {
    rows.push_back(
        {row.id(), row.upstream(), StateName(agent::v1::PendingState_Name(row.state())),
         absl::StrCat(row.times()),
         row.has_next_attempt()
             ? absl::FormatTime("%H:%M:%E3SZ", FromProto(row.next_attempt()), absl::UTCTimeZone())
             : "",
         row.last_status().message()});
  }
  return rows;
}

Rows IntentRows(const agent::v1::ListIntentsResponse& response) {
  Rows rows = {{"NAMESPACE", "SERVICE", "ID", "UPSTREAM", "STATE", "LAST STATUS"}};
  for (const auto& row : response.intents()) {
    const auto& key = row.instance().key();
    rows.push_back({key.namespace_(), key.service(), key.instance_id(), row.upstream(),
                    StateName(registry::v1::IntentState_Name(row.state())),
                    row.last_status().message()});
  }
  return rows;
}

Rows SessionRows(const admin::v1::ListSessionsResponse& response) {
  Rows rows = {{"INCARNATION", "CLIENT", "RANK", "INSTANCES", "TTL", "ENDS"}};
  for (const auto& row : response.sessions()) {
    rows.push_back({row.incarnation(), row.client_name(), absl::StrCat(row.rank()),
                    absl::StrCat(row.instances()), absl::FormatDuration(FromProto(row.ttl())),
                    row.held_back() ? absl::StrCat("held until ", Time(row.hold_end_time()))
                                    : Time(row.expire_time())});
  }
  return rows;
}

Rows AgentRows(const admin::v1::ListAgentsResponse& response) {
  Rows rows = {
      {"NAME", "VERSION", "INTENTS", "PENDING", "PARKED", "SUPERSEDED", "REPORTED", "TROUBLE"}};
  for (const auto& row : response.agents()) {
    const auto& report = row.report();
    rows.push_back({report.name(), report.version(), absl::StrCat(report.intents()),
                    absl::StrCat(report.pending()), absl::StrCat(report.parked()),
                    absl::StrCat(report.superseded()), Time(row.report_time()),
                    absl::StrJoin(row.troubles(), "; ")});
  }
  return rows;
}

}  // namespace

std::string FormatTable(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string cell = MadePrintable(row[i], '?');
      cell.resize(widths[i] + 2, ' ');
      line += cell;
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string MessageText(const google::protobuf::Message& message) {
  if (const auto* services = dynamic_cast<const admin::v1::ListServicesResponse*>(&message)) {
    return FormatTable(ServiceRows(*services));
  }
  if (const auto* instances = dynamic_cast<const admin::v1::ListInstancesResponse*>(&message)) {
    return FormatTable(InstanceRows(*instances));
  }
  if (const auto* pending = dynamic_cast<const agent::v1::ListPendingResponse*>(&message)) {
    return FormatTable(PendingRows(*pending));
  }
  if (const auto* intents = dynamic_cast<const agent::v1::ListIntentsResponse*>(&message)) {
    return FormatTable(IntentRows(*intents));
  }
  if (const auto* sessions = dynamic_cast<const admin::v1::ListSessionsResponse*>(&message)) {
    return FormatTable(SessionRows(*sessions));
  }
  if (const auto* agents = dynamic_cast<const admin::v1::ListAgentsResponse*>(&message)) {
    return FormatTable(AgentRows(*agents));
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

}  // namespace failback
