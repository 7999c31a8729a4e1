#include "registry/client/watch_stream.h"

#include "absl/status/statusor.h"
#include "registry/model/errors.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"

namespace failback {
namespace {

// Of one message; a registry takes more.
constexpr size_t kMaxCommands = 100;
constexpr size_t kFullBytes = size_t{32} << 10;

}  // namespace

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
  if (over_) return false;
  const Id id = ++last_id_;
  subscriptions_.emplace(id, subscription);
  subscription->Joined(weak_from_this(), id);
  commands_.push_back(SubscribeCommand(id, subscription->request()));
  Write();
  return true;
}

void GrpcRegistry::WatchStream::Remove(Id id, bool notify) {
  {
    MutexLock lock(&mu_);
    if (subscriptions_.erase(id) == 0) return;
    if (!subscriptions_.empty()) {
      if (!notify) return;
      commands_.push_back(UnsubscribeCommand(id));
      return Write();
    }
    over_ = true;
  }
  core_->Drop(this);
  context_.TryCancel();
}

void GrpcRegistry::WatchStream::Abandon(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    over_ = true;
    if (reason_.ok()) reason_ = status;
  }
  core_->Drop(this);
  context_.TryCancel();
}

void GrpcRegistry::WatchStream::Write() {
  if (writing_ || unwritable_ || commands_.empty()) return;
  std::string message;
  for (size_t count = 0; !commands_.empty() && count < kMaxCommands && message.size() < kFullBytes;
       ++count) {
    // One large command goes alone.
    if (count > 0 && message.size() + commands_.front().size() > kFullBytes) break;
    message.append(commands_.front());
    commands_.pop_front();
  }
  written_ = ToByteBuffer(std::move(message));
  writing_ = true;
  StartWrite(&written_);
}

void GrpcRegistry::WatchStream::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  if (ok) Write();  // if not, the read fails too
}

void GrpcRegistry::WatchStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(&mu_);
      over_ = unwritable_ = true;
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
  const auto it = subscriptions_.find(id);
  return it == subscriptions_.end() ? nullptr : it->second;
}

void GrpcRegistry::WatchStream::OnDone(const grpc::Status& grpc_status) {
  const std::shared_ptr<WatchStream> self = std::move(self_);
  const absl::Status reported = StatusFromGrpc(grpc_status);
  core_->channels.Report(channel_, reported);
  absl::flat_hash_map<Id, std::shared_ptr<Subscription>> subscriptions;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    subscriptions.swap(subscriptions_);
    status = reason_.ok() ? reported : reason_;
  }
  if (status.ok()) status = absl::UnavailableError("the registry has ended the watch stream");
  if (absl::IsUnimplemented(status)) {
    status = absl::UnimplementedError(
        "the registry has no Watch stream: it is older than this program; upgrade it first");
  }
  for (const auto& [id, subscription] : subscriptions) subscription->End(status);
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
