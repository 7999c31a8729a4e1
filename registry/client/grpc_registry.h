// A registry elsewhere, over gRPC: the client of RegistryService.
//
// Choose it to speak to a `failback-registry` or a `failback-agent` without retries of its own:
// every call is one attempt with a deadline, and its failure is the caller's to handle
// (FailbackRegistry does, for those who would rather not). Calls fail fast: while the registry
// cannot be reached each makes one connection attempt and returns UNAVAILABLE with its error, and
// the first one after the registry is back succeeds (registry/rpc/grpc_channels.h says how).
//
// All renewals share one KeepAlive stream, opened at the first and again after it broke. Large
// Registers go on one RegisterStream, open as long as answers are waited for. A Register that is
// small or alone, that is answered late on purpose (wait_for) or traced, and each one at a registry
// that has no such stream, goes as a call. A stream that breaks fails what waits on it; what is not
// answered in time ends its stream, so that the next one tries another.
//
// All subscriptions share one Watch stream, which is open while there are any. They are checked as
// they come (registry/model/event_order.h): what does not follow from what came before is not handed
// on, and the subscription ends with ABORTED. A caller that receives ABORTED without the reason
// REPLACED subscribes again without epoch and revision. When the stream breaks all of them end with
// its status. A registry of 0.1.0 has no such stream: there each subscription ends with
// UNIMPLEMENTED, and all else works.
//
// Example:
//
//   auto registry = std::make_unique<GrpcRegistry>(
//       std::vector<std::string>{"127.0.0.1:7070"}, GrpcRegistryOptions());
//   registry->List(request, [](absl::StatusOr<ListResponse> response) { … });
//
// Thread safety and callbacks: as Registry. Callbacks run on gRPC's threads.
//
// Invariants:
//  1. Each `done` runs once; after the destructor has returned none runs, nor any listener, but
//     the one that called the destructor.
//  2. A listener gets no message that does not follow from the one before.
//  3. At most one KeepAlive stream is open, and one RegisterStream and one Watch take requests.

#ifndef FAILBACK_REGISTRY_CLIENT_GRPC_REGISTRY_H_
#define FAILBACK_REGISTRY_CLIENT_GRPC_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "registry/registry.h"
#include "registry/rpc/grpc_channels.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

struct GrpcRegistryOptions {
  GrpcChannelOptions channel;
  // Deadline of each unary call and of each renewal. Calls with `wait_for` ACKNOWLEDGED to an
  // agent may need more.
  absl::Duration call_timeout = absl::Seconds(5);
  // For the deadlines of renewals, which share a stream; outlives the client. nullptr: its own.
  HashedWheelTimer* timer = nullptr;
};

class GrpcRegistry final : public Registry {
 public:
  // `addresses`, at least one, of one registry: "host:port", "[::1]:port" or "unix:/path" (see
  // registry/client/upstream.h for URIs). Connects at the first call.
  GrpcRegistry(std::vector<std::string> addresses, GrpcRegistryOptions options);

  // Completes what is under way with CANCELLED and ends the streams.
  ~GrpcRegistry() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  // What validation refuses is sent as it came, for the registry to judge.
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;
  // Reported by the end of the KeepAlive stream, which is open from the first session on.
  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) override;

 private:
  class Core;
  class KeepAliveStream;
  class RegisterStream;
  class WatchStream;
  class Subscription;
  class SubscriptionHandle;
  struct Pending;
  template <typename Response>
  struct PendingOf;
  template <typename Request, typename Response>
  struct Asked;
  using Renewal = Asked<KeepAliveRequest, KeepAliveResponse>;
  using StreamedRegister = Asked<grpc::ByteBuffer, RegisterResponse>;
  template <typename Response>
  struct UnaryCall;

  // Shared with what gRPC still works on.
  const std::shared_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_GRPC_REGISTRY_H_
