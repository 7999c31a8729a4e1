#include "daemon/discovery_doors.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gateway/door/door_guard.h"
#include "registry/base/address.h"
#include "registry/base/version.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

absl::Status CheckListen(const std::string& key, const std::string& listen,
                         const config::v1::Http& http, bool encrypted, const ConfigLoader& loader) {
  if (listen.empty()) return absl::OkStatus();
  const absl::StatusOr<Address> address = ParseAddress(listen, /*min_port=*/0);
  if (!address.ok()) {
    // Here no socket of Unix is allowed.
    return loader.ErrorAt(
        key, absl::StrReplaceAll(std::string(address.status().message()),
                                 {{", [ipv6]:port and unix:/path", " and [ipv6]:port"}}));
  }
  if (address->is_unix()) {
    return loader.ErrorAt(key,
                          absl::StrCat("'", listen, "' is a Unix socket; allowed is HOST:PORT"));
  }
  if (!address->is_local() && !encrypted && !http.allow_remote()) {
    return loader.ErrorAt(
        key, absl::StrCat("other machines can connect to ", listen,
                          ", and it is not encrypted; listen on a loopback address, set tls.cert "
                          "and tls.key, or set http.allow_remote"));
  }
  return absl::OkStatus();
}

absl::Status CheckNamespace(const std::string& key, const std::string& name,
                            const ConfigLoader& loader) {
  Selector selector;
  selector.set_namespace_(name);
  if (ValidateSelector(FieldPath(), selector).ok()) return absl::OkStatus();
  return loader.ErrorAt(key, absl::StrCat("'", name, "' is no name of a namespace"));
}

// Clients of the two have places of their own for a token: Consul's `X-Consul-Token` and `token=`,
// and the password of a URL, which is what clients of Eureka have. It goes on as a bearer token.
class TokenOf {
 public:
  explicit TokenOf(const http::Request& request) {
    const std::string_view shown = request.Header("Authorization");
    constexpr std::string_view kBasic = "Basic ";
    if (absl::StartsWithIgnoreCase(absl::string_view(shown.data(), shown.size()),
                                   absl::string_view(kBasic.data(), kBasic.size()))) {
      std::string pair;
      const std::string_view encoded = shown.substr(kBasic.size());
      if (absl::Base64Unescape(absl::string_view(encoded.data(), encoded.size()), &pair)) {
        const size_t colon = pair.find(':');
        if (colon != std::string::npos) token_ = pair.substr(colon + 1);
      }
    } else if (shown.empty()) {
      token_ = std::string(request.Header("X-Consul-Token"));
      if (token_.empty()) token_ = request.Query("token");
    }
    if (!token_.empty()) bearer_ = absl::StrCat("Bearer ", token_);
  }

  // Puts it in the place of the others, as long as this lives.
  void Show(http::Request* request) const {
    if (bearer_.empty()) return;
    auto& headers = request->headers;
    headers.erase(std::remove_if(headers.begin(), headers.end(),
                                 [](const auto& header) {
                                   return absl::EqualsIgnoreCase(
                                       absl::string_view(header.first.data(), header.first.size()),
                                       "Authorization");
                                 }),
                  headers.end());
    headers.emplace_back("Authorization", bearer_);
  }

 private:
  std::string token_;
  std::string bearer_;
};

using Refuse = std::optional<http::Response> (*)(const http::Request& request);

absl::StatusOr<std::unique_ptr<http::Server>> BindDoor(
    const std::string& key, const std::string& listen, const std::string& name,
    http::Response (*error)(int http_status, const absl::Status& status), Refuse refuse,
    const config::v1::Http& config, const DiscoveryDoors::Sources& sources,
    const ConfigLoader& loader) {
  if (listen.empty()) return nullptr;
  http::Server::Options options;
  options.timer = sources.timer;
  options.listen = listen;
  options.name = name;
  options.allow_remote = config.allow_remote();
  options.tls = sources.security->tls();
  options.max_connections = config.max_connections();
  options.error = error;
  DoorGuard guard;
  guard.hosts = {config.hosts().begin(), config.hosts().end()};
  guard.origins = {config.origins().begin(), config.origins().end()};
  guard.access = sources.security->access();
  GuardDoor(guard, &options);
  options.admit = [admit = std::move(options.admit), refuse](
                      const http::Shown& shown,
                      http::Request* request) -> std::optional<http::Response> {
    const TokenOf token(*request);
    // The headers are as they came afterwards: what was shown is not kept.
    const auto headers = request->headers;
    token.Show(request);
    std::optional<http::Response> answer = admit(shown, request);
    request->headers = headers;
    if (answer.has_value() || refuse == nullptr) return answer;
    return refuse(*request);
  };
  auto server = http::Server::Bind(std::move(options));
  if (!server.ok()) return loader.ErrorAt(key, std::string(server.status().message()));
  return server;
}

}  // namespace

