// The keys `consul` and `eureka` of both daemons, and the front doors that they ask for: for clients
// of these two. What HTTP needs beside an address (names, limits, who may connect) is under `http`,
// for all front doors alike.
//
//   auto doors = DiscoveryDoors::Bind(config, sources, loader);   // takes the addresses
//   (*doors)->Start(&registry);                                   // begins to serve
//
// Thread safety: none; it belongs to main(). Stats from any thread.

#ifndef FAILBACK_DAEMON_DISCOVERY_DOORS_H_
#define FAILBACK_DAEMON_DISCOVERY_DOORS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/server_security.h"
#include "failback/config/v1/config.pb.h"
#include "gateway/catalog/catalog.h"
#include "gateway/consul/agent_services.h"
#include "gateway/consul/check_runner.h"
#include "gateway/consul/consul_door.h"
#include "gateway/door/door_sessions.h"
#include "gateway/eureka/eureka_door.h"
#include "gateway/http/server.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// Checks the keys, without opening anything. `encrypted`: there is TLS.
absl::Status ValidateDiscoveryConfig(const config::v1::Consul& consul,
                                     const config::v1::Eureka& eureka, const config::v1::Http& http,
                                     bool encrypted, const ConfigLoader& loader);
template <typename Config>
absl::Status ValidateDiscoveryDoors(const Config& config, const ConfigLoader& loader) {
  return ValidateDiscoveryConfig(config.consul(), config.eureka(), config.http(),
                                 !config.tls().cert().empty(), loader);
}

class DiscoveryDoors {
 public:
  // What a daemon brings along.
  struct Sources {
    HashedWheelTimer* timer = nullptr;
    const ServerSecurity* security = nullptr;
    size_t max_services = 0;  // beside the key's own; 0: no limit
    std::string node;         // how the daemon is called
    // An agent, at which clients of Consul register. Its probes; null: there are none.
    bool agent = false;
    consul::CheckRunner* check_runner = nullptr;
    // What the agent carries under an instance id.
    std::function<std::vector<InstanceKey>(const std::string& id)> carried = nullptr;
  };

  // Takes the addresses. Null when neither door is asked for.
  template <typename Config>
  static absl::StatusOr<std::unique_ptr<DiscoveryDoors>> Bind(const Config& config,
                                                              const Sources& sources,
                                                              const ConfigLoader& loader) {
    return Bind(config.consul(), config.eureka(), config.http(), sources, loader);
  }
  static absl::StatusOr<std::unique_ptr<DiscoveryDoors>> Bind(const config::v1::Consul& consul,
                                                              const config::v1::Eureka& eureka,
                                                              const config::v1::Http& http,
                                                              const Sources& sources,
                                                              const ConfigLoader& loader);
  ~DiscoveryDoors();  // as Stop

  // Begins to serve. `registry` outlives Stop, and calls under way end with it.
  void Start(Registry* registry);
  void Stop();

  // ", consul 127.0.0.1:8500, eureka 127.0.0.1:8761": for the line that says where a daemon is
  // reached.
  std::string Places() const;

 private:
  DiscoveryDoors(config::v1::Consul consul, config::v1::Eureka eureka, size_t max_services,
                 Sources sources)
      : consul_config_(std::move(consul)),
        eureka_config_(std::move(eureka)),
        max_services_(max_services),
        sources_(std::move(sources)) {}

  void StartConsul(Registry* registry);
  void StartEureka(Registry* registry);

  const config::v1::Consul consul_config_;
  const config::v1::Eureka eureka_config_;
  const size_t max_services_;
  const Sources sources_;
  std::shared_ptr<catalog::Catalog> catalog_;
  std::unique_ptr<DoorSessions> consul_writer_;
  std::unique_ptr<DoorSessions> eureka_writer_;
  std::shared_ptr<consul::AgentServices> services_;  // null: no agent, or no door for Consul
  std::unique_ptr<http::Server> consul_;             // null: none
  std::unique_ptr<http::Server> eureka_;             // null: none
};

// ", consul …", or nothing.
std::string DiscoveryPlaces(const DiscoveryDoors* doors);

}  // namespace failback

#endif  // FAILBACK_DAEMON_DISCOVERY_DOORS_H_
