// Calls one NotifyListener in order, one call at a time, without a lock held, and never after
// Close().
//
// Events are posted under the poster's lock, which fixes their order, and delivered after it is
// released by whichever thread comes first; a thread that finds a delivery under way leaves
// its event to that one. There is no thread of its own.
//
//   { MutexLock lock(&mu_); …; notifier->Post(event); }
//   notifier->Deliver();
//
// Thread safety: all methods from any thread. Deliver() and Close() must not be called with a lock
// held that the listener may take.
//
// Invariants:
// 1. The listener is called by one thread at a time, in the order of the posts.
// 2. OnEnd is the last call, and comes at most once.
// 3. After Close() has returned nothing is called; from within the listener Close() returns at once
//    and the call under way is the last.

#ifndef FAILBACK_REGISTRY_WATCH_SERIAL_NOTIFIER_H_
#define FAILBACK_REGISTRY_WATCH_SERIAL_NOTIFIER_H_

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "registry/model/event.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {

class SerialNotifier {
 public:
  explicit SerialNotifier(std::shared_ptr<NotifyListener> listener)
      : listener_(std::move(listener)) {}
  SerialNotifier(const SerialNotifier&) = delete;
  SerialNotifier& operator=(const SerialNotifier&) = delete;

  // Appends an event. Ignored, and false, after PostEnd() or Close().
  bool Post(EventPtr event) { return Post(Item{std::move(event), nullptr}); }

  // As Post, of an event that is made on delivery, without a lock held: for one that is costly to
  // make under the poster's lock, or that may never be delivered.
  bool PostDeferred(std::function<EventPtr()> make) { return Post(Item{nullptr, std::move(make)}); }

  // Appends the end. The first one counts.
  void PostEnd(absl::Status status) {
    MutexLock lock(&mu_);
    if (ended_ || closed_) return;
    ended_ = true;
    end_ = std::move(status);
  }

  // Delivers what has been posted.
  void Deliver() {
    {
      MutexLock lock(&mu_);
      if (delivering_) return;
      delivering_ = true;
      thread_ = std::this_thread::get_id();
    }
    while (DeliverOne()) {
    }
  }

  // Waits until all that was posted has been delivered. Returns at once from within the listener.
  void WaitIdle() {
    MutexLock lock(&mu_);
    while (delivering_ && thread_ != std::this_thread::get_id()) idle_.Wait(&mu_);
  }

  // Drops what has not been delivered, and waits for a call under way on another thread.
  void Close() {
    std::list<Item> dropped;  // destroyed without the lock
    MutexLock lock(&mu_);
    closed_ = true;
    dropped.swap(events_);
    end_.reset();
    while (delivering_ && thread_ != std::this_thread::get_id()) idle_.Wait(&mu_);
  }

  // How many calls ended with an exception.
  int failures() const {
    MutexLock lock(&mu_);
    return failures_;
  }

 private:
  // What to deliver, or how to make it.
  struct Item {
    EventPtr event;
    std::function<EventPtr()> make;
  };

  bool Post(Item item) {
    MutexLock lock(&mu_);
    if (ended_ || closed_) return false;
    events_.push_back(std::move(item));
    return true;
  }

  // False when nothing is left; delivering_ is false then.
  bool DeliverOne() {
    Item item;
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mu_);
      if (!events_.empty()) {
        item = std::move(events_.front());
        events_.pop_front();
      } else if (end_.has_value()) {
        end = std::exchange(end_, std::nullopt);
      } else {
        delivering_ = false;
        thread_ = std::thread::id();
        idle_.SignalAll();
        return false;
      }
    }
    if (item.make != nullptr) item.event = std::exchange(item.make, nullptr)();
    try {
      if (end.has_value()) {
        listener_->OnEnd(*end);
      } else {
        listener_->OnEvent(item.event);
      }
    } catch (...) {
      MutexLock lock(&mu_);
      ++failures_;
    }
    return true;
  }

  const std::shared_ptr<NotifyListener> listener_;
  mutable Mutex mu_;
  CondVar idle_;
  // Empty nearly always, and then no memory: there is one for each subscriber.
  std::list<Item> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id thread_ ABSL_GUARDED_BY(mu_);
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_SERIAL_NOTIFIER_H_
