#include "gateway/json/follower.h"

#include <string>
#include <utility>

#include "gateway/door/door_guard.h"
#include "gateway/json/service_json.h"
#include "retry/mutex.h"

namespace failback {
namespace {

using Chunk = std::shared_ptr<const std::string>;

const Chunk& Comment() {
  static const auto* const kComment = new Chunk(std::make_shared<const std::string>(":\n\n"));
  return *kComment;
}

class Follower final : public std::enable_shared_from_this<Follower> {
 public:
  Follower(std::shared_ptr<const JsonDoor::Sources> sources, ServiceName name, Identity caller,
           const std::optional<StatePosition>& from)
      : sources_(std::move(sources)),
        name_(std::move(name)),
        caller_(std::move(caller)),
        position_(from.value_or(StatePosition())) {}

  void Start(http::Responder responder) {
    http::Response head;
    head.content_type = "text/event-stream";
    // What a proxy on the way keeps back is no news.
    head.headers = {{"X-Accel-Buffering", "no"}};
    head.shared_body = Comment();
    stream_ = responder.Begin(std::move(head));
    stream_->WhenGone([self = shared_from_this()] { self->End(); });
    Beat();
    Next();
  }

 private:
  // Waits for a state after position_.
  void Next() {
    StatePosition seen;
    {
      MutexLock lock(&mu_);
      if (over_) return;
      seen = position_;
    }
    ServiceFeed::Waiter waiter = sources_->feed->WhenNewer(
        name_, seen, [self = shared_from_this()](absl::StatusOr<ServiceStatePtr> state) mutable {
          self->OnState(std::move(state));
        });
    bool over = false;
    {
      MutexLock lock(&mu_);
      waiter_ = waiter;
      over = over_;
    }
    if (over) waiter.Cancel();
  }

  void OnState(absl::StatusOr<ServiceStatePtr> state) {
    if (!state.ok() || !MayGoOn()) return End();
    bool taken = false;
    {
      MutexLock lock(&mu_);
      if (over_) return;
      const bool follows = position_.epoch != 0 && (*state)->previous() == position_ &&
                           (*state)->set().epoch() == position_.epoch;
      Chunk event = follows ? DeltaEvent(**state) : SnapshotEvent(**state);
      taken = stream_->Write(std::move(event));
      if (taken) {
        position_ = (*state)->position();
        wrote_ = true;
      }
    }
    if (taken) return Next();
    // When it has read what it has, the newest state.
    stream_->WhenDrained([self = shared_from_this()] { self->Next(); });
  }

  bool MayGoOn() const {
    return MayRead(sources_->access.get(), caller_, name_.name_space, name_.service).ok();
  }

  void Beat() {
    // Refused only when the timer has stopped, with the process.
    sources_->timer
        ->ScheduleUnbounded(
            [weak = weak_from_this()] {
              if (const auto self = weak.lock()) self->OnBeat();
            },
            sources_->heartbeat)
        .IgnoreError();
  }

  void OnBeat() {
    if (!MayGoOn()) return End();
    {
      MutexLock lock(&mu_);
      if (over_) return;
      if (!std::exchange(wrote_, false)) stream_->Write(Comment());
    }
    Beat();
  }

  void End() {
    ServiceFeed::Waiter waiter;
    {
      MutexLock lock(&mu_);
      if (std::exchange(over_, true)) return;
      waiter = waiter_;
    }
    waiter.Cancel();
    stream_->End();
  }

  const std::shared_ptr<const JsonDoor::Sources> sources_;
  const ServiceName name_;
  const Identity caller_;
  std::unique_ptr<http::BodyStream> stream_;  // set before it is shared

  Mutex mu_;
  StatePosition position_ ABSL_GUARDED_BY(mu_);  // what its client has, or will have read
  ServiceFeed::Waiter waiter_ ABSL_GUARDED_BY(mu_);
  bool wrote_ ABSL_GUARDED_BY(mu_) = false;  // since the last beat
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

void StartFollower(std::shared_ptr<const JsonDoor::Sources> sources, const ServiceName& name,
                   const Identity& caller, const std::optional<StatePosition>& from,
                   http::Responder responder) {
  std::make_shared<Follower>(std::move(sources), name, caller, from)->Start(std::move(responder));
}

}  // namespace failback
