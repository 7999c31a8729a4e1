// Whether etcd answers, as it is asked every now and then also when there are no calls.
//
//   Pulse pulse(&client, &identity, options);
//   pulse.Start([&](bool answers) { server.SetServing(answers); });
//   pulse.Look();        // OK, or since when it does not answer, and why
//
// Asked is a linearizable read: a member that has lost the others does not answer it. Until the
// first answer etcd counts as unavailable; later when the last answer is older than `outage_limit`.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_PULSE_H_
#define FAILBACK_REGISTRY_ETCD_PULSE_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/identity.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Pulse {
 public:
  // Both outlive this; the client is closed before this goes.
  Pulse(Client* client, Identity* identity, absl::Duration outage_limit)
      : client_(client), identity_(identity), outage_limit_(outage_limit) {}

  // Asks from now on. `listener` is notified of each change, and of the first answer; null: none.
  void Start(std::function<void(bool answers)> listener);
  // The listener is not called any more when this has returned. Not to be called from it.
  void Silence();

  // OK as well where it was not started.
  absl::Status Look() const;

 private:
  void Beat();
  void Watch();
  void Notify();

  Client* const client_;
  Identity* const identity_;
  const absl::Duration outage_limit_;

  Mutex listener_mu_;  // before mu_
  std::function<void(bool)> listener_ ABSL_GUARDED_BY(listener_mu_);
  bool notified_ ABSL_GUARDED_BY(listener_mu_) = false;  // what the listener knows

  mutable Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  SteadyTime begun_ ABSL_GUARDED_BY(mu_);
  SteadyTime last_answer_ ABSL_GUARDED_BY(mu_) = SteadyPast();
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_PULSE_H_
