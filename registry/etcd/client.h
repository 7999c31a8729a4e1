// What the registry needs of an etcd cluster: calls that fail over between members, streams, and
// time. GrpcClient (registry/etcd/grpc_client.h) is one over gRPC; tests have one over a model of
// etcd on simulated time.
//
// Every call may arrive more than once: callers write with transactions that compare first.
//
//   TxnRequest request; …
//   client->Txn(std::move(request), [](absl::StatusOr<TxnResponse> response) { … });
//   client->Close();   // every callback has run
//
// Thread safety: all methods from any thread. Callbacks run on threads of the client's or the
// timer's, and must not block. Close and the destructor must not be called from one; Shutdown may
// be.

#ifndef FAILBACK_REGISTRY_ETCD_CLIENT_H_
#define FAILBACK_REGISTRY_ETCD_CLIENT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/rpc.pb.h"
#include "registry/base/steady_time.h"
#include "retry/clock.h"
#include "retry/histogram.h"

namespace failback {
namespace etcd {

class Client {
 public:
  struct Timing {
    // All of a call, and one attempt of it. Who waits for it has five seconds as a rule
    // (GrpcRegistryOptions::call_timeout), and is to receive the refusal within them.
    absl::Duration call_timeout = absl::Milliseconds(4500);
    absl::Duration attempt_timeout = absl::Seconds(2);
    // The pause after every member has been tried.
    absl::Duration round_delay = absl::Milliseconds(100);
  };

  // Unary calls that have ended, through all their attempts.
  struct Statistics {
    std::array<int64_t, 17> ended{};  // by status code
    Histogram duration_nanos{kLatencyBoundsNanos};
    int64_t tokens = 0;  // that the cluster has given for user and password
  };

  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // A stream to one member, with its queue of messages. It lives until its end, which is reported
  // once; its owner opens the next one, which goes to another member if this one failed. Messages
  // and the end come one at a time, the end last.
  template <typename Request>
  class Stream {
   public:
    virtual ~Stream() = default;
    // Once, and without a lock that the events take: the end may come before it returns. What is
    // sent before is sent then.
    virtual void Start() = 0;
    virtual void Send(Request request) = 0;
    // Ends the stream with `reason`.
    virtual void Abandon(const absl::Status& reason) = 0;
  };
  template <typename Response>
  struct StreamEvents {
    std::function<void(Response)> on_message;
    std::function<void(const absl::Status&)> on_end;
  };
  using WatchStream = Stream<etcdserverpb::WatchRequest>;
  using RenewalStream = Stream<etcdserverpb::LeaseKeepAliveRequest>;

  virtual ~Client() = default;

  virtual void Range(etcdserverpb::RangeRequest request,
                     Done<etcdserverpb::RangeResponse> done) = 0;
  // Range of one key.
  void Get(std::string key, Done<etcdserverpb::RangeResponse> done) {
    etcdserverpb::RangeRequest request;
    request.set_key(std::move(key));
    Range(std::move(request), std::move(done));
  }
  virtual void Txn(etcdserverpb::TxnRequest request, Done<etcdserverpb::TxnResponse> done) = 0;
  // The same, of a request that is serialized already.
  virtual void EncodedTxn(std::string request, Done<etcdserverpb::TxnResponse> done) = 0;
  // The new lease's id.
  virtual void LeaseGrant(int64_t ttl_seconds, Done<int64_t> done) = 0;
  virtual void LeaseRevoke(int64_t lease, Done<etcdserverpb::LeaseRevokeResponse> done) = 0;
  // `keys`: with those that are on it.
  virtual void LeaseTimeToLive(int64_t lease, bool keys,
                               Done<etcdserverpb::LeaseTimeToLiveResponse> done) = 0;

  // A stream to be started.
  virtual std::shared_ptr<WatchStream> NewWatch(
      StreamEvents<etcdserverpb::WatchResponse> events) = 0;
  virtual std::shared_ptr<RenewalStream> NewRenewal(
      StreamEvents<etcdserverpb::LeaseKeepAliveResponse> events) = 0;

  // Runs `task` once, after `delay`, on the timer's thread; earlier when the client is closed.
  virtual void After(absl::Duration delay, absl::AnyInvocable<void() &&> task) = 0;
  // Of the timer.
  virtual const Clock& clock() const = 0;
  SteadyTime Now() const { return absl::Nanoseconds(clock().NowNanos()); }
  absl::Time WallNow() const { return clock().WallNow(); }

  // Cancels what is under way. Later calls fail with CANCELLED at once. The timer is not used any
  // more.
  virtual void Shutdown() = 0;
  // Shutdown, and waits until every callback has run.
  virtual void Close() = 0;
  virtual bool closed() const = 0;
  // Whether this thread is in one of the client's callbacks.
  virtual bool InCallback() const = 0;

  virtual const Timing& timing() const = 0;
  virtual Statistics Stats() const = 0;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_CLIENT_H_
