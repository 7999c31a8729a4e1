// Which sanitizers this build has (--config=asan, --config=tsan), for the few tests that measure
// what one of them changes.
//
//   if (kMemoryIsMeasurable) {
//     EXPECT_LT(ResidentBytes(pid) - before, 64 << 20);
//   }

#ifndef FAILBACK_TESTS_UTIL_SANITIZED_BUILD_H_
#define FAILBACK_TESTS_UTIL_SANITIZED_BUILD_H_

namespace failback {

// AddressSanitizer with UndefinedBehaviorSanitizer.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#ifdef FAILBACK_THREAD_SANITIZER
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Whether the size of a process, or of its heap, says how much it has allocated. AddressSanitizer
// keeps what is freed in quarantine, 256 MB of it by default, and surrounds each block with
// redzones; ThreadSanitizer has shadow memory, and an allocator that mallinfo2() does not know.
inline constexpr bool kMemoryIsMeasurable = !kAddressSanitizer && !kThreadSanitizer;

// Whether a test may take every descriptor of its own process. UndefinedBehaviorSanitizer checks an
// object's vptr by reading its memory through a pipe; without one it reports an invalid vptr.
inline constexpr bool kRunsWithoutDescriptors = !kAddressSanitizer;

// Whether a test may read tens of megabytes that a stock gRPC client has received. gRPC is not
// instrumented, so ThreadSanitizer looks for a race, and then for its suppression, at each string
// of a message that gRPC's threads have written: a megabyte takes it most of a minute.
inline constexpr bool kReadsLargeMessages = !kThreadSanitizer;

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_SANITIZED_BUILD_H_
