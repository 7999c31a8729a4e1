// failback-agent: the sidecar. Local clients state their intents here; it carries them to the
// registry.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/agent_config.h"
#include "agent/agent_service.h"
#include "agent/config_reload.h"
#include "agent/readiness.h"
#include "agent/static_service_config.h"
#include "agent/static_services.h"
#include "agent/upstreams.h"
#include "agent/xds_status.h"
#include "daemon/client_security_config.h"
#include "daemon/config.h"
#include "daemon/file_watch.h"
#include "daemon/logging.h"
#include "daemon/ready.h"
#include "daemon/server_security.h"
#include "daemon/signals.h"
#include "failback/agent/v1/config.pb.h"
#include "registry/errors.h"
#include "registry/failback_group.h"
#include "registry/log.h"
#include "registry/proto_time.h"
#include "registry/registry_server.h"
#include "retry/hashed_wheel_timer.h"
#include "xds/ads_service.h"
#include "xds/bootstrap.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using agent::v1::DrainResponse;
using agent::v1::GetStatusResponse;

// What calls under way have, after the drain, before they are cut off.
constexpr absl::Duration kShutdownGrace = absl::Seconds(1);

constexpr char kExamples[] =
    "  failback-agent --registry grpc://127.0.0.1:7070 --listen 127.0.0.1:7060\n"
    "  failback-agent --config /etc/failback/agent.yaml\n"
    "  failback-agent --config agent.yaml --validate-config";

void LogIntent(const IntentEvent& event) {
  LogFields fields = {{"id", event.id},
                      {"upstream", event.upstream},
                      {"generation", absl::StrCat(event.generation)}};
  if (!event.status.ok()) {
    fields.emplace_back("times", absl::StrCat(event.times));
    fields.emplace_back("status", event.status.ToString());
  }
  switch (event.kind) {
    case IntentEvent::Kind::kAcknowledged:
      return Log(LogLevel::kInfo, "acknowledged", fields);
    case IntentEvent::Kind::kRetrying:
      return Log(LogLevel::kInfo, "retrying", fields);
    case IntentEvent::Kind::kParked:
      return Log(LogLevel::kWarning, "parked", fields);
    case IntentEvent::Kind::kSuperseded:
      return Log(LogLevel::kWarning, "superseded", fields);
  }
}

// For the programs that discover through this agent, where it is.
absl::Status WriteXdsBootstrap(const AgentConfig& config, const std::string& client_name,
                               const std::vector<std::string>& addresses,
                               const ConfigLoader& loader) {
  if (config.xds().bootstrap().empty()) return absl::OkStatus();
  const xds::Bootstrap bootstrap = {xds::ChooseServerUri(addresses), client_name, config.zone()};
  const absl::Status status = xds::WriteBootstrap(bootstrap, config.xds().bootstrap());
  return status.ok() ? status : loader.ErrorAt("xds.bootstrap", std::string(status.message()));
}

void DrainAndLog(AgentService* service, absl::Duration deadline) {
  std::promise<void> drained;
  service->DrainOnce(deadline, [&drained](const absl::StatusOr<DrainResponse>& response) {
    if (response.ok()) {
      Log(response->remaining() == 0 ? LogLevel::kInfo : LogLevel::kWarning, "drained",
          {{"unregistered", absl::StrCat(response->unregistered())},
           {"remaining", absl::StrCat(response->remaining())}});
    } else {
      Log(LogLevel::kWarning, "drain failed", {{"status", response.status().ToString()}});
    }
    drained.set_value();
  });
  drained.get_future().wait();
}

// Waits for the signal to stop, and takes new configuration files meanwhile.
int WaitForStop(StopSignals* signals, ConfigReload* reload) {
  FileWatch watch(reload->files());
  reload->Reload(/*always=*/false);  // what has changed since it was loaded
  while (true) {
    const int signal = signals->WaitWith(watch.fd());
    if (signal == SIGHUP) {
      reload->Reload(/*always=*/true);
    } else if (signal != 0) {
      return signal;
    } else if (watch.Changed()) {
      reload->Reload(/*always=*/false);
    }
  }
}

