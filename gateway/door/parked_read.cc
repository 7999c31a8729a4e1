#include "gateway/door/parked_read.h"

#include <memory>
#include <utility>

#include "retry/mutex.h"

namespace failback {
namespace {

class ParkedRead : public std::enable_shared_from_this<ParkedRead> {
 public:
  ParkedRead(http::Responder responder, LookForAnswer look, WaitForChange wait_for)
      : responder_(std::move(responder)), look_(std::move(look)), wait_for_(std::move(wait_for)) {}

  // The first look; what is not answered by it is parked.
  void Start(absl::Duration most) {
    uint64_t version = 0;
    if (std::optional<http::Response> answer = look_(most <= absl::ZeroDuration(), &version)) {
      return responder_.Send(*std::move(answer));
    }
    // The exchange keeps this alive until the answer, or until the client has gone.
    responder_.WhenGone([self = shared_from_this()] { self->End(); });
    responder_.WaitAtMost(most, [self = shared_from_this()] {
      self->End();
      uint64_t unused = 0;
      return self->look_(/*last=*/true, &unused).value_or(http::Response());
    });
    Wait(version);
  }

 private:
  void Wait(uint64_t version) {
    uint64_t turn = 0;
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      turn = ++turn_;
    }
    // It may wake at once, and then another turn begins before this call returns.
    catalog::Wait wait = wait_for_(version, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Look();
    });
    MutexLock lock(&mu_);
    if (!ended_ && turn == turn_) std::swap(wait_, wait);
  }

  void Look() {
    uint64_t version = 0;
    std::optional<http::Response> answer = look_(/*last=*/false, &version);
    if (!answer.has_value()) return Wait(version);
    End();
    responder_.Send(*std::move(answer));
  }

  void End() {
    catalog::Wait wait;  // withdrawn without the lock
    MutexLock lock(&mu_);
    ended_ = true;
    std::swap(wait_, wait);
  }

  http::Responder responder_;
  const LookForAnswer look_;
  const WaitForChange wait_for_;

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  catalog::Wait wait_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void AnswerWhenDue(http::Responder responder, absl::Duration most, LookForAnswer look,
                   WaitForChange wait_for) {
  std::make_shared<ParkedRead>(std::move(responder), std::move(look), std::move(wait_for))
      ->Start(most);
}

}  // namespace failback
