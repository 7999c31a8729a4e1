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
    if (!ok || !state_->MayRead()) {
      state_->reading_ = false;
      if (!state_->final_status_.has_value()) state_->final_status_ = absl::OkStatus();
      return state_->Advance();
    }
    slot = state_->Take(request_.Length());
  }
  OnRequest(&request_, slot);
  MutexLock lock(&state_->mu_);
  state_->reading_ = false;
  state_->Advance();
}

void ExchangeReactor::OnWriteDone(bool ok) {
  MutexLock lock(&state_->mu_);
  state_->writing_ = false;
  if (!ok) state_->SetEnd(Disconnected());
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
  if (end_.has_value()) return;
  Put(slot, response);
  Advance();
}

void ExchangeReactor::State::Put(const Slot& slot, const grpc::ByteBuffer& response) {
  open_bytes_ += response.Length() - slot.bytes;
  if (options_.order == Order::kAsAnswered) {
    ready_.push_back(response);
    return;
  }
  waiting_[slot.number - first_waiting_] = response;
  for (; !waiting_.empty() && waiting_.front().has_value(); ++first_waiting_) {
    ready_.emplace_back().Swap(&*waiting_.front());
    waiting_.pop_front();
  }
}

void ExchangeReactor::State::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  SetEnd(status);
  Advance();
}

void ExchangeReactor::State::Drain(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!final_status_.has_value()) final_status_ = status;
  Advance();
}

void ExchangeReactor::State::Sweep(int stalled, int silent, int oldest) {
  MutexLock lock(&mu_);
  if (reactor_ == nullptr) return;
  ++sweeps_since_read_;
  if (++sweeps_ >= oldest && !final_status_.has_value()) {
    swept_ = true;
    final_status_ = StreamIsOld();
    return Advance();
  }
  if (!end_.has_value() && open_ == ready_.size() && sweeps_since_read_ > silent) {
    swept_ = true;
    SetEnd(Refusal(registry::v1::ERROR_REASON_IDLE,
                   "nothing has come for long: open the stream again"));
    Advance();
  } else if (writing_ && ++sweeps_since_write_ > stalled) {
    swept_ = true;
    SetEnd(absl::CancelledError("the client has stopped reading"));
    options_.context->TryCancel();  // OnWriteDone follows
  }
}

bool ExchangeReactor::State::swept() {
  MutexLock lock(&mu_);
  return swept_;
}

ExchangeReactor::Slot ExchangeReactor::State::Take(size_t bytes) {
  sweeps_since_read_ = 0;
  ++open_;
  open_bytes_ += bytes;
  if (options_.order == Order::kAsRequested) waiting_.emplace_back();
  return {next_++, bytes, options_.message_method.has_value() ? Clock::Real()->NowNanos() : 0};
}

void ExchangeReactor::State::SetEnd(const absl::Status& status) {
  if (end_.has_value()) return;
  end_ = status;
  waiting_.clear();
  ready_.clear();
}

void ExchangeReactor::State::Advance() {
  if (reactor_ == nullptr) return;
  if (!writing_ && !ready_.empty()) {
    written_.Swap(&ready_.front());
    ready_.pop_front();
    --open_;
    open_bytes_ -= written_.Length();
    writing_ = true;
    sweeps_since_write_ = 0;
    reactor_->StartWrite(&written_);
  }
  if (final_status_.has_value() && open_ == 0) SetEnd(*final_status_);
  if (!reading_ && MayRead() && open_ < options_.max_open &&
      open_bytes_ < options_.max_open_bytes) {
    reading_ = true;
    reactor_->StartRead(&reactor_->request_);
  }
  if (writing_ || !end_.has_value()) return;
  options_.stats->Ended(options_.method, end_->code());
  silent_.reset();
  std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
}

}  // namespace failback
