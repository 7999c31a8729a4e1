#include "agent/ctl/output.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "agent/ctl/service_output.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"
#include "yaml-cpp/yaml.h"

namespace failback {
namespace {

using agent::v1::GetStatusResponse;
using agent::v1::PendingOperation;
using registry::v1::InstanceKey;
using registry::v1::InstanceRecord;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;

template <typename Enum>
std::string EnumText(Enum value) {
  return FormatEnum(google::protobuf::GetEnumDescriptor<Enum>(), value);
}

// Whether YAML readers of any version take the plain text for the same string.
bool IsPlainYamlString(const std::string& text) {
  if (text.empty() || (!absl::ascii_isalpha(text[0]) && text[0] != '/')) return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && std::string("_-./@").find(c) == std::string::npos) return false;
  }
  static const char* const kWords[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  const std::string lower = absl::AsciiStrToLower(text);
  return std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

// `node` comes from JSON, so a tag distinguishes strings from numbers and bools.
void EmitYaml(const YAML::Node& node, YAML::Emitter* out) {
  if (node.IsMap()) {
    *out << YAML::BeginMap;
    for (const auto& entry : node) {
      *out << YAML::Key;
      if (HoldsControl(entry.first.Scalar())) *out << YAML::DoubleQuoted;
      *out << entry.first.Scalar() << YAML::Value;
      EmitYaml(entry.second, out);
    }
    *out << YAML::EndMap;
  } else if (node.IsSequence()) {
    *out << YAML::BeginSeq;
    for (const auto& item : node) EmitYaml(item, out);
    *out << YAML::EndSeq;
  } else if (node.IsNull()) {
    *out << YAML::Null;
  } else {
    if (node.Tag() == "!" && !IsPlainYamlString(node.Scalar())) *out << YAML::DoubleQuoted;
    *out << node.Scalar();
  }
}

std::string JsonToYaml(const std::string& json) {
  YAML::Emitter out;
  EmitYaml(YAML::Load(json), &out);
  return WithControlsEscaped(absl::StrCat(out.c_str(), "\n"));
}

std::string Owner(const InstanceRecord& record) {
  if (!record.client_name().empty()) return record.client_name();
  return record.incarnation();
}

std::string Times(const PendingOperation& operation) {
  if (operation.retry_times() < 0) return absl::StrCat(operation.times());
  return absl::StrCat(operation.times(), "/", operation.retry_times() + 1);
}

// " orders-1 127.0.0.1:8080", the namespace and the service being known; " orders (3)" of a
// service.
void AppendInstances(const google::protobuf::RepeatedPtrField<ServiceInstance>& instances,
                     const char* sign, std::vector<std::string>* items) {
  for (const ServiceInstance& instance : instances) {
    const bool is_service = instance.key().instance_id().empty();
    std::string item =
        absl::StrCat(sign, is_service ? instance.key().service() : instance.key().instance_id());
    if (is_service) {
      absl::StrAppend(&item, " (", instance.instance_count(), ")");
    } else if (instance.key().instance_id() != FormatEndpoint(instance)) {
      absl::StrAppend(&item, " ", FormatEndpoint(instance));
    }
    if (instance.has_offline() || instance.status() > registry::v1::HEALTH_STATUS_HEALTHY) {
      absl::StrAppend(&item, " ", FormatHealth(instance));
    }
    items->push_back(item);
  }
}

std::string FormatXds(const agent::v1::XdsStatus& xds, absl::Time now) {
  std::string text = absl::StrCat(
      "\nxds           ", xds.streams(), xds.streams() == 1 ? " stream, " : " streams, ",
      xds.services(), " services followed\n", "responses     ", xds.responses(), " sent, ",
      xds.acknowledged(), " acknowledged, ", xds.refused(), " refused\n");
  if (xds.unusable_instances() > 0) {
    absl::StrAppend(&text, "left out      ", xds.unusable_instances(),
                    " instances with host names for addresses\n");
  }
  if (xds.has_last_refusal()) {
    const agent::v1::XdsStatus::Refusal& refusal = xds.last_refusal();
    absl::StrAppend(&text, "last refusal  ", FormatRelative(refusal.time(), now), ", ",
                    refusal.resource_type(), " by ", TableCell(refusal.node_id()), " (",
                    TableCell(refusal.client()), "): ", TableCell(refusal.reason()), "\n");
  }
  return text;
}

}  // namespace

std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows, const Palette& palette) {
  return FormatTable(header, rows,
                     [&palette](size_t row, const std::string& title, const std::string& cell) {
                       if (row == 0) return palette.Paint(cell, Tone::kTitle);
                       return title == "STATE" || title == "STATUS" ? palette.State(cell) : cell;
                     });
}

