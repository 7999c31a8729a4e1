#include "registry/ids.h"

#include <random>

#include "absl/strings/str_format.h"

namespace failback {

std::string RandomId() {
  std::random_device entropy;
  return absl::StrFormat("%08x%08x%08x%08x", entropy(), entropy(), entropy(), entropy());
}

}  // namespace failback
