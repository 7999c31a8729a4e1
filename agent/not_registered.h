// What an agent carries of a service, with the reason why its registry may not tell of it: for an
// instance that is looked for in DNS and is not there (`failbackctl dns`).
//
// Thread safety: pure.

#ifndef FAILBACK_AGENT_NOT_REGISTERED_H_
#define FAILBACK_AGENT_NOT_REGISTERED_H_

#include <vector>

#include "gateway/dns/explain.h"
#include "registry/failback/carried_record.h"

namespace failback {

// `carried`: of one service, sorted by key. Of several registries the first that has not
// acknowledged an instance gives the reason; where all have, the instance is `acknowledged`.
std::vector<dns::NotRegistered> NotRegisteredOf(const std::vector<CarriedRecord>& carried);

}  // namespace failback

#endif  // FAILBACK_AGENT_NOT_REGISTERED_H_
