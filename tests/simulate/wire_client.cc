#include <optional>
#include <utility>
#include <vector>

#include "registry/model/errors.h"
#include "registry/model/event_reader.h"
#include "tests/simulate/wire.h"

namespace failback::simulate {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

absl::Status StatusOf(const WireAnswer& answer) {
  rpc::v1::Status status;
  status.ParseFromString(answer.bytes);
  return StatusFromProto(status);
}

}  // namespace

struct WireRegistry::Shared : std::enable_shared_from_this<Shared> {
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::string>) &&>;

  struct Pending {
    Done done;
    Timeout deadline;
    std::weak_ptr<WireServer> server;
    bool answered = false;  // the answer is on its way
  };
  struct Stream {
    std::shared_ptr<NotifyListener> listener;
    EventReader reader;
    std::weak_ptr<WireServer> server;
    uint64_t name;  // at the server
  };

  Network* network;
  std::weak_ptr<Process> self;
  int link;
  Server server;
  bool closed = false;
  bool watching = false;
  uint64_t last_id = 0;
  int64_t sent = 0;
  std::weak_ptr<WireServer> answered_by;  // the last answer
  std::weak_ptr<WireServer> opened_at;
  int64_t opened_nanos = 0;
  std::map<uint64_t, Pending> pending;
  std::map<uint64_t, std::shared_ptr<Stream>> streams;
  std::function<void(const absl::Status&)> disconnect_listener;

  void Call(Method method, std::string bytes, Done done);
  void Complete(uint64_t id, absl::StatusOr<std::string> answer);
  uint64_t Open(const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener);
  void OnMessage(uint64_t id, const std::string& bytes);
  void End(uint64_t id, const absl::Status& status);
  // Destroyed by its subscriber.
  void Close(uint64_t id);
  void SendCancel(const Stream& stream);
  // The connection is broken; or what ran at a server that is gone, behind a balancer which has the
  // answers that were given.
  void Break(const absl::Status& status, bool connection);
  // Notices a connection that is silent.
  void Watch();
  static std::weak_ptr<Process> ProcessOf(const std::weak_ptr<WireServer>& server) {
    const auto alive = server.lock();
    return alive == nullptr ? std::weak_ptr<Process>() : alive->process();
  }
};

