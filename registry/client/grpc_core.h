// What the calls and the streams of a GrpcRegistry share: the table of what callers wait for, the
// channels, and which streams are open. Internal to GrpcRegistry.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_CLIENT_GRPC_CORE_H_
#define FAILBACK_REGISTRY_CLIENT_GRPC_CORE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "registry/base/trace_context.h"
#include "registry/client/grpc_registry.h"
#include "registry/model/errors.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {

// A call that a caller waits for.
struct GrpcRegistry::Pending {
  virtual ~Pending() = default;
  // Ends what gRPC still does for it.
  virtual void Cancel() = 0;
  // Runs its callback.
  virtual void Fail(const absl::Status& status) = 0;
};

template <typename Response>
struct GrpcRegistry::PendingOf : Pending {
  void Fail(const absl::Status& status) override { std::move(done)(status); }

  Callback<Response> done;
};

// A message on its way, on a stream.
template <typename Request, typename Response>
struct GrpcRegistry::Asked : PendingOf<Response> {
  using ResponseType = Response;

  // Calls `late` after `timeout`, unless cancelled. An error: the timer is stopped.
  absl::Status SetDeadline(HashedWheelTimer* timer, absl::Duration timeout, TimerTask late) {
    MutexLock lock(&mu);
    if (cancelled) return absl::OkStatus();
    absl::StatusOr<Timeout> set = timer->ScheduleUnbounded(std::move(late), timeout);
    if (!set.ok()) return set.status();
    deadline = *std::move(set);
    return absl::OkStatus();
  }

  void Cancel() override {
    MutexLock lock(&mu);
    cancelled = true;
    deadline.Cancel();
  }

  Request request;

 private:
  Mutex mu;
  Timeout deadline ABSL_GUARDED_BY(mu);
  bool cancelled ABSL_GUARDED_BY(mu) = false;
};

// What calls share, and keep alive until gRPC is done with them. Owns the callbacks that have not
// run: the thread that takes a Pending out of the table runs it.
class GrpcRegistry::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::vector<std::string> addresses, GrpcRegistryOptions options)
      : options(std::move(options)), channels(std::move(addresses), this->options.channel) {
    if (this->options.timer != nullptr) return;
    own_timer_ = HashedWheelTimer::Create(HashedWheelTimer::Options()).value();
    this->options.timer = own_timer_.get();
  }

  // Counts `pending` as under way. False, with its callback run, after Close().
  bool Begin(const std::shared_ptr<Pending>& pending);

  // Completes `pending` unless it has been already.
  template <typename Response>
  void Complete(const std::shared_ptr<PendingOf<Response>>& pending,
                absl::StatusOr<Response> response) {
    if (!Claim(pending.get())) return;
    std::move(pending->done)(std::move(response));
    Release();
  }

  // One call of RegistryService's `method`, with its deadline.
  template <typename Request, typename Response>
  void Call(const char* method, const Request& request, Callback<Response> done) {
    CallPath(PathOf(method), request, std::move(done));
  }
  template <typename Request, typename Response>
  void CallPath(const std::string& path, const Request& request, Callback<Response> done);
  // `encode` writes the request, of `size` bytes, into a buffer.
  template <typename Response, typename Encode>
  void CallEncoded(const std::string& path, size_t size, Callback<Response> done, Encode encode);
  static std::string PathOf(const char* method) {
    return absl::StrCat("/", registry::v1::RegistryService::service_full_name(), "/", method);
  }

  // The stream of its kind; a new one if there is none, or null after Close().
  template <typename Stream>
  std::shared_ptr<Stream> StreamOf();
  // Sends `asked` on that stream, with the deadline of a call.
  template <typename Stream>
  void Ask(const std::shared_ptr<typename Stream::AskType>& asked);
  // `asked` was not answered in time: fails it, and ends the stream that it waits on.
  template <typename Stream>
  void GiveUp(const std::shared_ptr<typename Stream::AskType>& asked);
  // `stream` takes no more.
  template <typename Stream>
  void Drop(const Stream* stream);

  // Whether a Register of `size` bytes may go on a stream: a small one is not to wait behind
  // others' answers, and a trace belongs to a call.
  bool IsLarge(size_t size) const {
    return size > kLargestSmall && size <= static_cast<size_t>(options.channel.max_message_bytes) &&
           CurrentTrace().empty();
  }
  // Large Registers under way.
  std::atomic<int> large{0};
  // Whether the registry has a RegisterStream, as far as is known.
  bool streams() const { return streams_; }
  // The registry knows no RegisterStream: takes a call for this and all that follow.
  void CallInstead(const std::shared_ptr<StreamedRegister>& asked);

  // False after Close().
  bool Add(const std::shared_ptr<Subscription>& subscription);
  void Remove(const Subscription* subscription);

  void Close();

  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) {
    MutexLock lock(&mu_);
    disconnect_listener_ = listener;
  }
  // The connection is gone, and no call was waiting for an answer.
  void Disconnected(const absl::Status& status);

  GrpcRegistryOptions options;  // constant after construction
  GrpcChannels channels;

 private:
  static constexpr size_t kLargestSmall = 4096;

  bool Claim(const Pending* pending);
  void Release();

  std::atomic<bool> streams_{true};

  Mutex mu_;
  CondVar released_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<const Pending*, std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Subscription*, std::shared_ptr<Subscription>> subscriptions_
      ABSL_GUARDED_BY(mu_);
  std::tuple<std::shared_ptr<KeepAliveStream>, std::shared_ptr<RegisterStream>,
             std::shared_ptr<WatchStream>>
      streams_open_ ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> disconnect_listener_ ABSL_GUARDED_BY(mu_);
  // Threads in a callback, once per callback.
  std::vector<std::thread::id> running_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HashedWheelTimer> own_timer_;  // if the options have none
};

