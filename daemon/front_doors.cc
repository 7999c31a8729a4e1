#include "daemon/front_doors.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/listen_config.h"
#include "gateway/consul/consul_door.h"
#include "gateway/door/door_guard.h"
#include "gateway/door/shown_token.h"
#include "gateway/eureka/eureka_door.h"
#include "gateway/http/problem.h"
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

absl::Status CheckOrigins(const config::v1::Http& http, const ConfigLoader& loader) {
  for (int i = 0; i < http.origins_size(); ++i) {
    const std::string& origin = http.origins(i);
    const bool has_scheme =
        absl::StartsWith(origin, "http://") || absl::StartsWith(origin, "https://");
    if (has_scheme && origin.find('/', origin.find("//") + 2) == std::string::npos) continue;
    return loader.ErrorAt(absl::StrCat("http.origins[", i, "]"),
                          absl::StrCat("'", origin,
                                       "' is no origin: a scheme, a host and perhaps a port, as "
                                       "https://console.example:8443"));
  }
  return absl::OkStatus();
}

// What sets one door apart from the others.
struct Listener {
  std::string key;
  std::string listen;
  std::string name;  // for logs
  http::Response (*error)(int http_status, const absl::Status& status);
  TokenPlaces token_places = TokenPlaces::kAuthorization;
  // Answers in the place of handlers, once the caller may come; null: nothing.
  std::optional<http::Response> (*refuse)(const http::Request& request) = nullptr;
};

// Replaces the Authorization header, as long as this lives: what was shown is not kept.
class ShownAs {
 public:
  ShownAs(std::string bearer, http::Request* request)
      : request_(request), headers_(request->headers), bearer_(std::move(bearer)) {
    auto& headers = request_->headers;
    headers.erase(std::remove_if(headers.begin(), headers.end(),
                                 [](const auto& header) {
                                   return absl::EqualsIgnoreCase(
                                       absl::string_view(header.first.data(), header.first.size()),
                                       "Authorization");
                                 }),
                  headers.end());
    if (!bearer_.empty()) headers.emplace_back("Authorization", bearer_);
  }
  ~ShownAs() { request_->headers = std::move(headers_); }
  ShownAs(const ShownAs&) = delete;
  ShownAs& operator=(const ShownAs&) = delete;

 private:
  http::Request* const request_;
  decltype(http::Request::headers) headers_;
  const std::string bearer_;
};

// Null: the door is not asked for.
absl::StatusOr<std::unique_ptr<http::Server>> BindListener(const Listener& listener,
                                                           const config::v1::Http& config,
                                                           const FrontDoors::Sources& sources,
                                                           const ConfigLoader& loader) {
  if (listener.listen.empty()) return nullptr;
  const std::vector<std::string> hosts = {config.hosts().begin(), config.hosts().end()};
  if (absl::Status status = ValidateHosts("http.hosts", hosts, loader); !status.ok()) {
    return status;
  }
  http::Server::Options options;
  options.timer = sources.timer;
  options.listen = listener.listen;
  options.name = listener.name;
  options.allow_remote = config.allow_remote();
  options.tls = sources.security->tls();
  options.max_connections = config.max_connections();
  options.error = listener.error;
  DoorGuard guard;
  guard.hosts = hosts;
  guard.origins = {config.origins().begin(), config.origins().end()};
  guard.access = sources.security->access();
  GuardDoor(guard, &options);
  options.admit =
      [admit = std::move(options.admit), places = listener.token_places, refuse = listener.refuse](
          const http::Shown& shown, http::Request* request) -> std::optional<http::Response> {
    std::optional<http::Response> answer;
    {
      const ShownAs as(BearerOf(*request, places), request);
      answer = admit(shown, request);
    }
    if (answer.has_value() || refuse == nullptr) return answer;
    return refuse(*request);
  };
  auto server = http::Server::Bind(std::move(options));
  if (!server.ok()) return loader.ErrorAt(listener.key, std::string(server.status().message()));
  return server;
}

http::Response ProblemOf(int http_status, const absl::Status& status) {
  return http::Problem(http_status, status);
}

}  // namespace

absl::Status ValidateFrontDoorConfig(const FrontDoorConfig& config, bool encrypted,
                                     const ConfigLoader& loader) {
  if (auto status = CheckOrigins(config.http, loader); !status.ok()) return status;
  for (const auto& [key, listen] : {std::pair("http.listen", config.http.listen()),
                                    std::pair("consul.listen", config.consul.listen()),
                                    std::pair("eureka.listen", config.eureka.listen())}) {
    auto status = CheckListen(key, listen, config.http, encrypted, loader);
    if (!status.ok()) return status;
  }
  if (auto status = CheckNamespace("consul.datacenter", config.consul.datacenter(), loader);
      !status.ok()) {
    return status;
  }
  return CheckNamespace("eureka.namespace", config.eureka.namespace_(), loader);
}

