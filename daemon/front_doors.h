// The keys `http` of both daemons, and the front door that they ask for.
//
//   if (auto status = ValidateFrontDoors(config, loader); !status.ok()) return status;
//   …
//   auto doors = FrontDoors::Bind(config.http(), sources, loader);   // takes the address
//   (*doors)->Start(&registry);                                      // begins to serve
//
// Thread safety: none; it belongs to main(). Stats from any thread.

#ifndef FAILBACK_DAEMON_FRONT_DOORS_H_
#define FAILBACK_DAEMON_FRONT_DOORS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/server_security.h"
#include "failback/config/v1/config.pb.h"
#include "gateway/door/door_sessions.h"
#include "gateway/door/service_feed.h"
#include "gateway/http/server.h"
#include "gateway/json/json_door.h"
#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// Checks the keys, without opening anything. `encrypted`: there is TLS.
absl::Status ValidateHttpConfig(const config::v1::Http& config, bool encrypted,
                                const ConfigLoader& loader);
template <typename Config>
absl::Status ValidateFrontDoors(const Config& config, const ConfigLoader& loader) {
  return ValidateHttpConfig(config.http(), !config.tls().cert().empty(), loader);
}

class FrontDoors {
 public:
  // What a daemon brings along.
  struct Sources {
    HashedWheelTimer* timer = nullptr;
    const ServerSecurity* security = nullptr;
    size_t max_services = 0;  // beside the key's own; 0: no limit
    // An agent's.
    decltype(JsonDoor::Sources::pending) pending = nullptr;
    decltype(JsonDoor::Sources::retry) retry = nullptr;
  };

  // Takes the address. Null when no front door is asked for.
  static absl::StatusOr<std::unique_ptr<FrontDoors>> Bind(const config::v1::Http& config,
                                                          const Sources& sources,
                                                          const ConfigLoader& loader);
  ~FrontDoors();  // as Stop

  // Begins to serve. `registry` outlives this.
  void Start(Registry* registry);
  void Stop();

  http::Server::Statistics Stats() const { return server_->Stats(); }
  const std::string& address() const { return server_->address(); }

 private:
  FrontDoors(Sources sources, size_t max_services, std::unique_ptr<http::Server> server);

  const Sources sources_;
  const size_t max_services_;
  std::unique_ptr<DoorSessions> writer_;
  std::unique_ptr<ServiceFeed> feed_;
  std::unique_ptr<JsonDoor> json_;
  std::unique_ptr<http::Server> server_;
};

// ", http 127.0.0.1:7072", or nothing: for the line that says where a daemon is reached.
std::string FrontDoorPlaces(const FrontDoors* doors);

}  // namespace failback

#endif  // FAILBACK_DAEMON_FRONT_DOORS_H_