template <typename Stream>
std::shared_ptr<Stream> GrpcRegistry::Core::StreamOf() {
  MutexLock lock(&mu_);
  if (closed_) return nullptr;
  auto& stream = std::get<std::shared_ptr<Stream>>(streams_open_);
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(shared_from_this());
    stream->Start();
  }
  return stream;
}

template <typename Stream>
void GrpcRegistry::Core::Ask(const std::shared_ptr<typename Stream::AskType>& asked) {
  if (!Begin(asked)) return;
  const absl::Status set = asked->SetDeadline(
      options.timer, options.call_timeout,
      [core = weak_from_this(), late = std::weak_ptr<typename Stream::AskType>(asked)] {
        const auto asked = late.lock();
        const auto self = core.lock();
        if (asked != nullptr && self != nullptr) self->template GiveUp<Stream>(asked);
      });
  using Response = typename Stream::AskType::ResponseType;
  if (!set.ok()) return Complete<Response>(asked, set);
  while (const auto stream = StreamOf<Stream>()) {
    if (stream->Send(asked)) return;
    Drop(stream.get());
  }
  // Closed, which has completed it.
}

template <typename Stream>
void GrpcRegistry::Core::GiveUp(const std::shared_ptr<typename Stream::AskType>& asked) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    stream = std::get<std::shared_ptr<Stream>>(streams_open_);
  }
  Complete<typename Stream::AskType::ResponseType>(
      asked,
      absl::DeadlineExceededError(absl::StrCat("a ", Stream::kAsked, " was not answered within ",
                                               absl::FormatDuration(options.call_timeout))));
  if (stream != nullptr && stream->HasWaiting(asked.get())) {
    stream->Abandon(
        absl::UnavailableError(absl::StrCat("the stream does not answer a ", Stream::kAsked)));
  }
}

template <typename Stream>
void GrpcRegistry::Core::Drop(const Stream* stream) {
  std::shared_ptr<Stream> dropped;
  MutexLock lock(&mu_);
  auto& open = std::get<std::shared_ptr<Stream>>(streams_open_);
  if (open.get() == stream) dropped = std::move(open);
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_GRPC_CORE_H_
