#include "registry/listener_gate.h"

#include <utility>

namespace failback {

ListenerGate::ListenerGate(std::shared_ptr<NotifyListener> listener)
    : listener_(std::move(listener)) {}

bool ListenerGate::Notify(std::shared_ptr<const SubscribeResponse> event) {
  {
    MutexLock lock(&mu_);
    if (closed_ || end_.has_value()) return false;
    queue_.push_back(std::move(event));
  }
  Deliver();
  return true;
}

void ListenerGate::End(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (closed_ || end_.has_value()) return;
    end_ = status;
  }
  Deliver();
}

void ListenerGate::Close() {
  // Destroyed without the lock: a listener's destructor may do anything.
  std::shared_ptr<NotifyListener> listener;
  std::deque<std::shared_ptr<const SubscribeResponse>> dropped;
  MutexLock lock(&mu_);
  closed_ = true;
  dropped.swap(queue_);
  if (delivering_ && deliverer_ == std::this_thread::get_id()) return;
  while (delivering_) idle_.Wait(&mu_);
  listener = std::move(listener_);
}

bool ListenerGate::closed() const {
  MutexLock lock(&mu_);
  return closed_ || end_.has_value();
}

void ListenerGate::Deliver() {
  std::shared_ptr<NotifyListener> listener;
  {
    MutexLock lock(&mu_);
    if (delivering_ || closed_) return;
    delivering_ = true;
    deliverer_ = std::this_thread::get_id();
    listener = listener_;
  }
  while (true) {
    std::shared_ptr<const SubscribeResponse> event;
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mu_);
      if (closed_) break;
      if (!queue_.empty()) {
        event = std::move(queue_.front());
        queue_.pop_front();
      } else if (end_.has_value()) {
        closed_ = true;
        end = end_;
      } else {
        delivering_ = false;
        idle_.SignalAll();
        return;
      }
    }
    // A listener that throws must not take the thread of a timer or of gRPC with it.
    try {
      if (event != nullptr) {
        listener->OnNotify(event);
      } else {
        listener->OnEnd(*end);
      }
    } catch (...) {
    }
  }
  // Closed. Whoever waits in Close finds the listener released, too.
  {
    MutexLock lock(&mu_);
    listener_.reset();  // not the last reference
  }
  listener.reset();
  MutexLock lock(&mu_);
  delivering_ = false;
  idle_.SignalAll();
}

}  // namespace failback