int Main(int argc, char** argv) {
  const absl::Time start_time = absl::Now();
  // Debian's Abseil looks for lock cycles, at a tenth of the CPU.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  StopSignals signals(/*reload=*/true);
  ConfigLoader loader({"failback-agent",
                       "Keeps services registered: takes intents from local programs and carries "
                       "them to a registry, through its outages.",
                       kExamples},
                      AgentConfig::descriptor());
  if (const std::optional<int> status = loader.ParseCommandLine(argc, argv)) return *status;
  AgentConfig config;
  absl::Status status = loader.Load(&config);
  if (status.ok()) status = ValidateAgentConfig(config, loader);
  if (!status.ok()) return loader.Fail(status);
  absl::StatusOr<std::unique_ptr<ServerSecurity>> security =
      ServerSecurity::Load(ServerSecurity::KeysOf(config), loader);
  if (!security.ok()) return loader.Fail(security.status());
  UpstreamOptions upstream_options;
  absl::StatusOr<std::shared_ptr<ClientSecurity>> client_security =
      LoadClientSecurity(config.registry_tls(), "registry_tls", config.token_file(), loader);
  if (!client_security.ok()) return loader.Fail(client_security.status());
  upstream_options.grpc.channel.security = *client_security;
  if (loader.validate_only()) {
    std::printf("the configuration is valid\n");
    return 0;
  }
  InstallLogging(config.log());

  HashedWheelTimer::Options timer_options;
  timer_options.tick_duration = absl::Milliseconds(10);
  timer_options.name = "agent";
  absl::StatusOr<std::unique_ptr<HashedWheelTimer>> timer = HashedWheelTimer::Create(timer_options);
  if (!timer.ok()) return loader.Fail(timer.status());
  absl::StatusOr<std::vector<FailbackGroup::Upstream>> upstreams = NewUpstreams(
      {config.registry().begin(), config.registry().end()}, timer->get(), upstream_options);
  if (!upstreams.ok()) {
    return loader.Fail(loader.ErrorAt("registry", std::string(upstreams.status().message())));
  }
  FailbackRegistry::Options options = ToFailbackOptions(config);
  options.timer = timer->get();
  options.on_event = LogIntent;
  const std::string client_name = options.client_name;
  absl::StatusOr<std::unique_ptr<FailbackGroup>> registry =
      FailbackGroup::Create(*std::move(upstreams), std::move(options));
  if (!registry.ok()) return loader.Fail(registry.status());

  xds::AdsService::Options xds_options;
  xds_options.cache.timer = timer->get();
  xds_options.access = (*security)->access();
  xds_options.cache.zone_aware = config.xds().zone_aware();
  xds::AdsService xds_service(registry->get(), xds_options);
  AgentService service(registry->get(), start_time, (*security)->access(),
                       [&xds_service](GetStatusResponse* status) {
                         *status->mutable_xds() = XdsStatusOf(xds_service.Stats());
                       });
  StaticServiceSet* services_to_reload = nullptr;
  ConfigReload reload(&loader, config, [&](const AgentConfig& next) -> absl::Status {
    auto specs = StaticServices(next, loader);
    if (!specs.ok()) return specs.status();
    services_to_reload->Apply(*std::move(specs));
    InstallLogging(next.log());
    return absl::OkStatus();
  });
  service.SetConfigStatus([&reload] { return reload.Status(); });
  // Set once it serves.
  std::atomic<RegistryServer*> serving = nullptr;
  ReadinessWatch readiness([&service] { return Readiness(service.Status()); },
                           [&serving](bool ready) {
                             RegistryServer* const server = serving;
                             if (server != nullptr) server->SetServing(kReadinessHealth, ready);
                           });
  service.OnDrain([&readiness] { readiness.Draining(); });
  RegistryServer::Options server_options;
  server_options.listen = {config.listen().begin(), config.listen().end()};
  server_options.listen_options.allow_remote_plaintext = config.allow_remote_plaintext();
  server_options.credentials = (*security)->credentials();
  server_options.access = (*security)->access();
  server_options.extra_services = {{&service, AgentService::kName},
                                   {&xds_service, xds::AdsService::kName}};
  absl::StatusOr<std::unique_ptr<RegistryServer>> server =
      RegistryServer::Start(registry->get(), server_options);
  if (!server.ok()) {
    return loader.Fail(loader.ErrorAt("listen", std::string(server.status().message())));
  }
  status = (*security)->Watch(timer->get());
  if (!status.ok()) return loader.Fail(status);
  status = WriteXdsBootstrap(config, client_name, (*server)->addresses(), loader);
  if (!status.ok()) return loader.Fail(status);
  StaticServiceSet::Options static_options;
  static_options.timer = timer->get();
  static_options.registry = registry->get();
  static_options.claim_earlier = !config.state_dir().empty();
  auto specs = StaticServices(config, loader);
  if (!specs.ok()) return loader.Fail(specs.status());
  const auto static_services = StaticServiceSet::Start(static_options, *std::move(specs));
  service.SetStaticServices(static_services.get());
  services_to_reload = static_services.get();
  (*server)->SetServing(kStartupHealth, true);
  (*server)->SetServing(kLivenessHealth, true);
  serving = server->get();
  readiness.Start(timer->get());
  AnnounceReady("failback-agent", (*server)->addresses(),
                absl::StrCat("registry ", absl::StrJoin(config.registry(), " ")));

  const int signal = WaitForStop(&signals, &reload);
  Log(LogLevel::kInfo, "stopping", {{"signal", absl::StrCat(signal)}});
  DrainAndLog(&service, FromProto(reload.config().drain_deadline()));
  security->reset();
  xds_service.Stop();
  (*server)->Shutdown(kShutdownGrace);
  service.SetStaticServices(nullptr);
  readiness.Stop();
  Log(LogLevel::kInfo, "stopped");
  return 0;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
