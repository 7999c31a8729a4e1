// The registry's etcd::Client over a model of etcd and a simulated network: calls that are lost are
// sent again until they have taken too long, as GrpcClient's are, so each may arrive more than once;
// streams break.
//
//   auto host = std::make_shared<EtcdHost>(&clock);
//   EtcdRegistry registry(std::move(options), [&](std::function<void()>) {
//     return std::make_unique<ModelClient>(&network, link, registry_process, host);
//   });
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_ETCD_MODEL_CLIENT_H_
#define FAILBACK_TESTS_SIMULATE_ETCD_MODEL_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "registry/etcd/client.h"
#include "tests/simulate/etcd/etcd_model.h"
#include "tests/simulate/network.h"
#include "tests/simulate/process.h"

namespace failback::simulate {

// The machine of the one member, and the streams that it serves.
class EtcdHost {
 public:
  explicit EtcdHost(SimulatedClock* clock)
      : process_(std::make_shared<Process>("etcd", clock)), model_(process_.get()) {
    model_.OnRevision([this] {
      for (const auto& [id, wake] : std::map<uint64_t, std::function<void()>>(watches_)) wake();
    });
  }

  const std::shared_ptr<Process>& process() const { return process_; }
  EtcdModel& model() { return model_; }

  // `wake` runs after each revision, until Forget.
  uint64_t Wake(std::function<void()> wake) {
    watches_[++last_] = std::move(wake);
    return last_;
  }
  void Forget(uint64_t id) { watches_.erase(id); }

 private:
  const std::shared_ptr<Process> process_;
  EtcdModel model_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::function<void()>> watches_;
};

class ModelClient final : public etcd::Client {
 public:
  // `network` and `self`, whose client it is, outlive it.
  ModelClient(Network* network, int link, const std::shared_ptr<Process>& self,
              std::shared_ptr<EtcdHost> host);
  ~ModelClient() override;

  void Range(etcdserverpb::RangeRequest request, Done<etcdserverpb::RangeResponse> done) override;
  void Txn(etcdserverpb::TxnRequest request, Done<etcdserverpb::TxnResponse> done) override;
  void EncodedTxn(std::string request, Done<etcdserverpb::TxnResponse> done) override;
  void LeaseGrant(int64_t ttl_seconds, Done<int64_t> done) override;
  void LeaseRevoke(int64_t lease, Done<etcdserverpb::LeaseRevokeResponse> done) override;
  void LeaseTimeToLive(int64_t lease, bool keys,
                       Done<etcdserverpb::LeaseTimeToLiveResponse> done) override;
  std::shared_ptr<WatchStream> NewWatch(StreamEvents<etcdserverpb::WatchResponse> events) override;
  std::shared_ptr<RenewalStream> NewRenewal(
      StreamEvents<etcdserverpb::LeaseKeepAliveResponse> events) override;

  void After(absl::Duration delay, absl::AnyInvocable<void() &&> task) override;
  const Clock& clock() const override;
  void Shutdown() override;
  void Close() override { Shutdown(); }
  bool closed() const override;
  bool InCallback() const override { return false; }
  const Timing& timing() const override { return timing_; }
  Statistics Stats() const override { return {}; }

  // All streams break, and both sides know.
  void BreakStreams();

 private:
  struct Shared;
  template <typename Request, typename Response>
  class ModelStream;

  template <typename Response>
  void Unary(std::function<absl::StatusOr<Response>(EtcdModel*)> ask, Done<Response> done);

  const Timing timing_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_ETCD_MODEL_CLIENT_H_
