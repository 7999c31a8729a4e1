#include "gateway/eureka/instance_info.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gateway/markup/fields.h"
#include "registry/model/errors.h"
#include "registry/model/host_name.h"
#include "registry/model/validation.h"

namespace failback::eureka {
namespace {

using google::protobuf::Value;
using markup::Fields;

constexpr std::string_view kOwn = "eureka.";
constexpr std::string_view kDataCenterEntry = "eureka.data-center.";
constexpr char kHostName[] = "eureka.host-name";
constexpr char kStatus[] = "eureka.status";
constexpr char kSecurePort[] = "eureka.secure-port";
constexpr char kSecureOnly[] = "eureka.secure-only";
constexpr char kVip[] = "eureka.vip-address";
constexpr char kSecureVip[] = "eureka.secure-vip-address";
constexpr char kCountry[] = "eureka.country-id";
constexpr char kHomePage[] = "eureka.home-page-url";
constexpr char kStatusPage[] = "eureka.status-page-url";
constexpr char kHealthCheck[] = "eureka.health-check-url";
constexpr char kSecureHealthCheck[] = "eureka.secure-health-check-url";
constexpr char kAppGroup[] = "eureka.app-group-name";
constexpr char kAsg[] = "eureka.asg-name";
constexpr char kDataCenter[] = "eureka.data-center";
constexpr char kLease[] = "eureka.lease-seconds";
constexpr char kRenewal[] = "eureka.renewal-seconds";
constexpr char kZone[] = "zone";
constexpr char kWeight[] = "weight";
constexpr char kClass[] = "@class";

constexpr int64_t kMostSeconds = 24 * 3600;

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

uint32_t NumberOr(std::string_view text, uint32_t otherwise) {
  uint32_t number = 0;
  return absl::SimpleAtoi(Absl(text), &number) ? number : otherwise;
}

std::optional<uint32_t> WeightOf(const std::string& text) {
  uint32_t weight = 0;
  if (!absl::SimpleAtoi(text, &weight) || weight > 65535) return std::nullopt;
  return weight;
}

struct Port {
  uint32_t number = 0;
  bool enabled = false;
};

// A number, or `{"$": 8080, "@enabled": "true"}`.
Port ReadPort(Fields* fields, const std::string& name, bool enabled) {
  Port port;
  const Value* const value = fields->Any(name);
  if (value == nullptr) return port;
  if (value->kind_case() != Value::kStructValue) {
    port.number = static_cast<uint32_t>(fields->Integer(name, 0, 65535).value_or(0));
    port.enabled = enabled;
    return port;
  }
  absl::StatusOr<Fields> parts = Fields::Of(fields->PathOf(name), *value);
  if (!parts.ok()) {
    fields->Fail(name, "a port is expected");
    return port;
  }
  port.number = static_cast<uint32_t>(parts->Integer("$", 0, 65535).value_or(0));
  port.enabled = parts->Any("@enabled") == nullptr ? enabled : parts->Flag("@enabled");
  if (!parts->Finish().ok()) {
    fields->Fail(name, "a number in 0..65535 is expected, or {\"$\": number, \"@enabled\": true}");
  }
  return port;
}

// The parts of an instance that have no place in one of ours.
class Extras {
 public:
  explicit Extras(ServiceInstance* instance) : instance_(instance) {}

  void Add(const std::string& key, const std::string& value, std::string_view without = "") {
    if (!value.empty() && value != without) (*instance_->mutable_metadata())[key] = value;
  }

