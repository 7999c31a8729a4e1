// The gRPC channels of one registry with one or several addresses: which one does the next
// call take?
//
// gRPC reconnects by its own backoff, and while that waits every call fails at once with an error
// that may be seconds old; it also asks DNS again only every 30 s. Retries here are paced by the
// timing wheel, so a second backoff below it only makes recovery late. Therefore a channel that has
// failed to connect is thrown away when the next call comes: the call goes to a fresh one, which
// resolves and connects now, and fails only if that attempt fails. Calls that come meanwhile join
// that attempt. So after an outage the first call succeeds, and an outage costs as many connection
// attempts as there are calls: their pace is the caller's.
//
// With several addresses calls stay at one until it fails, then move on to the next.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_RPC_GRPC_CHANNELS_H_
#define FAILBACK_REGISTRY_RPC_GRPC_CHANNELS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "registry/base/steady_time.h"
#include "registry/security/client_security.h"
#include "retry/mutex.h"

namespace failback {

struct GrpcChannelOptions {
  // TLS, certificate, token. Null: plain text, and an anonymous caller.
  std::shared_ptr<ClientSecurity> security;
  // One connection attempt, TLS included.
  absl::Duration connect_timeout = absl::Seconds(2);
  // Pings while calls are open, and how long the answer may take: a half-open connection is
  // found within the sum.
  absl::Duration ping_interval = absl::Seconds(10);
  absl::Duration ping_timeout = absl::Seconds(10);
  // Largest message, either way.
  int max_message_bytes = 16 << 20;
  // Put before gRPC's own.
  std::string user_agent = "failback";
};

class GrpcChannels {
 public:
  using Stub = registry::v1::RegistryService::Stub;

  // `addresses`, at least one, as "host:port", "[::1]:port" or "unix:/path". Connects at the first
  // call.
  GrpcChannels(std::vector<std::string> addresses, GrpcChannelOptions options);

  struct Picked {
    std::shared_ptr<Stub> stub;
    size_t index;
    std::shared_ptr<grpc::Channel> channel;
  };

  // What the next call takes.
  Picked Pick();

  // Adds to a call, before it starts, what the registry is to know the caller by. An error is the
  // call's outcome, without a call.
  absl::Status Authenticate(grpc::ClientContext* context) const;

  // A call by `picked` has ended with `status`: the next one goes to another address if this one
  // cannot be reached, or is stopping.
  void Report(const Picked& picked, const absl::Status& status);

  // A session was opened by `picked` at this store. An error when another address led to another
  // store before: two registries behind one URI. The next call goes to another address. A store is
  // accepted the fifth time in a row, so that a fleet is not left without any.
  absl::Status ReportStore(const Picked& picked, const std::string& store_id);

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Slot {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<Stub> stub;
    SteadyTime created = SteadyPast();
  };

  Slot NewSlot(const std::string& address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<std::string> addresses_;
  const GrpcChannelOptions options_;
  Mutex mu_;
  ClientSecurity::Credentials credentials_ ABSL_GUARDED_BY(mu_);  // of the slots
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  size_t current_ ABSL_GUARDED_BY(mu_) = 0;
  // Of the last session that was accepted: its store, and the address that led there.
  std::string store_id_ ABSL_GUARDED_BY(mu_);
  size_t store_address_ ABSL_GUARDED_BY(mu_) = 0;
  int refused_stores_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_GRPC_CHANNELS_H_
