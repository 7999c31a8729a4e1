#include "agent/agent_config.h"

#include <unistd.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "agent/upstreams.h"
#include "daemon/listen_config.h"
#include "registry/address.h"
#include "registry/canonical.h"
#include "registry/proto_time.h"
#include "registry/validation.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using agent::v1::StaticService;

std::string Hostname() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

ServiceInstance ToInstance(const AgentConfig& config, const StaticService& service) {
  ServiceInstance instance;
  InstanceKey& key = *instance.mutable_key();
  key.set_namespace_(service.namespace_().empty() ? config.namespace_() : service.namespace_());
  key.set_service(service.name());
  key.set_instance_id(service.id());
  if (service.id().empty()) {
    Address address;
    address.host = service.address();
    address.port = static_cast<int>(service.port());
    key.set_instance_id(address.ToString());
  }
  instance.set_address(service.address());
  instance.set_port(service.port());
  if (service.has_weight()) instance.set_weight(service.weight());
  instance.set_zone(service.zone().empty() ? config.zone() : service.zone());
  *instance.mutable_metadata() = service.metadata();
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

absl::Status ValidateRegistries(const AgentConfig& config, const ConfigLoader& loader) {
  if (config.registry().empty()) {
    return loader.ErrorAt("registry", "is required, as grpc://127.0.0.1:7070");
  }
  std::map<std::string, int> names;
  for (int i = 0; i < config.registry_size(); ++i) {
    const std::string key = absl::StrCat("registry[", i, "]");
    const auto upstream = NewUpstreams({config.registry(i)}, nullptr);
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

}  // namespace

absl::Status ValidateAgentConfig(const AgentConfig& config, const ConfigLoader& loader) {
  const bool encrypted = !config.tls().cert().empty();
  absl::Status listen = ValidateListen({config.listen().begin(), config.listen().end()},
                                       config.allow_remote_plaintext() || encrypted, loader);
  if (!listen.ok()) return listen;
  if (absl::Status status = ValidateRegistries(config, loader); !status.ok()) return status;
  if (!config.client_name().empty() || !config.incarnation().empty()) {
    OpenSessionRequest session;
    session.set_client_name(config.client_name());
    session.set_incarnation(config.incarnation().empty() ? "random" : config.incarnation());
    absl::Status status = ValidateOpenSession(session);
    if (!status.ok()) return ErrorInService(loader, status);
  }
  const RetryPolicy retry = ToFailbackOptions(config).retry;
  if (retry.backoff.max < retry.backoff.initial) {
    return loader.ErrorAt(
        "retry.backoff.max",
        absl::StrCat(absl::FormatDuration(retry.backoff.max), " is less than initial, ",
                     absl::FormatDuration(retry.backoff.initial)));
  }
  std::map<std::string, int> seen;
  for (int i = 0; i < config.services_size(); ++i) {
    const ServiceInstance instance = ToInstance(config, config.services(i));
    const FieldPath path("services", i);
    absl::Status status = ValidateInstance(path, instance);
    if (!status.ok()) return ErrorInService(loader, status);
    const auto [earlier, inserted] = seen.emplace(CanonicalKey(instance.key()), i);
    if (!inserted) {
      return loader.ErrorAt(
          absl::StrCat("services[", i, "].id"),
          absl::StrCat("'", instance.key().instance_id(), "' of ", instance.key().service(),
                       " is services[", earlier->second, "] already"));
    }
  }
  return absl::OkStatus();
}

RegisterRequest StaticRegistrations(const AgentConfig& config) {
  RegisterRequest request;
  for (const StaticService& service : config.services()) {
    *request.add_registrations()->mutable_instance() = ToInstance(config, service);
  }
  return request;
}

FailbackRegistry::Options ToFailbackOptions(const AgentConfig& config) {
  FailbackRegistry::Options options;
  options.incarnation = config.incarnation();
  options.state_dir = config.state_dir();
  options.client_name =
      config.client_name().empty()
          ? absl::StrCat("failback-agent@", Hostname()).substr(0, kMaxClientNameLength)
          : config.client_name();
  options.session_ttl = FromProto(config.session_ttl());
  options.max_records = config.limits().instances();
  options.max_pending = config.limits().pending();
  options.max_subscriptions = config.limits().subscriptions();
  options.max_listeners = config.limits().listeners();
  options.max_sessions = config.limits().sessions();
  const agent::v1::Retry& retry = config.retry();
  options.retry.retry_times = retry.retry_times();
  if (retry.has_retry_period()) options.retry.retry_period = FromProto(retry.retry_period());
  options.retry.backoff.initial = FromProto(retry.backoff().initial());
  options.retry.backoff.multiplier = retry.backoff().multiplier();
  options.retry.backoff.max = FromProto(retry.backoff().max());
  options.retry.backoff.jitter = retry.backoff().jitter();
  return options;
}

}  // namespace failback
