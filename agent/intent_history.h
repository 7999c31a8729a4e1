// The last things that happened to an agent's intents, for an operator who asks about one of them.
//
// A ring over all keys together: bounded memory, one copy per event.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_AGENT_INTENT_HISTORY_H_
#define FAILBACK_AGENT_INTENT_HISTORY_H_

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/failback/failback_registry.h"
#include "retry/mutex.h"

namespace failback {

class IntentHistory {
 public:
  explicit IntentHistory(size_t max_events = 4096) : max_events_(max_events) {}

  void Add(const IntentEvent& event, absl::Time time);

  // Of one key: register and unregister, and its session's lease. Newest first.
  void AddTo(const InstanceKey& key, admin::v1::InstanceDescription* description) const;

 private:
  const size_t max_events_;
  mutable Mutex mu_;
  // By the key, or the subscription's id; empty: of the session.
  std::deque<std::pair<std::string, admin::v1::InstanceChange>> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_AGENT_INTENT_HISTORY_H_
