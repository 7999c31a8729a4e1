// Random names: sessions, incarnations, store identities.

#ifndef FAILBACK_REGISTRY_IDS_H_
#define FAILBACK_REGISTRY_IDS_H_

#include <string>

namespace failback {

// 128 bits from the system's entropy as 32 hexadecimal digits: unique, and not to be guessed.
std::string RandomId();

}  // namespace failback

#endif  // FAILBACK_REGISTRY_IDS_H_
