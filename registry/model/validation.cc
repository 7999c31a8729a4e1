#include "registry/model/validation.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/base/utf8.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

constexpr uint32_t kMaxPort = 65535;
constexpr uint32_t kMaxWeight = 65535;

absl::Status Invalid(const FieldPath& path, const std::string& description) {
  return InvalidField(path.ToString(), description);
}

absl::Status Required(const FieldPath& path) { return Invalid(path, "is required"); }

absl::Status TooLong(const FieldPath& path, size_t actual, size_t limit, const char* unit) {
  return Invalid(path,
                 absl::StrCat("is ", actual, " ", unit, " long, at most ", limit, " are allowed"));
}

// Printable ASCII without space, 1 to `max` of them.
absl::Status ValidateId(const FieldPath& path, std::string_view id, size_t max) {
  if (id.empty()) return Required(path);
  if (id.size() > max) return TooLong(path, id.size(), max, "characters");
  for (const char c : id) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) {
      return Invalid(path,
                     absl::StrCat(Quoted(id), " may hold printable ASCII without space only"));
    }
  }
  return absl::OkStatus();
}

// For people to read: without control characters.
absl::Status ValidateWords(const char* name, const std::string& text, size_t max) {
  if (text.size() > max) {
    return InvalidField(name,
                        absl::StrCat("has ", text.size(), " bytes; at most ", max, " are allowed"));
  }
  if (!IsUtf8(text)) return InvalidField(name, absl::StrCat(Quoted(text), " is not UTF-8"));
  if (HoldsControl(text)) {
    return InvalidField(name, absl::StrCat(Quoted(text), " holds a control character"));
  }
  return absl::OkStatus();
}

absl::Status ValidateOptionalId(const FieldPath& path, std::string_view id, size_t max) {
  return id.empty() ? absl::OkStatus() : ValidateId(path, id, max);
}

// 1 to `max` of `A-Za-z0-9` and `more`, the first and the last alphanumeric.
absl::Status ValidateName(const FieldPath& path, std::string_view name, size_t max,
                          const char* more, const char* allowed) {
  if (name.size() > max) return TooLong(path, name.size(), max, "characters");
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        std::string_view(more).find(c) == std::string_view::npos) {
      return Invalid(path, absl::StrCat(Quoted(name), " may hold ", allowed, " only"));
    }
  }
  if (!absl::ascii_isalnum(static_cast<unsigned char>(name.front())) ||
      !absl::ascii_isalnum(static_cast<unsigned char>(name.back()))) {
    return Invalid(path, absl::StrCat(Quoted(name), " must begin and end with a letter or digit"));
  }
  return absl::OkStatus();
}

// UTF-8 without control characters, at most `max` characters.
absl::Status ValidateText(const FieldPath& path, std::string_view text, int max) {
  const int length = Utf8Length(text);
  if (length < 0) return Invalid(path, absl::StrCat(Quoted(text), " is not UTF-8"));
  if (length > max) return TooLong(path, length, max, "characters");
  if (HoldsControl(text)) {
    return Invalid(path, absl::StrCat(Quoted(text), " holds a control character"));
  }
  return absl::OkStatus();
}

absl::Status ValidateNamespace(const FieldPath& path, std::string_view name) {
  if (name.empty()) return absl::OkStatus();
  return ValidateName(path, name, kMaxNamespaceLength, "._-", "letters, digits and . _ -");
}

absl::Status ValidateService(const FieldPath& path, std::string_view name) {
  if (name.empty()) return Required(path);
  return ValidateName(path, name, kMaxServiceLength, "._/-", "letters, digits and . _ / -");
}

absl::Status ValidateKeyNames(const FieldPath& path, std::string_view name_space,
                              std::string_view service, std::string_view instance_id) {
  if (auto status = ValidateNamespace(FieldPath(path, "namespace"), name_space); !status.ok()) {
    return status;
  }
  if (auto status = ValidateService(FieldPath(path, "service"), service); !status.ok()) {
    return status;
  }
  return ValidateId(FieldPath(path, "instance_id"), instance_id, kMaxInstanceIdLength);
}

