#include "gateway/json/follower.h"

#include <cstdint>
#include <string>
#include <utility>

#include "gateway/catalog/catalog.h"
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
  // Sends what is new since position_, and waits for what follows.
  void Next() {
    while (true) {
      const catalog::ServiceView view = sources_->catalog->Service(name_.name_space, name_.service);
      const bool unknown = view.knowledge == catalog::Knowledge::kPending ||
                           view.knowledge == catalog::Knowledge::kUnavailable;
      // Denied, or too many are followed: the client tries again.
      if (!unknown && view.knowledge != catalog::Knowledge::kKnown) return End();
      if (unknown) return WaitAfter(view.version);
      const StatePosition position = PositionOf(view);
      StatePosition seen;
      {
        MutexLock lock(&mu_);
        if (over_) return;
        seen = position_;
      }
      if (position == seen) return WaitAfter(view.version);
      if (!MayGoOn()) return End();
      const bool taken = stream_->Write(NextEvent(name_, view, seen));
      if (!taken) {
        // When it has read what it has, the newest state.
        return stream_->WhenDrained([self = shared_from_this()] { self->Next(); });
      }
      MutexLock lock(&mu_);
      position_ = position;
      wrote_ = true;
    }
  }

  void WaitAfter(uint64_t version) {
    uint64_t turn = 0;
    {
      MutexLock lock(&mu_);
      if (over_) return;
      turn = ++turn_;
    }
    // It may wake at once, and then another turn begins before this call returns.
    catalog::Wait wait = sources_->catalog->WaitForService(name_.name_space, name_.service, version,
                                                           [weak = weak_from_this()] {
                                                             if (const auto self = weak.lock())
                                                               self->Next();
                                                           });
    MutexLock lock(&mu_);
    if (!over_ && turn == turn_) std::swap(wait_, wait);
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
    catalog::Wait wait;  // withdrawn without the lock
    {
      MutexLock lock(&mu_);
      if (std::exchange(over_, true)) return;
      std::swap(wait_, wait);
    }
    stream_->End();
  }

  const std::shared_ptr<const JsonDoor::Sources> sources_;
  const ServiceName name_;
  const Identity caller_;
  std::unique_ptr<http::BodyStream> stream_;  // set before it is shared

  Mutex mu_;
  StatePosition position_ ABSL_GUARDED_BY(mu_);  // what its client has, or will have read
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  catalog::Wait wait_ ABSL_GUARDED_BY(mu_);
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
