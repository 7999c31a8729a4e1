#include "daemon/front_doors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gateway/door/door_guard.h"
#include "gateway/http/problem.h"
#include "registry/base/address.h"

namespace failback {

absl::Status ValidateHttpConfig(const config::v1::Http& config, bool encrypted,
                                const ConfigLoader& loader) {
  for (int i = 0; i < config.origins_size(); ++i) {
    const std::string& origin = config.origins(i);
    const bool has_scheme =
        absl::StartsWith(origin, "http://") || absl::StartsWith(origin, "https://");
    if (has_scheme && origin.find('/', origin.find("//") + 2) == std::string::npos) continue;
    return loader.ErrorAt(absl::StrCat("http.origins[", i, "]"),
                          absl::StrCat("'", origin,
                                       "' is no origin: a scheme, a host and perhaps a port, as "
                                       "https://console.example:8443"));
  }
  const std::string& listen = config.listen();
  if (listen.empty()) return absl::OkStatus();
  constexpr char kKey[] = "http.listen";
  const absl::StatusOr<Address> address = ParseAddress(listen, /*min_port=*/0);
  if (!address.ok()) {
    // Here no socket of Unix is allowed.
    return loader.ErrorAt(
        kKey, absl::StrReplaceAll(std::string(address.status().message()),
                                  {{", [ipv6]:port and unix:/path", " and [ipv6]:port"}}));
  }
  if (address->is_unix()) {
    return loader.ErrorAt(kKey,
                          absl::StrCat("'", listen, "' is a Unix socket; allowed is HOST:PORT"));
  }
  if (!address->is_local() && !encrypted && !config.allow_remote()) {
    return loader.ErrorAt(
        kKey, absl::StrCat("other machines can connect to ", listen,
                           ", and it is not encrypted; listen on a loopback address, set tls.cert "
                           "and tls.key, or set http.allow_remote"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FrontDoors>> FrontDoors::Bind(const config::v1::Http& config,
                                                             const Sources& sources,
                                                             const ConfigLoader& loader) {
  if (config.listen().empty()) return nullptr;
  http::Server::Options options;
  options.timer = sources.timer;
  options.listen = config.listen();
  options.name = "HTTP front door";
  options.allow_remote = config.allow_remote();
  options.tls = sources.security->tls();
  options.max_connections = config.max_connections();
  options.error = [](int http_status, const absl::Status& status) {
    return http::Problem(http_status, status);
  };
  DoorGuard guard;
  guard.hosts = {config.hosts().begin(), config.hosts().end()};
  guard.origins = {config.origins().begin(), config.origins().end()};
  guard.access = sources.security->access();
  GuardDoor(guard, &options);
  absl::StatusOr<std::unique_ptr<http::Server>> server = http::Server::Bind(std::move(options));
  if (!server.ok()) return loader.ErrorAt("http.listen", std::string(server.status().message()));
  size_t max_services = config.max_services();
  if (sources.max_services > 0) max_services = std::min(max_services, sources.max_services);
  return std::unique_ptr<FrontDoors>(new FrontDoors(sources, max_services, *std::move(server)));
}

FrontDoors::FrontDoors(Sources sources, size_t max_services, std::unique_ptr<http::Server> server)
    : sources_(std::move(sources)), max_services_(max_services), server_(std::move(server)) {}

FrontDoors::~FrontDoors() { Stop(); }

void FrontDoors::Start(Registry* registry) {
  writer_ = std::make_unique<DoorSessions>(registry, sources_.security->access(),
                                           DoorSessions::Options{sources_.timer, "http"});
  ServiceFeed::Options feed;
  feed.timer = sources_.timer;
  feed.executor = server_->executor();
  feed.max_services = max_services_;
  feed_ = std::make_unique<ServiceFeed>(registry, feed);
  JsonDoor::Sources json;
  json.registry = registry;
  json.feed = feed_.get();
  json.writer = writer_.get();
  json.timer = sources_.timer;
  json.access = sources_.security->access();
  json.pending = sources_.pending;
  json.retry = sources_.retry;
  json_ = std::make_unique<JsonDoor>(std::move(json));
  json_->AddTo(server_.get());
  server_->Start();
}

void FrontDoors::Stop() {
  server_->Stop();
  if (feed_ != nullptr) feed_->Stop();
}

std::string FrontDoorPlaces(const FrontDoors* doors) {
  return doors == nullptr ? "" : absl::StrCat(", http ", doors->address());
}

}  // namespace failback
