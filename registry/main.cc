// failback-registry: the registry itself, over an embedded store or over etcd.

#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "daemon/admin/admin_routes.h"
#include "daemon/admin/admin_service.h"
#include "daemon/admin_config.h"
#include "daemon/certificate_overview.h"
#include "daemon/config.h"
#include "daemon/dns_admin.h"
#include "daemon/dns_config.h"
#include "daemon/front_doors.h"
#include "daemon/metrics/metrics_page.h"
#include "daemon/metrics_endpoint.h"
#include "daemon/ready.h"
#include "daemon/server_security.h"
#include "daemon/signals.h"
#include "daemon/start.h"
#include "failback/registry/v1/config.pb.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gateway/dns/dns_server.h"
#include "gateway/xds/ads_service.h"
#include "registry/base/log.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/etcd_admin.h"
#include "registry/etcd_metrics.h"
#include "registry/registry_admin.h"
#include "registry/registry_config.h"
#include "registry/server/registry_server.h"
#include "registry/store_admin.h"
#include "registry/store_commands.h"
#include "registry/store_metrics.h"
#include "retry/hashed_wheel_timer.h"

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

// What the process is made of, in the order in which it comes.
class RegistryDaemon {
 public:
  RegistryDaemon(const RegistryConfig& config, std::unique_ptr<ServerSecurity> security,
                 const ConfigLoader& loader, absl::Time start_time)
      : config_(config), loader_(loader), start_time_(start_time), security_(std::move(security)) {}

  // Opens the store and serves. An error is of the configuration, and names the place.
  absl::Status Start();
  // Waits for the signal to stop, and returns it. SIGHUP looks at certificates, tokens and policy.
  int Run(StopSignals* signals);
  void Stop();

 private:
  absl::Status Serve();
  absl::Status ServeAdmin();
  absl::Status ClaimDns();
  absl::Status ClaimHttp();
  void AddMetrics();
  void WatchRevocations();
  void Announce() const;

  const RegistryConfig& config_;
  const ConfigLoader& loader_;
  const absl::Time start_time_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<ServerSecurity> security_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<xds::AdsService> xds_service_;
  std::unique_ptr<dns::DnsServer> dns_server_;  // null: none
  std::unique_ptr<FrontDoors> front_doors_;     // null: none
  std::unique_ptr<RegistryAdmin> admin_;
  std::unique_ptr<grpc::Service> admin_service_;
  std::unique_ptr<RegistryServer> server_;
  MetricsPage metrics_;
  std::unique_ptr<http::Server> admin_server_;  // null: none
};

absl::Status RegistryDaemon::Start() {
  absl::StatusOr<std::unique_ptr<HashedWheelTimer>> timer = NewWheel("registry");
  if (!timer.ok()) return timer.status();
  timer_ = *std::move(timer);
  MakeDefaultFolder(config_, "store", config_.store(), 0750);
  absl::StatusOr<std::unique_ptr<Registry>> registry = OpenStore(config_, timer_.get(), loader_);
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);
  if (auto* etcd = dynamic_cast<EtcdRegistry*>(registry_.get())) {
    admin_ = NewEtcdAdmin(etcd, config_.store(), start_time_);
  } else {
    admin_ =
        NewStoreAdmin(static_cast<StoreRegistry*>(registry_.get()), config_.store(), start_time_);
  }
  admin_->SetName(absl::StrJoin(config_.listen(), ", "));
  admin_->OnOverview([this](admin::v1::Overview* overview) {
    AddCertificates(*security_, overview);
    AddDns(dns_server_.get(), overview);
  });
  admin_->OnExplainDns([this](const auto& request, auto done) {
    ExplainDns(dns_server_.get(), request, std::move(done));
  });
  if (auto status = ServeAdmin(); !status.ok()) return status;
  WatchRevocations();
  if (auto status = ClaimDns(); !status.ok()) return status;
  if (auto status = ClaimHttp(); !status.ok()) return status;
  if (auto status = Serve(); !status.ok()) return status;
  if (dns_server_ != nullptr) dns_server_->Start(registry_.get());
  if (front_doors_ != nullptr) {
    if (auto status = front_doors_->Start(registry_.get()); !status.ok()) return status;
  }
  if (auto status = security_->Watch(timer_.get()); !status.ok()) return status;
  if (auto* etcd = dynamic_cast<EtcdRegistry*>(registry_.get())) {
    // Not the empty name: the process lives, and is not to be started again for etcd's sake.
    const auto serve = [this](bool reachable) {
      server_->SetServing(registry::v1::RegistryService::service_full_name(), reachable);
      server_->SetServing(xds::AdsService::kName, reachable);
    };
    serve(false);
    etcd->Connect(serve);
  }
  AddMetrics();
  if (admin_server_ != nullptr) admin_server_->Start();
  Announce();
  return absl::OkStatus();
}