 private:
  ServiceInstance* const instance_;
};

void ReadPorts(Fields* fields, ServiceInstance* instance) {
  const Port port = ReadPort(fields, "port", true);
  const Port secure = ReadPort(fields, "securePort", false);
  if (port.enabled || !secure.enabled) {
    instance->set_port(port.number);
    if (secure.enabled) {
      (*instance->mutable_metadata())[kSecurePort] = absl::StrCat(secure.number);
    }
    if (port.number == 0) fields->Fail("port", "is required, 1 to 65535");
  } else {
    instance->set_port(secure.number);
    (*instance->mutable_metadata())[kSecureOnly] = "true";
    if (secure.number == 0) fields->Fail("securePort", "is required, 1 to 65535");
  }
}

// Returns its metadata.
std::map<std::string, std::string> ReadDataCenter(Fields* fields, ServiceInstance* instance) {
  std::map<std::string, std::string> metadata;
  const Value* const value = fields->Any("dataCenterInfo");
  if (value == nullptr) return metadata;
  absl::StatusOr<Fields> parts = Fields::Of("instance.dataCenterInfo", *value);
  if (!parts.ok()) {
    fields->Fail("dataCenterInfo", "an object is expected");
    return metadata;
  }
  Extras(instance).Add(kDataCenter, parts->Text("name"), "MyOwn");
  parts->Ignore(kClass);
  metadata = parts->TextMap("metadata");
  metadata.erase(kClass);
  for (const auto& [key, text] : metadata) {
    Extras(instance).Add(absl::StrCat(Absl(kDataCenterEntry), key), text);
  }
  if (!parts->Finish().ok()) {
    fields->Fail("dataCenterInfo", "name and metadata are allowed, which has texts");
  }
  return metadata;
}

absl::Duration ReadLease(Fields* fields, ServiceInstance* instance) {
  const Value* const value = fields->Any("leaseInfo");
  if (value == nullptr) return kDefaultLease;
  absl::StatusOr<Fields> parts = Fields::Of("instance.leaseInfo", *value);
  if (!parts.ok()) {
    fields->Fail("leaseInfo", "an object is expected");
    return kDefaultLease;
  }
  const int64_t lease = parts->Integer("durationInSecs", 1, kMostSeconds).value_or(90);
  const int64_t renewal = parts->Integer("renewalIntervalInSecs", 1, kMostSeconds).value_or(30);
  // What a server says, and a client gives back.
  for (const char* stamp : {"registrationTimestamp", "lastRenewalTimestamp", "evictionTimestamp",
                            "serviceUpTimestamp"}) {
    parts->Ignore(stamp);
  }
  if (!parts->Finish().ok()) {
    fields->Fail("leaseInfo", absl::StrCat("durationInSecs and renewalIntervalInSecs are whole "
                                           "numbers in 1..",
                                           kMostSeconds));
  }
  Extras extras(instance);
  extras.Add(kLease, absl::StrCat(lease), "90");
  extras.Add(kRenewal, absl::StrCat(renewal), "30");
  return absl::Seconds(lease);
}

void ReadMetadata(Fields* fields, ServiceInstance* instance) {
  std::map<std::string, std::string> metadata = fields->TextMap("metadata");
  metadata.erase(kClass);
  for (const auto& [key, value] : metadata) {
    if (absl::StartsWith(key, Absl(kOwn))) {
      fields->Fail(absl::StrCat("metadata[", Quoted(key), "]"),
                   "is a name that this door uses itself");
    }
    const std::optional<uint32_t> weight = key == kWeight ? WeightOf(value) : std::nullopt;
    if (weight.has_value()) {
      instance->set_weight(*weight);
    } else if (key == kZone) {
      instance->set_zone(value);
    } else {
      (*instance->mutable_metadata())[key] = value;
    }
  }
}

void ReadStatus(Fields* fields, ServiceInstance* instance) {
  const std::string name = fields->Text("status");
  const std::optional<Status> status = name.empty() ? Status::kUp : ParseStatus(name);
  if (!status.has_value()) {
    fields->Fail("status", absl::StrCat(Quoted(name),
                                        " is not UP, DOWN, STARTING, OUT_OF_SERVICE or UNKNOWN"));
    return;
  }
  switch (*status) {
    case Status::kUp:
      instance->set_status(registry::v1::HEALTH_STATUS_HEALTHY);
      break;
    case Status::kOutOfService:
      instance->set_status(registry::v1::HEALTH_STATUS_DRAINING);
      break;
    case Status::kDown:
      instance->set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
      break;
    default:
      instance->set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
      (*instance->mutable_metadata())[kStatus] = StatusName(*status);
  }
}

// Which of the names that a client gives are the id and the address.
void ReadNames(Fields* fields, ServiceInstance* instance) {
  const std::string host = fields->Text("hostName");
  const std::string ip = fields->Text("ipAddr");
  const std::string id = fields->Text("instanceId");
  instance->mutable_key()->set_instance_id(id.empty() ? host : id);
  instance->set_address(ip.empty() ? host : ip);
  Extras(instance).Add(kHostName, host, instance->address());
  if (instance->key().instance_id().empty()) fields->Fail("instanceId", "is required");
  if (instance->address().empty()) fields->Fail("ipAddr", "is required, or hostName");
}

bool HasAddress(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == wanted) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

// What the validation of an instance calls a field, as clients of Eureka know it.
absl::Status InTheirWords(const absl::Status& status) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"instance.key.service", "app"},
      {"instance.key.instance_id", "instance.instanceId"},
      {"instance.address", "instance.ipAddr"},
      {"instance.zone", "instance.metadata.zone"},
  };
  const std::string message(status.message());
  for (const auto& [ours, theirs] : kNames) {
    const std::string begin = absl::StrCat(ours, ": ");
    if (absl::StartsWith(message, begin)) return InvalidField(theirs, message.substr(begin.size()));
  }
  return status;
}

}  // namespace

