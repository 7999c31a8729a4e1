#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "registry/model/errors.h"
#include "tests/simulate/wire_shared.h"

namespace failback::simulate {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

absl::Status StatusOf(const WireAnswer& answer) {
  rpc::v1::Status status;
  status.ParseFromString(answer.bytes);
  return StatusFromProto(status);
}

std::weak_ptr<Process> ProcessOf(const std::weak_ptr<WireServer>& server) {
  const auto alive = server.lock();
  return alive == nullptr ? std::weak_ptr<Process>() : alive->process();
}

}  // namespace

void WireRegistry::Shared::Call(Method method, std::string bytes, Done done) {
  uint64_t id = 0;
  Pending* const call = Begin(std::move(done), &id);
  if (call == nullptr) return;
  const std::weak_ptr<Shared> weak = weak_from_this();
  const auto complete = [weak, id](absl::StatusOr<std::string> answer) {
    if (const auto shared = weak.lock()) shared->Complete(id, std::move(answer));
  };
  const auto refuse = [network = network_, link = link_, self = self_, complete] {
    network->Send(link, Way::kToClient, self,
                  [complete] { complete(absl::UnavailableError("connection refused")); });
  };
  const std::weak_ptr<WireServer> to = server_();
  call->server = to;
  const auto answered = [weak, id] {
    const auto shared = weak.lock();
    if (shared == nullptr) return;
    const auto it = shared->pending_.find(id);
    if (it != shared->pending_.end()) it->second.answered = true;
  };
  network_->Send(
      link_, Way::kToRegistry, ProcessOf(to),
      [network = network_, link = link_, self = self_, to, method, bytes = std::move(bytes),
       complete, answered] {
        const auto alive = to.lock();
        if (alive == nullptr) return;
        alive->Call(method, link, bytes,
                    [network, link, self, to, complete, answered](const WireAnswer& answer) {
                      // One that was killed says nothing any more.
                      if (to.expired()) return;
                      answered();
                      network->Send(link, Way::kToClient, self, [complete, answer] {
                        if (!answer.ok) return complete(StatusOf(answer));
                        complete(answer.bytes);
                      });
                    });
      },
      refuse);
}

WireRegistry::Shared::Pending* WireRegistry::Shared::Begin(Done done, uint64_t* id) {
  const auto process = self_.lock();
  if (closed_ || process == nullptr) {
    std::move(done)(absl::CancelledError("destroyed"));
    return nullptr;
  }
  ++sent_;
  *id = ++last_id_;
  Pending& pending = pending_[*id];
  pending.done = std::move(done);
  pending.deadline = process->timer()
                         ->ScheduleUnbounded(
                             [weak = weak_from_this(), id = *id] {
                               if (const auto shared = weak.lock()) shared->GiveUp(id);
                             },
                             kCallTimeout)
                         .value();
  return &pending;
}

// A stream that does not answer is ended, with what waits on it.
void WireRegistry::Shared::GiveUp(uint64_t id) {
  const auto ends = ends_;
  Complete(id, absl::DeadlineExceededError("deadline"));
  for (const auto& end : ends) {
    if (end->HasWaiting(id)) {
      end->Abandon(absl::UnavailableError("the stream does not answer"));
    }
  }
}

void WireRegistry::Shared::Complete(uint64_t id, absl::StatusOr<std::string> answer) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  Pending call = std::move(it->second);
  pending_.erase(it);
  call.deadline.Cancel();
  if (!call.on_stream) answered_by_ = call.server;
  std::move(call.done)(std::move(answer));
}

void WireRegistry::Shared::Opened(int64_t asked_nanos) {
  opened_at_ = answered_by_;
  opened_nanos_ = asked_nanos;
  // The stream is there before the first renewal is due, and shows if the connection breaks.
  if (!closed_) EndOf<ExchangeEnd>(WireStream::Kind::kKeepAlive);
}

// --- Streams.

std::shared_ptr<WireStream> WireRegistry::Shared::NewStream(WireStream::Kind kind) {
  Watch();
  const std::weak_ptr<WireServer> to = server_();
  return std::make_shared<WireStream>(network_, kind, link_, self_, ProcessOf(to),
                                      [to](const std::shared_ptr<WireStream>& stream) {
                                        if (const auto alive = to.lock()) alive->Open(stream);
                                      });
}

