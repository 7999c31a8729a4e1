#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "registry/model/wire_bounds.h"
#include "registry/watch/conflator.h"
#include "tests/simulate/wire.h"

namespace failback::simulate {
namespace {

WireAnswer Refused(const absl::Status& status) {
  return {false, StatusToProto(status).SerializeAsString()};
}

}  // namespace

// One Subscribe stream: what the subscriber has not been sent waits in a conflator while a message
// is on its way.
class WireServer::Stream final : public NotifyListener,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(WireServer* server, uint64_t id, const SubscribeRequest& request, StreamSink sink)
      : server_(server),
        network_(server->network_),
        id_(id),
        sink_(std::move(sink)),
        conflator_(std::in_place, request.epoch(), request.revision()) {}

  void Start(const SubscribeRequest& request) {
    auto handle = server_->For(sink_.link, &guarded_)->Subscribe(request, shared_from_this());
    if (server_ != nullptr) handle_ = std::move(handle);  // it may have ended at once
  }

  void OnEvent(const EventPtr& event) override {
    if (!conflator_.has_value() || end_.has_value()) return;
    if (absl::Status status = conflator_->Add(event); !status.ok()) {
      // Slow ones are refused, and snapshots of a registry that is behind; a delta that does not
      // follow on what the subscriber has is the registry's fault.
      const registry::v1::ErrorReason reason = ReasonOf(status);
      const bool behind =
          reason == registry::v1::ERROR_REASON_POSITION_LOST && event->is_snapshot();
      if (reason != registry::v1::ERROR_REASON_SUBSCRIBER_SLOW && !behind &&
          network_->on_protocol_error) {
        network_->on_protocol_error(absl::StrCat("to a stream: ", status.ToString()));
      }
      conflator_.reset();
      end_ = status;
    }
    Pump();
  }

  void OnEnd(const absl::Status& status) override {
    if (!end_.has_value()) end_ = status;
    Pump();
  }

  // The server is going: nothing more is sent.
  void Detach() {
    server_ = nullptr;
    handle_.reset();
  }

 private:
  void Pump() {
    if (server_ == nullptr || writing_ || over_) return;
    const auto broken = [self = shared_from_this()] { self->Break(); };
    if (conflator_.has_value()) {
      if (const Conflator::Message next = conflator_->Take()) {
        writing_ = true;
        network_->SendOnStream(
            sink_.link, Way::kToClient, sink_.client,
            [self = shared_from_this(), bytes = next.event->EncodedPart(next.part)] {
              self->sink_.message(bytes);
              self->Written();
            },
            broken);
        return;
      }
    }
    if (!end_.has_value()) return;
    over_ = true;
    // Whether this or the news that the connection is broken arrives, the stream has ended.
    network_->SendOnStream(
        sink_.link, Way::kToClient, sink_.client,
        [self = shared_from_this()] { self->sink_.end(Refused(*self->end_)); }, broken);
    server_->Cancel(id_);
  }

  void Written() {
    if (server_ == nullptr) return;
    server_->process_->Run([self = shared_from_this()] {
      self->writing_ = false;
      self->Pump();
    });
  }

  // The connection is broken: both sides find out.
  void Break() {
    network_->SendNews(sink_.link, Way::kToClient, sink_.client, [self = shared_from_this()] {
      self->sink_.end(Refused(absl::UnavailableError("connection reset")));
    });
    if (server_ == nullptr) return;
    server_->process_->Run([self = shared_from_this()] {
      if (self->server_ != nullptr) self->server_->Cancel(self->id_);
    });
  }

  WireServer* server_;  // null once it is over for the server
  Network* const network_;
  const uint64_t id_;
  const StreamSink sink_;
  std::optional<Conflator> conflator_;
  std::optional<absl::Status> end_;
  std::optional<GuardedRegistry> guarded_;
  std::unique_ptr<SubscribeStream> handle_;
  bool writing_ = false;
  bool over_ = false;
};

WireServer::~WireServer() {
  for (const auto& [id, stream] : streams_) stream->Detach();
}

Registry* WireServer::For(int link, std::optional<GuardedRegistry>* guarded) {
  if (access_ == nullptr) return registry_;
  Identity who;
  who.kind = Identity::Kind::kCertificate;
  who.names = {NameOf(link)};
  guarded->emplace(registry_, access_, std::move(who));
  return &**guarded;
}

