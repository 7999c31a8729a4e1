// The server's ends of streams: what EventStream and ExchangeReactor are around the same flows.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/event_order.h"
#include "registry/model/wire_bounds.h"
#include "registry/server/answer_flow.h"
#include "registry/watch/conflator.h"
#include "registry/watch/watch_flow.h"
#include "tests/simulate/wire.h"

namespace failback::simulate {
namespace {

// A server looks at its streams so often, and ends one that has been open for four of these times,
// that has had nothing to do for two, or that has not written a message for three.
constexpr absl::Duration kSweep = absl::Seconds(12);
constexpr int kStalled = 3, kSilent = 2, kOldest = 4;

absl::Status IsOld() {
  return Refusal(registry::v1::ERROR_REASON_IDLE, "the stream has been open for long");
}

absl::Status HasStoppedReading() { return absl::CancelledError("the client has stopped reading"); }

// Small, so that they are met.
WatchFlow::Limits WatchLimits(bool short_messages) {
  WatchFlow::Limits limits;
  limits.subscriptions = 100;
  limits.begin_below = 2000;
  limits.message_items = short_messages ? 1 : 3;
  return limits;
}

}  // namespace

// One of them, which goes with the server, or before.
class WireServer::ServedStream : public WireStream::End {
 public:
  ServedStream(WireServer* server, std::shared_ptr<WireStream> stream)
      : server_(server), stream_(std::move(stream)) {}

  virtual void Begin() = 0;
  virtual void Sweep() = 0;
  // Nothing more is sent or read.
  virtual void Detach() { server_ = nullptr; }

 protected:
  // The stream ends with this.
  void Finish(const absl::Status& status) {
    stream_->Finish(status);
    server_->Forget(this);
  }

  WireServer* server_;  // null once it is over for the server
  const std::shared_ptr<WireStream> stream_;
};

// --- Watch.

class WireServer::WatchEnd final : public ServedStream,
                                   public std::enable_shared_from_this<WatchEnd> {
 public:
  WatchEnd(WireServer* server, std::shared_ptr<WireStream> stream)
      : ServedStream(server, std::move(stream)),
        flow_(WatchFlow::Framing::kWatch, WatchLimits(server->network_->short_messages)),
        registry_(server->For(stream_->link(), &guarded_)) {}

  void Begin() override { Advance(); }

  void OnMessage(const std::string& bytes) override {
    reading_ = false;
    WatchRequest request;
    absl::Status status =
        CheckWire(*WatchRequest::descriptor(), bytes,
                  BatchRequest(WatchFlow::kMaxRequestBytes, WatchFlow::kMaxCommands));
    if (status.ok() && !request.ParseFromString(bytes)) {
      status = absl::InvalidArgumentError("not a request");
    }
    if (status.ok()) status = flow_.Receive(std::move(request));
    if (!status.ok()) {
      server_->network_->on_protocol_error(absl::StrCat("from a client: ", status.ToString()));
      flow_.Abort(status);
    }
    Advance();
  }
  void OnWritten() override {
    writing_ = false;
    Advance();
  }
  void OnOver(const absl::Status&) override {
    if (server_ != nullptr) server_->Forget(this);
  }

  void Sweep() override {
    if (++sweeps_ >= kOldest && server_->network_->streams_age) {
      flow_.Drain(IsOld());
    } else if (flow_.idle() && ++sweeps_since_use_ > kSilent) {
      flow_.Drain(Refusal(registry::v1::ERROR_REASON_IDLE, "nothing has been followed for long"));
    }
    if (writing_ && ++sweeps_since_write_ > kStalled) {
      flow_.Abort(HasStoppedReading());
      writing_ = false;
    }
    Advance();
  }

  void Detach() override {
    ServedStream::Detach();
    for (auto& stream : flow_.TakeStreams()) stream.reset();
  }

 private:
  class Listener;

  void OnEvent(WatchFlow::Id id, const EventPtr& event) {
    const WatchFlow::Change change = flow_.OnEvent(id, event, Conflator::ChangesOf(*event));
    Advance();
  }
  void OnEnd(WatchFlow::Id id, const absl::Status& status) {
    const WatchFlow::Change change = flow_.OnEnd(id, status);
    Advance();
  }

  void Advance() {
    if (server_ == nullptr) return;
    if (!writing_) Write();
    if (!flow_.idle()) sweeps_since_use_ = 0;
    if (!writing_) {
      if (const auto end = flow_.Finished(); end.has_value()) return Finish(*end);
    }
    while (!working_ && server_ != nullptr && flow_.has_step()) Work();
    if (server_ != nullptr && !reading_ && flow_.wants_request()) {
      reading_ = true;
      stream_->Read(Way::kToRegistry);
    }
  }

  void Write() {
    std::string bytes;
    for (const WatchFlow::Piece& piece : flow_.Take()) {
      bytes += piece.head;
      if (piece.event != nullptr) bytes += piece.event->EncodedPart(piece.part);
    }
    if (bytes.empty()) return;
    writing_ = true;
    sweeps_since_write_ = 0;
    stream_->Write(Way::kToClient, std::move(bytes));
  }

  void Work();

  WatchFlow flow_;
  std::optional<GuardedRegistry> guarded_;
  Registry* const registry_;
  bool reading_ = false;
  bool writing_ = false;
  bool working_ = false;
  int sweeps_ = 0, sweeps_since_write_ = 0, sweeps_since_use_ = 0;
};

class WireServer::WatchEnd::Listener final : public NotifyListener {
 public:
  Listener(std::shared_ptr<WatchEnd> end, Network* network, WatchFlow::Id id,
           const SubscribeRequest& request)
      : end_(std::move(end)),
        network_(network),
        id_(id),
        order_(request.epoch(), request.revision()) {}