absl::Status ValidateAddress(const FieldPath& path, std::string_view address) {
  if (address.empty()) return Required(path);
  if (address.size() > kMaxAddressLength) {
    return TooLong(path, address.size(), kMaxAddressLength, "characters");
  }
  if (address.find(':') != std::string_view::npos) {
    // Only an IPv6 address has colons; it may have a zone (`fe80::1%eth0`).
    const size_t end = std::min(address.find('%'), address.size());
    const std::string_view zone = address.substr(end);
    const bool readable = std::all_of(zone.begin(), zone.end(),
                                      [](unsigned char c) { return absl::ascii_isgraph(c); });
    in6_addr parsed;
    if (readable && zone.size() != 1 &&
        inet_pton(AF_INET6, std::string(address.substr(0, end)).c_str(), &parsed) == 1) {
      return absl::OkStatus();
    }
    return Invalid(path, absl::StrCat(Quoted(address),
                                      " is neither a host name nor an IP address (no port, no "
                                      "brackets)"));
  }
  for (const char c : address) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-' && c != '_') {
      return Invalid(path,
                     absl::StrCat(Quoted(address), " is neither a host name nor an IP address"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateHealth(const FieldPath& path, int status) {
  if (registry::v1::HealthStatus_IsValid(status)) return absl::OkStatus();
  return Invalid(path, absl::StrCat(status, " is not a HealthStatus"));
}

absl::Status ValidateIntentState(const FieldPath& path, int state) {
  if (registry::v1::IntentState_IsValid(state)) return absl::OkStatus();
  return Invalid(path, absl::StrCat(state, " is not an IntentState"));
}

// `metadata`: pairs of a key and a value.
template <typename Metadata>
absl::Status ValidateMetadata(const FieldPath& path, const Metadata& metadata) {
  if (metadata.size() > kMaxMetadataEntries) {
    return Invalid(path, absl::StrCat("has ", metadata.size(), " entries, at most ",
                                      kMaxMetadataEntries, " are allowed"));
  }
  size_t bytes = 0;
  for (const auto& [key, value] : metadata) {
    bytes += key.size() + value.size();
    const auto entry = [&, &key = key] {
      return absl::StrCat(path.ToString(), "[", Quoted(key), "]");
    };
    if (key.empty()) return Invalid(path, "has an entry with an empty key");
    if (key.size() > kMaxMetadataKeyBytes) {
      return InvalidField(entry(), absl::StrCat("the key is ", key.size(), " bytes long, at most ",
                                                kMaxMetadataKeyBytes, " are allowed"));
    }
    if (value.size() > kMaxMetadataValueBytes) {
      return InvalidField(entry(),
                          absl::StrCat("the value is ", value.size(), " bytes long, at most ",
                                       kMaxMetadataValueBytes, " are allowed"));
    }
    if (Utf8Length(key) < 0) return InvalidField(entry(), "the key is not UTF-8");
    if (Utf8Length(value) < 0) return InvalidField(entry(), "the value is not UTF-8");
  }
  if (bytes > kMaxMetadataBytes) {
    return Invalid(path, absl::StrCat("is ", bytes, " bytes in all, at most ", kMaxMetadataBytes,
                                      " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTtl(const FieldPath& path, const google::protobuf::Duration& ttl) {
  constexpr int64_t kMaxSeconds = 315576000000;  // the range that duration.proto states
  constexpr int32_t kMaxNanos = 999999999;
  if (ttl.seconds() < 0 || ttl.nanos() < 0) return Invalid(path, "is negative");
  if (ttl.seconds() > kMaxSeconds || ttl.nanos() > kMaxNanos) {
    return Invalid(
        path, absl::StrCat(ttl.seconds(), " s and ", ttl.nanos(), " ns are not a valid Duration"));
  }
  return absl::OkStatus();
}

absl::Status ValidateSessionId(const std::string& session_id) {
  return ValidateId(FieldPath("session_id"), session_id, kMaxIdLength);
}

}  // namespace

std::string Quoted(std::string_view value, size_t max) {
  const std::string begin(value.substr(0, max));
  return absl::StrCat("\"", absl::CHexEscape(begin), value.size() <= max ? "\"" : "\"...");
}

std::string FieldPath::ToString() const {
  std::string text = parent_ == nullptr ? std::string() : parent_->ToString();
  if (*name_ == '\0') return text;
  if (!text.empty()) text += '.';
  text += name_;
  if (index_ >= 0) absl::StrAppend(&text, "[", index_, "]");
  return text;
}

void NormalizeKey(InstanceKey* key) {
  if (key->namespace_().empty()) key->set_namespace_(kDefaultNamespace);
}

void NormalizeSelector(Selector* selector) {
  if (selector->namespace_().empty()) selector->set_namespace_(kDefaultNamespace);
}

absl::Status ValidateKey(const FieldPath& path, const InstanceKey& key) {
  return ValidateKeyNames(path, key.namespace_(), key.service(), key.instance_id());
}

absl::Status ValidateGeneration(const FieldPath& path, uint64_t generation) {
  if (generation <= kMaxGeneration) return absl::OkStatus();
  return Invalid(path, absl::StrCat(generation, " is not in 0..", kMaxGeneration));
}

absl::Status ValidateInstance(const FieldPath& path, const ServiceInstance& instance) {
  return ValidateInstance(path, InstanceView(instance));
}

absl::Status ValidateInstance(const FieldPath& path, const InstanceView& instance) {
  if (auto status = ValidateKeyNames(FieldPath(path, "key"), instance.name_space, instance.service,
                                     instance.instance_id);
      !status.ok()) {
    return status;
  }
  if (auto status = ValidateAddress(FieldPath(path, "address"), instance.address); !status.ok()) {
    return status;
  }
  if (instance.port < 1 || instance.port > kMaxPort) {
    return Invalid(FieldPath(path, "port"),
                   absl::StrCat(instance.port, " is not in 1..", kMaxPort));
  }
  if (auto status = ValidateHealth(FieldPath(path, "status"), instance.status); !status.ok()) {
    return status;
  }
  if (instance.weight > kMaxWeight) {
    return Invalid(FieldPath(path, "weight"),
                   absl::StrCat(instance.weight, " is not in 0..", kMaxWeight));
  }
  if (auto status = ValidateText(FieldPath(path, "zone"), instance.zone, kMaxZoneLength);
      !status.ok()) {
    return status;
  }
  if (auto status = ValidateMetadata(FieldPath(path, "metadata"), instance.metadata);
      !status.ok()) {
    return status;
  }
  if (instance.instance_count != 0) {
    return Invalid(FieldPath(path, "instance_count"), "is set by the registry only");
  }
  if (instance.bytes > kMaxInstanceBytes) {
    return Invalid(path, absl::StrCat("is ", instance.bytes, " bytes, at most ", kMaxInstanceBytes,
                                      " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status ValidateSelector(const FieldPath& path, const Selector& selector) {
  if (auto status = ValidateNamespace(FieldPath(path, "namespace"), selector.namespace_());
      !status.ok()) {
    return status;
  }
  if (!selector.service().empty()) {
    if (auto status = ValidateService(FieldPath(path, "service"), selector.service());
        !status.ok()) {
      return status;
    }
  }
  for (const auto& [name, size] : {std::pair("statuses", selector.statuses_size()),
                                   std::pair("zones", selector.zones_size())}) {
    if (size > kMaxSelectorValues) {
      return Invalid(FieldPath(path, name), absl::StrCat("has ", size, " entries, at most ",
                                                         kMaxSelectorValues, " are allowed"));
    }
  }
  for (int i = 0; i < selector.statuses_size(); ++i) {
    if (auto status = ValidateHealth(FieldPath(path, "statuses", i), selector.statuses(i));
        !status.ok()) {
      return status;
    }
  }
  for (int i = 0; i < selector.zones_size(); ++i) {
    if (auto status = ValidateText(FieldPath(path, "zones", i), selector.zones(i), kMaxZoneLength);
        !status.ok()) {
      return status;
    }
  }
  return ValidateMetadata(FieldPath(path, "metadata"), selector.metadata());
}

absl::Status ValidateFollowed(const FieldPath& path, const Selector& selector) {
  if (auto status = ValidateSelector(path, selector); !status.ok()) return status;
  if (!selector.service().empty()) return absl::OkStatus();
  const std::pair<const char*, bool> conditions[] = {
      {"statuses", selector.statuses_size() > 0},
      {"zones", selector.zones_size() > 0},
      {"metadata", !selector.metadata().empty()},
  };
  for (const auto& [name, set] : conditions) {
    if (set) {
      return Invalid(FieldPath(path, name),
                     "is not allowed without a service: services are listed");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOpenSession(const OpenSessionRequest& request) {
  if (auto status = ValidateId(FieldPath("incarnation"), request.incarnation(), kMaxIdLength);
      !status.ok()) {
    return status;
  }
  if (auto status =
          ValidateText(FieldPath("client_name"), request.client_name(), kMaxClientNameLength);
      !status.ok()) {
    return status;
  }
  if (auto status = ValidateTtl(FieldPath("ttl"), request.ttl()); !status.ok()) return status;
  const auto in_owner = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  if (request.owner().size() > kMaxOwnerLength ||
      !std::all_of(request.owner().begin(), request.owner().end(), in_owner)) {
    return InvalidField("owner", absl::StrCat("is set by servers; allowed are at most ",
                                              kMaxOwnerLength, " letters, digits, '-' and '_'"));
  }
  return ValidateOptionalId(FieldPath("store_id"), request.store_id(), kMaxIdLength);
}

absl::Status ValidateKeepAlive(const KeepAliveRequest& request) {
  return ValidateSessionId(request.session_id());
}

absl::Status ValidateCloseSession(const CloseSessionRequest& request) {
  return ValidateSessionId(request.session_id());
}

absl::Status ValidateBatch(std::string_view session_id, int wait_for, size_t size,
                           const char* field, uint32_t max_batch) {
  if (auto status = ValidateOptionalId(FieldPath("session_id"), session_id, kMaxIdLength);
      !status.ok()) {
    return status;
  }
  if (size == 0) return Required(FieldPath(field));
  if (size > max_batch) {
    return Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                   absl::StrCat(field, ": has ", size, " items, at most ", max_batch,
                                " are allowed in one call"),
                   {{"limit", absl::StrCat(max_batch)}, {"actual", absl::StrCat(size)}});
  }
  return ValidateIntentState(FieldPath("wait_for"), wait_for);
}

absl::Status ValidateSubscribe(const SubscribeRequest& request) {
  const FieldPath id("subscription_id");
  if (request.session_id().empty()) {
    if (auto status = ValidateOptionalId(id, request.subscription_id(), kMaxIdLength);
        !status.ok()) {
      return status;
    }
  } else {
    if (auto status = ValidateSessionId(request.session_id()); !status.ok()) return status;
    if (auto status = ValidateId(id, request.subscription_id(), kMaxIdLength); !status.ok()) {
      return status;
    }
  }
  if (auto status = ValidateGeneration(FieldPath("generation"), request.generation());
      !status.ok()) {
    return status;
  }
  return ValidateFollowed(FieldPath("selector"), request.selector());
}

absl::Status ValidateUnsubscribe(const UnsubscribeRequest& request) {
  if (auto status = ValidateSessionId(request.session_id()); !status.ok()) return status;
  if (auto status =
          ValidateId(FieldPath("subscription_id"), request.subscription_id(), kMaxIdLength);
      !status.ok()) {
    return status;
  }
  return ValidateGeneration(FieldPath("generation"), request.generation());
}

absl::Status ValidateList(const ListRequest& request) {
  if (auto status = ValidateSelector(FieldPath("selector"), request.selector()); !status.ok()) {
    return status;
  }
  if (auto status =
          ValidateOptionalId(FieldPath("incarnation"), request.incarnation(), kMaxIdLength);
      !status.ok()) {
    return status;
  }
  if (request.page_size() < 0) {
    return Invalid(FieldPath("page_size"), absl::StrCat(request.page_size(), " is negative"));
  }
  return absl::OkStatus();
}

absl::Status ValidateOperator(const std::string& by) {
  return ValidateWords("by", by, kMaxOperatorBytes);
}

absl::Status ValidateSetOffline(const SetOfflineRequest& request) {
  if (auto status = ValidateKey(FieldPath("key"), request.key()); !status.ok()) return status;
  auto status = ValidateWords("reason", request.reason(), kMaxOfflineReasonBytes);
  return status.ok() ? ValidateOperator(request.by()) : status;
}

}  // namespace failback
