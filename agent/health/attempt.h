// One try of a probe that waits on the I/O thread.
//
// A try lives there alone: it is started, answered and cancelled by handlers of that thread, so
// it needs no lock. It keeps itself alive through the handlers that wait for it.

#ifndef FAILBACK_AGENT_HEALTH_ATTEMPT_H_
#define FAILBACK_AGENT_HEALTH_ATTEMPT_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "agent/health/io_thread.h"
#include "agent/health/probe.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "retry/mutex.h"

namespace failback {

class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(boost::asio::io_context& context, Probe::Done done)
      : context_(context), done_(std::move(done)) {}
  virtual ~Attempt() = default;

  void PostStart() {
    boost::asio::post(context_, [self = shared_from_this()] {
      if (!self->finished()) self->Start();
    });
  }

  void PostCancel() {
    boost::asio::post(context_, [self = shared_from_this()] {
      self->Finish(absl::CancelledError("the try was ended"));
    });
  }

 protected:
  // Begins; ends with Finish.
  virtual void Start() = 0;
  // Lets go of everything that waits; its handlers look at finished() first.
  virtual void Close() = 0;

  bool finished() const { return done_ == nullptr; }

  void Finish(absl::Status status) {
    if (finished()) return;
    Probe::Done done = std::exchange(done_, nullptr);
    Close();
    std::move(done)(std::move(status));
  }

 private:
  boost::asio::io_context& context_;
  // Null once it has run.
  Probe::Done done_;
};

// A probe whose tries are made by a function.
class AttemptProbe final : public Probe {
 public:
  using Factory =
      std::function<std::shared_ptr<Attempt>(boost::asio::io_context& context, Done done)>;

  AttemptProbe(IoThread* io, Factory factory) : io_(io), factory_(std::move(factory)) {}
  ~AttemptProbe() override { Cancel(); }

  void Run(Done done) override {
    std::shared_ptr<Attempt> attempt = factory_(io_->context(), std::move(done));
    {
      MutexLock lock(&mu_);
      last_ = attempt;
    }
    attempt->PostStart();
  }

  void Cancel() override {
    std::shared_ptr<Attempt> attempt;
    {
      MutexLock lock(&mu_);
      attempt = last_.lock();
    }
    if (attempt != nullptr) attempt->PostCancel();
  }

 private:
  IoThread* const io_;
  const Factory factory_;
  Mutex mu_;
  std::weak_ptr<Attempt> last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_ATTEMPT_H_
