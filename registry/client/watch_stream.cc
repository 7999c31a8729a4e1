#include "registry/client/watch_stream.h"

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "registry/model/errors.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"

namespace failback {

GrpcRegistry::WatchStream::WatchStream(std::shared_ptr<Core> core)
    : core_(std::move(core)), channel_(core_->channels.Pick()), stub_(channel_.channel) {}

void GrpcRegistry::WatchStream::Start() {
  self_ = shared_from_this();
  const absl::Status ready = core_->channels.Authenticate(&context_);
  stub_.PrepareBidiStreamingCall(&context_, Core::PathOf("Watch"), grpc::StubOptions(), this);
  AddHold();  // for writes; removed when the stream is over
  StartRead(&message_);
  if (!ready.ok()) {
    MutexLock lock(&mu_);
    reason_ = ready;
    context_.TryCancel();
  }
  StartCall();
}

bool GrpcRegistry::WatchStream::Join(const std::shared_ptr<Subscription>& subscription) {
  MutexLock lock(&mu_);
  const Id id = flow_.Join(subscription, subscription->request());
  if (id == 0) return false;
  subscription->Joined(weak_from_this(), id);
  Write();
  return true;
}

void GrpcRegistry::WatchStream::Remove(Id id, bool notify) {
  {
    MutexLock lock(&mu_);
    if (!flow_.Leave(id, notify)) return Write();
  }
  core_->Drop(this);
  context_.TryCancel();
}

void GrpcRegistry::WatchStream::Abandon(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    flow_.Retire();
    if (reason_.ok()) reason_ = status;
  }
  core_->Drop(this);
  context_.TryCancel();
}

void GrpcRegistry::WatchStream::Write() {
  std::optional<std::string> message = flow_.StartWrite();
  if (!message.has_value()) return;
  written_ = ToByteBuffer(*std::move(message));
  StartWrite(&written_);
}

void GrpcRegistry::WatchStream::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  flow_.EndWrite();
  if (ok) Write();  // if not, the read fails too
}

void GrpcRegistry::WatchStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(&mu_);
      flow_.Break();
    }
    core_->Drop(this);
    RemoveHold();
    return;
  }
  {
    const Contiguous bytes(message_);
    message_.Clear();
    const absl::Status status = ForEachWatchItem(bytes.view(), [this](const WatchItemView& item) {
      Take(item);
      return absl::OkStatus();
    });
    if (!status.ok()) Abandon(status);
  }
  StartRead(&message_);
}

void GrpcRegistry::WatchStream::Take(const WatchItemView& item) {
  const std::shared_ptr<Subscription> subscription = Find(item.watch_id);
  if (subscription == nullptr) return;  // it has left
  if (item.end.has_value()) {
    Remove(item.watch_id, /*notify=*/false);
    subscription->End(*item.end);
  } else if (const absl::Status status = subscription->Take(item.event); !status.ok()) {
    Remove(item.watch_id, /*notify=*/true);
    subscription->End(status);
  }
}

std::shared_ptr<GrpcRegistry::Subscription> GrpcRegistry::WatchStream::Find(Id id) {
  MutexLock lock(&mu_);
  return flow_.Find(id);
}

void GrpcRegistry::WatchStream::OnDone(const grpc::Status& grpc_status) {
  const std::shared_ptr<WatchStream> self = std::move(self_);
  const absl::Status reported = StatusFromGrpc(grpc_status);
  core_->channels.Report(channel_, reported);
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    subscriptions = flow_.TakeAll();
    status = reason_.ok() ? reported : reason_;
  }
  if (status.ok()) status = absl::UnavailableError("the registry has ended the watch stream");
  if (absl::IsUnimplemented(status)) {
    status = absl::UnimplementedError(
        "the registry has no Watch stream: it is older than this program; upgrade it first");
  }
  for (const auto& subscription : subscriptions) subscription->End(status);
}

GrpcRegistry::Subscription::Subscription(std::shared_ptr<Core> core,
                                         const SubscribeRequest& request,
                                         std::shared_ptr<NotifyListener> listener)
    : core_(std::move(core)),
      request_(request.SerializeAsString()),
      reader_(request.epoch(), request.revision()),
      notifier_(std::move(listener)) {}

void GrpcRegistry::Subscription::Joined(std::weak_ptr<WatchStream> stream, WatchStream::Id id) {
  MutexLock lock(&mu_);
  stream_ = std::move(stream);
  id_ = id;
}

absl::Status GrpcRegistry::Subscription::Take(std::string_view message) {
  absl::StatusOr<EventPtr> event = reader_.Read(message);
  if (!event.ok()) return event.status();
  if (*event != nullptr) {
    notifier_.Post(*std::move(event));
    notifier_.Deliver();
  }
  return absl::OkStatus();
}

void GrpcRegistry::Subscription::End(const absl::Status& status) {
  core_->Remove(this);
  notifier_.PostEnd(status);
  notifier_.Deliver();
}

void GrpcRegistry::Subscription::Unlisten() {
  notifier_.Close();
  core_->Remove(this);
  std::shared_ptr<WatchStream> stream;
  WatchStream::Id id = 0;
  {
    MutexLock lock(&mu_);
    stream = stream_.lock();
    id = id_;
  }
  if (stream != nullptr) stream->Leave(id);
}

void GrpcRegistry::Subscription::Terminate(const absl::Status& status) {
  End(status);
  notifier_.WaitIdle();
}

}  // namespace failback
