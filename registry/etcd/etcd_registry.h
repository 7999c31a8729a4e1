// EtcdRegistry: the registry for those who outgrow one machine, on an etcd cluster.
//
// Choose it where the registrations have to outlive any one machine: in an agent, directly
// (`--registry etcd://…`), or in any number of failback-registry (`--store etcd://…`) that share
// one cluster and are interchangeable. Everything that has to be remembered is in etcd (3.4 or
// later, v3 API); docs/etcd.md has the keys, the transactions and the decisions.
//
//  * Fencing, ranks and tombstones are those of docs/protocol.md, by transactions that compare
//    before they put (registry/etcd/writer.h).
//  * A session is a key and as many leases as its instances need (registry/etcd/sessions.h).
//  * A followed service is read once and watched once (registry/etcd/services.h).
//  * Calls fail over between the members, through changes of leader (registry/etcd/grpc_client.h).
//
//   EtcdRegistry::Options options;
//   options.client.endpoints = {"10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"};
//   options.client.timer = timer.get();
//   EtcdRegistry registry(std::move(options));
//
// What differs from the embedded store: a batch of more than about 125 intents is several commits,
// and so is the end of a session with more than about 500 instances; what expires leaves
// its fence only in services that are followed (a session's late calls fail with SESSION_UNKNOWN
// all the same); pages of a listing are in the order of etcd's keys; the Limits on instances and
// sessions are held approximately.
//
// Thread safety: as Registry. Callbacks and listeners run on gRPC's threads and the timer's.

#ifndef FAILBACK_REGISTRY_ETCD_ETCD_REGISTRY_H_
#define FAILBACK_REGISTRY_ETCD_ETCD_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/etcd/client.h"
#include "registry/etcd/grpc_client.h"
#include "registry/model/validation.h"
#include "registry/registry.h"
#include "registry/watch/subscription_hub.h"

namespace failback {

class EtcdRegistry final : public Registry {
 public:
  struct Options {
    // Members, credentials, timeouts, and the timer, which outlives the registry. `on_regress` is
    // the registry's own.
    etcd::GrpcClient::Options client;
    // All keys start with it: no slash at its end.
    std::string prefix = "/failback";

    absl::Duration default_ttl = absl::Seconds(10);
    absl::Duration min_ttl = absl::Seconds(1);
    absl::Duration max_ttl = absl::Hours(1);
    // An operator's mark on an instance that has gone with its session is kept this long, in
    // services that are followed here.
    absl::Duration offline_memory = absl::Hours(24);
    // Leases live longer than asked for by up to this share, at random.
    double lease_spread = 0.2;
    // Instances of a session on one: a put costs etcd time in proportion to the keys of its lease.
    int64_t keys_per_lease = 500;

    // Held approximately, by each server on its own (registry/etcd/limits.h); 0: no limit.
    int64_t max_instances = 0;
    int64_t max_instances_per_session = 0;
    int64_t max_sessions = 0;

    uint32_t max_batch = kDefaultMaxBatch;
    // Sent to clients; the server adapter enforces it.
    uint32_t max_request_bytes = 4 << 20;

    // How long subscribers are not notified that their watch has no stream, and Reachable that etcd
    // does not answer.
    absl::Duration watch_outage_limit = absl::Seconds(10);
    // Services without a follower are dropped after one to two of these.
    absl::Duration sweep_interval = absl::Seconds(30);
    SubscriptionHub::Options subscriptions;
  };

  struct Statistics {
    std::string store_id;
    uint64_t epoch = 0;  // 0: etcd has not answered yet
    int64_t watched_services = 0;
    etcd::Client::Statistics calls;
  };

  // Connects at the first call: an unavailable cluster is no error here.
  explicit EtcdRegistry(Options options);

  // As above, on a client of the caller's in place of `options.client`. `on_regress`: answers went
  // back behind what had been answered before.
  using MakeClient = std::function<std::unique_ptr<etcd::Client>(std::function<void()> on_regress)>;
  EtcdRegistry(Options options, const MakeClient& make_client);

  // For a server of many: asks etcd every two seconds from now on, so that what there is to be said
  // of an unavailable cluster is in the log, and in Reachable, before the first call. `on_change`
  // is notified when it begins to answer, and when it has not for `watch_outage_limit`.
  void Connect(std::function<void(bool reachable)> on_change);
  // `on_change` is not called any more when this has returned.
  void Disconnect();
  // OK, or since when etcd has not answered. OK without Connect, too.
  absl::Status Reachable() const;

  // Runs every callback not yet run with CANCELLED and ends every stream so. Sessions stay in etcd
  // until their leases end. In a callback or listener of its own it does not wait for other
  // threads.
  ~EtcdRegistry() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;
  // To be set before the first session is opened.
  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) override;

  Statistics Stats() const;

  // What an operator is shown (registry/etcd/operator_view.h). The agents are those that renew
  // through this registry.
  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done);
  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done);
  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done);
  void Describe(const InstanceKey& key, Callback<admin::v1::InstanceDescription> done);
  void Count(Callback<admin::v1::RegistryOverview> done);

 private:
  class Core;

  std::unique_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_ETCD_REGISTRY_H_
