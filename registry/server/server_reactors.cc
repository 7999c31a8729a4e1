#include "registry/server/server_reactors.h"

#include "absl/status/statusor.h"
#include "registry/model/errors.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/refusals.h"

namespace failback {

namespace {

// A renewal's answer.
struct EncodeRenewal {
  using Response = KeepAliveResponse;

  grpc::ByteBuffer operator()(absl::StatusOr<KeepAliveResponse> result) const {
    KeepAliveResponse response;
    if (result.ok()) {
      response = *std::move(result);
    } else {
      *response.mutable_status() = StatusToProto(result.status());
    }
    response.set_session_id(session_id);
    return EncodedMessage(response);
  }

  std::string session_id;
};

ExchangeReactor::Options OptionsOf(grpc::CallbackServerContext* context, CallStats* stats,
                                   std::shared_ptr<void> silent) {
  ExchangeReactor::Options options;
  options.context = context;
  options.stats = stats;
  options.silent = std::move(silent);
  return options;
}

}  // namespace

RenewalReactor::RenewalReactor(grpc::CallbackServerContext* context,
                               std::shared_ptr<Registry> registry,
                               std::shared_ptr<StreamSessions> sessions, CallStats* stats,
                               std::shared_ptr<void> silent, StreamSessions::StreamId id,
                               OnStreamEnd on_end)
    : ExchangeReactor(OptionsOf(context, stats, std::move(silent))),
      registry_(std::move(registry)),
      sessions_(std::move(sessions)),
      id_(id),
      on_end_(std::move(on_end)) {
  Begin();
}

void RenewalReactor::OnRequest(grpc::ByteBuffer* bytes, const Slot& slot) {
  KeepAliveRequest request;
  if (absl::Status parsed = ParseWithin(kSmallRequest, *bytes, &request); !parsed.ok()) {
    return state()->End(parsed);
  }
  auto answer = std::make_unique<PendingAnswer<EncodeRenewal>>(state(), slot,
                                                               EncodeRenewal{request.session_id()});
  Guarded([&] {
    registry_->KeepAlive(request, [answer = std::move(answer), sessions = sessions_,
                                   id = id_](absl::StatusOr<KeepAliveResponse> result) {
      // Not of a session that the caller may not renew.
      if (result.ok()) sessions->Renewed(answer->encode().session_id, id);
      answer->Give(std::move(result));
    });
  }).IgnoreError();  // the callback's end has answered
}

SubscribeReactor::SubscribeReactor(grpc::CallbackServerContext* context,
                                   const SubscribeRequest& request,
                                   std::shared_ptr<EventCache> cache, CallStats* stats,
                                   std::function<bool()> withdraw, OnStreamEnd on_end)
    : state_(std::make_shared<State>(this, context, request, std::move(cache), stats)),
      withdraw_(std::move(withdraw)),
      on_end_(std::move(on_end)) {}

void SubscribeReactor::Start(Registry* registry, const SubscribeRequest& request) {
  const std::shared_ptr<State> state = state_;
  absl::Status status;
  if (!state->ended()) {
    status = Guarded([&] { stream_ = registry->Subscribe(request, state); });
  }
  state->Started(status);  // from here on gRPC may be done with the reactor
}

void SubscribeReactor::OnWriteDone(bool ok) {
  MutexLock lock(&state_->mu_);
  state_->writing_ = false;
  if (!ok) {
    state_->conflator_.reset();
    if (!state_->end_.has_value()) state_->end_ = Disconnected();
  }
  state_->Advance();
}

void SubscribeReactor::OnCancel() {
  state_->Abort(Disconnected());
  if (withdraw_()) state_->Started(absl::OkStatus());  // nothing else will end it
}

void SubscribeReactor::OnDone() {
  stream_.reset();  // after this the listener receives nothing
  on_end_(state_);
  delete this;
}

void SubscribeReactor::State::Abort(const absl::Status& status) {
  MutexLock lock(&mu_);
  conflator_.reset();
  if (!end_.has_value()) end_ = status;
  Advance();
}

bool SubscribeReactor::State::ended() {
  MutexLock lock(&mu_);
  return end_.has_value();
}

void SubscribeReactor::State::Started(const absl::Status& status) {
  MutexLock lock(&mu_);
  starting_ = false;
  if (!status.ok()) {
    conflator_.reset();
    if (!end_.has_value()) end_ = status;
  }
  Advance();
}

void SubscribeReactor::State::Sweep(int stalled, int oldest) {
  MutexLock lock(&mu_);
  if (reactor_ != nullptr && ++sweeps_ >= oldest && !end_.has_value()) {
    end_ = StreamIsOld();
    Advance();
  }
  if (!writing_ || reactor_ == nullptr || ++idle_sweeps_ <= stalled) return;
  // What waits is let go at once; OnWriteDone follows.
  conflator_.reset();
  if (!end_.has_value()) end_ = absl::CancelledError("the subscriber has stopped reading");
  context_->TryCancel();
}

void SubscribeReactor::State::OnEvent(const EventPtr& event) {
  Conflator::Changes changes = cache_->ChangesOf(event);
  MutexLock lock(&mu_);
  if (!conflator_.has_value() || end_.has_value()) return;
  if (event->is_delta() && conflator_->pending() > 0) stats_->Conflated();
  if (absl::Status status = conflator_->Add(event, std::move(changes)); !status.ok()) {
    conflator_.reset();
    end_ = std::move(status);
  }
  Advance();
}

void SubscribeReactor::State::OnEnd(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
  Advance();
}

void SubscribeReactor::State::Advance() {
  if (reactor_ == nullptr || writing_) return;
  if (conflator_.has_value()) {
    if (const Conflator::Message next = conflator_->Take()) {
      written_ = cache_->BytesOf(next);
      stats_->Sent(next.event->is_snapshot());
      writing_ = true;
      idle_sweeps_ = 0;
      reactor_->StartWrite(&written_);
      return;
    }
  }
  if (end_.has_value() && !starting_) {
    conflator_.reset();
    stats_->Ended(CallStats::Method::kSubscribe, end_->code());
    std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
  }
}

}  // namespace failback