const char* StatusName(Status status) {
  switch (status) {
    case Status::kUp:
      return "UP";
    case Status::kDown:
      return "DOWN";
    case Status::kStarting:
      return "STARTING";
    case Status::kOutOfService:
      return "OUT_OF_SERVICE";
    default:
      return "UNKNOWN";
  }
}

std::optional<Status> ParseStatus(std::string_view name) {
  for (const Status status :
       {Status::kUp, Status::kDown, Status::kStarting, Status::kOutOfService, Status::kUnknown}) {
    if (name == StatusName(status)) return status;
  }
  return std::nullopt;
}

std::string ServiceOfApp(std::string_view app) { return absl::AsciiStrToLower(Absl(app)); }

std::string AppOfService(std::string_view service) { return absl::AsciiStrToUpper(Absl(service)); }

absl::StatusOr<Registration> ParseRegistration(const Value& body, const std::string& app,
                                               const std::string& name_space) {
  absl::StatusOr<Fields> wrapper = Fields::Of("", body);
  if (!wrapper.ok()) return wrapper.status();
  const Value* const value = wrapper->Any("instance");
  if (value == nullptr) return InvalidField("instance", "is required");
  if (absl::Status status = wrapper->Finish(); !status.ok()) return status;
  absl::StatusOr<Fields> fields = Fields::Of("instance", *value);
  if (!fields.ok()) return fields.status();

  Registration registration;
  ServiceInstance& instance = registration.instance;
  instance.mutable_key()->set_namespace_(name_space);
  instance.mutable_key()->set_service(ServiceOfApp(app));
  const std::string named = fields->Text("app");
  if (!named.empty() && !absl::EqualsIgnoreCase(named, app)) {
    fields->Fail("app", absl::StrCat(Quoted(named), " is not the app of the path"));
  }
  ReadNames(&*fields, &instance);
  ReadPorts(&*fields, &instance);
  ReadStatus(&*fields, &instance);
  ReadMetadata(&*fields, &instance);
  const std::map<std::string, std::string> data_center = ReadDataCenter(&*fields, &instance);
  if (const auto zone = data_center.find("availability-zone");
      zone != data_center.end() && instance.zone().empty()) {
    instance.set_zone(zone->second);
  }
  registration.lease = ReadLease(&*fields, &instance);
  Extras extras(&instance);
  extras.Add(kVip, fields->Text("vipAddress"), instance.key().service());
  extras.Add(kSecureVip, fields->Text("secureVipAddress"));
  if (const auto country = fields->Integer("countryId", 0, 65535)) {
    extras.Add(kCountry, absl::StrCat(*country), "1");
  }
  extras.Add(kHomePage, fields->Text("homePageUrl"));
  extras.Add(kStatusPage, fields->Text("statusPageUrl"));
  extras.Add(kHealthCheck, fields->Text("healthCheckUrl"));
  extras.Add(kSecureHealthCheck, fields->Text("secureHealthCheckUrl"));
  extras.Add(kAppGroup, fields->Text("appGroupName"));
  extras.Add(kAsg, fields->Text("asgName"));
  // What a server says, and a client gives back.
  for (const char* said :
       {"overriddenStatus", "isCoordinatingDiscoveryServer", "lastUpdatedTimestamp",
        "lastDirtyTimestamp", "actionType", "sid", kClass}) {
    fields->Ignore(said);
  }
  if (absl::Status status = fields->Finish(); !status.ok()) return status;
  if (absl::Status status = ValidateInstance(FieldPath("instance"), instance); !status.ok()) {
    return InTheirWords(status);
  }
  if (absl::Status status = ValidateHostName(FieldPath("instance.ipAddr"), instance.address());
      !status.ok()) {
    return status;
  }
  return registration;
}

