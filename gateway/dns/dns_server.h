// Answers DNS by UDP and TCP about what is registered, over any Registry.
//
// One thread does all: it takes queries from the sockets, many with one call of the kernel, looks
// up what is known (gateway/dns/service_table.h) and writes the answers (gateway/dns/zone.h). A
// query about a service of which nothing is known yet waits for the registry, at most `first_wait`.
//
// Bounds, all checked before work is done: the size of a query; responses a second by UDP to one
// network (gateway/dns/rate_limit.h), and ten times what an unproven client has sent; queries that
// wait, and how many of one network do; connections, which one makes room when there are too many,
// and their time without a query; answers that a client by TCP has not taken; services that are
// followed. Clients on this machine, and those with a cookie of this server's, are exempt from the
// two that are for forged addresses.
//
// Example:
//
//   DnsServer::Options options{Zone{*Domain::Parse("failback")}};
//   options.table.timer = &timer;
//   options.listen = {"127.0.0.1:7073"};
//   absl::StatusOr<std::unique_ptr<DnsServer>> server = DnsServer::Bind(options);
//   if (!server.ok()) Die(server.status());
//   (*server)->Start(&registry);
//
// Thread safety: all methods from any thread, but Stop and the destructor from one at a time, and
// not from a listener of the registry's.

#ifndef FAILBACK_GATEWAY_DNS_DNS_SERVER_H_
#define FAILBACK_GATEWAY_DNS_DNS_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gateway/dns/explain.h"
#include "gateway/dns/service_table.h"
#include "gateway/dns/zone.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "registry/security/identity.h"

namespace failback::dns {

class DnsServer {
 public:
  struct Options {
    Zone zone;  // `addresses` are filled in
    ServiceTable::Options table = {};
    // HOST:PORT each, UDP and TCP on the same port; port 0: a free one.
    std::vector<std::string> listen = {};
    // Whether other machines may ask.
    bool allow_remote = false;
    // Who may read what, and as whom services are read; null: everything.
    std::shared_ptr<AccessControl> access = nullptr;
    Identity reader = {};
    // By UDP, to each network; 0: no limit.
    uint32_t responses_per_second = 200;
    size_t max_connections = 256;
    absl::Duration idle_timeout = absl::Seconds(10);
    // Queries that wait for the registry: of all clients, half of them those by UDP of other
    // machines, and of one network.
    size_t max_waiting = 1000;
    size_t max_waiting_of_network = 250;
    // What was registered here of a service, and is not acknowledged: for explanations. Null: nothing
    // is carried here. It may be called until the server has stopped.
    std::function<std::vector<NotRegistered>(const std::string& name_space,
                                             const std::string& service)>
        not_registered = nullptr;
  };

  struct Statistics {
    int64_t udp_queries = 0;
    int64_t tcp_queries = 0;
    // Responses, by what they say.
    int64_t no_error = 0;
    int64_t no_data = 0;  // of these: those without an answer
    int64_t nx_domain = 0;
    int64_t serv_fail = 0;
    int64_t refused = 0;
    int64_t other = 0;
    int64_t truncated = 0;
    int64_t limited = 0;  // truncated or dropped beyond the rate
    int64_t ignored = 0;  // packets that are no queries
    int64_t waiting = 0;
    int64_t connections = 0;
    int64_t closed_connections = 0;  // that had to make room
    ServiceTable::Statistics table;
  };

  // Takes the addresses. INVALID_ARGUMENT for one that cannot be listened on, FAILED_PRECONDITION
  // for one that is in use.
  static absl::StatusOr<std::unique_ptr<DnsServer>> Bind(const Options& options);
  ~DnsServer();  // as Stop

  // Begins to serve, once. `registry` outlives the server, or its Stop.
  void Start(Registry* registry);

  // Answers no more, and follows nothing.
  void Stop();

  // With the ports that were chosen.
  const std::vector<std::string>& addresses() const;
  // "failback."
  std::string domain() const;

  // "zone-a", or empty: whose instances have priority 0.
  const std::string& zone() const;

  Statistics Stats() const;

  // What is answered about `name`, and why; asks as a query does, and waits as one. INVALID_ARGUMENT
  // for a name of more than kMaxExplainedName bytes, RESOURCE_EXHAUSTED when too many wait,
  // UNAVAILABLE before the start and after the end. `done` runs once, perhaps before the method
  // returns.
  void Explain(std::string name, Callback<Explanation> done);

 private:
  class Impl;
  explicit DnsServer(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace failback::dns

#endif  // FAILBACK_GATEWAY_DNS_DNS_SERVER_H_