absl::StatusOr<std::unique_ptr<FrontDoors>> FrontDoors::Bind(FrontDoorConfig config,
                                                             const Sources& sources,
                                                             const ConfigLoader& loader) {
  size_t max_services = config.http.max_services();
  if (sources.max_services > 0) max_services = std::min(max_services, sources.max_services);
  std::unique_ptr<FrontDoors> doors(new FrontDoors(std::move(config), max_services, sources));
  const FrontDoorConfig& keys = doors->config_;
  const std::pair<Listener, std::unique_ptr<http::Server>*> listeners[] = {
      {{"http.listen", keys.http.listen(), "HTTP front door", &ProblemOf}, &doors->json_},
      {{"consul.listen", keys.consul.listen(), "Consul door", &consul::ConsulDoor::Error,
        TokenPlaces::kConsul, &consul::ConsulDoor::RefuseUnsupported},
       &doors->consul_},
      {{"eureka.listen", keys.eureka.listen(), "Eureka door", &eureka::EurekaDoor::Error},
       &doors->eureka_},
  };
  bool any = false;
  for (const auto& [listener, server] : listeners) {
    auto bound = BindListener(listener, keys.http, sources, loader);
    if (!bound.ok()) return bound.status();
    *server = *std::move(bound);
    any = any || *server != nullptr;
  }
  return any ? std::move(doors) : nullptr;
}

FrontDoors::~FrontDoors() { Stop(); }

void FrontDoors::StartJson(Registry* registry) {
  json_writer_ = std::make_unique<DoorSessions>(registry, access(),
                                                DoorSessions::Options{sources_.timer, "http"});
  JsonDoor::Sources json;
  json.registry = registry;
  json.catalog = catalog_;
  json.writer = json_writer_.get();
  json.timer = sources_.timer;
  json.access = access();
  json.pending = sources_.pending;
  json.retry = sources_.retry;
  json_door_ = std::make_unique<JsonDoor>(std::move(json));
  json_door_->AddTo(json_.get());
  json_->Start();
}

absl::Status FrontDoors::StartConsul(Registry* registry) {
  consul::ConsulDoor::Options options;
  options.catalog = catalog_;
  options.access = access();
  options.datacenter = config_.consul.datacenter();
  options.node = config_.consul.advertise().empty() ? sources_.node : config_.consul.advertise();
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
    consul_writer_ = std::make_unique<DoorSessions>(registry, access(), sessions);
    consul::AgentServices::Options services;
    services.timer = sources_.timer;
    services.writer = consul_writer_.get();
    services.runner = sources_.check_runner;
    services.own_address = config_.consul.advertise();
    services.carried = sources_.carried;
    services.carries = sources_.carries;
    if (sources_.open_folder != nullptr) {
      auto folder = sources_.open_folder();
      if (!folder.ok()) return folder.status();
      folder_ = *std::move(folder);
      services.folder = folder_.get();
    }
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
  return absl::OkStatus();
}

void FrontDoors::StartEureka(Registry* registry) {
  eureka_writer_ = std::make_unique<DoorSessions>(registry, access(),
                                                  DoorSessions::Options{sources_.timer, "eureka"});
  eureka::EurekaDoor::Options options;
  options.catalog = catalog_;
  options.writer = eureka_writer_.get();
  options.registry = registry;
  options.access = access();
  options.name_space = config_.eureka.namespace_();
  std::make_shared<eureka::EurekaDoor>(std::move(options))
      ->AddRoutes(
          [this](const std::string& method, const std::string& pattern, http::Handler handler) {
            eureka_->Handle(method, pattern, std::move(handler));
          });
  eureka_->Start();
}

absl::Status FrontDoors::Start(Registry* registry) {
  catalog::Catalog::Options options;
  options.timer = sources_.timer;
  for (const auto* server : {&json_, &consul_, &eureka_}) {
    if (*server != nullptr && options.executor == nullptr) {
      options.executor = (*server)->executor();
    }
  }
  options.max_sets = max_services_;
  catalog_ = std::make_shared<catalog::Catalog>(registry, options);
  if (consul_ != nullptr) {
    if (auto status = StartConsul(registry); !status.ok()) return status;
  }
  if (json_ != nullptr) StartJson(registry);
  if (eureka_ != nullptr) StartEureka(registry);
  return absl::OkStatus();
}

void FrontDoors::Stop() {
  for (const auto* server : {&json_, &consul_, &eureka_}) {
    if (*server != nullptr) (*server)->Stop();
  }
  if (services_ != nullptr) services_->Stop();
  if (catalog_ != nullptr) catalog_->Stop();
}

http::FrontDoorStatistics FrontDoors::Stats() const {
  http::FrontDoorStatistics stats;
  if (catalog_ == nullptr) return stats;
  const auto add = [&stats](const char* name, const http::Server* server,
                            const DoorSessions* writer) {
    if (server == nullptr) return;
    stats.listeners.push_back({name, server->Stats(), writer == nullptr ? 0 : writer->live()});
  };
  add("http", json_.get(), json_writer_.get());
  add("consul", consul_.get(), consul_writer_.get());
  add("eureka", eureka_.get(), eureka_writer_.get());
  const catalog::Catalog::Statistics followed = catalog_->Stats();
  stats.services = followed.sets;
  stats.evicted = followed.evicted;
  return stats;
}

std::string FrontDoors::Places() const {
  std::string places;
  if (json_ != nullptr) absl::StrAppend(&places, ", http ", json_->address());
  if (consul_ != nullptr) absl::StrAppend(&places, ", consul ", consul_->address());
  if (eureka_ != nullptr) absl::StrAppend(&places, ", eureka ", eureka_->address());
  return places;
}

std::string FrontDoorPlaces(const FrontDoors* doors) {
  return doors == nullptr ? "" : doors->Places();
}

}  // namespace failback
