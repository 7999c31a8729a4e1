// How soon a gRPC channel connects again: by gRPC's defaults it may wait for two minutes, in which
// a server that is long back gets no call.
//
// For channels that are kept. Where retries have a pace of their own, a channel that could not
// connect is replaced instead (registry/rpc/grpc_channels.h).
//
// Thread safety: any thread.

#ifndef FAILBACK_REGISTRY_RPC_RECONNECT_BACKOFF_H_
#define FAILBACK_REGISTRY_RPC_RECONNECT_BACKOFF_H_

#include "absl/time/time.h"
#include "grpcpp/support/channel_arguments.h"

namespace failback {

// One attempt takes no longer than `attempt` (if the backoff is not longer), and the next comes
// after 100 ms at first, and never later than `longest`. gRPC takes neither below 100 ms.
inline void SetReconnectBackoff(absl::Duration attempt, absl::Duration longest,
                                grpc::ChannelArguments* arguments) {
  const auto millis = [](absl::Duration d) {
    return static_cast<int>(absl::ToInt64Milliseconds(d));
  };
  arguments->SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name, how long one connection attempt may take.
  arguments->SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, millis(attempt));
  arguments->SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, millis(longest));
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_RECONNECT_BACKOFF_H_
