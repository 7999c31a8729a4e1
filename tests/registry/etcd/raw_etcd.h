// Etcd's own calls, for what a test does to keys and leases itself.

#ifndef FAILBACK_TESTS_REGISTRY_ETCD_RAW_ETCD_H_
#define FAILBACK_TESTS_REGISTRY_ETCD_RAW_ETCD_H_

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_cluster.h"
#include "tests/util/daemons.h"

namespace failback {

// Etcd as another server uses it.
class RawEtcd {
 public:
  explicit RawEtcd(const EtcdCluster& etcd)
      : channel_(grpc::CreateChannel(etcd.endpoints()[0], grpc::InsecureChannelCredentials())),
        kv_(etcdserverpb::KV::NewStub(channel_)),
        lease_(etcdserverpb::Lease::NewStub(channel_)) {}

  // Its key's value and lease; nothing when it is not there.
  mvccpb::KeyValue Get(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    const auto response = Call<etcdserverpb::RangeResponse>(*kv_, &KvStub::Range, request);
    return response.kvs_size() == 0 ? mvccpb::KeyValue() : response.kvs(0);
  }
  void Put(const std::string& key, const std::string& value, int64_t lease) {
    etcdserverpb::PutRequest request;
    request.set_key(key);
    request.set_value(value);
    request.set_lease(lease);
    Call<etcdserverpb::PutResponse>(*kv_, &KvStub::Put, request);
  }
  int64_t Grant(absl::Duration ttl) {
    etcdserverpb::LeaseGrantRequest request;
    request.set_ttl(absl::ToInt64Seconds(ttl));
    return Call<etcdserverpb::LeaseGrantResponse>(*lease_, &LeaseStub::LeaseGrant, request).id();
  }
  void Revoke(int64_t lease) {
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease);
    Call<etcdserverpb::LeaseRevokeResponse>(*lease_, &LeaseStub::LeaseRevoke, request);
  }
  bool Lives(int64_t lease) {
    etcdserverpb::LeaseTimeToLiveRequest request;
    request.set_id(lease);
    return Call<etcdserverpb::LeaseTimeToLiveResponse>(*lease_, &LeaseStub::LeaseTimeToLive,
                                                       request)
               .ttl() > 0;
  }

 private:
  using KvStub = etcdserverpb::KV::Stub;
  using LeaseStub = etcdserverpb::Lease::Stub;

  template <typename Response, typename Stub, typename Request>
  static Response Call(Stub& stub,
                       grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
                       const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<KvStub> kv_;
  const std::unique_ptr<LeaseStub> lease_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_ETCD_RAW_ETCD_H_