std::string FormatSpan(absl::Duration duration) {
  if (duration < absl::Milliseconds(1)) return "0s";
  if (duration < absl::Seconds(1)) {
    return absl::StrCat(absl::ToInt64Milliseconds(duration), "ms");
  }
  if (duration < absl::Seconds(10)) {
    return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(duration));
  }
  const int64_t seconds = absl::ToInt64Seconds(duration);
  const auto two = [](int64_t big, const char* big_unit, int64_t small, const char* small_unit) {
    return small == 0 ? absl::StrCat(big, big_unit)
                      : absl::StrCat(big, big_unit, small, small_unit);
  };
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return two(seconds / 60, "m", seconds % 60, "s");
  if (seconds < 86400) return two(seconds / 3600, "h", seconds % 3600 / 60, "m");
  return two(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

std::string FormatRelative(const google::protobuf::Timestamp& when, absl::Time now) {
  if (when.seconds() == 0 && when.nanos() == 0) return "-";
  const absl::Time time = FromProto(when);
  if (time > now) return absl::StrCat("in ", FormatSpan(time - now));
  return absl::StrCat(FormatSpan(now - time), " ago");
}

std::string FormatWhen(const google::protobuf::Timestamp& when, absl::Time now) {
  if (when.seconds() == 0 && when.nanos() == 0) return "-";
  const absl::TimeZone zone = absl::LocalTimeZone();
  const absl::Time time = FromProto(when);
  const bool today = absl::ToCivilDay(time, zone) == absl::ToCivilDay(now, zone);
  return absl::StrCat(absl::FormatTime(today ? "%H:%M:%S" : "%Y-%m-%d %H:%M:%S", time, zone), " (",
                      FormatRelative(when, now), ")");
}

std::string FormatCertificateEnd(const google::protobuf::Timestamp& end, absl::Time now) {
  return FromProto(end) > now
             ? absl::StrCat("ends ", FormatWhen(end, now))
             : absl::StrCat("ended ", FormatWhen(end, now), ": no new connection is accepted");
}

std::string FormatMessage(const std::string& raw) {
  std::string message = MadePrintable(raw, ' ');
  const size_t begin = message.find("failed to connect to all addresses");
  const size_t cause = message.rfind(": ");
  if (begin == std::string::npos || cause == std::string::npos || cause < begin) return message;
  return message.substr(0, begin) + message.substr(cause + 2);
}

std::string FormatStatus(const rpc::v1::Status& status) {
  if (status.code() == 0) return "-";
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.code()));
  const absl::Status parsed = StatusFromProto(status);
  const std::optional<std::string> holder = ReasonMetadata(parsed, "holder");
  const std::string reason = ReasonText(parsed);
  return absl::StrCat(code, status.message().empty() ? "" : ": ", FormatMessage(status.message()),
                      holder.has_value() ? absl::StrCat(", held by ", *holder) : "",
                      reason.empty() ? "" : absl::StrCat(" [", reason, "]"));
}

std::string FormatEndpoint(const ServiceInstance& instance) {
  const bool ipv6 = instance.address().find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", instance.address(), ipv6 ? "]:" : ":", instance.port());
}

std::string FormatHealth(const ServiceInstance& instance) {
  if (instance.has_offline()) return "offline";
  return instance.status() == registry::v1::HEALTH_STATUS_UNSPECIFIED ? "healthy"
                                                                      : EnumText(instance.status());
}

std::string FormatState(registry::v1::IntentState state) {
  return state == registry::v1::INTENT_STATE_ACCEPTED ? "pending" : EnumText(state);
}

