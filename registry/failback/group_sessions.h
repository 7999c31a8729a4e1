// The id of a local session that is one session at each upstream of an agent.
//
// It holds the members' ids, so that no table of sessions has to be kept beside theirs. Each is 128
// random bits (registry/model/ids.h), so the id as a whole is no easier to guess.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_FAILBACK_GROUP_SESSIONS_H_
#define FAILBACK_REGISTRY_FAILBACK_GROUP_SESSIONS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace failback {

// `ids`, each as of RandomId(), as one.
std::string JoinSessionIds(const std::vector<std::string>& ids);

// The ids that `id` was made of. One that was not made for so many members is unknown to each: it
// is handed to all as it is.
std::vector<std::string> SplitSessionId(const std::string& id, size_t members);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_GROUP_SESSIONS_H_
