#include "registry/server/event_stream.h"

#include <optional>
#include <utility>

#include "registry/model/errors.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/exchange_reactor.h"
#include "registry/server/refusals.h"

namespace failback {
namespace {

// Commands that one turn on a thread for reads carries out: others' reads wait for no more.
constexpr int kStepsPerTurn = 16;

}  // namespace

// What the registry notifies of one subscription.
class EventStream::Listener final : public NotifyListener {
 public:
  Listener(std::shared_ptr<EventStream> stream, WatchFlow::Id id)
      : stream_(std::move(stream)), id_(id) {}

  void OnEvent(const EventPtr& event) override { stream_->OnEvent(id_, event); }
  void OnEnd(const absl::Status& status) override { stream_->OnEnd(id_, status); }

 private:
  const std::shared_ptr<EventStream> stream_;
  const WatchFlow::Id id_;
};

EventStream::EventStream(Call* call, Options options)
    : options_(std::move(options)),
      call_(call),
      flow_(options_.framing, options_.limits),
      permits_(std::exchange(options_.permits, nullptr)),
      silent_(std::exchange(options_.silent, nullptr)) {}

void EventStream::Begin() {
  MutexLock lock(&mu_);
  Advance();
}

void EventStream::BeginWith(SubscribeRequest request) {
  MutexLock lock(&mu_);
  flow_.ReceiveOnly(std::move(request));
  Advance();
}

void EventStream::Received(const grpc::ByteBuffer* message) {
  WatchRequest request;
  absl::Status status;
  if (message != nullptr) {
    status = ParseWithin(BatchRequest(WatchFlow::kMaxRequestBytes, WatchFlow::kMaxCommands),
                         *message, &request);
  }
  MutexLock lock(&mu_);
  reading_ = false;
  if (message == nullptr) {
    flow_.HalfClose();
  } else {
    if (status.ok()) status = flow_.Receive(std::move(request));
    if (!status.ok()) AbortLocked(status);
  }
  Advance();
}

void EventStream::Written(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) AbortLocked(Disconnected());
  Advance();
}

void EventStream::Abort(const absl::Status& status) {
  MutexLock lock(&mu_);
  AbortLocked(status);
  Advance();
}

void EventStream::AbortLocked(const absl::Status& status) {
  flow_.Abort(status);
  // Who has gone takes no turn.
  if (working_ && options_.reads->Withdraw(waits_in_)) working_ = false;
}

void EventStream::Close() {
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  {
    MutexLock lock(&mu_);
    streams = flow_.TakeStreams();
    CountOpen();
    permits_.reset();
  }
  if (streams.empty()) return;
  // When the task has gone the listeners receive nothing any more.
  options_.reads->Push(options_.reader,
                       [streams = std::move(streams)]() mutable { streams.clear(); });
}

void EventStream::Sweep(int stalled, int silent, int oldest) {
  MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  if (++sweeps_ >= oldest) {
    flow_.Drain(StreamIsOld());
    Advance();
  } else if (flow_.idle() && ++sweeps_since_use_ > silent) {
    flow_.Drain(Refusal(registry::v1::ERROR_REASON_IDLE,
                        "nothing has been followed for long: open the stream again"));
    Advance();
  }
  if (!writing_ || call_ == nullptr || ++sweeps_since_write_ <= stalled) return;
  // What waits is let go at once; Written follows.
  AbortLocked(absl::CancelledError("the subscriber has stopped reading"));
  options_.context->TryCancel();
}

void EventStream::Work() {
  for (int i = 0; i < kStepsPerTurn; ++i) {
    std::optional<WatchFlow::Step> step;
    {
      MutexLock lock(&mu_);
      step = flow_.NextStep();
      if (!step.has_value()) break;
    }
    CarryOut(*std::move(step));
  }
  MutexLock lock(&mu_);
  working_ = false;
  Advance();
}

void EventStream::CarryOut(WatchFlow::Step step) {
  if (!step.subscribe.has_value()) {
    step.ended.reset();
    MutexLock lock(&mu_);
    return Advance();
  }
  {
    MutexLock lock(&mu_);
    if (permits_ == nullptr) return;  // the stream has gone
    if (absl::Status full = permits_->Begin(); !full.ok()) {
      flow_.OnEnd(step.id, full);
      return Advance();
    }
  }
  std::unique_ptr<SubscribeStream> stream;
  const absl::Status status = Guarded([&] {
    stream = options_.registry->Subscribe(*step.subscribe,
                                          std::make_shared<Listener>(shared_from_this(), step.id));
  });
  WatchFlow::Change change;  // destroyed without the lock
  MutexLock lock(&mu_);
  change = flow_.Begun(step.id, std::move(stream));
  if (!change.open && permits_ != nullptr) permits_->End(1);
  if (!status.ok()) flow_.OnEnd(step.id, status);
  Advance();
}