std::string FormatState(const InstanceRecord& record) {
  if (record.state() != registry::v1::INTENT_STATE_UNSPECIFIED &&
      record.state() != registry::v1::INTENT_STATE_ACKNOWLEDGED) {
    return FormatState(record.state());
  }
  std::string health = FormatHealth(record.instance());
  if (!record.held()) return health;
  return health == "offline" ? "offline, held" : "held";
}

bool HasState(const InstanceRecord& record, const std::string& state) {
  const std::vector<std::string> words = absl::StrSplit(FormatState(record), ", ");
  return std::find(words.begin(), words.end(), state) != words.end();
}

std::string FormatKey(const InstanceKey& key) {
  return absl::StrCat(key.namespace_().empty() ? "default" : key.namespace_(), "/", key.service(),
                      "/", key.instance_id());
}

absl::Status RefusalOf(const registry::v1::IntentResult& result, const std::string& advice) {
  std::vector<std::string> takers;
  for (const registry::v1::TargetResult& target : result.targets()) {
    if (target.status().code() != 0) continue;
    takers.push_back(
        absl::StrCat(FormatMessage(target.upstream()), " (", FormatState(target.state()), ")"));
  }
  rpc::v1::Status status = result.status();
  if (!takers.empty()) {
    // gRPC's words are shortened first: of those, what follows the last colon is kept.
    status.set_message(absl::StrCat(FormatMessage(status.message()), "; taken by ",
                                    absl::StrJoin(takers, ", "), advice.empty() ? "" : ": ",
                                    advice));
  }
  return StatusFromProto(status);
}

std::string FormatEnum(const google::protobuf::EnumDescriptor* type, int value) {
  const google::protobuf::EnumValueDescriptor* const found = type->FindValueByNumber(value);
  if (found == nullptr) return absl::StrCat(value);
  if (value == 0) return "-";
  // All values share the prefix of the zero value.
  const std::string zero = type->FindValueByNumber(0)->name();
  const size_t prefix = zero.size() - std::string("UNSPECIFIED").size();
  return absl::StrReplaceAll(absl::AsciiStrToLower(found->name().substr(prefix)), {{"_", " "}});
}

absl::StatusOr<std::string> FormatYaml(const google::protobuf::Message& message) {
  const absl::StatusOr<std::string> json = MessageJson(message);
  if (!json.ok()) return json.status();
  return JsonToYaml(*json);
}

absl::StatusOr<std::string> FormatOne(OutputFormat format,
                                      const google::protobuf::Message& message) {
  absl::StatusOr<std::string> text =
      format == OutputFormat::kYaml ? FormatYaml(message) : MessageJson(message);
  if (!text.ok()) return text.status();
  return format == OutputFormat::kYaml ? absl::StrCat("---\n", *text) : absl::StrCat(*text, "\n");
}

