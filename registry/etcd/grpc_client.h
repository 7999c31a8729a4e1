// A client of one etcd cluster over gRPC: unary calls that fail over, and streams.
//
// A call is tried at the member that answered last. When that one cannot be reached, is too slow
// (`attempt_timeout`), or knows no leader, the next member is asked, and so on in turn with a pause
// after each round, until `call_timeout` has passed. So a change of leader costs the caller time
// and no error. With a user, calls carry a token, which is renewed when etcd no longer takes it.
//
//   GrpcClient client(std::move(options));
//
// Thread safety: as Client. Callbacks run on gRPC's threads or the timer's.

#ifndef FAILBACK_REGISTRY_ETCD_GRPC_CLIENT_H_
#define FAILBACK_REGISTRY_ETCD_GRPC_CLIENT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "registry/etcd/client.h"
#include "registry/rpc/grpc_channels.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class GrpcClient final : public Client {
 public:
  struct Options : Timing {
    Options() {
      channel.connect_timeout = absl::Seconds(1);
      channel.ping_interval = absl::Seconds(6);  // etcd allows one every 5 s
      channel.ping_timeout = absl::Seconds(4);
      channel.max_message_bytes = 256 << 20;  // a page of large instances
    }

    // At least one, as "host:port".
    std::vector<std::string> endpoints;
    // Credentials, pings, sizes.
    GrpcChannelOptions channel;
    // With a user every call carries a token of his.
    std::string user;
    std::string password;
    // Outlives the client.
    HashedWheelTimer* timer = nullptr;
    // Answers went back behind what had been answered before: the store was restored from an older
    // state.
    std::function<void()> on_regress;
  };

  explicit GrpcClient(Options options);
  // As Close.
  ~GrpcClient() override;

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
  const Clock& clock() const override { return *clock_; }

  void Shutdown() override;
  void Close() override;
  bool closed() const override;
  bool InCallback() const override;

  const Timing& timing() const override { return options_; }
  Statistics Stats() const override;

  // What streams need. A Member is where a stream is opened.
  struct Member {
    GrpcChannels::Picked picked;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Watch::Stub> watch;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  };
  // The member for the next call; the next one in turn after Report of a failure.
  std::shared_ptr<const Member> Pick();
  void Report(const Member& member, const absl::Status& status);
  // Runs `ready` with a token (empty without a user), or why there is none.
  void GetToken(Done<std::string> ready);
  // `token` is not taken any more.
  void DropToken(const std::string& token);
  // Adds what every call carries.
  static void Prepare(const std::string& token, grpc::ClientContext* context);
  // Marks this thread as being in a callback.
  class Frame {
   public:
    explicit Frame(GrpcClient* client) : client_(client) { client_->EnterFrame(+1); }
    ~Frame() { client_->EnterFrame(-1); }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    GrpcClient* const client_;
  };
  // Counts a call or stream as under way, to be cancelled by Shutdown. False after Shutdown.
  bool Enter(grpc::ClientContext* context);
  // `context` is over, its callback has run.
  void Leave(grpc::ClientContext* context);

 private:
  template <typename Request, typename Response>
  struct Call;

  template <typename Request, typename Response, typename Start>
  void Unary(Request request, Done<Response> done, Start start);
  void FetchToken();
  void OnToken(absl::StatusOr<std::string> token);
  void Ended(const absl::Status& status, int64_t nanos);
  // Logs when etcd does not answer any more, and when it does again.
  void NoteAnswer(const absl::Status& status);
  void EnterFrame(int change);
  int64_t KnownRevision();
  void NoteHeader(int64_t known_at_start, const etcdserverpb::ResponseHeader& header);

  const Options options_;
  const Clock* const clock_;  // may be asked when the timer is gone
  GrpcChannels channels_;
  std::array<std::atomic<int64_t>, 17> ended_{};
  std::atomic<bool> answers_{true};  // as last logged
  AtomicHistogram duration_nanos_{kLatencyBoundsNanos};

  mutable Mutex mu_;
  CondVar idle_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;  // delayed tasks that have been taken to run
  absl::flat_hash_map<std::thread::id, int> frames_ ABSL_GUARDED_BY(mu_);
  uint64_t last_delayed_ ABSL_GUARDED_BY(mu_) = 0;
  struct Delayed;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Delayed>> delayed_ ABSL_GUARDED_BY(mu_);

  Mutex members_mu_;
  std::vector<std::shared_ptr<const Member>> members_ ABSL_GUARDED_BY(members_mu_);

  mutable Mutex token_mu_;
  std::string token_ ABSL_GUARDED_BY(token_mu_);
  bool fetching_ ABSL_GUARDED_BY(token_mu_) = false;
  bool without_token_ ABSL_GUARDED_BY(token_mu_) = false;  // etcd has authentication off
  int64_t tokens_ ABSL_GUARDED_BY(token_mu_) = 0;          // that were given
  std::vector<Done<std::string>> waiting_ ABSL_GUARDED_BY(token_mu_);

  Mutex revision_mu_;
  uint64_t cluster_id_ ABSL_GUARDED_BY(revision_mu_) = 0;
  int64_t revision_ ABSL_GUARDED_BY(revision_mu_) = 0;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_GRPC_CLIENT_H_
