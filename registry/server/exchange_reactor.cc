#include "registry/server/exchange_reactor.h"

#include <utility>

#include "registry/model/errors.h"
#include "registry/server/refusals.h"
#include "retry/clock.h"

namespace failback {

absl::Status StreamIsOld() {
  return Refusal(registry::v1::ERROR_REASON_IDLE,
                 "the stream has been open for long: open it again");
}

ExchangeReactor::ExchangeReactor(Options options) {
  std::shared_ptr<void> silent = std::exchange(options.silent, nullptr);
  state_ = std::make_shared<State>(this, std::move(options), std::move(silent));
}

void ExchangeReactor::Begin() {
  MutexLock lock(&state_->mu_);
  state_->Advance();
}

void ExchangeReactor::OnReadDone(bool ok) {
  Slot slot;
  {
    MutexLock lock(&state_->mu_);
    if (!ok || !state_->flow_.MayRead()) {
      state_->flow_.EndRead();
      state_->flow_.Drain(absl::OkStatus());
      return state_->Advance();
    }
    slot = state_->Take(request_.Length());
  }
  OnRequest(&request_, slot);
  MutexLock lock(&state_->mu_);
  state_->flow_.EndRead();
  state_->Advance();
}

void ExchangeReactor::OnWriteDone(bool ok) {
  MutexLock lock(&state_->mu_);
  state_->flow_.EndWrite();
  if (!ok) state_->flow_.End(Disconnected());
  state_->Advance();
}

void ExchangeReactor::OnCancel() { state_->End(Disconnected()); }

void ExchangeReactor::OnDone() {
  OnEnd();
  delete this;
}

void ExchangeReactor::State::Answer(const Slot& slot, const grpc::ByteBuffer& response,
                                    absl::StatusCode code) {
  MutexLock lock(&mu_);
  if (code == absl::StatusCode::kOk) silent_.reset();
  if (reactor_ == nullptr) return;
  if (options_.message_method.has_value()) {
    options_.stats->Ended(*options_.message_method, code,
                          Clock::Real()->NowNanos() - slot.begin_nanos);
  }
  flow_.Put(slot.of_flow, Answered(response), response.Length());
  Advance();
}

void ExchangeReactor::State::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  flow_.End(status);
  Advance();
}

void ExchangeReactor::State::Drain(const absl::Status& status) {
  MutexLock lock(&mu_);
  flow_.Drain(status);
  Advance();
}

void ExchangeReactor::State::Sweep(int stalled, int silent, int oldest) {
  MutexLock lock(&mu_);
  if (reactor_ == nullptr) return;
  switch (flow_.Sweep(stalled, silent, oldest)) {
    case Flow::Swept::kGoesOn:
      return;
    case Flow::Swept::kOld:
      flow_.Drain(StreamIsOld());
      break;
    case Flow::Swept::kSilent:
      flow_.End(Refusal(registry::v1::ERROR_REASON_IDLE,
                        "nothing has come for long: open the stream again"));
      break;
    case Flow::Swept::kStalled:
      flow_.End(absl::CancelledError("the client has stopped reading"));
      options_.context->TryCancel();  // OnWriteDone follows
      break;
  }
  swept_ = true;
  Advance();
}

bool ExchangeReactor::State::swept() {
  MutexLock lock(&mu_);
  return swept_;
}

ExchangeReactor::Slot ExchangeReactor::State::Take(size_t bytes) {
  return {flow_.Take(bytes), options_.message_method.has_value() ? Clock::Real()->NowNanos() : 0};
}

void ExchangeReactor::State::Advance() {
  if (reactor_ == nullptr) return;
  if (std::optional<Answered> answer = flow_.StartWrite(); answer.has_value()) {
    written_.Swap(&answer->bytes);
    reactor_->StartWrite(&written_);
  }
  if (flow_.StartRead()) reactor_->StartRead(&reactor_->request_);
  const absl::Status* const end = flow_.over();
  if (end == nullptr) return;
  options_.stats->Ended(options_.method, end->code());
  silent_.reset();
  std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end));
}

}  // namespace failback