  void OnEvent(const EventPtr& event) override {
    // A snapshot may be of a registry that is behind, and the stream ends. A delta that does not
    // follow on what the subscriber has is the registry's fault.
    const absl::Status status = order_.Check(*event);
    if (!status.ok() && !event->is_snapshot() && !lost_) {
      network_->on_protocol_error(absl::StrCat("to a stream: ", status.ToString()));
    }
    lost_ = lost_ || !status.ok();
    end_->OnEvent(id_, event);
  }
  void OnEnd(const absl::Status& status) override { end_->OnEnd(id_, status); }

 private:
  const std::shared_ptr<WatchEnd> end_;
  Network* const network_;
  const WatchFlow::Id id_;
  EventOrder order_;
  bool lost_ = false;  // it ends
};

void WireServer::WatchEnd::Work() {
  working_ = true;
  if (std::optional<WatchFlow::Step> step = flow_.NextStep(); step.has_value()) {
    if (!step->subscribe.has_value()) {
      step->ended.reset();
    } else {
      auto stream = registry_->Subscribe(
          *step->subscribe, std::make_shared<Listener>(shared_from_this(), server_->network_,
                                                       step->id, *step->subscribe));
      const WatchFlow::Change change = flow_.Begun(step->id, std::move(stream));
    }
  }
  working_ = false;
  // What has begun may be written, and what ends with it.
  if (server_ != nullptr && !writing_) Write();
}

// --- KeepAlive and RegisterStream.

class WireServer::AnswerEnd final : public ServedStream,
                                    public std::enable_shared_from_this<AnswerEnd> {
 public:
  AnswerEnd(WireServer* server, std::shared_ptr<WireStream> stream)
      : ServedStream(server, std::move(stream)),
        registers_(stream_->kind() == WireStream::Kind::kRegister),
        flow_(registers_ ? kRegisterStreamLimits : AnswerLimits()) {}

  void Begin() override { Advance(); }

  void OnMessage(const std::string& bytes) override {
    if (!flow_.MayRead()) {
      flow_.EndRead();
      return Advance();
    }
    const AnswerSlot slot = flow_.Take(bytes.size());
    const auto answer = [weak = weak_from_this(), slot](std::string bytes) {
      const auto self = weak.lock();
      if (self == nullptr || self->server_ == nullptr) return;
      const size_t size = bytes.size();
      self->flow_.Put(slot, std::move(bytes), size);
      self->Advance();
    };
    registers_ ? Register(bytes, answer) : Renew(bytes, answer);
    flow_.EndRead();
    Advance();
  }
  void OnWritten() override {
    flow_.EndWrite();
    Advance();
  }
  void OnHalfClose() override {
    flow_.EndRead();
    flow_.Drain(absl::OkStatus());
    Advance();
  }
  void OnOver(const absl::Status&) override {
    if (server_ != nullptr) server_->Forget(this);
  }

  void Sweep() override {
    const int oldest = server_->network_->streams_age ? kOldest : std::numeric_limits<int>::max();
    switch (flow_.Sweep(kStalled, kSilent, oldest)) {
      case AnswerFlow<std::string>::Swept::kGoesOn:
        return;
      case AnswerFlow<std::string>::Swept::kOld:
        flow_.Drain(IsOld());
        break;
      case AnswerFlow<std::string>::Swept::kSilent:
        flow_.End(Refusal(registry::v1::ERROR_REASON_IDLE, "nothing has come for long"));
        break;
      case AnswerFlow<std::string>::Swept::kStalled:
        flow_.End(HasStoppedReading());
        flow_.EndWrite();
        break;
    }
    Advance();
  }

 private:
  using Answer = std::function<void(std::string bytes)>;

  // The bytes of a RegisterResponse are those of a RegisterStreamResponse.
  void Register(const std::string& bytes, const Answer& answer) {
    std::optional<GuardedRegistry> guarded;
    Registry* const registry = server_->For(stream_->link(), &guarded);
    server_->Write(registry, stream_->link(), Batch::Kind::kRegister, /*leave_out=*/true, bytes,
                   [answer](const WireAnswer& result) {
                     if (result.ok) return answer(result.bytes);
                     registry::v1::RegisterStreamResponse refused;
                     refused.mutable_status()->ParseFromString(result.bytes);
                     answer(refused.SerializeAsString());
                   });
  }

  void Renew(const std::string& bytes, const Answer& answer) {
    KeepAliveRequest request;
    absl::Status status = CheckWire(*KeepAliveRequest::descriptor(), bytes, kSmallRequest);
    if (status.ok() && !request.ParseFromString(bytes)) {
      status = absl::InvalidArgumentError("not a request");
    }
    if (!status.ok()) return flow_.End(status);
    std::optional<GuardedRegistry> guarded;
    server_->For(stream_->link(), &guarded)
        ->KeepAlive(request, [answer, session_id = request.session_id()](
                                 absl::StatusOr<KeepAliveResponse> result) {
          KeepAliveResponse response;
          if (result.ok()) {
            response = *std::move(result);
          } else {
            *response.mutable_status() = StatusToProto(result.status());
          }
          response.set_session_id(session_id);
          answer(response.SerializeAsString());
        });
  }

  void Advance() {
    if (server_ == nullptr) return;
    if (std::optional<std::string> next = flow_.StartWrite(); next.has_value()) {
      stream_->Write(Way::kToClient, *std::move(next));
    }
    if (flow_.StartRead()) stream_->Read(Way::kToRegistry);
    if (const absl::Status* const end = flow_.over(); end != nullptr) Finish(*end);
  }

  const bool registers_;
  AnswerFlow<std::string> flow_;
};

// --- The server.

void WireServer::Open(const std::shared_ptr<WireStream>& stream) {
  std::shared_ptr<ServedStream> end;
  if (stream->kind() == WireStream::Kind::kWatch) {
    end = std::make_shared<WatchEnd>(this, stream);
  } else {
    end = std::make_shared<AnswerEnd>(this, stream);
  }
  stream->SetEnd(Way::kToRegistry, end);
  streams_.push_back(end);
  end->Begin();
}

void WireServer::Forget(ServedStream* gone) {
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    if (it->get() != gone) continue;
    const std::shared_ptr<ServedStream> stream = std::move(*it);
    streams_.erase(it);
    return stream->Detach();
  }
}

void WireServer::Sweep() {
  process_->After(kSweep, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    const auto streams = self->streams_;
    for (const auto& stream : streams) stream->Sweep();
    self->Sweep();
  });
}

WireServer::~WireServer() {
  for (const auto& stream : streams_) stream->Detach();
}

}  // namespace failback::simulate
