#include "registry/server_reactors.h"

#include <type_traits>

namespace failback {

RenewalReactor::RenewalReactor(std::shared_ptr<Registry> registry,
                               std::shared_ptr<StreamSessions> sessions, CallStats* stats,
                               StreamSessions::StreamId id, OnEnd on_end)
    : registry_(std::move(registry)),
      sessions_(std::move(sessions)),
      id_(id),
      on_end_(std::move(on_end)),
      state_(std::make_shared<State>(this, stats)) {
  MutexLock lock(&state_->mu_);
  state_->Advance();
}

void RenewalReactor::OnReadDone(bool ok) {
  if (!ok) {
    MutexLock lock(&state_->mu_);
    state_->reading_ = false;
    state_->read_all_ = true;
    state_->Advance();
    return;
  }
  const KeepAliveRequest request = std::move(request_);
  {
    MutexLock lock(&state_->mu_);
    if (state_->end_.has_value()) {  // as when the caller is not let in
      state_->reading_ = false;
      return;
    }
    ++state_->asked_;
    state_->idle_sweeps_ = 0;
  }
  // Answers also when the registry throws or drops the callback.
  struct Asked {
    Asked(std::shared_ptr<State> state, const std::string& session_id)
        : state(std::move(state)), session_id(session_id) {}
    Asked(const Asked&) = delete;
    ~Asked() {
      if (state != nullptr) Answer(absl::InternalError("the registry dropped the renewal"));
    }
    void Answer(absl::StatusOr<KeepAliveResponse> result) {
      KeepAliveResponse response;
      if (result.ok()) {
        response = *std::move(result);
      } else {
        *response.mutable_status() = StatusToProto(result.status());
      }
      response.set_session_id(session_id);
      std::exchange(state, nullptr)->Answer(std::move(response));
    }
    std::shared_ptr<State> state;  // null once answered
    const std::string session_id;
  };
  auto asked = std::make_unique<Asked>(state_, request.session_id());
  Guarded([&] {
    registry_->KeepAlive(request, [asked = std::move(asked), sessions = sessions_,
                                   id = id_](absl::StatusOr<KeepAliveResponse> result) {
      // Not of a session that the caller may not renew.
      if (result.ok()) sessions->Renewed(asked->session_id, id);
      asked->Answer(std::move(result));
    });
  }).IgnoreError();  // the callback's end has answered
  // Only now the next is read: the registry gets renewals in the order in which they came.
  MutexLock lock(&state_->mu_);
  state_->reading_ = false;
  state_->Advance();
}

void RenewalReactor::OnWriteDone(bool ok) {
  MutexLock lock(&state_->mu_);
  state_->writing_ = false;
  if (!ok && !state_->end_.has_value()) state_->end_ = absl::CancelledError("the client has gone");
  state_->Advance();
}

void RenewalReactor::OnCancel() { state_->End(absl::CancelledError("the client has gone")); }

void RenewalReactor::OnDone() {
  on_end_(id_);
  delete this;
}

void RenewalReactor::State::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
  Advance();
}

void RenewalReactor::State::Sweep(int sweeps) {
  MutexLock lock(&mu_);
  if (end_.has_value() || ++idle_sweeps_ <= sweeps) return;
  silent_ = true;
  end_ = absl::UnavailableError("no renewal has come for long: open the stream again");
  Advance();
}

bool RenewalReactor::State::silent() {
  MutexLock lock(&mu_);
  return silent_;
}

void RenewalReactor::State::Answer(KeepAliveResponse response) {
  MutexLock lock(&mu_);
  --asked_;
  answers_.push_back(std::move(response));
  Advance();
}

void RenewalReactor::State::Advance() {
  if (reactor_ == nullptr) return;
  if (!writing_ && !end_.has_value() && !answers_.empty()) {
    written_ = std::move(answers_.front());
    answers_.pop_front();
    writing_ = true;
    reactor_->StartWrite(&written_);
  }
  if (!reading_ && !read_all_ && !end_.has_value() && asked_ + answers_.size() < kMaxOpen) {
    reading_ = true;
    reactor_->StartRead(&reactor_->request_);
  }
  if (read_all_ && asked_ == 0 && answers_.empty() && !end_.has_value()) end_ = absl::OkStatus();
  if (writing_ || !end_.has_value()) return;
  stats_->Ended(CallStats::Method::kKeepAlive, end_->code());
  std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
}

SubscribeReactor::SubscribeReactor(grpc::CallbackServerContext* context,
                                   const SubscribeRequest& request,
                                   std::shared_ptr<EventCache> cache, CallStats* stats,
                                   std::function<void()> on_done)
    : state_(std::make_shared<State>(this, context, request, std::move(cache), stats)),
      on_done_(std::move(on_done)) {}

void SubscribeReactor::Start(Registry* registry, const SubscribeRequest& request) {
  const absl::Status status = Guarded([&] { stream_ = registry->Subscribe(request, state_); });
  if (!status.ok()) state_->Abort(status);
}

void SubscribeReactor::OnWriteDone(bool ok) {
  MutexLock lock(&state_->mu_);
  state_->writing_ = false;
  if (!ok) {
    state_->conflator_.reset();
    if (!state_->end_.has_value()) state_->end_ = absl::CancelledError("the client has gone");
  }
  state_->Advance();
}

void SubscribeReactor::OnCancel() { state_->Abort(absl::CancelledError("the client has gone")); }

void SubscribeReactor::OnDone() {
  stream_.reset();  // after this the listener hears nothing
  on_done_();
  delete this;
}

void SubscribeReactor::State::Abort(const absl::Status& status) {
  MutexLock lock(&mu_);
  conflator_.reset();
  if (!end_.has_value()) end_ = status;
  Advance();
}

void SubscribeReactor::State::Sweep(int sweeps) {
  MutexLock lock(&mu_);
  if (!writing_ || reactor_ == nullptr || ++idle_sweeps_ <= sweeps) return;
  // What waits is let go at once; OnWriteDone follows.
  conflator_.reset();
  if (!end_.has_value()) end_ = absl::CancelledError("the subscriber has stopped reading");
  context_->TryCancel();
}

template <typename Told>
void SubscribeReactor::State::Add(const Told& told) {
  Conflator::Changes changes = cache_->ChangesOf(told);
  MutexLock lock(&mu_);
  if (!conflator_.has_value() || end_.has_value()) return;
  if constexpr (std::is_same_v<Told, Conflator::Event>) {
    if (told->has_delta() && conflator_->pending() > 0) stats_->Conflated();
  }
  if (absl::Status status = conflator_->Add(told, std::move(changes)); !status.ok()) {
    conflator_.reset();
    end_ = std::move(status);
  }
  Advance();
}

void SubscribeReactor::State::OnNotify(const std::shared_ptr<const SubscribeResponse>& event) {
  Add(event);
}

bool SubscribeReactor::State::OnSnapshot(const std::shared_ptr<const LazySnapshot>& snapshot) {
  Add(snapshot);
  return true;
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
      stats_->Sent(next.snapshot != nullptr || next.event->has_snapshot());
      writing_ = true;
      idle_sweeps_ = 0;
      reactor_->StartWrite(&written_);
      return;
    }
  }
  if (end_.has_value()) {
    conflator_.reset();
    stats_->Ended(CallStats::Method::kSubscribe, end_->code());
    std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
  }
}

}  // namespace failback
