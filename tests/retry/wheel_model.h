// Plays a sequence of operations on a Wheel and on a std::multimap, and compares.
//
// The sequence is read from bytes, so that one harness serves the randomized test of the suite and
// the fuzzer. Running tasks read on in the same bytes: they schedule, cancel and reschedule too.

#ifndef FAILBACK_TESTS_RETRY_WHEEL_MODEL_H_
#define FAILBACK_TESTS_RETRY_WHEEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace failback {

// Returns what differed first, or the first violated invariant; empty if all is well.
std::string PlayOnWheel(const uint8_t* data, size_t size);

// The same on a HashedWheelTimer under a SimulatedClock, through its handles.
std::string PlayOnTimer(const uint8_t* data, size_t size);

}  // namespace failback

#endif  // FAILBACK_TESTS_RETRY_WHEEL_MODEL_H_