void EventStream::OnEvent(WatchFlow::Id id, const EventPtr& event) {
  Conflator::Changes changes = options_.cache->ChangesOf(event);
  WatchFlow::Change change;  // destroyed without the lock
  MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  change = flow_.OnEvent(id, event, std::move(changes));
  if (change.conflated) options_.stats->Conflated();
  Advance();
}

void EventStream::OnEnd(WatchFlow::Id id, const absl::Status& status) {
  WatchFlow::Change change;  // destroyed without the lock: it is the listener's own
  MutexLock lock(&mu_);
  change = flow_.OnEnd(id, status);
  Advance();
}

void EventStream::Write() {
  const std::vector<WatchFlow::Piece> message = flow_.Take();
  if (message.empty()) return;
  std::vector<grpc::Slice> slices;
  slices.reserve(2 * message.size());
  for (const WatchFlow::Piece& piece : message) {
    if (!piece.head.empty()) slices.emplace_back(piece.head);
    if (piece.event != nullptr) {
      slices.push_back(options_.cache->BytesOf(piece.event, piece.part));
      options_.stats->Sent(piece.event->is_snapshot());
      silent_.reset();
    } else {
      options_.stats->Ended(CallStats::Method::kSubscribe, piece.end);
    }
  }
  written_ = grpc::ByteBuffer(slices.data(), slices.size());
  writing_ = true;
  sweeps_since_write_ = 0;
  call_->Write(&written_);
}

void EventStream::Advance() {
  if (call_ == nullptr) return CountOpen();
  if (!writing_) Write();
  CountOpen();
  if (!flow_.idle()) sweeps_since_use_ = 0;
  if (!writing_) {
    if (const std::optional<absl::Status> end = flow_.Finished(); end.has_value()) {
      const bool watch = options_.framing == WatchFlow::Framing::kWatch;
      if (watch) {
        // With it, those that are open.
        for (size_t i = 0; i < flow_.open(); ++i) {
          options_.stats->Ended(CallStats::Method::kSubscribe, end->code());
        }
      }
      options_.stats->Ended(watch ? CallStats::Method::kWatch : CallStats::Method::kSubscribe,
                            end->code());
      silent_.reset();
      return std::exchange(call_, nullptr)->Finish(StatusToGrpc(*end));
    }
  }
  if (!working_ && flow_.has_step()) {
    working_ = true;
    waits_in_ =
        options_.reads->Push(options_.reader, [self = shared_from_this()] { self->Work(); });
  }
  if (!reading_ && flow_.wants_request()) {
    reading_ = true;
    call_->Read();
  }
}

void EventStream::CountOpen() {
  const auto open = static_cast<int64_t>(flow_.open());
  const int64_t added = open - std::exchange(counted_, open);
  if (added < 0 && permits_ != nullptr) permits_->End(static_cast<int>(-added));
  if (options_.watched != nullptr) options_.watched->fetch_add(added, std::memory_order_relaxed);
}

SubscribeReactor::SubscribeReactor(EventStream::Options options, OnStreamEnd on_end)
    : stream_(
          std::make_shared<EventStream>(static_cast<EventStream::Call*>(this), std::move(options))),
      on_end_(std::move(on_end)) {}

void SubscribeReactor::OnCancel() { stream_->Abort(Disconnected()); }

void SubscribeReactor::OnDone() {
  stream_->Close();
  on_end_(stream_);
  delete this;
}

WatchReactor::WatchReactor(EventStream::Options options, OnStreamEnd on_end)
    : stream_(
          std::make_shared<EventStream>(static_cast<EventStream::Call*>(this), std::move(options))),
      on_end_(std::move(on_end)) {}

void WatchReactor::OnCancel() { stream_->Abort(Disconnected()); }

void WatchReactor::OnDone() {
  stream_->Close();
  on_end_(stream_);
  delete this;
}

}  // namespace failback
