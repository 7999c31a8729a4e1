// What failbackctl prints of AdminService's answers.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_AGENT_CTL_ADMIN_OUTPUT_H_
#define FAILBACK_AGENT_CTL_ADMIN_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/ctl/terminal.h"
#include "failback/admin/v1/admin.pb.h"

namespace failback {

// A registry, as `status` shows it.
std::string FormatRegistryStatus(const admin::v1::Overview& overview, absl::Time now,
                                 const Palette& palette);

// The same as one line, without anything that changes by itself.
std::string FormatRegistryLine(const admin::v1::Overview& overview);

// The DNS server of a daemon, as `status` shows it; nothing where there is none.
std::string FormatDns(const admin::v1::Overview& overview);

std::string FormatSessions(const std::vector<admin::v1::SessionSummary>& sessions, absl::Time now,
                           const Palette& palette);
std::string FormatAgents(const std::vector<admin::v1::AgentSummary>& agents, absl::Time now,
                         const Palette& palette);

// Where to ask for an instance that the registry does not hold, and which of its agents have
// something that is not acknowledged.
std::string FormatCarriers(const std::vector<admin::v1::AgentSummary>& agents);

// An instance with its session and its last changes.
std::string FormatDescription(const admin::v1::InstanceDescription& description,
                              const registry::v1::InstanceKey& key, absl::Time now,
                              const Palette& palette);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_ADMIN_OUTPUT_H_
