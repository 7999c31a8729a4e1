#include "gateway/consul/definition.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gateway/markup/fields.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

using google::protobuf::Value;
using markup::Fields;
using Kind = CheckDefinition::Kind;

constexpr absl::Duration kLongest = absl::Hours(24 * 365);
constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);
constexpr int64_t kMostInARow = 1000;
constexpr size_t kMaxHeaders = 32;

// A text, or a number of nanoseconds.
absl::Duration ReadDuration(Fields* fields, const std::string& name) {
  const Value* const value = fields->Any(name);
  if (value == nullptr) return absl::ZeroDuration();
  if (value->kind_case() == Value::kNumberValue) {
    const double nanos = value->number_value();
    if (std::isfinite(nanos) && nanos >= 0 && nanos <= absl::ToDoubleNanoseconds(kLongest)) {
      return absl::Nanoseconds(static_cast<int64_t>(nanos));
    }
    fields->Fail(name, "is no number of nanoseconds from 0 to a year's");
    return absl::ZeroDuration();
  }
  if (value->kind_case() != Value::kStringValue) {
    fields->Fail(name, "a duration as \"10s\" is expected");
    return absl::ZeroDuration();
  }
  if (value->string_value().empty()) return absl::ZeroDuration();
  absl::StatusOr<absl::Duration> duration = ParseGoDuration("", value->string_value());
  if (duration.ok()) return *duration;
  fields->Fail(name, absl::StrCat(Quoted(value->string_value()),
                                  " is no duration as \"10s\" or \"1m30s\", of at most a year"));
  return absl::ZeroDuration();
}

std::optional<CheckStatus> ReadStatus(Fields* fields, const std::string& name) {
  const std::string text = fields->Text(name);
  if (text.empty()) return std::nullopt;
  std::optional<CheckStatus> status = ParseStatus(text);
  if (!status.has_value()) {
    fields->Fail(name, absl::StrCat(Quoted(text), " is not passing, warning or critical"));
  }
  return status;
}

// `{"Name": ["value"]}`.
void ReadHeaders(Fields* fields, CheckDefinition* check) {
  const Value* const value = fields->Any("Header");
  if (value == nullptr) return;
  absl::StatusOr<Fields> headers = Fields::Of(fields->PathOf("Header"), *value);
  if (!headers.ok()) return fields->Fail("Header", "an object of lists is expected");
  for (const auto& [name, unused] : value->struct_value().fields()) {
    for (std::string& text : headers->Texts(name)) check->headers.emplace_back(name, text);
  }
  if (!headers->Finish().ok()) fields->Fail("Header", "an object of lists of texts is expected");
  if (check->headers.size() > kMaxHeaders) {
    fields->Fail("Header", absl::StrCat("there are more than ", kMaxHeaders));
  }
}

// What is asked, of a check that asks.
void ReadTarget(Fields* fields, CheckDefinition* check) {
  const std::string http = fields->Text("HTTP");
  const std::string tcp = fields->Text("TCP");
  const std::string grpc = fields->Text("GRPC");
  check->ttl = ReadDuration(fields, "TTL");
  const int kinds = (http.empty() ? 0 : 1) + (tcp.empty() ? 0 : 1) + (grpc.empty() ? 0 : 1) +
                    (check->ttl == absl::ZeroDuration() ? 0 : 1);
  if (kinds != 1) {
    fields->Fail("TTL", kinds == 0 ? "a check needs one of TTL, HTTP, TCP, GRPC; others are not "
                                     "supported here"
                                   : "only one of TTL, HTTP, TCP, GRPC is allowed");
    return;
  }
  check->kind = !http.empty()   ? Kind::kHttp
                : !tcp.empty()  ? Kind::kTcp
                : !grpc.empty() ? Kind::kGrpc
                                : Kind::kTtl;
  check->target = http + tcp + grpc;
}

