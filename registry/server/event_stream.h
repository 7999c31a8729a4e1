// A stream of events at the server, as gRPC serves it: a Watch, or a Subscribe, which is one with a
// single subscription. Internal to the server.
//
// What is sent, and when a command is carried out, is decided by a pure machine
// (registry/watch/watch_flow.h). Here are its surroundings: its lock, the write under way, the
// threads on which subscriptions begin, and the permits that they have. A message is made of small
// heads and of slices that all streams share (registry/server/event_cache.h).
//
// A reactor (WatchReactor, SubscribeReactor) belongs to gRPC and is deleted at OnDone. The stream
// behind it lives for as long as the registry holds one of its listeners; what it has begun there
// is ended on the threads for reads, where it was begun: never within another's listener, where two
// streams could wait for each other.
//
// Thread safety: all methods from any thread. The lock is never held while the registry is called.

#ifndef FAILBACK_REGISTRY_SERVER_EVENT_STREAM_H_
#define FAILBACK_REGISTRY_SERVER_EVENT_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "registry/registry.h"
#include "registry/server/admission.h"
#include "registry/server/call_stats.h"
#include "registry/server/event_cache.h"
#include "registry/server/read_threads.h"
#include "registry/watch/watch_flow.h"
#include "retry/mutex.h"

namespace failback {

class EventStream : public std::enable_shared_from_this<EventStream> {
 public:
  // gRPC's side. It is used until Finish has been called.
  class Call {
   public:
    // Reads the next message, for Received.
    virtual void Read() = 0;
    virtual void Write(const grpc::ByteBuffer* message) = 0;
    virtual void Finish(const grpc::Status& status) = 0;

   protected:
    ~Call() = default;
  };

  struct Options {
    WatchFlow::Framing framing = WatchFlow::Framing::kWatch;
    WatchFlow::Limits limits;
    // As long-lived as the call, likewise `stats` and `reads`.
    grpc::CallbackServerContext* context = nullptr;
    CallStats* stats = nullptr;
    ReadThreads* reads = nullptr;
    // Who takes turns there.
    std::string reader;
    std::shared_ptr<EventCache> cache;
    // As the caller may use it.
    std::shared_ptr<Registry> registry;
    // Kept until gRPC is done with the call; null: the stream is aborted before it begins.
    std::shared_ptr<SubscriptionPermits> permits;
    // Let go with the first event.
    std::shared_ptr<void> silent;
    // Open subscriptions of the server's Watch streams; may be null.
    std::shared_ptr<std::atomic<int64_t>> watched;
  };

  EventStream(Call* call, Options options);

  // Begins to work.
  void Begin();
  // The one request of a Subscribe stream.
  void BeginWith(SubscribeRequest request);

  // A message of the client has been read; null: it sends no more.
  void Received(const grpc::ByteBuffer* message);
  void Written(bool ok);
  // gRPC is done with the call: ends what was begun at the registry.
  void Close();

  // Ends the stream when the write under way is done, without what is still to be sent.
  void Abort(const absl::Status& status);

  // Called at intervals: cancels the stream when one write has been under way for `stalled` of
  // them; ends it, after what is still to be sent, when it has been open for `oldest` of them, or
  // when it has had no subscription for `silent` of them.
  void Sweep(int stalled, int silent, int oldest);

 private:
  class Listener;

  // On a thread for reads: carries out some commands.
  void Work();
  void CarryOut(WatchFlow::Step step);
  void OnEvent(WatchFlow::Id id, const EventPtr& event);
  void OnEnd(WatchFlow::Id id, const absl::Status& status);

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives back the permits of subscriptions that are over.
  void CountOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Options options_;  // constant after construction
  Mutex mu_;
  Call* call_ ABSL_GUARDED_BY(mu_);  // null once finished
  WatchFlow flow_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SubscriptionPermits> permits_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<void> silent_ ABSL_GUARDED_BY(mu_);
  int64_t counted_ ABSL_GUARDED_BY(mu_) = 0;  // open subscriptions, in `watched`
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;  // Work is under way, or waits in `reads`
  ReadThreads::Slot waits_in_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);
  int sweeps_ ABSL_GUARDED_BY(mu_) = 0;
  int sweeps_since_write_ ABSL_GUARDED_BY(mu_) = 0;  // since the write under way began
  int sweeps_since_use_ ABSL_GUARDED_BY(mu_) = 0;    // without a subscription
};

// A Subscribe stream, on encoded messages.
class SubscribeReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                               private EventStream::Call {
 public:
  using OnStreamEnd = std::function<void(const std::shared_ptr<EventStream>& stream)>;

  // `on_end` runs when gRPC is done with the stream.
  SubscribeReactor(EventStream::Options options, OnStreamEnd on_end);

  const std::shared_ptr<EventStream>& stream() const { return stream_; }

 private:
  void Read() override {}
  void Write(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Finish(const grpc::Status& status) override { ServerWriteReactor::Finish(status); }
  void OnWriteDone(bool ok) override { stream_->Written(ok); }
  void OnCancel() override;
  void OnDone() override;

  const std::shared_ptr<EventStream> stream_;
  const OnStreamEnd on_end_;
};

// A Watch stream, likewise.
class WatchReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           private EventStream::Call {
 public:
  using OnStreamEnd = SubscribeReactor::OnStreamEnd;

  WatchReactor(EventStream::Options options, OnStreamEnd on_end);

  const std::shared_ptr<EventStream>& stream() const { return stream_; }

 private:
  void Read() override { StartRead(&request_); }
  void Write(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Finish(const grpc::Status& status) override { ServerBidiReactor::Finish(status); }
  void OnReadDone(bool ok) override { stream_->Received(ok ? &request_ : nullptr); }
  void OnWriteDone(bool ok) override { stream_->Written(ok); }
  void OnCancel() override;
  void OnDone() override;

  grpc::ByteBuffer request_;
  const std::shared_ptr<EventStream> stream_;
  const OnStreamEnd on_end_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_EVENT_STREAM_H_
