#include "registry/client/grpc_registry.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "registry/base/trace_context.h"
#include "registry/client/grpc_core.h"
#include "registry/client/grpc_streams.h"
#include "registry/client/watch_stream.h"
#include "registry/model/errors.h"
#include "registry/rpc/byte_buffers.h"

namespace failback {
namespace {

std::chrono::system_clock::time_point After(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

absl::Status Destroyed() { return absl::CancelledError("the registry client is destroyed"); }

}  // namespace

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
  CallEncoded(path, request.ByteSizeLong(), std::move(done),
              [&request](grpc::ByteBuffer* buffer) { *buffer = EncodedMessage(request); });
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
                   if constexpr (std::is_same_v<Response, OpenSessionResponse>) {
                     if (status.ok()) {
                       status =
                           core->channels.ReportStore(call->channel, call->response.store_id());
                     }
                   }
                   if (status.ok()) {
                     core->Complete<Response>(call, std::move(call->response));
                   } else {
                     core->Complete<Response>(call, status);
                   }
                 });
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

void GrpcRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const bool registers = batch.kind() == Batch::Kind::kRegister;
  const size_t intents = batch.size();
  std::string request = batch.Encode();
  // Answers on a stream come in the order of the requests: one that waits would hold up others.
  const bool waits = batch.check() || batch.wait_for() != registry::v1::INTENT_STATE_UNSPECIFIED;
  const bool large = registers && !waits && core_->IsLarge(request.size());
  // One that is alone costs less as a call.
  const bool streamed = large && ++core_->large > 1 && core_->streams();
  // An UnregisterResponse has the same fields.
  Callback<RegisterResponse> answered =
      [core = std::weak_ptr<Core>(core_), large, streamed, intents,
       done = std::move(done)](absl::StatusOr<RegisterResponse> response) mutable {
        if (const auto self = core.lock(); large && self != nullptr) --self->large;
        if (!response.ok()) return std::move(done)(response.status());
        // Only a stream's answer may leave results out.
        if (!streamed && intents > 0 && response->results().empty()) {
          return std::move(done)(absl::InternalError("the registry's answer has no results"));
        }
        std::move(done)(BatchResult::Of(*std::move(response)));
      };
  if (streamed) {
    auto asked = std::make_shared<StreamedRegister>();
    asked->done = std::move(answered);
    asked->request = ToByteBuffer(std::move(request));
    core_->Ask<RegisterStream>(asked);
    return;
  }
  const size_t size = request.size();
  core_->CallEncoded(
      Core::PathOf(registers ? "Register" : "Unregister"), size, std::move(answered),
      [&request](grpc::ByteBuffer* buffer) { *buffer = ToByteBuffer(std::move(request)); });
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
  if (!core_->Add(subscription)) {
    subscription->End(Destroyed());
  } else {
    while (const auto stream = core_->StreamOf<WatchStream>()) {
      if (stream->Join(subscription)) break;
      core_->Drop(stream.get());
    }
    // If there is none the client has been closed, which has ended the subscription.
  }
  return std::make_unique<SubscriptionHandle>(std::move(subscription));
}

}  // namespace failback