template <typename Request, typename Response>
void WireServer::Unary(Registry* registry,
                       void (Registry::*method)(const Request&, Callback<Response>),
                       const std::string& bytes, const Reply& reply) {
  Request request;
  if (auto status = CheckWire(*Request::descriptor(), bytes, kSmallRequest); !status.ok()) {
    return reply(Refused(status));
  }
  if (!request.ParseFromString(bytes)) {
    return reply(Refused(absl::InvalidArgumentError("not a request")));
  }
  (registry->*method)(request, [this, request, reply](const absl::StatusOr<Response>& response) {
    if (!response.ok()) return reply(Refused(response.status()));
    NoteSession(request, *response);
    reply({true, response->SerializeAsString()});
  });
}

template <typename Request, typename Response>
void WireServer::NoteSession(const Request& request, const Response& response) {
  if constexpr (std::is_same_v<Response, OpenSessionResponse>) {
    witness_->Opened(response.session_id(), response.rank());
  } else if constexpr (std::is_same_v<Response, CloseSessionResponse>) {
    witness_->Closed(request.session_id());
  }
}

void WireServer::Write(Registry* registry, int link, Batch::Kind kind, bool leave_out,
                       const std::string& bytes, const Reply& reply) {
  const Batch::Limits limits{BatchRequest(4 << 20, kDefaultMaxBatch), kDefaultMaxBatch};
  absl::StatusOr<Batch> batch = Batch::Read(kind, bytes, limits);
  if (!batch.ok()) return reply(Refused(batch.status()));
  std::optional<Batch::Generations> asked;
  if (!leave_out) asked = batch->generations();
  const std::string session_id = batch->session_id();
  std::vector<Witness::Asked> intents;
  for (const Intent& intent : batch->intents()) {
    intents.push_back({intent.key, intent.generation, intent.registers});
  }
  if (network_->link(link).refuses_numbers) {
    BatchResult refused;
    for (const Witness::Asked& intent : intents) {
      *refused.results.emplace_back().mutable_status() = StatusToProto(
          Refusal(registry::v1::ERROR_REASON_GENERATION_REUSED, "this number is taken, too",
                  {{"generation", absl::StrCat(intent.generation)}}));
    }
    return reply({true, EncodeResponse(refused, asked.has_value() ? &*asked : nullptr)});
  }
  registry->Write(*std::move(batch),
                  [this, asked, session_id, intents, reply](absl::StatusOr<BatchResult> result) {
                    if (!result.ok()) return reply(Refused(result.status()));
                    witness_->Written(session_id, intents, *result);
                    reply({true, EncodeResponse(*result, asked.has_value() ? &*asked : nullptr)});
                  });
}

void WireServer::Call(Method method, int link, const std::string& bytes, const Reply& reply) {
  std::optional<GuardedRegistry> guarded;
  Registry* const registry = For(link, &guarded);
  switch (method) {
    case Method::kOpenSession:
      return Unary(registry, &Registry::OpenSession, bytes, reply);
    case Method::kKeepAlive:
      return Unary(registry, &Registry::KeepAlive, bytes, reply);
    case Method::kCloseSession:
      return Unary(registry, &Registry::CloseSession, bytes, reply);
    case Method::kRegister:
      return Write(registry, link, Batch::Kind::kRegister, /*leave_out=*/false, bytes, reply);
    case Method::kRegisterStream:
      return Write(registry, link, Batch::Kind::kRegister, /*leave_out=*/true, bytes, reply);
    case Method::kUnregister:
      return Write(registry, link, Batch::Kind::kUnregister, /*leave_out=*/false, bytes, reply);
    case Method::kUnsubscribe:
      return Unary(registry, &Registry::Unsubscribe, bytes, reply);
    case Method::kList:
      return Unary(registry, &Registry::List, bytes, reply);
    case Method::kSetOffline:  // an operator's, who may
      return Unary(registry_, &Registry::SetOffline, bytes, reply);
  }
}

void WireServer::Subscribe(uint64_t id, const std::string& bytes, StreamSink sink) {
  SubscribeRequest request;
  request.ParseFromString(bytes);
  auto stream = std::make_shared<Stream>(this, id, request, std::move(sink));
  streams_[id] = stream;
  stream->Start(request);
}

void WireServer::Cancel(uint64_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  const std::shared_ptr<Stream> stream = std::move(it->second);
  streams_.erase(it);
  stream->Detach();
}

}  // namespace failback::simulate
