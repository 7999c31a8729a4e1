#include "registry/grpc_registry.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "registry/client_exchange.h"
#include "registry/errors.h"
#include "registry/event_order.h"
#include "registry/serial_notifier.h"
#include "registry/trace_context.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"

namespace failback {
namespace {

std::chrono::system_clock::time_point After(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

// Sessions at another store, in a row, until it is accepted to be the registry now.
constexpr int kStoreIsBelieved = 5;

using registry::v1::RegisterStreamResponse;

absl::Status Destroyed() { return absl::CancelledError("the registry client is destroyed"); }

// A call that a caller waits for.
struct Pending {
  virtual ~Pending() = default;
  // Ends what gRPC still does for it.
  virtual void Cancel() = 0;
  // Runs its callback.
  virtual void Fail(const absl::Status& status) = 0;
};

template <typename Response>
struct PendingOf : Pending {
  void Fail(const absl::Status& status) override { std::move(done)(status); }

  Callback<Response> done;
};

}  // namespace

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

  // Refuses a session at another store than the one before when it comes from another address: two
  // registries behind one URI. After a while it is accepted, so that a fleet is not left without
  // any.
  absl::Status CheckStore(const GrpcChannels::Picked& channel, const OpenSessionResponse& opened);
  template <typename Response>
  absl::Status CheckStore(const GrpcChannels::Picked&, const Response&) {
    return absl::OkStatus();
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
  // Of the last session that was accepted: its store, and the address that led there.
  std::string store_id_ ABSL_GUARDED_BY(mu_);
  size_t store_address_ ABSL_GUARDED_BY(mu_) = 0;
  int refused_stores_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
  CondVar released_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<const Pending*, std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Subscription*, std::shared_ptr<Subscription>> subscriptions_
      ABSL_GUARDED_BY(mu_);
  std::tuple<std::shared_ptr<KeepAliveStream>, std::shared_ptr<RegisterStream>> streams_open_
      ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> disconnect_listener_ ABSL_GUARDED_BY(mu_);
  // Threads in a callback, once per callback.
  std::vector<std::thread::id> running_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HashedWheelTimer> own_timer_;  // if the options have none
};

// Keeps its request encoded: a copy of a message with many small parts would cost more.
template <typename Response>
struct GrpcRegistry::UnaryCall : PendingOf<Response> {
  void Cancel() override { context.TryCancel(); }

  // Reads the answer. One that did not come, as gRPC drops what is compressed, would else be taken
  // for an empty one: gRPC's own status is that of the server then.
  absl::Status Read() {
    if (!answer.Valid()) {
      return absl::InternalError(
          "an answer without a message; one that is compressed is not taken");
    }
    return StatusFromGrpc(grpc::SerializationTraits<Response>::Deserialize(&answer, &response));
  }

  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer answer;
  Response response;
  GrpcChannels::Picked channel;
};

// A message on its way, on a stream.
template <typename Request, typename Response>
struct GrpcRegistry::Asked : PendingOf<Response> {
  using ResponseType = Response;

