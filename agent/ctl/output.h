// What failbackctl prints: tables for people, protobuf JSON and YAML for programs.
//
// Thread safety: all functions but those that print are pure.

#ifndef FAILBACK_AGENT_CTL_OUTPUT_H_
#define FAILBACK_AGENT_CTL_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/ctl/terminal.h"
#include "daemon/admin/text_table.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "gateway/http/message_json.h"
#include "google/protobuf/message.h"

namespace failback {

enum class OutputFormat { kTable, kJson, kYaml };

// As in daemon/admin/text_table.h, with titles painted, and what is in columns named STATE or
// STATUS.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows, const Palette& palette);

// "0s", "850ms", "1.2s", "42s", "3m10s", "2h5m", "4d3h".
std::string FormatSpan(absl::Duration duration);
// "in 1.2s" or "3s ago", of a point of time that is set; "-" when it is not.
std::string FormatRelative(const google::protobuf::Timestamp& when, absl::Time now);
// The same behind the time by the clock here, with the date when it is another day's:
// "14:03:07 (3s ago)", "2026-05-31 14:03:07 (4d3h ago)".
std::string FormatWhen(const google::protobuf::Timestamp& when, absl::Time now);
// "ends …", or that a certificate has ended and what follows.
std::string FormatCertificateEnd(const google::protobuf::Timestamp& end, absl::Time now);

// What a person needs of a message, on one line: of gRPC's "failed to connect to all addresses;
// last error: …: Connection refused" only the cause.
std::string FormatMessage(const std::string& message);
// "CODE" or "CODE: message", and after it "[REASON]" if it has one; "-" for a status that is not
// set.
std::string FormatStatus(const rpc::v1::Status& status);

// "default/orders/orders-1".
std::string FormatKey(const registry::v1::InstanceKey& key);

// What refused an intent; OK when nothing did. At an agent with several registries it names those
// that have taken it all the same, and then says `advice`.
absl::Status RefusalOf(const registry::v1::IntentResult& result, const std::string& advice);

// The name of an enum value without prefix, in lower case: PENDING_STATE_IN_FLIGHT is "in flight".
std::string FormatEnum(const google::protobuf::EnumDescriptor* type, int value);

// As MessageJson, in YAML.
absl::StatusOr<std::string> FormatYaml(const google::protobuf::Message& message);

// JSON on one line, or a YAML document, with a newline at the end.
absl::StatusOr<std::string> FormatOne(OutputFormat format,
                                      const google::protobuf::Message& message);

// Each message, as a JSON array or a YAML list, with a newline at the end.
absl::StatusOr<std::string> FormatList(
    OutputFormat format, const std::vector<const google::protobuf::Message*>& messages);

// "healthy" when nothing is said of it; "offline" when an operator has marked it.
std::string FormatHealth(const registry::v1::ServiceInstance& instance);

// One word for how a record is, the same as in the console: what an agent says of it unless it is
// acknowledged ("pending", "parked", "superseded", "lapsed"), "held", or its health. Of one that is
// held and marked both: "offline, held".
std::string FormatState(const registry::v1::InstanceRecord& record);
// Whether `state` is that word, or one of the two.
bool HasState(const registry::v1::InstanceRecord& record, const std::string& state);
// That of an intent: as above, or "acknowledged".
std::string FormatState(registry::v1::IntentState state);

template <typename M>
std::vector<const google::protobuf::Message*> MessagePointers(const std::vector<M>& messages) {
  std::vector<const google::protobuf::Message*> pointers;
  pointers.reserve(messages.size());
  for (const M& message : messages) pointers.push_back(&message);
  return pointers;
}

// To stdout, and not later.
void Print(const std::string& text);
// The same; an error, of a message without a JSON form, is the caller's to report.
absl::Status PrintText(const absl::StatusOr<std::string>& text);
// Prints the table, or the message as JSON or YAML. The error of a message without a JSON form.
absl::Status PrintResult(OutputFormat format, const std::string& table,
                         const google::protobuf::Message& message);

// "10.0.0.7:8080", "[::1]:8080".
std::string FormatEndpoint(const registry::v1::ServiceInstance& instance);

// Tables of what a registry and an agent report.
enum class NamespaceColumn { kHide, kShow };
std::string FormatRecords(const std::vector<registry::v1::InstanceRecord>& records, absl::Time now,
                          const Palette& palette = Palette(),
                          NamespaceColumn namespaces = NamespaceColumn::kHide);
std::string FormatPending(const std::vector<agent::v1::PendingOperation>& operations,
                          absl::Time now, const Palette& palette = Palette());
std::string FormatIntents(const std::vector<agent::v1::CarriedIntent>& intents,
                          const Palette& palette = Palette());
// What a drain came to, and why those that remain are not gone.
std::string FormatDrained(const agent::v1::DrainResponse& response,
                          const Palette& palette = Palette());
std::string FormatAgentStatus(const agent::v1::GetStatusResponse& status, absl::Time now,
                              const Palette& palette = Palette());
// One line for each message of a subscription, as "12:00:01.250  +3 -0  revision 7  …". `was_held`:
// the message before said so.
std::string FormatEvent(const registry::v1::SubscribeResponse& event, absl::Time now,
                        const Palette& palette = Palette(), bool was_held = false);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_OUTPUT_H_
