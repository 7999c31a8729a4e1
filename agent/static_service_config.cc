#include "agent/static_service_config.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "agent/pod_identity.h"
#include "registry/base/address.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/host_name.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using agent::v1::HealthCheck;
using agent::v1::StaticService;

std::string HostPort(const std::string& host, uint32_t port) {
  Address address;
  address.host = host;
  address.port = static_cast<int>(port);
  return address.ToString();
}

ServiceInstance ToInstance(const AgentConfig& config, const PodLabels& labels,
                           const StaticService& service) {
  ServiceInstance instance;
  instance.set_address(service.address().empty() ? config.pod().ip() : service.address());
  instance.set_port(service.port());
  InstanceKey& key = *instance.mutable_key();
  key.set_namespace_(service.namespace_().empty() ? config.namespace_() : service.namespace_());
  key.set_service(service.name());
  key.set_instance_id(!service.id().empty() ? service.id()
                      : !config.pod().name().empty()
                          ? config.pod().name()
                          : HostPort(instance.address(), service.port()));
  if (service.has_weight()) instance.set_weight(service.weight());
  instance.set_zone(service.zone().empty() ? config.zone() : service.zone());
  *instance.mutable_metadata() = service.metadata();
  for (const auto& [name, value] : labels) {
    instance.mutable_metadata()->insert(
        google::protobuf::MapPair<std::string, std::string>(name, value));
  }
  instance.set_persistent(service.persistent());
  NormalizeKey(&key);
  return instance;
}

// An error of a ServiceInstance's field, at the key of the file that it came from.
absl::Status ErrorInService(const ConfigLoader& loader, const absl::Status& status) {
  const std::string message(status.message());
  const size_t colon = message.find(": ");
  if (colon == std::string::npos) return status;
  return loader.ErrorAt(
      absl::StrReplaceAll(message.substr(0, colon), {{".key.service", ".name"},
                                                     {".key.instance_id", ".id"},
                                                     {".key.namespace", ".namespace"}}),
      message.substr(colon + 2));
}

// The address of a check that has one.
std::string* MutableAddress(HealthCheck* check) {
  if (check->has_tcp()) return check->mutable_tcp()->mutable_address();
  if (check->has_http()) return check->mutable_http()->mutable_address();
  if (check->has_grpc()) return check->mutable_grpc()->mutable_address();
  return nullptr;
}

int KindsSet(const HealthCheck& check) {
  return int{check.has_tcp()} + int{check.has_http()} + int{check.has_grpc()} +
         int{check.has_command()} + int{check.has_ttl()};
}

bool IsToken(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || absl::StrContains("!#$%&'*+-.^_`|~", std::string(1, c));
  });
}