Info::Info(const InstanceView& instance)
    : app(AppOfService(instance.service)),
      id(instance.instance_id),
      host_name(instance.address),
      ip_address(instance.address),
      port(instance.port),
      vip(instance.service),
      weight(instance.has_weight ? absl::StrCat(instance.weight) : ""),
      zone(instance.zone) {
  Status unhealthy = Status::kDown;
  const std::pair<std::string_view, std::string_view*> texts[] = {
      {kHostName, &host_name},           {kVip, &vip},
      {kSecureVip, &secure_vip},         {kCountry, &country_id},
      {kHomePage, &home_page_url},       {kStatusPage, &status_page_url},
      {kHealthCheck, &health_check_url}, {kSecureHealthCheck, &secure_health_check_url},
      {kAppGroup, &app_group},           {kAsg, &asg},
      {kDataCenter, &data_center},
  };
  for (const InstanceView::Entry& entry : instance.metadata) {
    if (entry.key.substr(0, kOwn.size()) != kOwn) {
      // One that is the instance's own field is shown once.
      const bool shown =
          (entry.key == kZone && !zone.empty()) || (entry.key == kWeight && !weight.empty());
      if (!shown) metadata.push_back(entry);
      continue;
    }
    const auto* const text =
        std::find_if(std::begin(texts), std::end(texts),
                     [&](const auto& known) { return known.first == entry.key; });
    if (text != std::end(texts)) {
      *text->second = entry.value;
    } else if (entry.key == kStatus) {
      unhealthy = ParseStatus(entry.value).value_or(Status::kDown);
    } else if (entry.key == kSecurePort) {
      secure_port = NumberOr(entry.value, 443);
      secure_port_enabled = true;
    } else if (entry.key == kSecureOnly) {
      secure_port = port;
      secure_port_enabled = true;
      port_enabled = false;
    } else if (entry.key == kLease) {
      lease_seconds = NumberOr(entry.value, 90);
    } else if (entry.key == kRenewal) {
      renewal_seconds = NumberOr(entry.value, 30);
    } else if (entry.key.substr(0, kDataCenterEntry.size()) == kDataCenterEntry) {
      data_center_metadata.push_back({entry.key.substr(kDataCenterEntry.size()), entry.value});
    }
  }
  overridden = instance.offline;
  if (overridden || instance.status == registry::v1::HEALTH_STATUS_DRAINING) {
    status = Status::kOutOfService;
  } else if (instance.status == registry::v1::HEALTH_STATUS_UNHEALTHY) {
    status = unhealthy;
  }
}

bool Info::HasVip(std::string_view wanted) const { return HasAddress(vip, wanted); }

bool Info::HasSecureVip(std::string_view wanted) const { return HasAddress(secure_vip, wanted); }

}  // namespace failback::eureka