template <typename EndType>
std::shared_ptr<EndType> WireRegistry::Shared::EndOf(WireStream::Kind kind) {
  std::shared_ptr<ClientEnd>& there = takes_[static_cast<size_t>(kind)];
  if (there == nullptr) {
    const std::shared_ptr<WireStream> stream = NewStream(kind);
    there = std::make_shared<EndType>(weak_from_this(), stream);
    ends_.push_back(there);
    stream->SetEnd(Way::kToClient, there);
    stream->Read(Way::kToClient);
    if (kind == WireStream::Kind::kKeepAlive) stream->Begin();
  }
  return std::static_pointer_cast<EndType>(there);
}

void WireRegistry::Shared::Ask(WireStream::Kind kind, const std::string& session_id,
                               std::string bytes, Done done) {
  uint64_t id = 0;
  Pending* const pending = Begin(std::move(done), &id);
  if (pending == nullptr) return;
  pending->on_stream = true;
  const auto asked =
      std::make_shared<ExchangeEnd::Asked>(ExchangeEnd::Asked{id, session_id, std::move(bytes)});
  while (true) {
    const auto end = EndOf<ExchangeEnd>(kind);
    if (end->Send(asked)) return;
    Drop(end.get());
  }
}

void WireRegistry::Shared::Follow(const std::shared_ptr<Subscription>& subscription) {
  ++sent_;
  while (!closed_) {
    const auto end = EndOf<FollowEnd>(WireStream::Kind::kWatch);
    if (end->Join(subscription)) return;
    Drop(end.get());
  }
  subscription->listener->OnEnd(absl::CancelledError("destroyed"));
}

void WireRegistry::Shared::Drop(const ClientEnd* end) {
  for (auto& takes : takes_) {
    if (takes.get() == end) takes.reset();
  }
}

void WireRegistry::Shared::Forget(const ClientEnd* end) {
  Drop(end);
  for (auto it = ends_.begin(); it != ends_.end(); ++it) {
    if (it->get() == end) {
      ends_.erase(it);
      return;
    }
  }
}

void WireRegistry::Shared::Break(const absl::Status& status, bool connection) {
  const std::shared_ptr<Shared> self = shared_from_this();
  std::vector<uint64_t> calls;
  for (const auto& [id, call] : pending_) {
    if (call.on_stream) continue;
    if (connection || (call.server.expired() && !call.answered)) calls.push_back(id);
  }
  for (const uint64_t id : calls) Complete(id, status);
  const auto ends = ends_;
  for (const auto& end : ends) {
    if (connection || end->stream().IsGone(Way::kToRegistry)) end->Break(status);
  }
}

void WireRegistry::Shared::Watch() {
  if (watching_ || closed_) return;
  const auto process = self_.lock();
  if (process == nullptr) return;
  watching_ = true;
  process->After(absl::Seconds(5), [weak = weak_from_this()] {
    const auto shared = weak.lock();
    if (shared == nullptr || shared->closed_) return;
    shared->watching_ = false;
    if (!shared->ends_.empty()) {
      if (shared->network_->IsSilent(shared->link_)) {
        shared->Break(absl::UnavailableError("keepalive watchdog timeout"), /*connection=*/true);
      }
      shared->Watch();
    }
  });
}

// --- The registry.

namespace {

class Handle final : public SubscribeStream {
 public:
  explicit Handle(std::function<void()> leave) : leave_(std::move(leave)) {}
  ~Handle() override { leave_(); }

 private:
  const std::function<void()> leave_;
};

}  // namespace

WireRegistry::WireRegistry(Network* network, std::weak_ptr<Process> self, int link, Server server)
    : shared_(std::make_shared<Shared>(network, std::move(self), link, std::move(server))) {}

WireRegistry::~WireRegistry() {
  shared_->Close();
  shared_->Break(absl::CancelledError("the registry client is destroyed"), /*connection=*/true);
}