absl::Status RegistryDaemon::ServeAdmin() {
  auto server = BindAdmin(config_.admin(), kRegistryAdminListen, timer_.get(), loader_);
  if (!server.ok() || *server == nullptr) return server.status();
  admin_server_ = *std::move(server);
  AdminSources sources;
  sources.admin = admin_.get();
  sources.timer = timer_.get();
  sources.config = [this] { return std::make_unique<RegistryConfig>(config_); };
  AddAdminRoutes(sources, admin_server_.get());
  AddMetricsRoute(&metrics_, admin_server_.get());
  return absl::OkStatus();
}

void RegistryDaemon::AddMetrics() {
  AddCommonMetrics({"failback-registry", timer_.get(), server_.get(), security_.get(),
                    xds_service_.get(), dns_server_.get(), front_doors_.get()},
                   &metrics_);
  if (const auto* store = dynamic_cast<const StoreRegistry*>(registry_.get())) {
    metrics_.Add([store](MetricFamilies* out) {
      CollectStore(store->Stats(), out);
      CollectAgents(store->CountAgents(), out);
    });
  }
  if (const auto* etcd = dynamic_cast<const EtcdRegistry*>(registry_.get())) {
    metrics_.Add([etcd](MetricFamilies* out) { CollectEtcd(etcd->Stats(), out); });
  }
}

// Who is shut out is named with what goes with it.
void RegistryDaemon::WatchRevocations() {
  auto* const store = dynamic_cast<StoreRegistry*>(registry_.get());
  if (security_->access() == nullptr || store == nullptr) return;
  security_->access()->SetOnRevoked([store](const Identity& who, bool revoked) -> LogFields {
    const State::Holdings has = store->SetRevoked(who.OwnerTag(), revoked ? who.ToString() : "");
    return {{"sessions", absl::StrCat(has.sessions)}, {"instances", absl::StrCat(has.instances)}};
  });
}

absl::Status RegistryDaemon::Serve() {
  xds::AdsService::Options xds_options;
  xds_options.cache.timer = timer_.get();
  xds_options.access = security_->access();
  xds_options.cache.zone_aware = config_.xds().zone_aware();
  xds_options.max_streams = config_.xds().max_streams();
  xds_service_ = std::make_unique<xds::AdsService>(registry_.get(), xds_options);
  admin_service_ = NewAdminService(admin_.get(), security_->access());
  RegistryServer::Options options = ToServerOptions(config_, timer_.get(), loader_);
  options.credentials = security_->credentials();
  options.access = security_->access();
  if (const auto* store = dynamic_cast<const StoreRegistry*>(registry_.get())) {
    options.stream_sessions = store->StreamSessions();
  }
  options.extra_services = {{xds_service_.get(), xds::AdsService::kName},
                            {admin_service_.get(), kAdminServiceName}};
  auto server = RegistryServer::Start(registry_.get(), options);
  if (!server.ok()) return loader_.ErrorAt("listen", std::string(server.status().message()));
  server_ = *std::move(server);
  return absl::OkStatus();
}