CheckDefinition ReadCheck(Fields* fields) {
  CheckDefinition check;
  check.id = fields->Text("CheckID");
  const std::string id = fields->Text("ID");
  if (check.id.empty()) check.id = id;
  check.name = fields->Text("Name");
  check.notes = fields->Text("Notes");
  ReadTarget(fields, &check);
  check.status = ReadStatus(fields, "Status").value_or(CheckStatus::kCritical);
  check.interval = ReadDuration(fields, "Interval");
  check.timeout = ReadDuration(fields, "Timeout");
  check.method = fields->Text("Method");
  check.tls = fields->Flag("GRPCUseTLS");
  check.tls_skip_verify = fields->Flag("TLSSkipVerify");
  check.tls_server_name = fields->Text("TLSServerName");
  ReadHeaders(fields, &check);
  // As Consul counts them: zero and one are the same.
  check.passes = static_cast<uint32_t>(
      std::max<int64_t>(1, fields->Integer("SuccessBeforePassing", 0, kMostInARow).value_or(0)));
  check.failures = static_cast<uint32_t>(
      std::max<int64_t>(1, fields->Integer("FailuresBeforeCritical", 0, kMostInARow).value_or(0)));
  check.deregister_after = ReadDuration(fields, "DeregisterCriticalServiceAfter");
  if (check.kind != Kind::kTtl && check.interval < kShortestInterval) {
    fields->Fail("Interval",
                 absl::StrCat("is required with ", KindName(check.kind), ", and at least 100ms"));
  }
  if (check.id.size() > kMaxQuotedId) fields->Fail("CheckID", "is longer than 1024 bytes");
  return check;
}

absl::StatusOr<CheckDefinition> CheckAt(const std::string& path, const Value& value) {
  absl::StatusOr<Fields> fields = Fields::Of(path, value);
  if (!fields.ok()) return fields.status();
  CheckDefinition check = ReadCheck(&*fields);
  if (absl::Status status = fields->Finish(); !status.ok()) return status;
  return check;
}

absl::Status ReadChecks(Fields* fields, std::vector<CheckDefinition>* checks) {
  if (const Value* const one = fields->Any("Check"); one != nullptr) {
    if (one->kind_case() != Value::kStructValue || !one->struct_value().fields().empty()) {
      absl::StatusOr<CheckDefinition> check = CheckAt("Check", *one);
      if (!check.ok()) return check.status();
      checks->push_back(*std::move(check));
    }
  }
  const Value* const list = fields->Any("Checks");
  if (list == nullptr) return absl::OkStatus();
  if (list->kind_case() != Value::kListValue) {
    return InvalidField("Checks", "a list of checks is expected");
  }
  if (checks->size() + list->list_value().values_size() > kMaxChecks) {
    return InvalidField("Checks", absl::StrCat("there are more than ", kMaxChecks));
  }
  int index = 0;
  for (const Value& value : list->list_value().values()) {
    absl::StatusOr<CheckDefinition> check = CheckAt(absl::StrCat("Checks[", index++, "]"), value);
    if (!check.ok()) return check.status();
    checks->push_back(*std::move(check));
  }
  return absl::OkStatus();
}

void ReadWeights(Fields* fields, ServiceDefinition* service) {
  const Value* const value = fields->Any("Weights");
  if (value == nullptr) return;
  absl::StatusOr<Fields> weights = Fields::Of("Weights", *value);
  if (!weights.ok()) return fields->Fail("Weights", "an object is expected");
  if (auto passing = weights->Integer("Passing", 0, 65535)) {
    service->weight = static_cast<uint32_t>(*passing);
  }
  weights->Ignore("Warning");
  if (absl::Status status = weights->Finish(); !status.ok()) {
    fields->Fail("Weights", absl::StrCat("Passing: a number in 0..65535 is expected"));
  }
}

void ReadLocality(Fields* fields, ServiceDefinition* service) {
  const Value* const value = fields->Any("Locality");
  if (value == nullptr) return;
  absl::StatusOr<Fields> locality = Fields::Of("Locality", *value);
  if (!locality.ok()) return fields->Fail("Locality", "an object is expected");
  service->zone = locality->Text("Zone");
  locality->Ignore("Region");
  if (!locality->Finish().ok()) fields->Fail("Locality", "Region and Zone are allowed, as texts");
}

}  // namespace

