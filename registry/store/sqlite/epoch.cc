#include "registry/store/sqlite/epoch.h"

#include <random>

namespace failback {

uint64_t NewEpoch() {
  std::random_device entropy;
  return std::uniform_int_distribution<uint64_t>(1, (uint64_t{1} << 53) - 1)(entropy);
}

}  // namespace failback