// Before anything is served: an address in use ends the start.
absl::Status RegistryDaemon::ClaimDns() {
  DnsSources sources;
  sources.timer = timer_.get();
  sources.access = security_->access();
  auto server = BindDns(config_.dns(), sources, loader_);
  if (!server.ok()) return server.status();
  dns_server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status RegistryDaemon::ClaimHttp() {
  FrontDoors::Sources sources;
  sources.timer = timer_.get();
  sources.security = security_.get();
  sources.node = "failback-registry";
  auto doors = FrontDoors::Bind(FrontDoorConfigOf(config_), sources, loader_);
  if (!doors.ok()) return doors.status();
  front_doors_ = *std::move(doors);
  return absl::OkStatus();
}

void RegistryDaemon::Announce() const {
  if (const auto* store = dynamic_cast<const StoreRegistry*>(registry_.get())) {
    Log(LogLevel::kInfo, "store open",
        {{"uri", config_.store()},
         {"store_id", store->store_id()},
         {"epoch", absl::StrCat(store->epoch())},
         {"revision", absl::StrCat(store->revision())}});
  }
  AnnounceReady("failback-registry", server_->addresses(),
                admin_server_ == nullptr ? "" : admin_server_->address(),
                absl::StrCat("store ", config_.store(), DnsPlaces(dns_server_.get()),
                             FrontDoorPlaces(front_doors_.get())));
}

int RegistryDaemon::Run(StopSignals* signals) {
  while (true) {
    const int signal = signals->Wait();
    if (signal != SIGHUP) return signal;
    Log(LogLevel::kInfo,
        "looking at certificates, tokens and policy; other settings need a restart",
        {{"signal", absl::StrCat(signal)}});
    security_->LookNow();
  }
}

void RegistryDaemon::Stop() {
  admin_->Stopping();
  if (auto* etcd = dynamic_cast<EtcdRegistry*>(registry_.get())) etcd->Disconnect();
  xds_service_->Stop();
  if (dns_server_ != nullptr) dns_server_->Stop();
  if (front_doors_ != nullptr) front_doors_->Stop();
  server_->Shutdown(kShutdownGrace);
  admin_server_.reset();
  security_.reset();
  server_.reset();
  admin_service_.reset();
  xds_service_.reset();
  dns_server_.reset();
  registry_.reset();
  // Their calls have ended with the registry.
  front_doors_.reset();
  admin_.reset();
}

// glibc gives each thread a heap of its own, which grows by a page at a time, with a system call
// for each. Instances are kept for long and come by the thousand: one heap for a few threads, which
// grows in large steps, saves a tenth of what a streamed Register costs. Threads have caches in
// front of it all the same.
void ShareHeaps() {
  constexpr int kCoresPerHeap = 4;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  mallopt(M_ARENA_MAX, std::max(1, cores / kCoresPerHeap));
  mallopt(M_TOP_PAD, 4 << 20);
  // Would no longer adapt by themselves.
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

// What the store and its backups hold is not for every user of the machine: a session's id proves
// who one is.
void KeepFilesPrivate() { umask(umask(0) | 027); }

int Main(int argc, char** argv) {
  KeepFilesPrivate();
  if (const std::optional<int> status = RunStoreCommand(argc, argv)) return *status;
  const absl::Time start_time = absl::Now();
  StopSignals signals;
  ConfigLoader loader(
      {"failback-registry",
       "Keeps the list of services, in an embedded store or in etcd, and serves it to clients.",
       absl::StrCat(kExamples, kStoreCommandsHelp)},
      RegistryConfig::descriptor());
  RegistryConfig config;
  std::unique_ptr<ServerSecurity> security;
  const auto check = [&]() -> absl::Status {
    if (auto status = ValidateRegistryConfig(config, loader); !status.ok()) return status;
    auto loaded = ServerSecurity::Load(ServerSecurity::KeysOf(config), loader);
    if (!loaded.ok()) return loaded.status();
    security = *std::move(loaded);
    return absl::OkStatus();
  };
  if (const auto status = LoadConfiguration(argc, argv, &loader, &config, check)) return *status;
  ShareHeaps();
  PrepareProcess(config.log());
  WarnOfWritable("admin.token_file", config.admin().token_file());
  RaiseFileLimit();

  RegistryDaemon daemon(config, std::move(security), loader, start_time);
  return RunDaemon(&daemon, &signals, loader);
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