absl::StatusOr<std::string> FormatList(
    OutputFormat format, const std::vector<const google::protobuf::Message*>& messages) {
  const bool yaml = format == OutputFormat::kYaml;
  std::vector<std::string> items;
  items.reserve(messages.size());
  for (const google::protobuf::Message* message : messages) {
    absl::StatusOr<std::string> json =
        MessageJson(*message, yaml ? JsonStyle::kLine : JsonStyle::kPretty);
    if (!json.ok()) return json.status();
    items.push_back(*std::move(json));
  }
  if (yaml) return JsonToYaml(absl::StrCat("[", absl::StrJoin(items, ","), "]"));
  if (items.empty()) return "[]\n";
  return absl::StrCat("[\n", absl::StrJoin(items, ",\n"), "\n]\n");
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::Status PrintText(const absl::StatusOr<std::string>& text) {
  if (text.ok()) Print(*text);
  return text.status();
}

absl::Status PrintResult(OutputFormat format, const std::string& table,
                         const google::protobuf::Message& message) {
  switch (format) {
    case OutputFormat::kTable:
      break;
    case OutputFormat::kJson: {
      const absl::StatusOr<std::string> json = MessageJson(message, JsonStyle::kPretty);
      if (!json.ok()) return json.status();
      Print(*json + "\n");
      return absl::OkStatus();
    }
    case OutputFormat::kYaml:
      return PrintText(FormatYaml(message));
  }
  Print(table);
  return absl::OkStatus();
}

std::string FormatRecords(const std::vector<InstanceRecord>& records, absl::Time now,
                          const Palette& palette, NamespaceColumn namespaces) {
  std::vector<std::string> header = {"SERVICE", "ID",    "ENDPOINT", "STATUS", "WEIGHT",
                                     "ZONE",    "STATE", "OWNER",    "CHANGED"};
  const bool show = namespaces == NamespaceColumn::kShow;
  if (show) header.insert(header.begin(), "NAMESPACE");
  std::vector<std::vector<std::string>> rows;
  rows.reserve(records.size());
  for (const InstanceRecord& record : records) {
    const ServiceInstance& instance = record.instance();
    rows.push_back({instance.key().service(), instance.key().instance_id(),
                    FormatEndpoint(instance), FormatState(record),
                    absl::StrCat(instance.has_weight() ? instance.weight() : 100), instance.zone(),
                    EnumText(record.state()), Owner(record),
                    FormatWhen(record.modify_time(), now)});
    if (show) rows.back().insert(rows.back().begin(), instance.key().namespace_());
  }
  return FormatTable(header, rows, palette);
}

std::string FormatPending(const std::vector<PendingOperation>& operations, absl::Time now,
                          const Palette& palette) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(operations.size());
  for (const PendingOperation& operation : operations) {
    const bool due =
        operation.has_next_attempt() && operation.state() != agent::v1::PENDING_STATE_PARKED;
    rows.push_back({operation.id(), absl::StrCat(operation.generation()),
                    EnumText(operation.state()), Times(operation),
                    due ? FormatRelative(operation.next_attempt(), now) : "-",
                    FormatWhen(operation.since(), now), FormatStatus(operation.last_status()),
                    operation.upstream()});
  }
  return FormatTable(
      {"ID", "GENERATION", "STATE", "TIMES", "NEXT ATTEMPT", "SINCE", "LAST STATUS", "UPSTREAM"},
      rows, palette);
}

std::string FormatIntents(const std::vector<agent::v1::CarriedIntent>& intents,
                          const Palette& palette) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(intents.size());
  for (const agent::v1::CarriedIntent& intent : intents) {
    rows.push_back({FormatKey(intent.instance().key()), FormatEndpoint(intent.instance()),
                    FormatHealth(intent.instance()), FormatState(intent.state()),
                    absl::StrCat(intent.generation()), FormatStatus(intent.last_status()),
                    intent.upstream()});
  }
  return FormatTable(
      {"INSTANCE", "ENDPOINT", "HEALTH", "STATE", "GENERATION", "LAST STATUS", "UPSTREAM"}, rows,
      palette);
}

std::string FormatDrained(const agent::v1::DrainResponse& response, const Palette& palette) {
  std::string text =
      absl::StrCat("unregistered ", response.unregistered(), ", remaining ", response.remaining());
  if (response.persistent() > 0) absl::StrAppend(&text, ", persistent ", response.persistent());
  absl::StrAppend(&text, "\n");
  if (response.left().empty()) return text;
  std::vector<std::vector<std::string>> rows;
  for (const agent::v1::DrainRemainder& remainder : response.left()) {
    rows.push_back(
        {FormatKey(remainder.key()),
         remainder.has_last_status() ? FormatStatus(remainder.last_status()) : "not answered yet",
         remainder.upstream()});
  }
  absl::StrAppend(&text, FormatTable({"INSTANCE", "LAST STATUS", "UPSTREAM"}, rows, palette));
  if (response.remaining() > response.left_size()) {
    absl::StrAppend(&text, "and ", response.remaining() - response.left_size(), " more\n");
  }
  return text;
}

