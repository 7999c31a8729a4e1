// Counts what the code that a caller can set to work does, without a clock: branches of it, of
// those files that are compiled with -fsanitize-coverage=trace-pc.

#ifndef FAILBACK_TESTS_FUZZ_WORK_STEPS_H_
#define FAILBACK_TESTS_FUZZ_WORK_STEPS_H_

#include <cstdint>

namespace failback {

// Of this thread, since it began.
int64_t Steps();

}  // namespace failback

#endif  // FAILBACK_TESTS_FUZZ_WORK_STEPS_H_
