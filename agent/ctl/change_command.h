// `subscribe --exec CMD`: runs a command for each change of what is followed.
//
// The command runs in /bin/sh, one at a time, and the next change waits for its end; what changes
// meanwhile comes as one. It has the change as JSON (a SubscribeResponse) on its standard input,
// and in its environment
//
//   FAILBACK_EVENT            snapshot, delta, stale or fresh
//   FAILBACK_EVENT_NAMESPACE  what is followed
//   FAILBACK_EVENT_SERVICE    what is followed; empty: the list of services
//   FAILBACK_EVENT_EPOCH, FAILBACK_EVENT_REVISION
//   FAILBACK_EVENT_STALE      true while the registry is unavailable
//   FAILBACK_EVENT_COUNT      instances after the change
//   FAILBACK_EVENT_UPSERTS    ids that are new or changed, by spaces
//   FAILBACK_EVENT_REMOVALS   ids that were removed, by spaces. Both are empty above 64 KiB: the
//                             JSON has them all
//   FAILBACK_TARGET           as --target, for commands that ask more
//
// Thread safety: none.

#ifndef FAILBACK_AGENT_CTL_CHANGE_COMMAND_H_
#define FAILBACK_AGENT_CTL_CHANGE_COMMAND_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "agent/ctl/followed_set.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

using Environment = std::map<std::string, std::string>;

// The variables above, of a change and the set after it.
Environment ChangeEnvironment(const std::string& target, const registry::v1::Selector& selector,
                              const registry::v1::SubscribeResponse& change,
                              const FollowedSet& set);

// Runs `command` in /bin/sh with `input` as standard input and `variables` on top of this process's
// environment, and waits for its end. Its status, when that is not 0, or why it could not be
// started, is in the error.
absl::Status RunShellCommand(const std::string& command, const std::string& input,
                             const Environment& variables);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_CHANGE_COMMAND_H_
