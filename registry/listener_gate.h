// The gate between a source of subscription events and a NotifyListener.
//
// Every implementation of Registry::Subscribe owes the same three promises: callbacks
// come one at a time and in order, nothing follows OnEnd, and once the SubscribeStream's destructor
// has returned no callback runs, unless the destructor was called from within that callback.
// This class keeps them, so that an implementation only says what happened:
//
//   auto gate = std::make_shared<ListenerGate>(std::move(listener));
//   gate->Notify(event);              // from the network, a commit, a test
//   gate->End(status);
//   ...
//   ~MyStream() { gate_->Close(); }
//
// Algorithm: events go into a queue, and whoever finds nobody delivering delivers until it is
// empty. An event that arrives during a callback, from it or from another thread, is delivered by
// the one already at work. Close waits for that one, unless it is the caller itself.
//
// Thread safety: all methods may be called from any thread. Hold the gate by shared_ptr for the
// length of a call: a listener may drop its stream, and with it the last other reference, in a
// callback.
//
// Invariants:
//  1. At most one callback runs at a time.
//  2. OnEnd is called at most once, and last.
//  3. No callback starts after Close has begun, and none runs when it has returned, but the
//     one that called it.

#ifndef FAILBACK_REGISTRY_LISTENER_GATE_H_
#define FAILBACK_REGISTRY_LISTENER_GATE_H_

#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {

class ListenerGate {
 public:
  explicit ListenerGate(std::shared_ptr<NotifyListener> listener);
  ListenerGate(const ListenerGate&) = delete;
  ListenerGate& operator=(const ListenerGate&) = delete;

  // Delivers `event`. False when the gate has ended or is closed, so that the source can stop.
  bool Notify(std::shared_ptr<const SubscribeResponse> event);

  // Ends the stream with `status`, after what was notified before. The first End counts.
  void End(const absl::Status& status);

  // Stops deliveries, drops what is queued and waits for a running callback.
  void Close();

  // Whether a source may stop: ended or closed.
  bool closed() const;

 private:
  // Delivers what is queued, unless somebody does already.
  void Deliver();

  mutable Mutex mu_;
  CondVar idle_;  // signalled when delivering_ turns false
  std::shared_ptr<NotifyListener> listener_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<const SubscribeResponse>> queue_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // set by End; told after the queue
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id deliverer_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_LISTENER_GATE_H_
