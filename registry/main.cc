// failback-registry: the registry itself, over an embedded store or over etcd.

#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/config.h"
#include "daemon/listen_config.h"
#include "daemon/logging.h"
#include "daemon/ready.h"
#include "daemon/server_security.h"
#include "daemon/signals.h"
#include "failback/registry/v1/config.pb.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/etcd/etcd_uri.h"
#include "registry/log.h"
#include "registry/proto_time.h"
#include "registry/registry_server.h"
#include "registry/store/store_registry.h"
#include "registry/store_commands.h"
#include "retry/hashed_wheel_timer.h"
#include "xds/ads_service.h"

namespace failback {
namespace {

using registry::v1::RegistryConfig;

// What calls under way have to finish when the registry stops.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);

constexpr char kExamples[] =
    "  failback-registry --listen 127.0.0.1:7070 --store sqlite:///var/lib/failback/registry.db\n"
    "  failback-registry --store memory: --listen 127.0.0.1:0\n"
    "  failback-registry --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/failback\n"
    "  failback-registry --config registry.yaml --validate-config\n";

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

StoreRegistry::Options ToStoreOptions(const RegistryConfig& config) {
  StoreRegistry::Options options;
  options.uri = config.store();
  options.durability = ToDurability(config.durability());
  options.default_ttl = FromProto(config.session().default_ttl());
  options.min_ttl = FromProto(config.session().min_ttl());
  options.max_ttl = FromProto(config.session().max_ttl());
  options.guard = config.eviction_guard().enabled();
  options.guard_share = config.eviction_guard().share();
  options.guard_min_sessions = config.eviction_guard().min_sessions();
  options.max_instances = static_cast<int64_t>(config.limits().max_instances());
  options.max_instances_per_session =
      static_cast<int64_t>(config.limits().max_instances_per_session());
  options.max_sessions = static_cast<int64_t>(config.limits().max_sessions());
  options.max_batch = config.limits().max_batch();
  options.max_queued_intents = static_cast<int64_t>(config.limits().max_queued());
  options.subscriptions.max_names_per_session = config.limits().max_subscriptions_per_session();
  options.max_request_bytes = config.limits().max_request_bytes();
  return options;
}

RegistryServer::Options ToServerOptions(const RegistryConfig& config, HashedWheelTimer* timer) {
  RegistryServer::Options options;
  options.listen = {config.listen().begin(), config.listen().end()};
  options.listen_options.allow_remote_plaintext = config.allow_remote_plaintext();
  options.max_message_bytes = static_cast<int>(config.limits().max_request_bytes());
  options.max_calls_in_flight = static_cast<int>(config.limits().max_calls_in_flight());
  options.max_subscriptions = static_cast<int>(config.limits().max_subscriptions());
  options.max_subscriptions_per_connection =
      static_cast<int>(config.limits().max_subscriptions_per_connection());
  options.ping_interval = FromProto(config.connections().ping_interval());
  options.idle_connection_timeout = FromProto(config.connections().idle_timeout());
  options.timer = timer;
  options.stalled_stream_timeout = FromProto(config.connections().stalled_timeout());
  options.silent_stream_timeout = FromProto(config.session().max_ttl());
  return options;
}

// Each client is a file; the kernel's usual limit is meant for other programs.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<std::unique_ptr<Registry>> OpenEmbedded(const RegistryConfig& config,
                                                       HashedWheelTimer* timer) {
  StoreRegistry::Options options = ToStoreOptions(config);
  options.timer = timer;
  return StoreRegistry::Open(std::move(options));
}

// The store is elsewhere, and may be away now: nothing to open.
absl::StatusOr<std::unique_ptr<Registry>> OpenEtcd(const RegistryConfig& config,
                                                   HashedWheelTimer* timer) {
  absl::StatusOr<EtcdRegistry::Options> options = ParseEtcdUri(config.store(), timer);
  if (!options.ok()) return options.status();
  options->default_ttl = FromProto(config.session().default_ttl());
  options->min_ttl = FromProto(config.session().min_ttl());
  options->max_ttl = FromProto(config.session().max_ttl());
  options->max_batch = config.limits().max_batch();
  options->max_request_bytes = config.limits().max_request_bytes();
  return std::make_unique<EtcdRegistry>(*std::move(options));
}

absl::StatusOr<std::unique_ptr<Registry>> OpenStore(const RegistryConfig& config,
                                                    HashedWheelTimer* timer,
                                                    const ConfigLoader& loader) {
  if (!absl::StartsWith(config.store(), absl::StrCat(kEtcdScheme, ":"))) {
    return OpenEmbedded(config, timer);
  }
  absl::StatusOr<std::unique_ptr<Registry>> registry = OpenEtcd(config, timer);
  if (registry.ok()) return registry;
  return loader.ErrorAt("store",
                        absl::StrCat("'", config.store(), "': ", registry.status().message(),
                                     "; allowed is ", kEtcdForm));
}

absl::Status Validate(const RegistryConfig& config, const ConfigLoader& loader) {
  const bool encrypted = !config.tls().cert().empty();
  absl::Status listen = ValidateListen({config.listen().begin(), config.listen().end()},
                                       config.allow_remote_plaintext() || encrypted, loader);
  if (!listen.ok()) return listen;
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

int Main(int argc, char** argv) {
  if (const std::optional<int> status = RunStoreCommand(argc, argv)) return *status;
  // Debian's Abseil looks for lock cycles, at a tenth of the CPU.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  StopSignals signals;
  ConfigLoader loader(
      {"failback-registry",
       "Keeps the list of services, in an embedded store or in etcd, and tells who asks.",
       absl::StrCat(kExamples, kStoreCommandsHelp)},
      RegistryConfig::descriptor());
  if (const std::optional<int> status = loader.ParseCommandLine(argc, argv)) return *status;
  RegistryConfig config;
  absl::Status status = loader.Load(&config);
  if (status.ok()) status = Validate(config, loader);
  if (!status.ok()) return loader.Fail(status);
  absl::StatusOr<std::unique_ptr<ServerSecurity>> security =
      ServerSecurity::Load(ServerSecurity::KeysOf(config), loader);
  if (!security.ok()) return loader.Fail(security.status());
  if (loader.validate_only()) {
    std::printf("the configuration is valid\n");
    return 0;
  }
  InstallLogging(config.log());
  RaiseFileLimit();
  signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk to the store

  HashedWheelTimer::Options timer_options;
  timer_options.tick_duration = absl::Milliseconds(10);
  timer_options.name = "registry";
  absl::StatusOr<std::unique_ptr<HashedWheelTimer>> timer = HashedWheelTimer::Create(timer_options);
  if (!timer.ok()) return loader.Fail(timer.status());

  absl::StatusOr<std::unique_ptr<Registry>> registry = OpenStore(config, timer->get(), loader);
  if (!registry.ok()) return loader.Fail(registry.status());

  xds::AdsService::Options xds_options;
  xds_options.cache.timer = timer->get();
  xds_options.access = (*security)->access();
  xds_options.cache.zone_aware = config.xds().zone_aware();
  auto xds_service = std::make_unique<xds::AdsService>(registry->get(), xds_options);
  RegistryServer::Options server_options = ToServerOptions(config, timer->get());
  server_options.credentials = (*security)->credentials();
  server_options.access = (*security)->access();
  server_options.extra_services = {{xds_service.get(), xds::AdsService::kName}};
  absl::StatusOr<std::unique_ptr<RegistryServer>> server =
      RegistryServer::Start(registry->get(), server_options);
  if (!server.ok()) {
    return loader.Fail(loader.ErrorAt("listen", std::string(server.status().message())));
  }
  status = (*security)->Watch(timer->get());
  if (!status.ok()) return loader.Fail(status);
  if (const auto* store = dynamic_cast<const StoreRegistry*>(registry->get())) {
    Log(LogLevel::kInfo, "store open",
        {{"uri", config.store()},
         {"store_id", store->store_id()},
         {"epoch", absl::StrCat(store->epoch())},
         {"revision", absl::StrCat(store->revision())}});
  }
  AnnounceReady("failback-registry", (*server)->addresses(),
                absl::StrCat("store ", config.store()));

  const int signal = signals.Wait();
  Log(LogLevel::kInfo, "stopping", {{"signal", absl::StrCat(signal)}});
  security->reset();
  xds_service->Stop();
  (*server)->Shutdown(kShutdownGrace);
  server->reset();
  xds_service.reset();
  registry->reset();
  Log(LogLevel::kInfo, "stopped");
  return 0;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
