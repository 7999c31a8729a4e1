// failback-agent: the sidecar. Local clients state their intents here; it carries them to the
// registry.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/agent_admin.h"
#include "agent/agent_config.h"
#include "agent/agent_metrics.h"
#include "agent/agent_service.h"
#include "agent/config_reload.h"
#include "agent/consul_checks.h"
#include "agent/consul_folder.h"
#include "agent/failback_metrics.h"
#include "agent/intent_history.h"
#include "agent/intent_log.h"
#include "agent/not_registered.h"
#include "agent/readiness.h"
#include "agent/static_service_config.h"
#include "agent/static_services.h"
#include "agent/upstreams.h"
#include "agent/xds_status.h"
#include "daemon/admin/admin_routes.h"
#include "daemon/admin/admin_service.h"
#include "daemon/admin_config.h"
#include "daemon/certificate_overview.h"
#include "daemon/client_security_config.h"
#include "daemon/config.h"
#include "daemon/dns_admin.h"
#include "daemon/dns_config.h"
#include "daemon/file_watch.h"
#include "daemon/front_doors.h"
#include "daemon/listen_config.h"
#include "daemon/logging.h"
#include "daemon/metrics/metrics_page.h"
#include "daemon/metrics_endpoint.h"
#include "daemon/ready.h"
#include "daemon/server_security.h"
#include "daemon/signals.h"
#include "daemon/start.h"
#include "failback/agent/v1/config.pb.h"
#include "gateway/dns/dns_server.h"
#include "gateway/xds/ads_service.h"
#include "gateway/xds/bootstrap.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_group.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/server/registry_server.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/periodic_task.h"

