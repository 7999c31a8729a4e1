// grpc.health.v1, with bounds: who can connect may ask, without credentials, so what a Watch costs
// is bounded for each connection, for each address that connections come from, and in all.
//
//   HealthService health(HealthService::Options());
//   health.Set("", true);
//   builder.RegisterService(&health);
//   …
//   health.Stop();               // all are NOT_SERVING, and watches end with SHUTTING_DOWN
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_HEALTH_SERVICE_H_
#define FAILBACK_REGISTRY_SERVER_HEALTH_SERVICE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "registry/rpc/call_gauge.h"
#include "retry/mutex.h"

namespace failback {

class HealthService final : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
                                grpc::health::v1::Health::WithRawCallbackMethod_Watch<
                                    grpc::health::v1::Health::Service>> {
 public:
  struct Options {
    // Watches at once; beyond them they are refused with OVERLOADED. Clients on a Unix socket look
    // all alike: they are one address, and no connection.
    int max_watches = 10000;
    int max_watches_per_address = 1000;
    int max_watches_per_connection = kSilentStreamsPerConnection;
    // What a refused client is asked to wait.
    absl::Duration overload_delay = absl::Seconds(5);
  };

  explicit HealthService(const Options& options);
  ~HealthService() override;

  // What answers say of a service from now on, until Stop.
  void Set(const std::string& name, bool serving);

  // Watches end when they have been notified that nothing serves any more.
  void Stop();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  using State = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;

  State StateOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const std::string& name, const std::shared_ptr<Watcher>& watcher);

  const Options options_;
  Gauge watches_;
  KeyedGauge watches_of_addresses_;
  KeyedGauge watches_of_connections_;
  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::set<std::shared_ptr<Watcher>>> watchers_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_HEALTH_SERVICE_H_
