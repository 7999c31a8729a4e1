// The screens and lines of what failbackctl watches.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_AGENT_CTL_WATCH_OUTPUT_H_
#define FAILBACK_AGENT_CTL_WATCH_OUTPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/ctl/terminal.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

// "12:00:01.250", of the local time zone.
std::string ClockTime(absl::Time time);

// `status --watch` on a terminal: upstreams and what is pending.
std::string FormatTop(const agent::v1::GetStatusResponse& status,
                      const std::vector<agent::v1::PendingOperation>& pending, absl::Time now,
                      const Palette& palette);

// A line for each upstream whose session has run out: what is not acknowledged any more, and why;
// empty where there is none. None of it is pending, as it is sent when a session opens.
std::string FormatLapses(const agent::v1::GetStatusResponse& status, absl::Time now);

// `status --watch` elsewhere: a line for each upstream, without anything that changes by itself.
std::vector<std::string> FormatUpstreamLines(const agent::v1::GetStatusResponse& status);

// `subscribe --watch` on a terminal: the instances, or the services with their numbers. `news` is
// said beside the title.
std::string FormatFollowed(const registry::v1::Selector& selector,
                           const std::vector<registry::v1::ServiceInstance>& instances,
                           uint64_t revision, const std::string& news, absl::Time now,
                           const Palette& palette);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_WATCH_OUTPUT_H_
