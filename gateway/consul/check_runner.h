// Runs the checks that ask a service how it is, for the Consul door: what the daemon implements.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_GATEWAY_CONSUL_CHECK_RUNNER_H_
#define FAILBACK_GATEWAY_CONSUL_CHECK_RUNNER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gateway/consul/definition.h"

namespace failback::consul {

// A check that runs until this is destroyed. The destructor waits for a report that runs.
class RunningCheck {
 public:
  virtual ~RunningCheck() = default;
};

class CheckRunner {
 public:
  // What a check says now, and why, for a person; each time that changes. Without locks.
  using Report = std::function<void(CheckStatus status, const std::string& output)>;

  virtual ~CheckRunner() = default;

  // Whether it can be run; INVALID_ARGUMENT names the field.
  virtual absl::Status Validate(const CheckDefinition& check) const = 0;

  // Of a check that is valid, and of any kind but TTL.
  virtual std::unique_ptr<RunningCheck> Run(const CheckDefinition& check, Report report) = 0;
};

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_CHECK_RUNNER_H_
