#include "registry/server/connection_bounds.h"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "registry/server/stream_sweep.h"

namespace failback {
namespace {

int Millis(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, INT_MAX));
}

// As gRPC gives a connection in plain text to say something.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(20);

}  // namespace

absl::Duration LongestStream(const RegistryServer::Options& options) {
  return options.credentials == nullptr ? absl::InfiniteDuration()
                                        : OldestStream(options.longest_connection_age);
}

void BoundConnections(const RegistryServer::Options& options, grpc::ServerBuilder* builder) {
  const int ping_ms = static_cast<int>(absl::ToInt64Milliseconds(options.ping_interval));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Millis(kHandshakeTimeout));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  if (options.idle_connection_timeout < absl::InfiniteDuration()) {
    builder->AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_IDLE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(options.idle_connection_timeout)));
  }
  if (const absl::Duration oldest = LongestStream(options); oldest < absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Millis(oldest));
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Millis(1.1 * oldest));
  }
  if (options.max_streams_per_connection > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                                options.max_streams_per_connection);
  }
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->SetMaxSendMessageSize(-1);
  // gRPC checks the size of a message before it inflates it, not after.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

}  // namespace failback
