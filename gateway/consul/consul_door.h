// Consul's HTTP API over a Registry: what its clients need to register at an agent and to find
// services at both daemons. docs/consul.md lists every call.
//
// Reads are answered from a Catalog, which follows what is asked for: a query that blocks is parked
// until its set has another index (gateway/door/parked_read.h). Ten thousand that wait for one
// service are answered with the same bytes. Writes go to AgentServices; where there are none, at a
// registry, they are refused with where to go instead. What this door does not do is 501, with what
// it does.
//
// Example:
//
//   ConsulDoor::Options options;
//   options.catalog = catalog;
//   auto door = std::make_shared<ConsulDoor>(std::move(options));
//   door->AddRoutes([&](const char* method, const char* pattern, http::Handler handler) {
//     server->Handle(method, pattern, std::move(handler));
//   });
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_GATEWAY_CONSUL_CONSUL_DOOR_H_
#define FAILBACK_GATEWAY_CONSUL_CONSUL_DOOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gateway/catalog/catalog.h"
#include "gateway/consul/agent_services.h"
#include "gateway/consul/query.h"
#include "gateway/consul/render.h"
#include "gateway/consul/service_list.h"
#include "gateway/http/message.h"
#include "gateway/http/responder.h"
#include "gateway/http/router.h"
#include "registry/security/access_control.h"
#include "retry/mutex.h"

namespace failback::consul {

class ConsulDoor : public std::enable_shared_from_this<ConsulDoor> {
 public:
  struct Options {
    // Required.
    std::shared_ptr<catalog::Catalog> catalog;
    // Null, at a registry: clients register elsewhere.
    std::shared_ptr<AgentServices> services = nullptr;
    // Null: everybody may do everything.
    std::shared_ptr<AccessControl> access = nullptr;
    // The namespace that is meant where a request names no datacenter.
    std::string datacenter = "default";
    // How this daemon is called, and where it is reached: of `agent/self` and `status/leader`. Where
    // it has an address of its own for services (consul.advertise), it is called by that, as all nodes
    // are.
    std::string node;
    std::string address;  // HOST:PORT
    std::string version;
    std::function<absl::Time()> now = absl::Now;
    // In [0, 1); spreads waits out.
    std::function<double()> random;
  };

  explicit ConsulDoor(Options options) : options_(std::move(options)) {}

  using Add = std::function<void(const char* method, const char* pattern, http::Handler handler)>;
  void AddRoutes(const Add& add);

  // What the server says of a request that comes to no handler, and of its own errors, as Consul
  // has errors: a line of text.
  static http::Response Error(int http_status, const absl::Status& status);
  static http::Response Error(const absl::Status& status);
  // 501 for the parts of Consul's API that are not here; nullopt for all else.
  static std::optional<http::Response> RefuseUnsupported(const http::Request& request);

 private:
  // --- Reads (consul_door.cc).
  void AddReads(const Add& add);
  // One service: what `render` makes of it, shared by all who ask the same.
  using Render = std::string (*)(const InstanceSet& instances, const Shown& shown);
  http::Handler ServiceHandler(const char* kind, unsigned accepts, Render render);
  // All services of a namespace that the caller may read.
  using RenderAll = std::string (*)(const Sets& services, const Shown& shown,
                                    const http::Request& request);
  http::Handler NamespaceHandler(RenderAll render);
  void ReadServiceNames(const http::Request& request, http::Responder responder);
  absl::Status MayRead(const Identity& caller, const std::string& name_space,
                       const std::string& service) const;
  // Which of a namespace's services a caller may read; null: all.
  std::function<bool(const std::string& service)> ReadableBy(const Identity& caller,
                                                             const std::string& name_space) const;
  absl::Duration WaitOf(const Query& query) const;

  // --- The agent's own (consul_agent.cc).
  void AddAgent(const Add& add);
  using Change = std::function<void(const http::Request& request, AgentServices::Done done)>;
  // Of PUT, and of GET, with which old clients change something. `parameters`: what the call has.
  void AddChange(const Add& add, const char* pattern, std::vector<std::string> parameters,
                 Change change);
  std::string AgentSelf(const Identity& caller) const;
  std::string AgentMembers(const Identity& caller) const;
  std::string AgentServicesJson(const Identity& caller) const;
  std::string AgentChecksJson(const Identity& caller) const;
  // The services of this agent that a caller may read.
  std::map<std::string, AgentServices::Shown> OwnServices(const Identity& caller) const;

  const Options options_;

  mutable Mutex mu_;
  std::map<std::string, ServiceList> lists_ ABSL_GUARDED_BY(mu_);  // by namespace
};

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_CONSUL_DOOR_H_