template <typename Response, typename Request>
void WireRegistry::Ask(Method method, const Request& request, Callback<Response> done) {
  shared_->Call(method, request.SerializeAsString(),
                [done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
                  if (!answer.ok()) return std::move(done)(answer.status());
                  Response response;
                  response.ParseFromString(*answer);
                  std::move(done)(std::move(response));
                });
}

void WireRegistry::OpenSession(const OpenSessionRequest& request,
                               Callback<OpenSessionResponse> done) {
  const int64_t asked = shared_->network()->now();
  Ask<OpenSessionResponse>(
      Method::kOpenSession, request,
      [shared = std::weak_ptr<Shared>(shared_), asked,
       done = std::move(done)](const absl::StatusOr<OpenSessionResponse>& response) mutable {
        if (const auto there = shared.lock(); there != nullptr && response.ok()) {
          there->Opened(asked);
        }
        std::move(done)(response);
      });
}

void WireRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  shared_->Ask(WireStream::Kind::kKeepAlive, request.session_id(), request.SerializeAsString(),
               [done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
                 if (!answer.ok()) return std::move(done)(answer.status());
                 KeepAliveResponse response;
                 response.ParseFromString(*answer);
                 std::move(done)(std::move(response));
               });
}

void WireRegistry::CloseSession(const CloseSessionRequest& request,
                                Callback<CloseSessionResponse> done) {
  Ask(Method::kCloseSession, request, std::move(done));
}

void WireRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const bool registers = batch.kind() == Batch::Kind::kRegister;
  const bool streamed = registers && shared_->Streams(batch.size()) && !batch.check() &&
                        batch.wait_for() == registry::v1::INTENT_STATE_UNSPECIFIED;
  auto answered = [done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
    if (!answer.ok()) return std::move(done)(answer.status());
    // An UnregisterResponse and a RegisterStreamResponse have the same fields.
    RegisterResponse response;
    response.ParseFromString(*answer);
    std::move(done)(BatchResult::Of(std::move(response)));
  };
  if (streamed) {
    shared_->Ask(WireStream::Kind::kRegister, "", batch.Encode(), std::move(answered));
  } else {
    shared_->Call(registers ? Method::kRegister : Method::kUnregister, batch.Encode(),
                  std::move(answered));
  }
}

std::unique_ptr<SubscribeStream> WireRegistry::Subscribe(const SubscribeRequest& request,
                                                         std::shared_ptr<NotifyListener> listener) {
  auto subscription = std::make_shared<Shared::Subscription>();
  subscription->request = request.SerializeAsString();
  subscription->listener = std::move(listener);
  subscription->reader = EventReader(request.epoch(), request.revision());
  shared_->Follow(subscription);
  return std::make_unique<Handle>([weak = std::weak_ptr<Shared::Subscription>(subscription)] {
    const auto subscription = weak.lock();
    const auto on = subscription == nullptr ? nullptr : subscription->on.lock();
    if (on != nullptr) on->Leave(subscription->id, /*notify=*/true);
  });
}

void WireRegistry::Unsubscribe(const UnsubscribeRequest& request,
                               Callback<UnsubscribeResponse> done) {
  Ask(Method::kUnsubscribe, request, std::move(done));
}

void WireRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  Ask(Method::kList, request, std::move(done));
}

void WireRegistry::SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) {
  Ask(Method::kSetOffline, request, std::move(done));
}

void WireRegistry::SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) {
  shared_->disconnect_listener = listener;
}

std::function<void()> WireRegistry::Breaker(bool connection) {
  return [weak = std::weak_ptr<Shared>(shared_), connection] {
    const auto shared = weak.lock();
    if (shared != nullptr && !shared->closed()) {
      shared->Break(absl::UnavailableError("connection reset"), connection);
    }
  };
}

std::function<void()> WireRegistry::Killer() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    if (const auto shared = weak.lock()) shared->Close();
  };
}

std::function<int64_t()> WireRegistry::Counter() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    const auto shared = weak.lock();
    return shared == nullptr ? int64_t{0} : shared->sent();
  };
}

std::function<absl::Duration()> WireRegistry::SessionAge() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    const auto shared = weak.lock();
    return shared == nullptr ? absl::InfiniteDuration() : shared->SessionAge();
  };
}

}  // namespace failback::simulate
