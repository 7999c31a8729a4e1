#include "registry/store/sqlite/epoch.h"

#include "registry/model/canonical.h"
#include "registry/model/ids.h"

namespace failback {

uint64_t NewEpoch() { return Digest64(RandomId()) % ((uint64_t{1} << 53) - 1) + 1; }

}  // namespace failback