void WireRegistry::Shared::Call(Method method, std::string bytes, Done done) {
  const auto process = self.lock();
  if (closed || process == nullptr) return std::move(done)(absl::CancelledError("destroyed"));
  ++sent;
  Watch();
  const uint64_t id = ++last_id;
  Pending& call = pending[id];
  call.done = std::move(done);
  const std::weak_ptr<Shared> weak = weak_from_this();
  const auto complete = [weak, id](absl::StatusOr<std::string> answer) {
    if (const auto shared = weak.lock()) shared->Complete(id, std::move(answer));
  };
  call.deadline =
      process->timer()
          ->ScheduleUnbounded([complete] { complete(absl::DeadlineExceededError("deadline")); },
                              kCallTimeout)
          .value();
  const auto refuse = [network = network, link = link, self = self, complete] {
    network->Send(link, Way::kToClient, self,
                  [complete] { complete(absl::UnavailableError("connection refused")); });
  };
  const std::weak_ptr<WireServer> to = server();
  call.server = to;
  const auto answered = [weak, id] {
    const auto shared = weak.lock();
    if (shared == nullptr) return;
    const auto it = shared->pending.find(id);
    if (it != shared->pending.end()) it->second.answered = true;
  };
  network->Send(
      link, Way::kToRegistry, ProcessOf(to),
      [network = network, link = link, self = self, to, method, bytes = std::move(bytes), complete,
       answered] {
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

void WireRegistry::Shared::Complete(uint64_t id, absl::StatusOr<std::string> answer) {
  const auto it = pending.find(id);
  if (it == pending.end()) return;
  Pending call = std::move(it->second);
  pending.erase(it);
  call.deadline.Cancel();
  answered_by = call.server;
  std::move(call.done)(std::move(answer));
}

uint64_t WireRegistry::Shared::Open(const SubscribeRequest& request,
                                    std::shared_ptr<NotifyListener> listener) {
  ++sent;
  Watch();
  const uint64_t id = ++last_id;
  auto stream = std::make_shared<Stream>();
  stream->listener = std::move(listener);
  stream->reader = EventReader(request.epoch(), request.revision());
  stream->server = server();
  stream->name = network->NewName();
  streams[id] = stream;
  const std::weak_ptr<Shared> weak = weak_from_this();
  const auto end = [weak, id](const absl::Status& status) {
    if (const auto shared = weak.lock()) shared->End(id, status);
  };
  const auto broken = [network = network, link = link, self = self, end] {
    network->SendNews(link, Way::kToClient, self,
                      [end] { end(absl::UnavailableError("connection reset")); });
  };
  StreamSink sink;
  sink.link = link;
  sink.client = self;
  sink.message = [weak, id](const std::string& bytes) {
    if (const auto shared = weak.lock()) shared->OnMessage(id, bytes);
  };
  sink.end = [end](const WireAnswer& answer) { end(StatusOf(answer)); };
  network->SendOnStream(
      link, Way::kToRegistry, ProcessOf(stream->server),
      [to = stream->server, name = stream->name, bytes = request.SerializeAsString(), sink] {
        if (const auto alive = to.lock()) alive->Subscribe(name, bytes, sink);
      },
      broken);
  return id;
}

void WireRegistry::Shared::OnMessage(uint64_t id, const std::string& bytes) {
  const auto it = streams.find(id);
  if (it == streams.end()) return;
  const std::shared_ptr<Stream> stream = it->second;
  const absl::StatusOr<EventPtr> event = stream->reader.Read(bytes);
  if (!event.ok()) {
    if (network->on_protocol_error) network->on_protocol_error(event.status().ToString());
    SendCancel(*stream);
    return End(id, event.status());
  }
  if (*event != nullptr) stream->listener->OnEvent(*event);
}

void WireRegistry::Shared::End(uint64_t id, const absl::Status& status) {
  const auto it = streams.find(id);
  if (it == streams.end()) return;
  const std::shared_ptr<Stream> stream = std::move(it->second);
  streams.erase(it);
  stream->listener->OnEnd(status);
}

void WireRegistry::Shared::Close(uint64_t id) {
  const auto it = streams.find(id);
  if (it == streams.end()) return;
  const std::shared_ptr<Stream> stream = std::move(it->second);
  streams.erase(it);
  SendCancel(*stream);
}

void WireRegistry::Shared::SendCancel(const Stream& stream) {
  network->SendOnStream(
      link, Way::kToRegistry, ProcessOf(stream.server),
      [to = stream.server, name = stream.name] {
        if (const auto alive = to.lock()) alive->Cancel(name);
      },
      [] {});
}

void WireRegistry::Shared::Break(const absl::Status& status, bool connection) {
  const std::shared_ptr<Shared> self = shared_from_this();
  const bool idle = pending.empty();
  std::vector<uint64_t> calls, open;
  for (const auto& [id, call] : pending) {
    if (connection || (call.server.expired() && !call.answered)) calls.push_back(id);
  }
  for (const auto& [id, stream] : streams) {
    if (!connection && !stream->server.expired()) continue;
    open.push_back(id);
    SendCancel(*stream);  // the other side finds out too
  }
  for (const uint64_t id : calls) Complete(id, status);
  for (const uint64_t id : open) End(id, status);
  if (connection && idle && !closed && disconnect_listener) disconnect_listener(status);
}

void WireRegistry::Shared::Watch() {
  if (watching || closed) return;
  const auto process = self.lock();
  if (process == nullptr) return;
  watching = true;
  process->After(absl::Seconds(5), [weak = weak_from_this()] {
    const auto shared = weak.lock();
    if (shared == nullptr || shared->closed) return;
    shared->watching = false;
    if (!shared->streams.empty()) {
      if (shared->network->IsSilent(shared->link)) {
        shared->Break(absl::UnavailableError("keepalive watchdog timeout"), /*connection=*/true);
      }
      shared->Watch();
    }
  });
}

class WireRegistry::Handle final : public SubscribeStream {
 public:
  Handle(std::weak_ptr<Shared> shared, uint64_t id) : shared_(std::move(shared)), id_(id) {}
  ~Handle() override {
    if (const auto shared = shared_.lock()) shared->Close(id_);
  }

 private:
  const std::weak_ptr<Shared> shared_;
  const uint64_t id_;
};

WireRegistry::WireRegistry(Network* network, std::weak_ptr<Process> self, int link, Server server)
    : shared_(std::make_shared<Shared>()) {
  shared_->network = network;
  shared_->self = std::move(self);
  shared_->link = link;
  shared_->server = std::move(server);
}

WireRegistry::~WireRegistry() {
  shared_->closed = true;
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
  const int64_t asked = shared_->network->now();
  Ask<OpenSessionResponse>(
      Method::kOpenSession, request,
      [shared = std::weak_ptr<Shared>(shared_), asked,
       done = std::move(done)](const absl::StatusOr<OpenSessionResponse>& response) mutable {
        if (const auto there = shared.lock(); there != nullptr && response.ok()) {
          there->opened_at = there->answered_by;
          there->opened_nanos = asked;
        }
        std::move(done)(response);
      });
}

void WireRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  Ask(Method::kKeepAlive, request, std::move(done));
}

void WireRegistry::CloseSession(const CloseSessionRequest& request,
                                Callback<CloseSessionResponse> done) {
  Ask(Method::kCloseSession, request, std::move(done));
}

void WireRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const bool registers = batch.kind() == Batch::Kind::kRegister;
  // As GrpcRegistry: what is large, and not the only one, goes on a stream.
  const bool streamed = registers && batch.size() > 1 && !batch.check() &&
                        batch.wait_for() == registry::v1::INTENT_STATE_UNSPECIFIED;
  const Method method = !registers ? Method::kUnregister
                        : streamed ? Method::kRegisterStream
                                   : Method::kRegister;
  shared_->Call(method, batch.Encode(),
                [done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
                  if (!answer.ok()) return std::move(done)(answer.status());
                  RegisterResponse response;  // an UnregisterResponse has the same fields
                  response.ParseFromString(*answer);
                  std::move(done)(BatchResult::Of(std::move(response)));
                });
}

std::unique_ptr<SubscribeStream> WireRegistry::Subscribe(const SubscribeRequest& request,
                                                         std::shared_ptr<NotifyListener> listener) {
  const uint64_t id = shared_->Open(request, std::move(listener));
  return std::make_unique<Handle>(shared_, id);
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
    if (shared != nullptr && !shared->closed) {
      shared->Break(absl::UnavailableError("connection reset"), connection);
    }
  };
}

std::function<void()> WireRegistry::Killer() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    if (const auto shared = weak.lock()) shared->closed = true;
  };
}

std::function<int64_t()> WireRegistry::Counter() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    const auto shared = weak.lock();
    return shared == nullptr ? int64_t{0} : shared->sent;
  };
}

std::function<absl::Duration()> WireRegistry::SessionAge() {
  return [weak = std::weak_ptr<Shared>(shared_)] {
    const auto shared = weak.lock();
    if (shared == nullptr || shared->opened_at.expired()) return absl::InfiniteDuration();
    return absl::Nanoseconds(shared->network->now() - shared->opened_nanos);
  };
}

}  // namespace failback::simulate