namespace failback {
namespace {

using agent::v1::AgentConfig;
using agent::v1::DrainResponse;
using agent::v1::GetStatusResponse;

// What calls under way have, after the drain, before they are cut off.
constexpr absl::Duration kShutdownGrace = absl::Seconds(1);

// How often the agent looks whether the certificate that it shows registries has ended.
constexpr absl::Duration kCertificateInterval = absl::Seconds(5);

constexpr char kExamples[] =
    "  failback-agent --registry grpc://127.0.0.1:7070 --listen 127.0.0.1:7060\n"
    "  failback-agent --config /etc/failback/agent.yaml\n"
    "  failback-agent --config agent.yaml --validate-config";

// For the programs that discover through this agent, where it is.
absl::Status WriteXdsBootstrap(const AgentConfig& config, const std::string& client_name,
                               const std::vector<std::string>& addresses,
                               const ConfigLoader& loader) {
  if (config.xds().bootstrap().empty()) return absl::OkStatus();
  const xds::Bootstrap bootstrap = {xds::ChooseServerUri(addresses), client_name, config.zone()};
  const absl::Status status = xds::WriteBootstrap(bootstrap, config.xds().bootstrap());
  return status.ok() ? status : loader.ErrorAt("xds.bootstrap", std::string(status.message()));
}

void DrainAndWait(AgentService* service, absl::Duration deadline) {
  std::promise<void> drained;
  service->DrainOnce(deadline, "the end of the agent",
                     [&drained](const absl::StatusOr<DrainResponse>&) { drained.set_value(); });
  drained.get_future().wait();
}

// What a registry says to a certificate that has ended is no more than a closed connection.
void ExplainEndedCertificate(absl::Time ended, GetStatusResponse* status) {
  for (auto& upstream : *status->mutable_upstreams()) {
    if (upstream.last_error().code() != static_cast<int>(absl::StatusCode::kUnavailable)) continue;
    rpc::v1::Status* const error = upstream.mutable_last_error();
    error->set_message(
        absl::StrCat(error->message(), "; the certificate that this agent shows ended on ",
                     absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", ended, absl::UTCTimeZone())));
  }
}

// Waits for the signal to stop, and takes new configuration files meanwhile; asked to by SIGHUP,
// also what `security` has of files.
int WaitForStop(StopSignals* signals, ConfigReload* reload, ServerSecurity* security) {
  FileWatch watch(reload->files());
  reload->Reload(/*always=*/false);  // what has changed since it was loaded
  while (true) {
    const int signal = signals->Wait(watch.fd());
    if (signal == SIGHUP) {
      reload->Reload(/*always=*/true);
      security->LookNow();
    } else if (signal != 0) {
      return signal;
    } else if (watch.Changed()) {
      reload->Reload(/*always=*/false);
    }
  }
}

// The files that the configuration names, checked and read.
struct Security {
  std::unique_ptr<ServerSecurity> server;
  std::shared_ptr<ClientSecurity> client;
};

absl::Status LoadSecurity(const AgentConfig& config, const ConfigLoader& loader,
                          Security* security) {
  auto server = ServerSecurity::Load(ServerSecurity::KeysOf(config), loader);
  if (!server.ok()) return server.status();
  security->server = *std::move(server);
  auto client =
      LoadClientSecurity(config.registry_tls(), "registry_tls", config.token_file(), loader);
  if (!client.ok()) return client.status();
  security->client = *std::move(client);
  return absl::OkStatus();
}

// A sidecar's memory is counted against its pod. glibc gives each thread a heap of its own and
// keeps what was freed: two heaps do for its few threads, large blocks go back to the system when
// they are freed, and so does what lies at the end of a heap.
void KeepHeapsSmall() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
}

// After a piece of work that needed much more memory than what is left of it.
void ReturnFreedMemory() { malloc_trim(0); }

// What the process is made of, in the order in which it comes.
class AgentDaemon {
 public:
  // `loader` has loaded `config`, of which `services` are those that it configures.
  AgentDaemon(AgentConfig config, std::vector<StaticServiceSpec> services, Security security,
              ConfigLoader* loader, absl::Time start_time)
      : loader_(*loader),
        start_time_(start_time),
        services_(std::move(services)),
        security_(std::move(security)),
        reload_(loader, std::move(config),
                [this](const AgentConfig& next, const auto& services) { Apply(next, services); }),
        config_(reload_.config()) {}

  // Serves, and carries what it is configured to. An error is of the configuration, and names the
  // place.
  absl::Status Start();
  // The signal that ended it.
  int Run(StopSignals* signals) { return WaitForStop(signals, &reload_, security_.server.get()); }
  void Stop();

 private:
  // Takes the addresses, so that an agent that may not run has contacted no registry.
  absl::Status Claim();
  absl::Status ClaimHttp();
  absl::Status OpenUpstreams();
  void MakeServices();
  void AddAdminEndpoint();
  absl::Status Serve();
  void StartStaticServices();
  void AddMetrics();
  // When the certificate ends that registries are shown; infinite future: they are shown none.
  absl::Time RegistryCertificateEnd() const {
    return security_.client == nullptr ? absl::InfiniteFuture()
                                       : security_.client->times().not_after;
  }
  // Puts what can change live in force.
  void Apply(const AgentConfig& next, const std::vector<StaticServiceSpec>& services);
  void OnEvent(const IntentEvent& event);

  const ConfigLoader& loader_;
  const absl::Time start_time_;
  std::vector<StaticServiceSpec> services_;  // until they are started
  RegistryServer::Options serve_;
  std::vector<ListenAddress> claimed_;  // until it serves
  std::string client_name_;
  int64_t max_subscriptions_ = 0;
  IntentHistory history_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<IntentLog> intent_log_;
  Security security_;
  // Calls of its own may be under way until the registry has gone.
  std::unique_ptr<AgentAdmin> admin_;
  std::unique_ptr<FailbackGroup> registry_;
  std::unique_ptr<xds::AdsService> xds_service_;
  std::unique_ptr<dns::DnsServer> dns_server_;  // null: none
  std::unique_ptr<consul::CheckRunner> consul_checks_;
  std::unique_ptr<FrontDoors> front_doors_;  // null: none
  std::unique_ptr<AgentService> service_;
  ConfigReload reload_;
  const AgentConfig& config_;  // all but the services
  std::unique_ptr<ReadinessWatch> readiness_;
  std::unique_ptr<grpc::Service> admin_service_;
  MetricsPage metrics_;
  std::unique_ptr<http::Server> admin_server_;      // null: none
  std::atomic<RegistryServer*> serving_ = nullptr;  // set once it serves
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<StaticServiceSet> static_services_;
  std::unique_ptr<PeriodicTask> certificate_task_;  // null: registries are shown none
};

void AgentDaemon::OnEvent(const IntentEvent& event) {
  intent_log_->Record(event);
  history_.Add(event, absl::Now());
}

absl::Status AgentDaemon::OpenUpstreams() {
  UpstreamOptions upstream_options;
  upstream_options.grpc.channel.security = security_.client;
  auto upstreams = NewUpstreams({config_.registry().begin(), config_.registry().end()},
                                timer_.get(), SidecarSchemes(), upstream_options);
  if (!upstreams.ok()) {
    return loader_.ErrorAt("registry", std::string(upstreams.status().message()));
  }
  intent_log_ = std::make_unique<IntentLog>(timer_.get());
  FailbackRegistry::Options options = ToFailbackOptions(config_);
  options.timer = timer_.get();
  options.on_event = [this](const IntentEvent& event) { OnEvent(event); };
  client_name_ = options.client_name;
  max_subscriptions_ = options.max_subscriptions;
  auto registry = FailbackGroup::Create(*std::move(upstreams), options);
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);
  return absl::OkStatus();
}

void AgentDaemon::MakeServices() {
  const std::shared_ptr<AccessControl> access = security_.server->access();
  xds::AdsService::Options xds_options;
  xds_options.cache.timer = timer_.get();
  xds_options.access = access;
  xds_options.cache.zone_aware = config_.xds().zone_aware();
  xds_options.max_streams = config_.xds().max_streams();
  // The rest is for programs that speak the registry's own protocol.
  xds_options.cache.max_services = std::max<int64_t>(1, max_subscriptions_ / 2);
  xds_service_ = std::make_unique<xds::AdsService>(registry_.get(), xds_options);
  service_ = std::make_unique<AgentService>(
      registry_.get(), timer_.get(), start_time_, access, [this](GetStatusResponse* status) {
        *status->mutable_xds() = XdsStatusOf(xds_service_->Stats());
        if (const absl::Time ends = RegistryCertificateEnd(); ends != absl::InfiniteFuture()) {
          *status->mutable_registry_certificate_not_after() = ToProto(ends);
          if (absl::Now() >= ends) ExplainEndedCertificate(ends, status);
        }
        if (security_.server->encrypted()) {
          *status->mutable_certificate_not_after() =
              ToProto(security_.server->certificate_not_after());
        }
      });
  service_->SetConfigStatus([this] { return reload_.Status(); });
  readiness_ = std::make_unique<ReadinessWatch>([this] { return Readiness(service_->Status()); },
                                                [this](bool ready) {
                                                  RegistryServer* const server = serving_;
                                                  if (server != nullptr)
                                                    server->SetServing(kReadinessHealth, ready);
                                                });
  service_->OnDrain([this] { readiness_->Draining(); });
  admin_ = std::make_unique<AgentAdmin>(registry_.get(), service_.get(), readiness_.get(),
                                        &history_, start_time_);
  admin_->SetName(client_name_);
  admin_->OnOverview([this](admin::v1::Overview* overview) {
    AddCertificates(*security_.server, overview);
    AddDns(dns_server_.get(), overview);
  });
  admin_->OnExplainDns([this](const auto& request, auto done) {
    ExplainDns(dns_server_.get(), request, std::move(done));
  });
  admin_service_ = NewAdminService(admin_.get(), access);
}

absl::Status AgentDaemon::Claim() {
  serve_.listen = {config_.listen().begin(), config_.listen().end()};
  serve_.listen_options =
      ToListenOptions(config_.socket(), config_.allow_remote_plaintext(), loader_).value();
  serve_.credentials = security_.server->credentials();
  serve_.timer = timer_.get();
  for (const std::string& address : config_.listen()) {
    MakeDefaultFolder(config_, "listen", address, 0755);
  }
  auto claimed = RegistryServer::Claim(serve_);
  if (!claimed.ok()) return loader_.ErrorAt("listen", std::string(claimed.status().message()));
  claimed_ = *std::move(claimed);
  auto admin_server = BindAdmin(config_.admin(), kAgentAdminListen, timer_.get(), loader_);
  if (!admin_server.ok()) return admin_server.status();
  admin_server_ = *std::move(admin_server);
  DnsSources dns;
  dns.timer = timer_.get();
  dns.access = security_.server->access();
  dns.zone = config_.zone();
  // xds has half of the selectors, the front doors over HTTP an eighth.
  dns.max_services = std::max<size_t>(8, config_.limits().subscriptions() / 4);
  dns.not_registered = [this](const std::string& name_space, const std::string& service) {
    const std::string end(1, '\0');
    return NotRegisteredOf(registry_->Carried(absl::StrCat(name_space, end, service, end)));
  };
  auto dns_server = BindDns(config_.dns(), dns, loader_);
  if (!dns_server.ok()) return dns_server.status();
  dns_server_ = *std::move(dns_server);
  return ClaimHttp();
}

absl::Status AgentDaemon::ClaimHttp() {
  FrontDoors::Sources sources;
  sources.timer = timer_.get();
  sources.security = security_.server.get();
  // An eighth: xds has half, DNS a quarter, and programs that speak the registry's protocol the rest.
  sources.max_services = std::max<size_t>(8, config_.limits().subscriptions() / 8);
  sources.pending = [this](const auto& request) { return service_->Pending(request); };
  sources.retry = [this](const auto& request, auto done) {
    service_->RetryNow(request, std::move(done));
  };
  consul_checks_ = NewConsulCheckRunner(timer_.get());
  sources.node = ToFailbackOptions(config_).client_name;
  sources.agent = true;
  sources.check_runner = consul_checks_.get();
  sources.carried = [this](const std::string& id) { return KeysWithId(registry_->Carried(), id); };
  sources.carries = [this](const InstanceKey& key) {
    const std::string canonical = CanonicalKey(key);
    const std::vector<CarriedRecord> carried = registry_->Carried(canonical);
    return std::any_of(carried.begin(), carried.end(),
                       [&](const CarriedRecord& record) { return record.key == canonical; });
  };
  if (!config_.state_dir().empty()) {
    sources.open_folder = [this] {
      auto folder = OpenConsulFolder(absl::StrCat(config_.state_dir(), "/consul"));
      if (folder.ok()) return folder;
      return decltype(folder)(loader_.ErrorAt("state_dir", std::string(folder.status().message())));
    };
  }
  auto doors = FrontDoors::Bind(FrontDoorConfigOf(config_), sources, loader_);
  if (!doors.ok()) return doors.status();
  front_doors_ = *std::move(doors);
  return absl::OkStatus();
}

absl::Status AgentDaemon::Serve() {
  serve_.access = security_.server->access();
  serve_.extra_services = {{service_.get(), AgentService::kName},
                           {xds_service_.get(), xds::AdsService::kName},
                           {admin_service_.get(), kAdminServiceName}};
  auto server = RegistryServer::Start(registry_.get(), serve_, std::move(claimed_));
  if (!server.ok()) return loader_.ErrorAt("listen", std::string(server.status().message()));
  server_ = *std::move(server);
  if (dns_server_ != nullptr) dns_server_->Start(registry_.get());
  if (front_doors_ != nullptr) {
    if (auto status = front_doors_->Start(registry_.get()); !status.ok()) return status;
  }
  if (auto status = security_.server->Watch(timer_.get()); !status.ok()) return status;
  return WriteXdsBootstrap(config_, client_name_, server_->addresses(), loader_);
}

void AgentDaemon::AddAdminEndpoint() {
  if (admin_server_ == nullptr) return;
  AdminSources sources;
  sources.admin = admin_.get();
  sources.timer = timer_.get();
  sources.config = [this] { return std::make_unique<AgentConfig>(reload_.ConfigInForce()); };
  AddAdminRoutes(sources, admin_server_.get());
  AddAgentRoutes(service_.get(), admin_server_.get());
  AddMetricsRoute(&metrics_, admin_server_.get());
}

void AgentDaemon::AddMetrics() {
  AddCommonMetrics({"failback-agent", timer_.get(), server_.get(), security_.server.get(),
                    xds_service_.get(), dns_server_.get(), front_doors_.get()},
                   &metrics_);
  metrics_.Add([this](MetricFamilies* out) {
    for (const FailbackStatistics& stats : registry_->Stats()) CollectFailback(stats, out);
    CollectAgent({service_->local_sessions(), registry_->draining(), static_services_->Status(),
                  static_services_->Counters(), reload_.Status(), RegistryCertificateEnd()},
                 out);
  });
}

void AgentDaemon::StartStaticServices() {
  StaticServiceSet::Options options;
  options.timer = timer_.get();
  options.registry = registry_.get();
  options.claim_earlier = !config_.state_dir().empty();
  static_services_ = StaticServiceSet::Start(options, std::exchange(services_, {}));
  service_->SetStaticServices(static_services_.get());
}

void AgentDaemon::Apply(const AgentConfig& next, const std::vector<StaticServiceSpec>& services) {
  static_services_->Apply(services);
  InstallLogging(next.log());
  ReturnFreedMemory();
}

absl::Status AgentDaemon::Start() {
  absl::StatusOr<std::unique_ptr<HashedWheelTimer>> timer = NewWheel("agent");
  if (!timer.ok()) return timer.status();
  timer_ = *std::move(timer);
  if (auto status = Claim(); !status.ok()) return status;
  if (auto status = OpenUpstreams(); !status.ok()) return status;
  MakeServices();
  AddAdminEndpoint();
  if (auto status = Serve(); !status.ok()) return status;
  StartStaticServices();
  server_->SetServing(kStartupHealth, true);
  server_->SetServing(kLivenessHealth, true);
  serving_ = server_.get();
  readiness_->Start(timer_.get());
  AddMetrics();
  if (RegistryCertificateEnd() != absl::InfiniteFuture()) {
    // A connection that stands asks for no credentials, however long.
    auto task = PeriodicTask::Start(timer_.get(), kCertificateInterval,
                                    [client = security_.client] { client->Current(); });
    if (!task.ok()) return task.status();
    certificate_task_ = *std::move(task);
  }
  if (admin_server_ != nullptr) admin_server_->Start();
  AnnounceReady("failback-agent", server_->addresses(),
                admin_server_ == nullptr ? "" : admin_server_->address(),
                absl::StrCat("registry ", absl::StrJoin(config_.registry(), " "),
                             DnsPlaces(dns_server_.get()), FrontDoorPlaces(front_doors_.get())));
  ReturnFreedMemory();  // what the configuration was read with
  return absl::OkStatus();
}

void AgentDaemon::Stop() {
  certificate_task_.reset();
  if (front_doors_ != nullptr) front_doors_->Stop();
  DrainAndWait(service_.get(), FromProto(reload_.config().drain_deadline()));
  xds_service_->Stop();
  if (dns_server_ != nullptr) dns_server_->Stop();
  server_->Shutdown(kShutdownGrace);
  if (admin_server_ != nullptr) admin_server_->Stop();
  readiness_->Stop();  // it asks for the status, which has what the security says
  security_.server.reset();
  service_->SetStaticServices(nullptr);
}

int Main(int argc, char** argv) {
  KeepHeapsSmall();
  const absl::Time start_time = absl::Now();
  StopSignals signals;
  ConfigLoader loader({"failback-agent",
                       "Keeps services registered: takes intents from local programs and carries "
                       "them to a registry, through its outages.",
                       kExamples},
                      AgentConfig::descriptor());
  AgentConfig config;
  Security security;
  std::vector<StaticServiceSpec> services;
  const auto check = [&]() -> absl::Status {
    auto checked = ValidateAgentConfig(config, loader);
    if (!checked.ok()) return checked.status();
    services = *std::move(checked);
    return LoadSecurity(config, loader, &security);
  };
  if (const auto status = LoadConfiguration(argc, argv, &loader, &config, check)) return *status;
  PrepareProcess(config.log());
  if (!config.http().listen().empty()) RaiseFileLimit();
  WarnOfWritable("admin.token_file", config.admin().token_file());
  WarnOfWritable("state_dir", config.state_dir());

  AgentDaemon daemon(std::move(config), std::move(services), std::move(security), &loader,
                     start_time);
  return RunDaemon(&daemon, &signals, loader);
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
