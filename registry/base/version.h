// The version of Failback, as `--version` and GetStatus report it.

#ifndef FAILBACK_REGISTRY_BASE_VERSION_H_
#define FAILBACK_REGISTRY_BASE_VERSION_H_

namespace failback {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_VERSION_H_
