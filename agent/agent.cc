#include "agent/agent.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/agent_impl.h"
#include "agent/fork_guard.h"
#include "agent/strand.h"

namespace failback {

using internal_agent::AgentImpl;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options) {
  if (options.drain_deadline < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drain_deadline: ", absl::FormatDuration(options.drain_deadline), " is negative"));
  }
  auto impl = std::make_shared<AgentImpl>(std::move(options));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Agent(std::shared_ptr<AgentImpl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  if (impl_->inherited()) {
    ForkGuard::Keep(impl_);
  } else {
    impl_->Stop();
  }
}

void Agent::Drain(absl::Duration deadline,
                  std::function<void(const agent::v1::DrainResponse&)> done) {
  // Nothing here is the child's to unregister.
  if (impl_->inherited()) return internal_agent::CallHost(done, agent::v1::DrainResponse());
  auto strand = impl_->NewStrand();
  impl_->WithRegistry([&](FailbackGroup& registry) {
    registry.Drain(deadline, [strand, done = std::move(done)](
                                 absl::StatusOr<agent::v1::DrainResponse> response) {
      const agent::v1::DrainResponse drained =
          response.ok() ? *std::move(response) : agent::v1::DrainResponse();
      strand->Post([done, drained] { internal_agent::CallHost(done, drained); });
    });
  });
}

std::vector<agent::v1::UpstreamStatus> Agent::Status() const {
  std::vector<agent::v1::UpstreamStatus> statuses;
  impl_->WithRegistry([&](FailbackGroup& registry) { statuses = registry.UpstreamStatuses(); });
  return statuses;
}

std::vector<agent::v1::PendingOperation> Agent::Pending() const {
  std::vector<agent::v1::PendingOperation> pending;
  impl_->WithRegistry([&](FailbackGroup& registry) { pending = registry.Pending(); });
  return pending;
}

std::vector<FailbackStatistics> Agent::Stats() const {
  std::vector<FailbackStatistics> stats;
  impl_->WithRegistry([&](FailbackGroup& registry) { stats = registry.Stats(); });
  return stats;
}

}  // namespace failback
