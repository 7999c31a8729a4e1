// Operation sequences on the wheel and on the timer against a model; the first byte chooses.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/retry/wheel_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string difference = data[0] % 2 == 0 ? failback::PlayOnWheel(data + 1, size - 1)
                                                  : failback::PlayOnTimer(data + 1, size - 1);
  if (!difference.empty()) {
    std::fprintf(stderr, "%s\n", difference.c_str());
    std::abort();
  }
  return 0;
}