const char* StatusName(CheckStatus status) {
  switch (status) {
    case CheckStatus::kPassing:
      return "passing";
    case CheckStatus::kWarning:
      return "warning";
    default:
      return "critical";
  }
}

std::optional<CheckStatus> ParseStatus(std::string_view name) {
  if (name == "passing" || name == "pass") return CheckStatus::kPassing;
  if (name == "warning" || name == "warn") return CheckStatus::kWarning;
  if (name == "critical" || name == "fail") return CheckStatus::kCritical;
  return std::nullopt;
}

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kTtl:
      return "TTL";
    case Kind::kHttp:
      return "HTTP";
    case Kind::kTcp:
      return "TCP";
    default:
      return "GRPC";
  }
}

absl::StatusOr<absl::Duration> ParseGoDuration(const std::string& field, const std::string& text) {
  absl::Duration duration;
  if (text.size() <= 64 && absl::ParseDuration(text, &duration) &&
      duration >= absl::ZeroDuration() && duration <= kLongest) {
    return duration;
  }
  return InvalidField(field, absl::StrCat(Quoted(text),
                                          " is no duration as 10s or 1m30s, of at "
                                          "most a year"));
}

absl::StatusOr<ServiceDefinition> ParseService(std::string_view body) {
  absl::StatusOr<Value> value = markup::ParseJson(body);
  if (!value.ok()) return value.status();
  absl::StatusOr<Fields> fields = Fields::Of("", *value);
  if (!fields.ok()) return fields.status();
  ServiceDefinition service;
  service.name = fields->Text("Name");
  service.id = fields->Text("ID");
  if (service.name.empty()) fields->Fail("Name", "is required");
  if (service.id.empty()) service.id = service.name;
  service.address = fields->Text("Address");
  service.port = static_cast<uint32_t>(fields->Integer("Port", 0, 65535).value_or(0));
  if (service.port == 0) fields->Fail("Port", "is required, 1 to 65535");
  service.tags = fields->Texts("Tags");
  if (service.tags.size() > kMaxTags) {
    fields->Fail("Tags", absl::StrCat("there are more than ", kMaxTags));
  }
  service.meta = fields->TextMap("Meta");
  ReadWeights(&*fields, &service);
  ReadLocality(&*fields, &service);
  if (absl::Status status = ReadChecks(&*fields, &service.checks); !status.ok()) return status;
  if (absl::Status status = fields->Finish(); !status.ok()) return status;
  return service;
}

absl::StatusOr<CheckDefinition> ParseCheck(std::string_view body) {
  absl::StatusOr<Value> value = markup::ParseJson(body);
  if (!value.ok()) return value.status();
  absl::StatusOr<Fields> fields = Fields::Of("", *value);
  if (!fields.ok()) return fields.status();
  CheckDefinition check = ReadCheck(&*fields);
  check.service_id = fields->Text("ServiceID");
  if (check.name.empty()) fields->Fail("Name", "is required");
  if (check.service_id.empty()) {
    fields->Fail("ServiceID", "is required: checks of a node are not supported");
  }
  if (check.id.empty()) check.id = check.name;
  if (absl::Status status = fields->Finish(); !status.ok()) return status;
  return check;
}

absl::StatusOr<CheckUpdate> ParseCheckUpdate(std::string_view body) {
  absl::StatusOr<Value> value = markup::ParseJson(body);
  if (!value.ok()) return value.status();
  absl::StatusOr<Fields> fields = Fields::Of("", *value);
  if (!fields.ok()) return fields.status();
  CheckUpdate update;
  const std::optional<CheckStatus> status = ReadStatus(&*fields, "Status");
  if (!status.has_value()) fields->Fail("Status", "is required: passing, warning or critical");
  update.status = status.value_or(CheckStatus::kCritical);
  update.output = fields->Text("Output");
  if (absl::Status finish = fields->Finish(); !finish.ok()) return finish;
  return update;
}

}  // namespace failback::consul
