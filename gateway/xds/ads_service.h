// The aggregated discovery service of xDS, over any Registry: stock gRPC clients in any language
// reach a registered service as `xds:///orders`, with no code of ours in them.
//
// It is served beside the registry's own API, by failback-agent to the programs on its machine and
// by failback-registry to those without an agent. docs/xds.md says what it does and leaves out.
//
//   xds::AdsService ads(&registry, options);
//   server_options.extra_services = {{&ads, xds::AdsService::kName}};
//   …
//   ads.Stop();
//   server->Shutdown(grace);
//
// One StreamState per stream decides what to say, one ServiceCache has what there is to say. A
// stream has one write under way; messages are made of slices that all streams share.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_GATEWAY_XDS_ADS_SERVICE_H_
#define FAILBACK_GATEWAY_XDS_ADS_SERVICE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "failback/xds/discovery.grpc.pb.h"
#include "gateway/xds/service_cache.h"
#include "gateway/xds/stream_state.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/log.h"
#include "registry/rpc/call_gauge.h"
#include "registry/security/access_control.h"
#include "retry/executor.h"
#include "retry/mutex.h"

namespace failback::xds {

class AdsService final
    : public envoy::service::discovery::v3::AggregatedDiscoveryService::
          WithRawCallbackMethod_StreamAggregatedResources<
              envoy::service::discovery::v3::AggregatedDiscoveryService::Service> {
 public:
  // For RegistryServer::Options::extra_services.
  static constexpr char kName[] = "envoy.service.discovery.v3.AggregatedDiscoveryService";

  struct Options {
    ServiceCache::Options cache;
    // Beyond it a new stream is refused with RESOURCE_EXHAUSTED. A caller that has a name has half
    // of them at most.
    size_t max_streams = 10000;
    // Names that one client follows over all its streams, where callers are distinguished by their
    // credentials, else that one address does: half of cache.max_services, so that no client takes
    // all. Beyond it the stream ends with LIMIT_REACHED.
    size_t max_names_per_client() const { return std::max<size_t>(1, cache.max_services / 2); }
    // Who may read what: a client that asks for a service that it may not read, or not any more,
    // loses its stream. Null: everybody everything.
    std::shared_ptr<AccessControl> access;
  };

  // A response that a client refused.
  struct Nack {
    absl::Time time;
    std::string node_id;
    std::string user_agent;
    ResourceType type = ResourceType::kListener;
    // The client's words.
    std::string reason;
  };

  struct Statistics {
    int64_t streams = 0;  // open now
    int64_t responses = 0;
    int64_t acks = 0;
    int64_t nacks = 0;
    // The newest.
    std::optional<Nack> last_nack;
    ServiceCache::Statistics cache;
  };

  // `registry` outlives the service.
  AdsService(Registry* registry, const Options& options);
  // After the server that serves it has shut down.
  ~AdsService() override;

  // Ends the streams, and refuses new ones. Clients keep what they have and look for another
  // server.
  void Stop();

  Statistics Stats() const;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamAggregatedResources(
      grpc::CallbackServerContext* context) override;

 private:
  class Stream;
  class Reactor;

  void Note(const StreamState& state, const StreamState::DiscoveryRequest& request,
            StreamState::Kind kind);

  // One more name, or one less, that `client` follows.
  absl::Status Count(const std::string& client);
  void Uncount(const std::string& client);

  const Options options_;
  const std::string version_prefix_;
  KeyedGauge silent_streams_{kSilentStreamsPerConnection};  // by connection
  KeyedGauge streams_of_callers_;                           // that have names
  // Notifies streams of changes, so that the registry's threads go on.
  ThreadPool executor_{1};
  ServiceCache cache_;
  std::atomic<int64_t> responses_{0};
  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  Statistics statistics_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> names_ ABSL_GUARDED_BY(mu_);  // by client
  LogThrottle refused_log_;
};

}  // namespace failback::xds

#endif  // FAILBACK_GATEWAY_XDS_ADS_SERVICE_H_
