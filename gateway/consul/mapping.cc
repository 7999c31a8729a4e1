#include "gateway/consul/mapping.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/host_name.h"
#include "registry/model/validation.h"

namespace failback::consul {
namespace {

constexpr char kTags[] = "tags";
constexpr char kMoreTags[] = "tags.";
constexpr char kStatusKey[] = "consul.status";
constexpr char kMaintenanceKey[] = "consul.maintenance";
constexpr char kWarning[] = "warning";

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// The place of an entry among those of the tags, from 1; 0: it is none.
uint32_t TagsPart(std::string_view key) {
  if (key == kTags) return 1;
  if (!StartsWith(key, kMoreTags)) return 0;
  const std::string_view number = key.substr(sizeof(kMoreTags) - 1);
  uint32_t part = 0;
  if (!absl::SimpleAtoi(absl::string_view(number.data(), number.size()), &part)) return 0;
  return part >= 2 && part <= kMaxMetadataEntries ? part : 0;
}

bool IsOwn(std::string_view key) { return TagsPart(key) != 0 || StartsWith(key, kOwnMetadata); }

std::string EncodeTag(std::string_view tag) {
  std::string encoded;
  for (size_t at = 0; at < tag.size(); ++at) {
    const std::string_view next = tag.substr(at + 1, 2);
    if (tag[at] == ',') {
      encoded.append("%2C");
    } else if (tag[at] == '%' && (next == "2C" || next == "25")) {
      encoded.append("%25");
    } else {
      encoded.push_back(tag[at]);
    }
  }
  return encoded;
}

std::string DecodeTag(std::string_view text) {
  std::string tag;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view code = text.substr(at, 3);
    if (code == "%2C" || code == "%25") {
      tag.push_back(code == "%2C" ? ',' : '%');
      at += 2;
    } else {
      tag.push_back(text[at]);
    }
  }
  return tag;
}

// What the validation of an instance calls a field, as clients of Consul know it.
absl::Status InTheirWords(const absl::Status& status) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"instance.key.service", "Name"},
      {"instance.key.instance_id", "ID"},
      {"instance.key.namespace", "dc"},
      {"instance.address", "Address"},
      {"instance.port", "Port"},
      {"instance.zone", "Locality.Zone"},
      {"instance.weight", "Weights.Passing"},
      {"instance.metadata", "Meta"},
  };
  if (status.ok()) return status;
  const std::string message(status.message());
  for (const auto& [ours, theirs] : kNames) {
    if (absl::StartsWith(message, ours)) {
      const std::string rest = message.substr(std::string_view(ours).size());
      // "instance.metadata[key]: …", "instance.port: …"
      const size_t colon = rest.find(": ");
      if (colon == std::string::npos) continue;
      return InvalidField(absl::StrCat(theirs, rest.substr(0, colon)), rest.substr(colon + 2));
    }
  }
  return status;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> EncodeTags(const std::vector<std::string>& tags) {
  std::vector<std::string> values;
  for (size_t i = 0; i < tags.size(); ++i) {
    const std::string tag = EncodeTag(tags[i]);
    const std::string field = absl::StrCat("Tags[", i, "]");
    if (tag.empty()) return InvalidField(field, "is empty");
    if (tag.size() > kMaxMetadataValueBytes) {
      return InvalidField(field, absl::StrCat("is longer than ", kMaxMetadataValueBytes, " bytes"));
    }
    // Readers leave space around a tag out.
    if (tag.front() == ' ' || tag.back() == ' ') {
      return InvalidField(field, absl::StrCat(Quoted(tags[i]), " begins or ends with a space"));
    }
    if (values.empty() || values.back().size() + 1 + tag.size() > kMaxMetadataValueBytes) {
      values.push_back(tag);
    } else {
      absl::StrAppend(&values.back(), ",", tag);
    }
  }
  return values;
}

void DecodeTags(std::string_view value, std::vector<std::string>* tags) {
  while (!value.empty()) {
    const size_t comma = value.find(',');
    std::string_view tag = value.substr(0, comma);
    while (!tag.empty() && tag.front() == ' ') tag.remove_prefix(1);
    while (!tag.empty() && tag.back() == ' ') tag.remove_suffix(1);
    if (!tag.empty()) tags->push_back(DecodeTag(tag));
    if (comma == std::string_view::npos) return;
    value.remove_prefix(comma + 1);
  }
}

