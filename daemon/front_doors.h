// The keys `http`, `consul` and `eureka` of both daemons, and the front doors that they ask for. What
// HTTP needs beside an address (names, limits, who may connect) is under `http`, for all of them.
//
//   if (auto status = ValidateFrontDoors(config, loader); !status.ok()) return status;
//   …
//   auto doors = FrontDoors::Bind(config, sources, loader);   // takes the addresses
//   if (auto status = (*doors)->Start(&registry); !status.ok()) return status;  // begins to serve
//
// The doors share one catalog: a service is followed once, whichever of them is asked for it.
//
// Thread safety: none; it belongs to main(). Stats from any thread.

#ifndef FAILBACK_DAEMON_FRONT_DOORS_H_
#define FAILBACK_DAEMON_FRONT_DOORS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/metrics/http_metrics.h"
#include "daemon/server_security.h"
#include "failback/config/v1/config.pb.h"
#include "gateway/catalog/catalog.h"
#include "gateway/consul/agent_services.h"
#include "gateway/consul/check_runner.h"
#include "gateway/consul/kept_service.h"
#include "gateway/door/door_sessions.h"
#include "gateway/http/server.h"
#include "gateway/json/json_door.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// What the keys ask for.
struct FrontDoorConfig {
  config::v1::Http http;
  config::v1::Consul consul;
  config::v1::Eureka eureka;
};
template <typename Config>
FrontDoorConfig FrontDoorConfigOf(const Config& config) {
  return {config.http(), config.consul(), config.eureka()};
}

// Checks the keys, without opening anything. `encrypted`: there is TLS.
absl::Status ValidateFrontDoorConfig(const FrontDoorConfig& config, bool encrypted,
                                     const ConfigLoader& loader);
template <typename Config>
absl::Status ValidateFrontDoors(const Config& config, const ConfigLoader& loader) {
  return ValidateFrontDoorConfig(FrontDoorConfigOf(config), !config.tls().cert().empty(), loader);
}

class FrontDoors {
 public:
  // What a daemon brings along.
  struct Sources {
    HashedWheelTimer* timer = nullptr;
    const ServerSecurity* security = nullptr;
    size_t max_services = 0;  // beside the key's own; 0: no limit
    std::string node;         // how the daemon is called
    // An agent's.
    decltype(JsonDoor::Sources::pending) pending = nullptr;
    decltype(JsonDoor::Sources::retry) retry = nullptr;
    // An agent, at which clients of Consul register. Its probes; null: there are none.
    bool agent = false;
    consul::CheckRunner* check_runner = nullptr;
    // What the agent carries under an instance id.
    std::function<std::vector<InstanceKey>(const std::string& id)> carried = nullptr;
    std::function<bool(const InstanceKey&)> carries = nullptr;
    // Where it keeps what clients of Consul have registered; null: nowhere. Called by Start.
    std::function<absl::StatusOr<std::unique_ptr<consul::ServiceFolder>>()> open_folder = nullptr;
  };

  // Takes the addresses. Null when no front door is asked for.
  static absl::StatusOr<std::unique_ptr<FrontDoors>> Bind(FrontDoorConfig config,
                                                          const Sources& sources,
                                                          const ConfigLoader& loader);
  ~FrontDoors();  // as Stop

  // Begins to serve. `registry` outlives Stop, and calls under way end with it. FAILED_PRECONDITION:
  // what has to be kept cannot be.
  absl::Status Start(Registry* registry);
  void Stop();

  // Before Start there is nothing.
  http::FrontDoorStatistics Stats() const;

  // ", http 127.0.0.1:7072, consul 127.0.0.1:8500": for the line that says where a daemon is reached.
  std::string Places() const;

 private:
  FrontDoors(FrontDoorConfig config, size_t max_services, Sources sources)
      : config_(std::move(config)), max_services_(max_services), sources_(std::move(sources)) {}

  void StartJson(Registry* registry);
  absl::Status StartConsul(Registry* registry);
  void StartEureka(Registry* registry);
  std::shared_ptr<AccessControl> access() const { return sources_.security->access(); }

  const FrontDoorConfig config_;
  const size_t max_services_;
  const Sources sources_;
  std::shared_ptr<catalog::Catalog> catalog_;
  std::unique_ptr<DoorSessions> json_writer_;
  std::unique_ptr<DoorSessions> consul_writer_;
  std::unique_ptr<DoorSessions> eureka_writer_;
  std::unique_ptr<JsonDoor> json_door_;
  std::unique_ptr<consul::ServiceFolder> folder_;    // null: none
  std::shared_ptr<consul::AgentServices> services_;  // null: no agent, or no door for Consul
  std::unique_ptr<http::Server> json_;               // null: none, as the next two
  std::unique_ptr<http::Server> consul_;
  std::unique_ptr<http::Server> eureka_;
};

// ", http …", or nothing.
std::string FrontDoorPlaces(const FrontDoors* doors);

}  // namespace failback

#endif  // FAILBACK_DAEMON_FRONT_DOORS_H_