absl::Status ValidateDiscoveryConfig(const config::v1::Consul& consul,
                                     const config::v1::Eureka& eureka, const config::v1::Http& http,
                                     bool encrypted, const ConfigLoader& loader) {
  if (auto status = CheckListen("consul.listen", consul.listen(), http, encrypted, loader);
      !status.ok()) {
    return status;
  }
  if (auto status = CheckListen("eureka.listen", eureka.listen(), http, encrypted, loader);
      !status.ok()) {
    return status;
  }
  if (auto status = CheckNamespace("consul.datacenter", consul.datacenter(), loader);
      !status.ok()) {
    return status;
  }
  return CheckNamespace("eureka.namespace", eureka.namespace_(), loader);
}

absl::StatusOr<std::unique_ptr<DiscoveryDoors>> DiscoveryDoors::Bind(
    const config::v1::Consul& consul, const config::v1::Eureka& eureka,
    const config::v1::Http& http, const Sources& sources, const ConfigLoader& loader) {
  if (consul.listen().empty() && eureka.listen().empty()) return nullptr;
  size_t max_services = http.max_services();
  if (sources.max_services > 0) max_services = std::min(max_services, sources.max_services);
  std::unique_ptr<DiscoveryDoors> doors(new DiscoveryDoors(consul, eureka, max_services, sources));
  auto consul_server =
      BindDoor("consul.listen", consul.listen(), "Consul door", &consul::ConsulDoor::Error,
               &consul::ConsulDoor::RefuseUnsupported, http, sources, loader);
  if (!consul_server.ok()) return consul_server.status();
  doors->consul_ = *std::move(consul_server);
  auto eureka_server = BindDoor("eureka.listen", eureka.listen(), "Eureka door",
                                &eureka::EurekaDoor::Error, nullptr, http, sources, loader);
  if (!eureka_server.ok()) return eureka_server.status();
  doors->eureka_ = *std::move(eureka_server);
  return doors;
}

DiscoveryDoors::~DiscoveryDoors() { Stop(); }

void DiscoveryDoors::StartConsul(Registry* registry) {
  consul::ConsulDoor::Options options;
  options.catalog = catalog_;
  options.access = sources_.security->access();
  options.datacenter = consul_config_.datacenter();
  options.node = sources_.node;
  options.address = consul_->address();
  options.version = kVersion;
  options.random = [random = std::make_shared<std::minstd_rand>(std::random_device()())]() {
    return std::uniform_real_distribution<double>()(*random);
  };
  if (sources_.agent) {
    DoorSessions::Options sessions;
    sessions.timer = sources_.timer;
    sessions.door = "consul";
    // As Consul has it: what an agent registers goes with the agent, and comes back with it.
    sessions.persistent = false;
    consul_writer_ =
        std::make_unique<DoorSessions>(registry, sources_.security->access(), sessions);
    consul::AgentServices::Options services;
    services.timer = sources_.timer;
    services.writer = consul_writer_.get();
    services.runner = sources_.check_runner;
    services.own_address = consul_config_.advertise();
    services.carried = sources_.carried;
    if (options.access != nullptr) {
      services.may_change = [access = options.access](const Identity& caller,
                                                      const InstanceKey& key) {
        return access->rules()->Judge(caller, config::v1::PERMISSION_REGISTER, key.namespace_(),
                                      key.service());
      };
    }
    services_ = consul::AgentServices::Create(std::move(services));
    options.services = services_;
  }
  std::make_shared<consul::ConsulDoor>(std::move(options))
      ->AddRoutes([this](const char* method, const char* pattern, http::Handler handler) {
        consul_->Handle(method, pattern, std::move(handler));
      });
  consul_->Start();
}

void DiscoveryDoors::StartEureka(Registry* registry) {
  eureka_writer_ = std::make_unique<DoorSessions>(registry, sources_.security->access(),
                                                  DoorSessions::Options{sources_.timer, "eureka"});
  eureka::EurekaDoor::Options options;
  options.catalog = catalog_;
  options.writer = eureka_writer_.get();
  options.registry = registry;
  options.access = sources_.security->access();
  options.name_space = eureka_config_.namespace_();
  std::make_shared<eureka::EurekaDoor>(std::move(options))
      ->AddRoutes(
          [this](const std::string& method, const std::string& pattern, http::Handler handler) {
            eureka_->Handle(method, pattern, std::move(handler));
          });
  eureka_->Start();
}

void DiscoveryDoors::Start(Registry* registry) {
  catalog::Catalog::Options options;
  options.timer = sources_.timer;
  options.executor = (consul_ != nullptr ? consul_ : eureka_)->executor();
  options.max_sets = max_services_;
  catalog_ = std::make_shared<catalog::Catalog>(registry, options);
  if (consul_ != nullptr) StartConsul(registry);
  if (eureka_ != nullptr) StartEureka(registry);
}

void DiscoveryDoors::Stop() {
  if (consul_ != nullptr) consul_->Stop();
  if (eureka_ != nullptr) eureka_->Stop();
  if (services_ != nullptr) services_->Stop();
  if (catalog_ != nullptr) catalog_->Stop();
}

std::string DiscoveryDoors::Places() const {
  std::string places;
  if (consul_ != nullptr) absl::StrAppend(&places, ", consul ", consul_->address());
  if (eureka_ != nullptr) absl::StrAppend(&places, ", eureka ", eureka_->address());
  return places;
}

std::string DiscoveryPlaces(const DiscoveryDoors* doors) {
  return doors == nullptr ? "" : doors->Places();
}

}  // namespace failback