absl::StatusOr<ServiceInstance> ToInstance(const ServiceDefinition& service,
                                           const std::string& name_space,
                                           const std::string& own_address, CheckStatus status) {
  ServiceInstance instance;
  instance.mutable_key()->set_namespace_(name_space);
  instance.mutable_key()->set_service(service.name);
  instance.mutable_key()->set_instance_id(service.id);
  instance.set_address(service.address.empty() ? own_address : service.address);
  if (instance.address().empty()) {
    return InvalidField("Address",
                        "is required: this agent has no address of its own to fill in "
                        "(consul.advertise)");
  }
  instance.set_port(service.port);
  instance.set_zone(service.zone);
  if (service.weight.has_value()) instance.set_weight(*service.weight);
  for (const auto& [key, value] : service.meta) {
    if (IsOwn(key)) {
      return InvalidField(absl::StrCat("Meta[", Quoted(key), "]"),
                          "is a name that this door uses itself");
    }
    (*instance.mutable_metadata())[key] = value;
  }
  absl::StatusOr<std::vector<std::string>> tags = EncodeTags(service.tags);
  if (!tags.ok()) return tags.status();
  for (size_t i = 0; i < tags->size(); ++i) {
    (*instance.mutable_metadata())[i == 0 ? std::string(kTags) : absl::StrCat(kMoreTags, i + 1)] =
        (*tags)[i];
  }
  SetStatus(status, &instance);
  if (absl::Status valid = ValidateInstance(FieldPath("instance"), instance); !valid.ok()) {
    return InTheirWords(valid);
  }
  if (absl::Status host = ValidateHostName(FieldPath("Address"), instance.address()); !host.ok()) {
    return host;
  }
  return instance;
}

void SetStatus(CheckStatus status, ServiceInstance* instance) {
  instance->set_status(status == CheckStatus::kCritical ? registry::v1::HEALTH_STATUS_UNHEALTHY
                                                        : registry::v1::HEALTH_STATUS_HEALTHY);
  if (status == CheckStatus::kWarning) {
    (*instance->mutable_metadata())[kStatusKey] = kWarning;
  } else {
    instance->mutable_metadata()->erase(kStatusKey);
  }
}

void SetMaintenance(CheckStatus status, ServiceInstance* instance) {
  instance->set_status(registry::v1::HEALTH_STATUS_DRAINING);
  instance->mutable_metadata()->erase(kStatusKey);
  (*instance->mutable_metadata())[kMaintenanceKey] = StatusName(status);
}

ServiceEntry::ServiceEntry(const InstanceView& instance)
    : service(instance.service),
      id(instance.instance_id),
      address(instance.address),
      port(instance.port),
      weight(instance.has_weight ? instance.weight : 100),
      zone(instance.zone),
      draining(instance.status == registry::v1::HEALTH_STATUS_DRAINING),
      offline(instance.offline) {
  bool warning = false;
  std::optional<CheckStatus> in_maintenance;
  std::vector<std::pair<uint32_t, std::string_view>> parts;
  for (const InstanceView::Entry& entry : instance.metadata) {
    if (const uint32_t part = TagsPart(entry.key); part != 0) {
      parts.emplace_back(part, entry.value);
    } else if (entry.key == kStatusKey) {
      warning = entry.value == kWarning;
    } else if (entry.key == kMaintenanceKey) {
      in_maintenance = ParseStatus(entry.value);
    } else if (!StartsWith(entry.key, kOwnMetadata)) {
      meta.push_back(entry);
    }
  }
  std::sort(parts.begin(), parts.end());
  for (const auto& [part, value] : parts) DecodeTags(value, &tags);
  maintenance = draining && in_maintenance.has_value();
  if (maintenance) {
    check_status = *in_maintenance;
  } else if (draining || instance.status == registry::v1::HEALTH_STATUS_UNHEALTHY) {
    check_status = CheckStatus::kCritical;
  } else if (warning) {
    check_status = CheckStatus::kWarning;
  }
  status = offline || maintenance ? CheckStatus::kCritical : check_status;
}

bool ServiceEntry::HasTag(std::string_view tag) const {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

}  // namespace failback::consul
