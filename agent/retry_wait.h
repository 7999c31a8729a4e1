// Retries pending operations, and answers when the attempts have ended: RetryRequest.wait.
//
// The pending table says how far each is; it is looked at again after a few milliseconds, and then
// less and less often, until no operation that was named is queued or in flight.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_AGENT_RETRY_WAIT_H_
#define FAILBACK_AGENT_RETRY_WAIT_H_

#include <cstdint>
#include <memory>

#include "failback/agent/v1/agent.pb.h"
#include "registry/failback/failback_group.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

class RetryWaits {
 public:
  // Rows of `remaining` in an answer.
  static constexpr int kMaxRemaining = 1000;

  // Both outlive the object.
  RetryWaits(FailbackGroup* group, HashedWheelTimer* timer);
  ~RetryWaits();  // as Close
  RetryWaits(const RetryWaits&) = delete;
  RetryWaits& operator=(const RetryWaits&) = delete;

  // Without `wait`: answers at once. INVALID_ARGUMENT for a wait out of bounds.
  void Retry(const agent::v1::RetryRequest& request, Callback<agent::v1::RetryResponse> done);

  // Answers all who wait with how it is; later ones do not wait.
  void Close();

 private:
  struct Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_RETRY_WAIT_H_
