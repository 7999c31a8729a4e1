// Renews leases, on one stream for all of them.
//
// When the stream breaks, or does not answer within the client's attempt_timeout, what is
// unanswered goes to another member on a new one, until the client's call_timeout has passed. It
// stays open between renewals, so that its end shows when etcd has gone while nothing is asked.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_LEASE_RENEWER_H_
#define FAILBACK_REGISTRY_ETCD_LEASE_RENEWER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class LeaseRenewer {
 public:
  // `client` outlives the renewer, and is closed before the renewer goes.
  explicit LeaseRenewer(Client* client) : client_(client) {}

  // The lease's new time to live in seconds; 0: there is no such lease.
  void Renew(int64_t lease, Client::Done<int64_t> done);

  // `on_break` runs at each end of the stream that no renewal was waiting on, until the client is
  // closed. Null: none.
  void SetBreakListener(std::function<void(const absl::Status&)> on_break);
  // Opens the stream, where there is a listener for its end.
  void Hold();

 private:
  struct Waiter {
    SteadyTime deadline;
    Client::Done<int64_t> done;
  };
  struct Lease {
    SteadyTime sent;
    std::vector<Waiter> waiters;
  };

  // A stream for all that is unanswered, to be started without the lock.
  std::shared_ptr<Client::RenewalStream> NewStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Reopen();
  void OnAnswer(const etcdserverpb::LeaseKeepAliveResponse& response);
  void OnStreamEnd(const absl::Status& status);
  void Check();

  Client* const client_;
  Mutex mu_;
  absl::flat_hash_map<int64_t, Lease> leases_ ABSL_GUARDED_BY(mu_);  // unanswered
  std::shared_ptr<Client::RenewalStream> stream_ ABSL_GUARDED_BY(mu_);
  bool reopening_ ABSL_GUARDED_BY(mu_) = false;  // in a moment
  bool checking_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const absl::Status&)> on_break_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_LEASE_RENEWER_H_
