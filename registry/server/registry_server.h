// Serves any Registry over gRPC: the adapter that makes `failback-registry` out of a store, and
// `failback-agent` out of a FailbackRegistry.
//
// It adds nothing to the registry's answers and takes nothing away. What is its own:
//  * a subscriber that reads slowly is conflated (registry/watch/conflator.h), an event that many
//    get is encoded once (registry/server/event_cache.h);
//  * a session opened with `ends_with_stream` is closed when the KeepAlive stream that renewed it
//    last ends, except by the server's own shutdown;
//  * calls are made as far as the caller may make them (registry/security/guarded_registry.h);
//  * calls beyond `max_calls_in_flight` are refused with OVERLOADED and a delay;
//  * a request is parsed when its caller is known, and if what it holds is within bounds; one that
//    is compressed is refused (UNIMPLEMENTED), as it may become a thousand times as large;
//  * large Register and Unregister calls are parsed and carried out on threads of their own, so
//    that small calls, renewals and streams do not wait behind another caller's bulk; of the large
//    messages of RegisterStreams one at a time may stay where it was read;
//  * streams whose clients have stopped reading or renewing are ended, by a periodic task on the
//    wheel;
//  * a Registry that throws, or drops a callback, fails that call with INTERNAL;
//  * streams without a message yet are few on one connection, and none for callers who may do
//    nothing;
//  * grpc.health.v1 (registry/server/health_service.h) for "", RegistryService and each extra
//    service;
//  * addresses are checked and locked before use (registry/base/listen.h), and connections beyond
//    the process's descriptors are closed (registry/server/connection_acceptor.h).
//
// Example:
//
//   RegistryServer::Options options;
//   options.listen = {"127.0.0.1:7070"};
//   absl::StatusOr<std::unique_ptr<RegistryServer>> server =
//       RegistryServer::Start(&registry, options);
//   if (!server.ok()) Die(server.status());
//   for (const std::string& address : (*server)->addresses()) Say("listening on ", address);
//   …
//   (*server)->Shutdown(absl::Seconds(5));
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_REGISTRY_SERVER_H_
#define FAILBACK_REGISTRY_SERVER_REGISTRY_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/listen.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "registry/server/call_stats.h"
#include "registry/server/connection_acceptor.h"
#include "registry/server/health_service.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class RegistryServer {
 public:
  // A service to serve beside RegistryService. It outlives the server.
  struct ExtraService {
    grpc::Service* service = nullptr;
    // Its full name, for health.
    std::string name;
  };

  struct Options {
    // At least one: "127.0.0.1:7070", "[::1]:7070", "unix:/path"; port 0 lets the system choose.
    std::vector<std::string> listen;
    ListenOptions listen_options;
    // TLS on TCP addresses. Null: plain text; so are Unix sockets in any case.
    std::shared_ptr<grpc::ServerCredentials> credentials;
    // Who may do what. Null: everybody everything. Extra services ask it themselves.
    std::shared_ptr<AccessControl> access;
    std::vector<ExtraService> extra_services;
    // Sessions that the registry has from before a restart and that end with their stream, as those
    // opened here with `ends_with_stream` do.
    std::vector<std::string> stream_sessions;
    // Largest request, and most items of a Register or Unregister. What names no items is at most
    // 128 KB; see registry/model/wire_bounds.h.
    int max_message_bytes = 16 << 20;
    uint32_t max_batch = 1000;
    // Unary calls, and messages of RegisterStreams, that may be under way at once; beyond it they
    // are refused at once with OVERLOADED. 0: no limit. Calls that wait for an outage to end
    // (`wait_for` at an agent) count. The Lists of one owner, or where callers have no names of one
    // TCP connection, take half of them at most (registry/model/shared_limit.h).
    int max_calls_in_flight = 10000;
    // Large calls that wait for their turn, in bytes of their requests; likewise.
    int64_t max_bulk_bytes = int64_t{256} << 20;
    // Large answers that their clients have not read yet, in bytes; likewise, and one caller has
    // half of it at most. One that stays unread for `stalled_stream_timeout` is cancelled.
    int64_t max_unread_bytes = int64_t{64} << 20;
    // Open subscriptions, in all and on one TCP connection; likewise. With `access` an owner
    // has half of the first at most (registry/model/shared_limit.h). A Watch stream without
    // subscriptions counts as one.
    int max_subscriptions = 100000;
    int max_subscriptions_per_connection = 0;
    // Calls and streams of any kind on one connection, those that are only begun included. What a
    // client has beyond it waits at the client; one that sends it all the same is cut off. 0: no
    // limit.
    int max_streams_per_connection = 20000;
    // What a refused client is asked to wait.
    absl::Duration overload_delay = absl::Seconds(1);
    // A connection that is silent for so long is pinged, and closed if it does not answer in as
    // long.
    absl::Duration ping_interval = absl::Seconds(10);
    // A connection without calls for so long is closed.
    absl::Duration idle_connection_timeout = absl::InfiniteDuration();
    // With `credentials`: a connection ends after so long, give or take a tenth, and its streams
    // before it with UNAVAILABLE, so that no caller continues for longer with a certificate that
    // has expired or an authority that is not trusted any more. Streams of Unix sockets end as
    // well.
    absl::Duration longest_connection_age = absl::Hours(1);
    // Looks after the streams; it outlives the server. Null: no one looks after them.
    HashedWheelTimer* timer = nullptr;
    // A stream of events or RegisterStream whose client takes nothing for so long is cancelled.
    absl::Duration stalled_stream_timeout = absl::Seconds(30);
    // A KeepAlive or RegisterStream on which nothing comes for so long, and a Watch that has no
    // subscription for so long, is ended, but not its sessions. At least the longest TTL: then none of its sessions is alive.
    absl::Duration silent_stream_timeout = absl::Hours(1);
  };

  struct Statistics {
    CallStats::Snapshot calls;
    int64_t calls_in_flight = 0;  // unary, and messages of RegisterStreams
    int64_t subscriptions = 0;    // open: Subscribe streams, and those of Watch streams
    int64_t watch_streams = 0;    // open, likewise the next two
    int64_t renewal_streams = 0;
    int64_t register_streams = 0;
    int64_t bulk_bytes = 0;     // of large calls that wait for their turn
    int64_t reads_waiting = 0;  // Lists and Subscribes that wait for theirs
  };

  // Takes the addresses of `options` without listening there yet, for a process that is to open
  // nothing before it knows that it may run. INVALID_ARGUMENT or FAILED_PRECONDITION name the
  // address that cannot be listened on.
  static absl::StatusOr<std::vector<ListenAddress>> Claim(const Options& options);

  // Listens and serves `registry`, which outlives the server, at the addresses that Claim gave.
  static absl::StatusOr<std::unique_ptr<RegistryServer>> Start(Registry* registry,
                                                               const Options& options,
                                                               std::vector<ListenAddress> claimed);

  // Claim and Start in one.
  static absl::StatusOr<std::unique_ptr<RegistryServer>> Start(Registry* registry,
                                                               const Options& options);

  // As Shutdown(absl::ZeroDuration()).
  ~RegistryServer();

  // Where the server listens, ports filled in, in the order of Options::listen.
  const std::vector<std::string>& addresses() const { return addresses_; }

  Statistics Stats() const;

  // What health reports. True from the start; false sends new clients elsewhere.
  void SetServing(bool serving);

  // The same for a name of the caller's own, until Shutdown.
  void SetServing(const std::string& name, bool serving);

  // Stops: health says NOT_SERVING, streams end and new calls fail with SHUTTING_DOWN (for a moment
  // within `grace`, later with what gRPC says), a RegisterStream after the answers under way, calls
  // under way have `grace` to finish and are then cancelled. Blocks until all have ended; the
  // registry is not called after. Must not be called from a callback of the registry. Later calls
  // do nothing.
  void Shutdown(absl::Duration grace);

 private:
  class Service;
  using GrpcAcceptor = grpc::experimental::ExternalConnectionAcceptor;

  RegistryServer(std::unique_ptr<Service> service, std::vector<ListenAddress> listen);

  // Begins to listen, and hands the connections of each address to its acceptor.
  absl::Status Accept(const std::vector<std::shared_ptr<GrpcAcceptor>>& acceptors,
                      absl::Duration unacknowledged_timeout);

  const std::unique_ptr<Service> service_;
  std::vector<ListenAddress> listen_;
  std::vector<std::string> addresses_;
  std::vector<std::string> health_names_;
  HealthService health_{HealthService::Options()};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_REGISTRY_SERVER_H_
