#include "tests/fuzz/work/steps.h"

// This file is not counted itself: clang is asked not to, gcc compiles it without.
#ifdef __clang__
#define FAILBACK_NOT_COUNTED __attribute__((no_sanitize("coverage")))
#else
#define FAILBACK_NOT_COUNTED
#endif

namespace {
thread_local int64_t steps = 0;
}  // namespace

// What the compiler calls at each branch, by the linker's --wrap: libFuzzer has one of its own.
// NOLINTBEGIN(bugprone-reserved-identifier): the name is the compiler's.
extern "C" FAILBACK_NOT_COUNTED void __wrap___sanitizer_cov_trace_pc();
extern "C" void __wrap___sanitizer_cov_trace_pc() { ++steps; }
// NOLINTEND(bugprone-reserved-identifier)

namespace failback {

FAILBACK_NOT_COUNTED int64_t Steps() { return steps; }

}  // namespace failback
