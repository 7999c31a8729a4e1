#include "registry/registry_config.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/admin_config.h"
#include "daemon/dns_config.h"
#include "daemon/front_doors.h"
#include "daemon/listen_config.h"
#include "registry/base/proto_time.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/etcd/etcd_uri.h"

namespace failback {
namespace {

using registry::v1::RegistryConfig;

Durability ToDurability(registry::v1::Durability durability) {
  switch (durability) {
    case registry::v1::DURABILITY_NORMAL:
      return Durability::kNormal;
    case registry::v1::DURABILITY_OFF:
      return Durability::kOff;
    default:
      return Durability::kFull;
  }
}

bool IsEtcd(const RegistryConfig& config) {
  return absl::StartsWith(config.store(), absl::StrCat(kEtcdScheme, ":"));
}

absl::Status NoStore(const RegistryConfig& config, const ConfigLoader& loader,
                     const absl::Status& problem, const std::string& help) {
  return loader.ErrorAt(
      "store", absl::StrCat("'", config.store(), "' is no store: ", problem.message(), help));
}

absl::StatusOr<EtcdRegistry::Options> ParseEtcd(const RegistryConfig& config,
                                                const ConfigLoader& loader,
                                                HashedWheelTimer* timer) {
  absl::StatusOr<EtcdRegistry::Options> options = ParseEtcdUri(config.store(), timer);
  if (options.ok()) return options;
  return NoStore(config, loader, options.status(), absl::StrCat("; allowed is ", kEtcdForm));
}

absl::Status ValidateStore(const RegistryConfig& config, const ConfigLoader& loader) {
  if (IsEtcd(config)) return ParseEtcd(config, loader, /*timer=*/nullptr).status();
  absl::Status status = StoreRegistry::CheckUri(config.store());
  if (status.ok()) return status;
  const bool is_file = absl::StartsWith(config.store(), "sqlite:///");
  return NoStore(config, loader, status, is_file ? "" : absl::StrCat("; or ", kEtcdForm));
}

// The store is elsewhere, and may be unavailable now: nothing to open.
absl::StatusOr<std::unique_ptr<Registry>> OpenEtcd(const RegistryConfig& config,
                                                   HashedWheelTimer* timer,
                                                   const ConfigLoader& loader) {
  absl::StatusOr<EtcdRegistry::Options> options = ParseEtcd(config, loader, timer);
  if (!options.ok()) return options.status();
  options->default_ttl = FromProto(config.session().default_ttl());
  options->min_ttl = FromProto(config.session().min_ttl());
  options->max_ttl = FromProto(config.session().max_ttl());
  options->max_instances = static_cast<int64_t>(config.limits().max_instances());
  options->max_instances_per_session =
      static_cast<int64_t>(config.limits().max_instances_per_session());
  options->max_sessions = static_cast<int64_t>(config.limits().max_sessions());
  options->max_batch = config.limits().max_batch();
  options->max_request_bytes = config.limits().max_request_bytes();
  options->subscriptions.max_filters = config.limits().max_filters_per_service();
  return std::make_unique<EtcdRegistry>(*std::move(options));
}

}  // namespace

absl::Status ValidateRegistryConfig(const RegistryConfig& config, const ConfigLoader& loader) {
  if (auto status = ValidateAddresses(config, loader); !status.ok()) return status;
  if (auto status = ValidateStore(config, loader); !status.ok()) return status;
  if (auto status = ValidateDnsOf(config, loader); !status.ok()) return status;
  if (auto status = ValidateFrontDoors(config, loader); !status.ok()) return status;
  const absl::Duration min = FromProto(config.session().min_ttl());
  const absl::Duration max = FromProto(config.session().max_ttl());
  const absl::Duration chosen = FromProto(config.session().default_ttl());
  if (max < min) {
    return loader.ErrorAt("session.max_ttl",
                          absl::StrCat(absl::FormatDuration(max), " is less than session.min_ttl, ",
                                       absl::FormatDuration(min)));
  }
  if (chosen < min || chosen > max) {
    return loader.ErrorAt("session.default_ttl",
                          absl::StrCat(absl::FormatDuration(chosen),
                                       " is not between session.min_ttl and session.max_ttl, ",
                                       absl::FormatDuration(min), "..", absl::FormatDuration(max)));
  }
  return absl::OkStatus();
}

StoreRegistry::Options ToStoreOptions(const RegistryConfig& config, HashedWheelTimer* timer) {
  StoreRegistry::Options options;
  options.uri = config.store();
  options.timer = timer;
  options.durability = ToDurability(config.durability());
  options.default_ttl = FromProto(config.session().default_ttl());
  options.min_ttl = FromProto(config.session().min_ttl());
  options.max_ttl = FromProto(config.session().max_ttl());
  options.guard = config.eviction_guard().enabled();
  options.guard_share = config.eviction_guard().share();
  options.guard_min_sessions = config.eviction_guard().min_sessions();
  options.guard_longest_hold = FromProto(config.eviction_guard().longest_hold());
  options.max_instances = static_cast<int64_t>(config.limits().max_instances());
  options.max_instances_per_session =
      static_cast<int64_t>(config.limits().max_instances_per_session());
  options.max_sessions = static_cast<int64_t>(config.limits().max_sessions());
  options.max_incarnations = static_cast<int64_t>(config.limits().max_incarnations());
  options.max_tombstones = static_cast<int64_t>(config.limits().max_tombstones());
  options.callers_have_names = !config.policy_file().empty() || !config.known_tokens_file().empty();
  options.max_batch = config.limits().max_batch();
  options.max_queued_intents = static_cast<int64_t>(config.limits().max_queued());
  options.subscriptions.max_filters = config.limits().max_filters_per_service();
  options.subscriptions.max_names_per_session = config.limits().max_subscriptions_per_session();
  options.max_request_bytes = config.limits().max_request_bytes();
  return options;
}

RegistryServer::Options ToServerOptions(const RegistryConfig& config, HashedWheelTimer* timer,
                                        const ConfigLoader& loader) {
  RegistryServer::Options options;
  options.listen = {config.listen().begin(), config.listen().end()};
  options.listen_options =
      ToListenOptions(config.socket(), config.allow_remote_plaintext(), loader).value();
  options.max_message_bytes = static_cast<int>(config.limits().max_request_bytes());
  options.max_batch = config.limits().max_batch();
  options.max_calls_in_flight = static_cast<int>(config.limits().max_calls_in_flight());
  options.max_subscriptions = static_cast<int>(config.limits().max_subscriptions());
  options.max_subscriptions_per_connection =
      static_cast<int>(config.limits().max_subscriptions_per_connection());
  options.max_streams_per_connection =
      static_cast<int>(config.limits().max_streams_per_connection());
  options.ping_interval = FromProto(config.connections().ping_interval());
  options.idle_connection_timeout = FromProto(config.connections().idle_timeout());
  options.longest_connection_age = FromProto(config.connections().longest_age());
  options.timer = timer;
  options.stalled_stream_timeout = FromProto(config.connections().stalled_timeout());
  options.silent_stream_timeout = FromProto(config.session().max_ttl());
  return options;
}

absl::StatusOr<std::unique_ptr<Registry>> OpenStore(const RegistryConfig& config,
                                                    HashedWheelTimer* timer,
                                                    const ConfigLoader& loader) {
  if (IsEtcd(config)) return OpenEtcd(config, timer, loader);
  auto store = StoreRegistry::Open(ToStoreOptions(config, timer));
  if (!absl::IsDataLoss(store.status())) return store;
  return absl::DataLossError(
      absl::StrCat(store.status().message(),
                   "; put a backup in its place with failback-registry restore, or move it and its "
                   "-wal aside: agents fill a new one"));
}

}  // namespace failback
