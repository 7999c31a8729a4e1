// The part of `failbackctl status` that shows static services and the configuration file.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_AGENT_CTL_SERVICE_OUTPUT_H_
#define FAILBACK_AGENT_CTL_SERVICE_OUTPUT_H_

#include <string>

#include "absl/time/time.h"
#include "agent/ctl/terminal.h"
#include "failback/agent/v1/agent.pb.h"

namespace failback {

// One line for the file, one more when it is not in force; empty without a file.
std::string FormatConfigStatus(const agent::v1::ConfigStatus& status, absl::Time now);

// A block for each service with checks, a line for each check; empty when there are none.
std::string FormatStaticServices(const agent::v1::GetStatusResponse& status, absl::Time now,
                                 const Palette& palette);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_SERVICE_OUTPUT_H_
