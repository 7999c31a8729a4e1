#include "tests/fault/watcher.h"

#include <memory>
#include <optional>
#include <utility>

#include "retry/mutex.h"
#include "tests/registry/message_listener.h"

namespace failback {

struct Watcher::Stream {
  mutable Mutex mu;
  ObservedStates observed ABSL_GUARDED_BY(mu);
  absl::Status broken ABSL_GUARDED_BY(mu);
  bool ended ABSL_GUARDED_BY(mu) = false;
  bool closed ABSL_GUARDED_BY(mu) = false;
};

class Watcher::Listener final : public MessageListener {
 public:
  explicit Listener(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}

  void OnMessage(const MessagePtr& event) override {
    MutexLock lock(&stream_->mu);
    if (stream_->closed) Break(absl::InternalError("an event after the subscription's end"));
    Break(stream_->observed.Apply(*event));
  }
  void OnEnd(const absl::Status& status) override {
    MutexLock lock(&stream_->mu);
    if (stream_->closed) Break(absl::InternalError("OnEnd after the subscription's end"));
    stream_->ended = true;
  }

 private:
  void Break(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream_->mu) {
    if (stream_->broken.ok()) stream_->broken = status;
  }
  const std::shared_ptr<Stream> stream_;
};

Watcher::Watcher(Registry* registry) : registry_(registry) { EnsureOpen(); }

Watcher::~Watcher() { Close(); }

void Watcher::EnsureOpen() {
  if (handle_ != nullptr) {
    MutexLock lock(&streams_.back()->mu);
    if (!streams_.back()->ended) return;
  }
  Close();
  SubscribeRequest request;
  request.mutable_selector()->set_service(kService);
  streams_.push_back(std::make_shared<Stream>());
  handle_ = registry_->Subscribe(request, std::make_shared<Listener>(streams_.back()));
}

void Watcher::Close() {
  if (handle_ == nullptr) return;
  handle_.reset();
  MutexLock lock(&streams_.back()->mu);
  streams_.back()->closed = true;
}

std::optional<ObservedStates::State> Watcher::Newest() const {
  if (handle_ == nullptr) return std::nullopt;
  MutexLock lock(&streams_.back()->mu);
  const auto& states = streams_.back()->observed.states();
  if (states.empty()) return std::nullopt;
  return states.back();
}

absl::Status Watcher::Check(const DesiredHistory& desired) const {
  for (const auto& stream : streams_) {
    MutexLock lock(&stream->mu);
    if (!stream->broken.ok()) return stream->broken;
    absl::Status explained = desired.Explains(stream->observed.states());
    if (!explained.ok()) return explained;
  }
  return absl::OkStatus();
}

size_t Watcher::state_count() const {
  size_t count = 0;
  for (const auto& stream : streams_) {
    MutexLock lock(&stream->mu);
    count += stream->observed.states().size();
  }
  return count;
}

}  // namespace failback
