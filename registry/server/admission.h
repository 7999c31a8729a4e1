// Who gets in: what a call or stream of RegistryServer passes before its request is parsed. The
// caller is identified and a slot within each limit is taken (of a write first the slot, as its
// bytes count), and a server that stops takes nothing.
//
//   Permit permit = admission.AdmitCall(*context, CallStats::Method::kOpenSession);
//   if (!permit.refusal.ok()) return Refuse(permit.refusal);
//   permit.registry->OpenSession(…);        // permit.slot is kept until the call has ended
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SERVER_ADMISSION_H_
#define FAILBACK_REGISTRY_SERVER_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "registry/registry.h"
#include "registry/rpc/call_gauge.h"
#include "registry/security/access_control.h"
#include "registry/server/call_stats.h"

namespace failback {

struct Permit {
  // The registry as the caller may use it; not used after a refusal.
  std::shared_ptr<Registry> registry;
  // How the caller is known; empty: callers are not distinguished.
  std::string owner;
  // A slot within a limit, free again when this is destroyed; null after a refusal.
  std::shared_ptr<void> slot;
  absl::Status refusal;
};

class SubscriptionPermits;

class Admission {
 public:
  using Method = CallStats::Method;
  using Limit = CallStats::Limit;

  // As of RegistryServer::Options.
  struct Options {
    std::shared_ptr<AccessControl> access;
    int max_calls_in_flight = 0;
    int max_subscriptions = 0;
    int max_subscriptions_per_connection = 0;
    absl::Duration overload_delay;
  };

  // `registry` and `stats`, which counts refusals, outlive the object.
  Admission(Registry* registry, const Options& options, CallStats* stats);

  // Puts into `permit` who calls. Nothing is done if that has a refusal already.
  void Identify(const grpc::ServerContextBase& context, Method method, Permit* permit) const;

  // A call: one of those in flight.
  Permit AdmitCall(const grpc::ServerContextBase& context, Method method);

  // A message of a stream that was admitted: likewise, but its caller is known.
  Permit AdmitMessage();

  // A stream: until it is of use it has one of few slots of its connection. What is only begun is
  // kept small, and a caller who may do nothing may not keep a stream either.
  Permit AdmitStream(const grpc::ServerContextBase& context, Method method);

  // A List that AdmitCall has admitted, one of `reader`, which has its share of the calls. The
  // refusal, if any, is put into `permit`, and null returned.
  std::shared_ptr<void> AdmitList(const std::string& reader, Permit* permit);

  // A stream of subscriptions of a caller that Identify has identified; likewise.
  std::shared_ptr<SubscriptionPermits> AdmitSubscriptions(const grpc::ServerContextBase& context,
                                                          Permit* permit);

  // OVERLOADED, counted: at most `most` of `limit` are allowed, `of_what`, if not in all.
  absl::Status Overloaded(Limit limit, int64_t most, const std::string& of_what = "") const;

  // From now on calls and messages are refused with SHUTTING_DOWN.
  void Stop() { stopping_ = true; }
  bool stopping() const { return stopping_; }

  bool distinguishes_callers() const { return access_ != nullptr; }
  int64_t calls_in_flight() const { return calls_.count(); }

 private:
  friend class SubscriptionPermits;

  const std::shared_ptr<Registry> registry_;     // not owned
  const std::shared_ptr<AccessControl> access_;  // null: everybody may do everything
  const absl::Duration overload_delay_;
  CallStats* const stats_;
  std::atomic<bool> stopping_{false};
  Gauge calls_;
  KeyedGauge lists_of_readers_;  // waiting or under way
  Gauge subscriptions_;
  KeyedGauge subscriptions_of_owners_;
  KeyedGauge subscriptions_per_connection_;
  KeyedGauge silent_streams_{kSilentStreamsPerConnection};
};

// The permits of one stream of subscriptions: one for each that is open, and one for the stream
// itself while none is.
//
// Thread safety: guarded by its stream.
class SubscriptionPermits {
 public:
  // `admission` outlives it.
  SubscriptionPermits(Admission* admission, std::string owner, std::string connection)
      : admission_(admission), owner_(std::move(owner)), connection_(std::move(connection)) {}
  SubscriptionPermits(const SubscriptionPermits&) = delete;
  SubscriptionPermits& operator=(const SubscriptionPermits&) = delete;
  ~SubscriptionPermits() { Give(held_); }

  // Takes the stream's. OVERLOADED: there is none.
  absl::Status Open() { return Take(); }
  // A subscription begins; likewise. And some have ended.
  absl::Status Begin();
  void End(int subscriptions);

 private:
  absl::Status Take();
  void Give(int permits);

  Admission* const admission_;
  const std::string owner_;
  const std::string connection_;
  int held_ = 0;
  int open_ = 0;
};

// Who takes turns in reading: the owner, or where callers are not distinguished, the connection.
std::string ReaderOf(const grpc::ServerContextBase& context, const std::string& owner);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_ADMISSION_H_