std::string FormatAgentStatus(const GetStatusResponse& status, absl::Time now,
                              const Palette& palette) {
  std::string text = absl::StrCat(
      "agent         version ", status.version(), ", started ",
      FormatRelative(status.start_time(), now), status.draining() ? ", draining" : "", "\n",
      "incarnation   ", status.incarnation(), "\n", "local clients ", status.local_sessions(),
      status.local_sessions() == 1 ? " session\n" : " sessions\n",
      FormatConfigStatus(status.config(), now));
  if (status.has_registry_certificate_not_after()) {
    absl::StrAppend(&text, "certificate   shown to registries, ",
                    FormatCertificateEnd(status.registry_certificate_not_after(), now), "\n");
  }
  if (status.has_certificate_not_after()) {
    absl::StrAppend(&text, "certificate   shown to clients, ",
                    FormatCertificateEnd(status.certificate_not_after(), now), "\n");
  }
  for (const agent::v1::UpstreamStatus& upstream : status.upstreams()) {
    absl::StrAppend(
        &text, "\n", "upstream      ",
        upstream.name().empty() || upstream.name() == upstream.uri()
            ? upstream.uri()
            : absl::StrCat(upstream.name(), ", ", upstream.uri()),
        "\n", "state         ", palette.State(EnumText(upstream.state())), " since ",
        FormatRelative(upstream.since(), now),
        upstream.refused() ? ": the registry refuses this agent's token or certificate" : "", "\n",
        "session       ttl ", FormatSpan(FromProto(upstream.session_ttl())), "\n", "store         ",
        upstream.store_id().empty() ? "-" : upstream.store_id(), ", epoch ", upstream.epoch(), "\n",
        "instances     ", upstream.desired(), " desired, ", upstream.acknowledged(),
        " acknowledged",
        upstream.superseded() > 0 ? absl::StrCat(", ", upstream.superseded(), " superseded") : "",
        upstream.has_lapsed_since()
            ? absl::StrCat(", lapsed since ", FormatWhen(upstream.lapsed_since(), now))
            : "",
        "\n", "operations    ", upstream.pending(), " pending, ", upstream.parked(), " parked\n",
        "subscriptions ", upstream.subscriptions(), "\n", "last error    ",
        FormatStatus(upstream.last_error()), "\n");
    if (upstream.has_journal_error()) {
      absl::StrAppend(&text, "journal       cannot be written since ",
                      FormatWhen(upstream.journal_error_since(), now), ": ",
                      FormatStatus(upstream.journal_error()), "\n");
    }
    if (!upstream.journal_damaged().empty()) {
      absl::StrAppend(&text, "journal       was damaged, kept as ", upstream.journal_damaged(),
                      ": what was owed in it is not carried; remove the file when you have "
                      "looked\n");
    }
    if (upstream.has_twin_time()) {
      absl::StrAppend(&text, "incarnation   new since ", FormatWhen(upstream.twin_time(), now),
                      ": another process uses the one before\n");
    }
  }
  if (status.has_xds()) absl::StrAppend(&text, FormatXds(status.xds(), now));
  absl::StrAppend(&text, FormatStaticServices(status, now, palette));
  return text;
}

std::string FormatEvent(const SubscribeResponse& event, absl::Time now, const Palette& palette,
                        bool was_held) {
  const char* what = event.stale()  ? "registry away"
                     : event.held() ? "sessions held"
                     : was_held     ? "none held"
                                    : "registry back";
  std::string change;
  std::vector<std::string> items;
  if (event.has_snapshot()) {
    what = event.snapshot().more() ? "snapshot part" : "snapshot";
    AppendInstances(event.snapshot().instances(), "", &items);
    change = items.empty() ? ": nothing there" : absl::StrCat(": ", absl::StrJoin(items, ", "));
  } else if (event.has_delta()) {
    what = "delta";
    AppendInstances(event.delta().upserts(), "+", &items);
    for (const InstanceKey& key : event.delta().removals()) {
      items.push_back(
          absl::StrCat("-", key.instance_id().empty() ? key.service() : key.instance_id()));
    }
    change = items.empty() ? ": no change" : absl::StrCat(": ", absl::StrJoin(items, ", "));
  }
  const std::string head = absl::StrFormat("%-13s", what);
  return absl::StrFormat(
      "%s  %s  revision %d%s%s\n", absl::FormatTime("%H:%M:%E3S", now, absl::LocalTimeZone()),
      palette.Paint(head, event.stale() ? Tone::kBad : Tone::kTitle), event.revision(),
      absl::StrCat(event.stale() ? ", stale" : "", event.held() ? ", held" : ""), change);
}

}  // namespace failback
