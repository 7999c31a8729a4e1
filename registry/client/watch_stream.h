// The Watch stream of a GrpcRegistry, and the subscriptions on it. Internal to GrpcRegistry.
//
// What is sent when, and whose an item is, is said by a FollowFlow (registry/client/follow_flow.h). A
// message of the registry is read where it is, item by item; the next is read when the listeners
// have taken this one: slow listeners slow the stream, and the server conflates.
//
//   while (const auto stream = core->StreamOf<WatchStream>()) {
//     if (stream->Join(subscription)) break;   // else it takes no more: take another
//     core->Drop(stream.get());
//   }
//
// Thread safety: all methods from any thread. A stream keeps itself alive until gRPC has ended it.

#ifndef FAILBACK_REGISTRY_CLIENT_WATCH_STREAM_H_
#define FAILBACK_REGISTRY_CLIENT_WATCH_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "registry/client/follow_flow.h"
#include "registry/client/grpc_core.h"
#include "registry/model/event_reader.h"
#include "registry/watch/serial_notifier.h"
#include "registry/watch/watch_items.h"
#include "retry/mutex.h"

namespace failback {

class GrpcRegistry::WatchStream
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<WatchStream> {
 public:
  using Id = uint64_t;

  explicit WatchStream(std::shared_ptr<Core> core);
  void Start();

  // Begins a subscription. False when the stream takes no more.
  bool Join(const std::shared_ptr<Subscription>& subscription);
  // Ends one whose listener has gone, if it is open.
  void Leave(Id id) { Remove(id, /*notify=*/true); }
  // Ends the stream, and what is on it, with `status`.
  void Abandon(const absl::Status& status);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void Take(const WatchItemView& item);
  std::shared_ptr<Subscription> Find(Id id);
  // Takes one out; with a word to the registry if it does not know. The stream ends with its last.
  void Remove(Id id, bool notify);
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  std::shared_ptr<WatchStream> self_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;

  Mutex mu_;
  FollowFlow<Subscription> flow_ ABSL_GUARDED_BY(mu_);
  absl::Status reason_ ABSL_GUARDED_BY(mu_);  // why it was abandoned
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);
};

// One subscription. It takes bytes, and makes events of them.
class GrpcRegistry::Subscription {
 public:
  Subscription(std::shared_ptr<Core> core, const SubscribeRequest& request,
               std::shared_ptr<NotifyListener> listener);

  const std::string& request() const { return request_; }  // encoded

  // It is on `stream` now.
  void Joined(std::weak_ptr<WatchStream> stream, WatchStream::Id id);

  // The next message of it, and the end. An error: it does not follow on the one before.
  absl::Status Take(std::string_view message);
  void End(const absl::Status& status);

  // The subscriber has gone: it is sent nothing any more.
  void Unlisten();
  // The registry client goes: reports the end, and waits until it has been delivered.
  void Terminate(const absl::Status& status);

 private:
  const std::shared_ptr<Core> core_;
  const std::string request_;
  Mutex mu_;
  std::weak_ptr<WatchStream> stream_ ABSL_GUARDED_BY(mu_);
  WatchStream::Id id_ ABSL_GUARDED_BY(mu_) = 0;
  EventReader reader_;  // used by one reaction of the stream at a time
  SerialNotifier notifier_;
};

class GrpcRegistry::SubscriptionHandle : public SubscribeStream {
 public:
  explicit SubscriptionHandle(std::shared_ptr<Subscription> subscription)
      : subscription_(std::move(subscription)) {}
  ~SubscriptionHandle() override { subscription_->Unlisten(); }

 private:
  const std::shared_ptr<Subscription> subscription_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_WATCH_STREAM_H_
