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

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "registry/registry.h"
#include "registry/watch/lazy_snapshot.h"
#include "retry/mutex.h"

namespace failback {

class SerialNotifier {
 public:
  using Event = std::shared_ptr<const SubscribeResponse>;
  using Snapshot = std::shared_ptr<const LazySnapshot>;

  // What is delivered in one step: an event, or a snapshot.
  struct Notification {
    Event event;
    Snapshot snapshot;

    // False: there is nothing to deliver.
    explicit operator bool() const { return event != nullptr || snapshot != nullptr; }
  };

  explicit SerialNotifier(std::shared_ptr<NotifyListener> listener)
      : listener_(std::move(listener)) {}
  SerialNotifier(const SerialNotifier&) = delete;
  SerialNotifier& operator=(const SerialNotifier&) = delete;

  // Appends an event. Ignored, and false, after PostEnd() or Close().
  bool Post(Event event) { return Post(Item{{std::move(event), nullptr}}); }

  // As Post, of a snapshot: as it is for a listener that takes it so, else part by part.
  bool Post(Snapshot snapshot) { return Post(Item{{nullptr, std::move(snapshot)}}); }

  // As Post, of either.
  bool Post(Notification notification) { return Post(Item{std::move(notification), nullptr}); }

  // As Post, of what is made on delivery, without a lock held: for what is costly to make under the
  // poster's lock, or it may never be delivered.
  bool PostDeferred(std::function<Notification()> make) { return Post(Item{{}, std::move(make)}); }

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
    Notification notification;
    std::function<Notification()> make;
    size_t part = 0;  // of the snapshot, to be delivered next
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
    if (item.make != nullptr) item.notification = std::exchange(item.make, nullptr)();
    try {
      if (end.has_value()) {
        listener_->OnEnd(*end);
      } else if (item.notification.event != nullptr) {
        listener_->OnNotify(item.notification.event);
      } else {
        PostSnapshot(std::move(item));
      }
    } catch (...) {
      MutexLock lock(&mu_);
      ++failures_;
    }
    return true;
  }

  // A snapshot that the listener does not take comes part by part, each as a call of its own.
  void PostSnapshot(Item item) {
    const Snapshot snapshot = item.notification.snapshot;
    if (item.part == 0 && listener_->OnSnapshot(snapshot)) return;
    const Event part = snapshot->Part(item.part);
    if (++item.part < snapshot->parts()) {
      MutexLock lock(&mu_);
      if (!closed_) events_.push_front(std::move(item));
    }
    listener_->OnNotify(part);
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
