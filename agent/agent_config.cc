#include "agent/agent_config.h"

#include <unistd.h>

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/static_service_config.h"
#include "agent/upstreams.h"
#include "daemon/admin_config.h"
#include "daemon/dns_config.h"
#include "daemon/front_doors.h"
#include "registry/base/proto_time.h"
#include "registry/base/utf8.h"
#include "registry/etcd/etcd_uri.h"
#include "registry/failback/failback_group.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;

std::string Hostname() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// An error of a request's field, at the key that it came from.
absl::Status ErrorInField(const ConfigLoader& loader, const absl::Status& status) {
  const std::string message(status.message());
  const size_t colon = message.find(": ");
  if (colon == std::string::npos) return status;
  return loader.ErrorAt(message.substr(0, colon), message.substr(colon + 2));
}

std::string IncarnationOf(const AgentConfig& config) {
  return config.incarnation().empty() ? config.pod().uid() : config.incarnation();
}

// The bootstrap file makes gRPC clients speak plain text to the agent.
absl::Status ValidateBootstrap(const AgentConfig& config, const ConfigLoader& loader) {
  if (config.xds().bootstrap().empty() || config.tls().cert().empty()) return absl::OkStatus();
  for (const std::string& address : config.listen()) {
    if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  }
  return loader.ErrorAt("xds.bootstrap",
                        "needs a unix: address in listen: its clients speak plain text, and with "
                        "tls the TCP addresses do not");
}

absl::Status ValidateRegistries(const AgentConfig& config, const ConfigLoader& loader) {
  if (config.registry().empty()) {
    return loader.ErrorAt("registry", "is required, as grpc://127.0.0.1:7070");
  }
  if (config.registry_size() > static_cast<int>(FailbackGroup::kMaxUpstreams)) {
    return loader.ErrorAt("registry",
                          absl::StrCat("names ", config.registry_size(), " registries, at most ",
                                       FailbackGroup::kMaxUpstreams, " are allowed"));
  }
  std::map<std::string, int> names;
  for (int i = 0; i < config.registry_size(); ++i) {
    const std::string key = absl::StrCat("registry[", i, "]");
    const auto upstream = NewUpstreams({config.registry(i)}, nullptr, SidecarSchemes());
    if (!upstream.ok()) return loader.ErrorAt(key, std::string(upstream.status().message()));
    const std::string& name = upstream->front().name;
    const auto [earlier, inserted] = names.emplace(name, i);
    if (!inserted) {
      return loader.ErrorAt(
          key, absl::StrCat("'", name, "' is registry[", earlier->second, "] already"));
    }
  }
  return absl::OkStatus();
}

// The namespace and zone that services, xds and DNS clients have by default.
absl::Status ValidatePlace(const AgentConfig& config, const ConfigLoader& loader) {
  registry::v1::Selector any;
  any.set_namespace_(config.namespace_());
  if (auto status = ValidateSelector(FieldPath(), any); !status.ok()) {
    return ErrorInField(loader, status);
  }
  registry::v1::ServiceInstance instance;
  instance.mutable_key()->set_service("any");
  instance.mutable_key()->set_instance_id("any");
  instance.set_address("any");
  instance.set_port(1);
  instance.set_zone(config.zone());
  const absl::Status status = ValidateInstance(FieldPath(), instance);
  return status.ok() ? status : ErrorInField(loader, status);
}

}  // namespace

absl::StatusOr<std::vector<StaticServiceSpec>> ValidateAgentConfig(const AgentConfig& config,
                                                                   const ConfigLoader& loader) {
  if (absl::Status status = ValidateAddresses(config, loader); !status.ok()) return status;
  if (absl::Status status = ValidateBootstrap(config, loader); !status.ok()) return status;
  if (absl::Status status = ValidateRegistries(config, loader); !status.ok()) return status;
  OpenSessionRequest session;
  session.set_client_name(config.client_name());
  const std::string incarnation = IncarnationOf(config);
  session.set_incarnation(incarnation.empty() ? "random" : incarnation);
  if (absl::Status status = ValidateOpenSession(session); !status.ok()) {
    return ErrorInField(loader, status);
  }
  if (absl::Status status = ValidatePlace(config, loader); !status.ok()) return status;
  if (absl::Status status = ValidateDnsOf(config, loader); !status.ok()) return status;
  if (absl::Status status = ValidateFrontDoors(config, loader); !status.ok()) return status;
  const RetryPolicy retry = ToFailbackOptions(config).retry;
  if (retry.backoff.max < retry.backoff.initial) {
    return loader.ErrorAt(
        "retry.backoff.max",
        absl::StrCat(absl::FormatDuration(retry.backoff.max), " is less than initial, ",
                     absl::FormatDuration(retry.backoff.initial)));
  }
  return StaticServices(config, loader);
}

FailbackRegistry::Options ToFailbackOptions(const AgentConfig& config) {
  FailbackRegistry::Options options;
  options.incarnation = IncarnationOf(config);
  options.state_dir = config.state_dir();
  options.client_name = config.client_name();
  if (options.client_name.empty()) {
    options.client_name = MadeUtf8(absl::StrCat(
        "failback-agent@", config.pod().name().empty() ? Hostname() : config.pod().name()));
    CutUtf8(kMaxClientNameLength, &options.client_name);
  }
  options.session_ttl = FromProto(config.session_ttl());
  options.max_records = config.limits().instances();
  options.callers_have_names = !config.policy_file().empty() || !config.known_tokens_file().empty();
  options.max_pending = config.limits().pending();
  options.max_subscriptions = config.limits().subscriptions();
  options.max_listeners = config.limits().listeners();
  options.max_sessions = config.limits().sessions();
  const agent::v1::Retry& retry = config.retry();
  options.retry.retry_times = retry.retry_times();
  options.superseded_period = FromProto(retry.superseded_period());
  if (retry.has_retry_period()) options.retry.retry_period = FromProto(retry.retry_period());
  options.retry.backoff.initial = FromProto(retry.backoff().initial());
  options.retry.backoff.multiplier = retry.backoff().multiplier();
  options.retry.backoff.max = FromProto(retry.backoff().max());
  options.retry.backoff.jitter = retry.backoff().jitter();
  return options;
}

std::vector<SchemeFactory> SidecarSchemes() { return {EtcdScheme}; }

}  // namespace failback