  // Calls `late` after `timeout`, unless cancelled. An error: the timer is stopped.
  absl::Status SetDeadline(HashedWheelTimer* timer, absl::Duration timeout, TimerTask late) {
    MutexLock lock(&mu);
    if (cancelled) return absl::OkStatus();
    absl::StatusOr<Timeout> set = timer->PutBack(std::move(late), timeout);
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

// The KeepAlive stream.
class GrpcRegistry::KeepAliveStream
    : public ClientExchange<Renewal, KeepAliveRequest, KeepAliveResponse>,
      public std::enable_shared_from_this<KeepAliveStream> {
 public:
  static constexpr char kAsked[] = "renewal";

  explicit KeepAliveStream(std::shared_ptr<Core> core)
      : ClientExchange(WhenIdle::kStay), core_(std::move(core)), channel_(core_->channels.Pick()) {}

  void Start() {
    const absl::Status ready = core_->channels.Authenticate(context());
    channel_.stub->async()->KeepAlive(context(), this);
    Begin(shared_from_this(), ready);
  }

 private:
  bool Answers(const KeepAliveResponse& response, const Renewal& renewal) const override {
    return response.session_id() == renewal.request.session_id();
  }

  void OnAnswer(const std::shared_ptr<Renewal>& renewal, KeepAliveResponse response) override {
    renewal->Cancel();
    if (response.has_status() && response.status().code() != 0) {
      core_->Complete<KeepAliveResponse>(renewal, StatusFromProto(response.status()));
    } else {
      core_->Complete<KeepAliveResponse>(renewal, std::move(response));
    }
  }

  void OnOver() override { core_->Drop(this); }

  void OnEnd(End end) override {
    core_->channels.Report(channel_, end.reported);
    if (end.status.ok()) {
      end.status = absl::UnavailableError("the registry has ended the keep-alive stream");
    }
    for (const auto& renewal : end.waiting) {
      renewal->Cancel();
      core_->Complete<KeepAliveResponse>(renewal, end.status);
    }
    // A stream that the server ends for its age is opened again with the next renewal.
    const bool lost = ReasonOf(end.reported) != registry::v1::ERROR_REASON_IDLE;
    if (end.waiting.empty() && !end.abandoned && lost) core_->Disconnected(end.status);
  }

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
};

// A RegisterStream. It ends when nothing waits: who holds no stream costs the registry nothing, and
// the next one shows the credentials of its day.
class GrpcRegistry::RegisterStream
    : public ClientExchange<StreamedRegister, grpc::ByteBuffer, RegisterStreamResponse>,
      public std::enable_shared_from_this<RegisterStream> {
 public:
  static constexpr char kAsked[] = "Register";

  explicit RegisterStream(std::shared_ptr<Core> core)
      : ClientExchange(WhenIdle::kEnd),
        core_(std::move(core)),
        channel_(core_->channels.Pick()),
        stub_(channel_.channel) {}

  void Start() {
    const absl::Status ready = core_->channels.Authenticate(context());
    stub_.PrepareBidiStreamingCall(context(), Core::PathOf("RegisterStream"), grpc::StubOptions(),
                                   this);
    Begin(shared_from_this(), ready);
  }

 private:
  void OnAnswer(const std::shared_ptr<StreamedRegister>& asked,
                RegisterStreamResponse response) override {
    asked->Cancel();
    if (response.has_status() && response.status().code() != 0) {
      const absl::Status status = StatusFromProto(response.status());
      if (absl::IsUnauthenticated(status)) Retire();
      return core_->Complete<RegisterResponse>(asked, status);
    }
    RegisterResponse plain;
    plain.mutable_results()->Swap(response.mutable_results());
    plain.set_epoch(response.epoch());
    plain.set_revision(response.revision());
    core_->Complete<RegisterResponse>(asked, std::move(plain));
  }

  void OnOver() override { core_->Drop(this); }

  void OnEnd(End end) override {
    core_->channels.Report(channel_, end.reported);
    if (end.status.ok()) {
      end.status = absl::UnavailableError("the registry has ended the register stream");
    }
    const bool unknown = absl::IsUnimplemented(end.reported);
    for (const auto& asked : end.waiting) {
      asked->Cancel();
      if (unknown) {
        core_->CallInstead(asked);
      } else {
        core_->Complete<RegisterResponse>(asked, end.status);
      }
    }
  }

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, RegisterStreamResponse> stub_;
};

// A Subscribe stream. Keeps itself alive until gRPC has ended it.
class GrpcRegistry::Subscription : public grpc::ClientReadReactor<SubscribeResponse>,
                                   public std::enable_shared_from_this<Subscription> {
 public:
  Subscription(std::shared_ptr<Core> core, const SubscribeRequest& request,
               std::shared_ptr<NotifyListener> listener)
      : core_(std::move(core)),
        channel_(core_->channels.Pick()),
        request_(request),
        order_(request.epoch(), request.revision()),
        notifier_(std::move(listener)) {}

  void Start() {
    self_ = shared_from_this();
    if (const absl::Status status = core_->channels.Authenticate(&context_); !status.ok()) {
      End(status);
      context_.TryCancel();
    }
    channel_.stub->async()->Subscribe(&context_, &request_, this);
    StartRead(event_.get());
    StartCall();
  }

  // The subscriber has gone: nothing is sent any more.
  void Unlisten() {
    notifier_.Close();
    core_->Remove(this);
    context_.TryCancel();
  }

  // The registry client goes: reports the end, and waits until it has been delivered.
  void Terminate(const absl::Status& status) {
    End(status);
    notifier_.WaitIdle();
    context_.TryCancel();
  }

  void End(const absl::Status& status) {
    notifier_.PostEnd(status);
    notifier_.Deliver();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (const absl::Status status = order_.Check(*event_); !status.ok()) {
      End(status);
      context_.TryCancel();
      return;
    }
    const bool listening = notifier_.Post(std::move(event_));
    notifier_.Deliver();
    // The next message is read when this one has been taken: a slow listener slows its stream, and
    // the server conflates.
    event_ = std::make_shared<SubscribeResponse>();
    if (listening) StartRead(event_.get());
  }

  void OnDone(const grpc::Status& grpc_status) override {
    const std::shared_ptr<Subscription> self = std::move(self_);
    const absl::Status status = StatusFromGrpc(grpc_status);
    core_->channels.Report(channel_, status);
    core_->Remove(this);
    End(status);
  }

  const std::shared_ptr<Core> core_;
  const GrpcChannels::Picked channel_;
  const SubscribeRequest request_;
  std::shared_ptr<Subscription> self_;
  grpc::ClientContext context_;
  std::shared_ptr<SubscribeResponse> event_ = std::make_shared<SubscribeResponse>();
  EventOrder order_;  // used by one reaction at a time
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

bool GrpcRegistry::Core::Begin(const std::shared_ptr<Pending>& pending) {
  {
    MutexLock lock(&mu_);
    if (!closed_) {
      pending_.emplace(pending.get(), pending);
      return true;
    }
  }
  pending->Fail(Destroyed());
  return false;
}

bool GrpcRegistry::Core::Claim(const Pending* pending) {
  MutexLock lock(&mu_);
  if (pending_.erase(pending) == 0) return false;
  running_.push_back(std::this_thread::get_id());
  return true;
}

void GrpcRegistry::Core::Release() {
  MutexLock lock(&mu_);
  running_.erase(std::find(running_.begin(), running_.end(), std::this_thread::get_id()));
  released_.SignalAll();
}

template <typename Request, typename Response>
void GrpcRegistry::Core::CallPath(const std::string& path, const Request& request,
                                  Callback<Response> done) {
  CallEncoded(path, request.ByteSizeLong(), std::move(done), [&request](grpc::ByteBuffer* buffer) {
    bool own_buffer;
    grpc::SerializationTraits<Request>::Serialize(request, buffer, &own_buffer);
  });
}

template <typename Response, typename Encode>
void GrpcRegistry::Core::CallEncoded(const std::string& path, size_t size, Callback<Response> done,
                                     Encode encode) {
  auto call = std::make_shared<UnaryCall<Response>>();
  call->done = std::move(done);
  if (!Begin(call)) return;
  if (size > static_cast<size_t>(options.channel.max_message_bytes)) {
    Complete<Response>(
        call, Refusal(registry::v1::ERROR_REASON_TOO_LARGE,
                      absl::StrCat("a request of ", size, " bytes is larger than the limit of ",
                                   options.channel.max_message_bytes),
                      {{"limit", absl::StrCat(options.channel.max_message_bytes)},
                       {"actual", absl::StrCat(size)}}));
    return;
  }
  encode(&call->request);
  call->context.set_deadline(After(options.call_timeout));
  if (absl::Status status = channels.Authenticate(&call->context); !status.ok()) {
    return Complete<Response>(call, status);
  }
  if (!CurrentTrace().empty()) call->context.AddMetadata(kTraceParent, CurrentTrace());
  call->channel = channels.Pick();
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(call->channel.channel);
  stub.UnaryCall(&call->context, path, grpc::StubOptions(), &call->request, &call->answer,
                 [core = shared_from_this(), call](const grpc::Status& grpc_status) {
                   absl::Status status = StatusFromGrpc(grpc_status);
                   core->channels.Report(call->channel, status);
                   if (status.ok()) status = call->Read();
                   if (status.ok()) status = core->CheckStore(call->channel, call->response);
                   if (status.ok()) {
                     core->Complete<Response>(call, std::move(call->response));
                   } else {
                     core->Complete<Response>(call, status);
                   }
                 });
}

absl::Status GrpcRegistry::Core::CheckStore(const GrpcChannels::Picked& channel,
                                            const OpenSessionResponse& opened) {
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    const bool another = !store_id_.empty() && opened.store_id() != store_id_ &&
                         channel.index != store_address_ && !opened.store_id().empty();
    if (!another || ++refused_stores_ == kStoreIsBelieved) {
      refused_stores_ = 0;
      store_id_ = opened.store_id();
      store_address_ = channel.index;
      return absl::OkStatus();
    }
    refused = absl::FailedPreconditionError(
        absl::StrCat(channels.addresses()[channel.index], " leads to store ", opened.store_id(),
                     ", and ", channels.addresses()[store_address_], " to store ", store_id_,
                     "; several addresses of one registry must lead to one store"));
  }
  // The next call tries another address.
  channels.Report(channel, absl::UnavailableError("another store"));
  return refused;
}

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

void GrpcRegistry::Core::CallInstead(const std::shared_ptr<StreamedRegister>& asked) {
  streams_ = false;
  if (!Claim(asked.get())) return;
  CallEncoded(PathOf("Register"), asked->request.Length(), std::move(asked->done),
              [&asked](grpc::ByteBuffer* buffer) { buffer->Swap(&asked->request); });
  Release();
}

void GrpcRegistry::Core::Disconnected(const absl::Status& status) {
  std::function<void(const absl::Status&)> listener;
  {
    MutexLock lock(&mu_);
    if (closed_ || disconnect_listener_ == nullptr) return;
    listener = disconnect_listener_;
    running_.push_back(std::this_thread::get_id());
  }
  listener(status);
  listener = nullptr;
  Release();
}

bool GrpcRegistry::Core::Add(const std::shared_ptr<Subscription>& subscription) {
  MutexLock lock(&mu_);
  if (closed_) return false;
  subscriptions_.emplace(subscription.get(), subscription);
  return true;
}

void GrpcRegistry::Core::Remove(const Subscription* subscription) {
  std::shared_ptr<Subscription> removed;
  MutexLock lock(&mu_);
  const auto it = subscriptions_.find(subscription);
  if (it == subscriptions_.end()) return;
  removed = std::move(it->second);
  subscriptions_.erase(it);
}

void GrpcRegistry::Core::Close() {
  absl::flat_hash_map<const Pending*, std::shared_ptr<Pending>> pending;
  absl::flat_hash_map<const Subscription*, std::shared_ptr<Subscription>> subscriptions;
  decltype(streams_open_) streams;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    pending.swap(pending_);
    subscriptions.swap(subscriptions_);
    streams = std::move(streams_open_);
  }
  // gRPC is not waited for: this may be one of its threads. It holds on to this object.
  for (auto& [key, call] : pending) {
    call->Cancel();
    call->Fail(Destroyed());
  }
  const auto abandon = [](const auto& stream) {
    if (stream != nullptr) stream->Abandon(Destroyed());
  };
  std::apply([&](const auto&... open) { (abandon(open), ...); }, streams);
  for (auto& [key, subscription] : subscriptions) subscription->Terminate(Destroyed());
  MutexLock lock(&mu_);
  const auto self = std::this_thread::get_id();
  while (std::any_of(running_.begin(), running_.end(), [&](auto id) { return id != self; })) {
    released_.Wait(&mu_);
  }
}

GrpcRegistry::GrpcRegistry(std::vector<std::string> addresses, GrpcRegistryOptions options)
    : core_(std::make_shared<Core>(std::move(addresses), std::move(options))) {}

GrpcRegistry::~GrpcRegistry() { core_->Close(); }

void GrpcRegistry::OpenSession(const OpenSessionRequest& request,
                               Callback<OpenSessionResponse> caller) {
  Callback<OpenSessionResponse> done =
      [weak = std::weak_ptr<Core>(core_),
       caller = std::move(caller)](absl::StatusOr<OpenSessionResponse> response) mutable {
        // The stream is there before the first renewal is due, and shows if the connection breaks.
        if (auto core = weak.lock(); core != nullptr && response.ok())
          core->StreamOf<KeepAliveStream>();
        std::move(caller)(std::move(response));
      };
  core_->Call("OpenSession", request, std::move(done));
}

void GrpcRegistry::SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) {
  core_->SetDisconnectListener(listener);
}

void GrpcRegistry::CloseSession(const CloseSessionRequest& request,
                                Callback<CloseSessionResponse> done) {
  core_->Call("CloseSession", request, std::move(done));
}

void GrpcRegistry::Register(const RegisterRequest& request, Callback<RegisterResponse> done) {
  core_->Call("Register", request, std::move(done));
}

bool GrpcRegistry::RegisterEncoded(std::string_view request, Results results,
                                   Callback<RegisterResponse>* done) {
  const auto encode = [request](grpc::ByteBuffer* buffer) {
    const grpc::Slice slice(request.data(), request.size());
    *buffer = grpc::ByteBuffer(&slice, 1);
  };
  const bool large = results == Results::kUnlessAsAsked && core_->IsLarge(request.size());
  // One that is alone costs less as a call.
  const bool streamed = large && ++core_->large > 1 && core_->streams();
  Callback<RegisterResponse> checked =
      [core = std::weak_ptr<Core>(core_), large, streamed,
       done = std::move(*done)](absl::StatusOr<RegisterResponse> response) mutable {
        if (const auto self = core.lock(); large && self != nullptr) --self->large;
        // Who lets results be left out takes none for all: a call's answer has them.
        if (!streamed && response.ok() && response->results().empty()) {
          response = absl::InternalError("the registry's answer has no results");
        }
        std::move(done)(std::move(response));
      };
  if (streamed) {
    auto asked = std::make_shared<StreamedRegister>();
    asked->done = std::move(checked);
    encode(&asked->request);
    core_->Ask<RegisterStream>(asked);
  } else {
    core_->CallEncoded(Core::PathOf("Register"), request.size(), std::move(checked), encode);
  }
  return true;
}

void GrpcRegistry::Unregister(const UnregisterRequest& request, Callback<UnregisterResponse> done) {
  core_->Call("Unregister", request, std::move(done));
}

void GrpcRegistry::Unsubscribe(const UnsubscribeRequest& request,
                               Callback<UnsubscribeResponse> done) {
  core_->Call("Unsubscribe", request, std::move(done));
}

void GrpcRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  core_->Call("List", request, std::move(done));
}

// The operator's service stands beside the registry's; its stub is not linked for one call.
void GrpcRegistry::SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) {
  core_->CallPath("/failback.admin.v1.AdminService/SetOffline", request, std::move(done));
}

void GrpcRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  auto renewal = std::make_shared<Renewal>();
  renewal->done = std::move(done);
  renewal->request = request;
  core_->Ask<KeepAliveStream>(renewal);
}

std::unique_ptr<SubscribeStream> GrpcRegistry::Subscribe(const SubscribeRequest& request,
                                                         std::shared_ptr<NotifyListener> listener) {
  auto subscription = std::make_shared<Subscription>(core_, request, std::move(listener));
  if (core_->Add(subscription)) {
    subscription->Start();
  } else {
    subscription->End(Destroyed());
  }
  return std::make_unique<SubscriptionHandle>(std::move(subscription));
}

}  // namespace failback