// Nothing that would end a line of an HTTP request.
bool IsLine(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

absl::Status ValidateHttp(const std::string& path, const agent::v1::HttpCheck& http,
                          const ConfigLoader& loader) {
  if (!http.path().empty() &&
      (http.path()[0] != '/' || !IsLine(http.path()) || absl::StrContains(http.path(), " "))) {
    return loader.ErrorAt(path + ".path",
                          absl::StrCat("'", http.path(), "' is not a path; as /healthz?full=1"));
  }
  if (!http.method().empty() && !IsToken(http.method())) {
    return loader.ErrorAt(path + ".method",
                          absl::StrCat("'", http.method(), "' is not a method; as GET or HEAD"));
  }
  if (!IsLine(http.host())) return loader.ErrorAt(path + ".host", "has a control character");
  if (!IsLine(http.tls().server_name())) {
    return loader.ErrorAt(path + ".tls.server_name", "has a control character");
  }
  if (http.tls().skip_verify() && !http.tls().ca().empty()) {
    return loader.ErrorAt(path + ".tls.ca", "is not looked at with skip_verify; leave one out");
  }
  // Without it every try fails, as if the service were ill.
  if (const std::string& ca = http.tls().ca(); !ca.empty() && access(ca.c_str(), R_OK) != 0) {
    return loader.ErrorAt(path + ".tls.ca",
                          absl::StrCat("'", ca, "' cannot be read: ", std::strerror(errno)));
  }
  for (const auto& [name, value] : http.headers()) {
    const std::string place = absl::StrCat(path, ".headers[\"", name, "\"]");
    if (!IsToken(name)) return loader.ErrorAt(place, "is not the name of a header");
    if (!IsLine(value)) return loader.ErrorAt(place, "has a control character");
  }
  return absl::OkStatus();
}

// What only a check with tries of its own has.
absl::Status ValidateTtl(const std::string& path, const HealthCheck& check,
                         const ConfigLoader& loader) {
  const char* extra = check.has_interval()  ? "interval"
                      : check.has_timeout() ? "timeout"
                      : check.rise() != 0   ? "rise"
                      : check.fall() != 0   ? "fall"
                                            : nullptr;
  if (extra != nullptr) {
    return loader.ErrorAt(absl::StrCat(path, ".", extra),
                          "is not for a ttl check, which the program itself reports");
  }
  if (!check.ttl().has_ttl()) {
    return loader.ErrorAt(path + ".ttl.ttl", "is required, as 30s: fails after so long in silence");
  }
  return absl::OkStatus();
}

absl::Status ValidateCheck(const std::string& path, const HealthCheck& check,
                           const ConfigLoader& loader) {
  if (const int kinds = KindsSet(check); kinds != 1) {
    return loader.ErrorAt(path, absl::StrCat("has ", kinds == 0 ? "no kind" : "several kinds",
                                             "; set one of tcp, http, grpc, command, ttl"));
  }
  if (check.has_ttl()) return ValidateTtl(path, check, loader);
  const HealthChecker::Options options = CheckOptions(check);
  if (options.timeout > options.interval) {
    return loader.ErrorAt(path + ".timeout", absl::StrCat(absl::FormatDuration(options.timeout),
                                                          " is more than the interval, ",
                                                          absl::FormatDuration(options.interval)));
  }
  if (check.has_http()) {
    if (auto status = ValidateHttp(path + ".http", check.http(), loader); !status.ok()) {
      return status;
    }
  }
  if (check.has_command() &&
      (check.command().argv_size() == 0 || check.command().argv(0).empty())) {
    return loader.ErrorAt(path + ".command.argv", "is required, as [/usr/bin/my-check, --quick]");
  }
  HealthCheck copy = check;
  if (const std::string* address = MutableAddress(&copy); address != nullptr) {
    if (const auto parsed = ParseAddress(*address); !parsed.ok()) {
      return loader.ErrorAt(absl::StrCat(path, ".", CheckKind(check), ".address"),
                            std::string(parsed.status().message()));
    }
  }
  return absl::OkStatus();
}

// The checks of services[index], complete.
absl::Status AddChecks(const StaticService& service, const std::string& path,
                       const ConfigLoader& loader, StaticServiceSpec* spec) {
  std::map<std::string, int> names;
  for (int i = 0; i < service.checks_size(); ++i) {
    const std::string check_path = absl::StrCat(path, ".checks[", i, "]");
    HealthCheck check = service.checks(i);
    if (check.name().empty()) check.set_name(CheckKind(check));
    if (std::string* address = MutableAddress(&check); address != nullptr && address->empty()) {
      *address = HostPort(spec->instance.address(), spec->instance.port());
    }
    if (auto status = ValidateCheck(check_path, check, loader); !status.ok()) return status;
    const auto [earlier, inserted] = names.emplace(check.name(), i);
    if (!inserted) {
      return loader.ErrorAt(check_path + ".name", absl::StrCat("'", check.name(), "' is checks[",
                                                               earlier->second, "] already"));
    }
    spec->checks.push_back(std::move(check));
  }
  return absl::OkStatus();
}

absl::Status ValidateHealthKeys(const StaticService& service, const std::string& path,
                                const ConfigLoader& loader) {
  if (service.checks_size() > 0) return absl::OkStatus();
  if (service.register_when_healthy()) {
    return loader.ErrorAt(path + ".register_when_healthy", "needs checks");
  }
  if (service.has_deregister_critical_after()) {
    return loader.ErrorAt(path + ".deregister_critical_after", "needs checks");
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckKind(const HealthCheck& check) {
  if (check.has_tcp()) return "tcp";
  if (check.has_http()) return "http";
  if (check.has_grpc()) return "grpc";
  if (check.has_command()) return "command";
  return check.has_ttl() ? "ttl" : "";
}

HealthChecker::Options CheckOptions(const HealthCheck& check) {
  HealthChecker::Options options;
  if (check.has_ttl()) {
    options.interval = FromProto(check.ttl().ttl());
    options.rise = options.fall = 1;
    return options;
  }
  if (check.has_interval()) options.interval = FromProto(check.interval());
  options.timeout = check.has_timeout() ? FromProto(check.timeout())
                                        : std::min(options.timeout, options.interval);
  if (check.rise() != 0) options.rise = check.rise();
  if (check.fall() != 0) options.fall = check.fall();
  return options;
}

absl::StatusOr<std::vector<StaticServiceSpec>> StaticServices(const AgentConfig& config,
                                                              const ConfigLoader& loader) {
  const absl::StatusOr<PodLabels> labels = ReadPodLabels(config.pod(), loader);
  if (!labels.ok()) return labels.status();
  std::vector<StaticServiceSpec> specs;
  std::map<std::string, int> seen;
  for (int i = 0; i < config.services_size(); ++i) {
    const StaticService& service = config.services(i);
    const std::string path = absl::StrCat("services[", i, "]");
    StaticServiceSpec spec;
    spec.instance = ToInstance(config, *labels, service);
    const FieldPath field("services", i);
    absl::Status status = ValidateInstance(field, spec.instance);
    if (status.ok()) {
      status = ValidateHostName(FieldPath(field, "address"), spec.instance.address());
    }
    if (!status.ok()) return ErrorInService(loader, status);
    const auto [earlier, inserted] = seen.emplace(CanonicalKey(spec.instance.key()), i);
    if (!inserted) {
      return loader.ErrorAt(absl::StrCat(path, ".id"),
                            absl::StrCat("'", spec.instance.key().instance_id(), "' of ",
                                         spec.instance.key().service(), " is services[",
                                         earlier->second, "] already"));
    }
    if (auto status = ValidateHealthKeys(service, path, loader); !status.ok()) return status;
    if (auto status = AddChecks(service, path, loader, &spec); !status.ok()) return status;
    spec.register_when_healthy = service.register_when_healthy();
    if (service.has_deregister_critical_after()) {
      spec.deregister_critical_after = FromProto(service.deregister_critical_after());
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace failback
