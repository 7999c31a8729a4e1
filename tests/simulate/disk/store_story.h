// One store on a lying disk, through several lives: what its clients were promised is compared with
// what is there.
//
// Clients open and close sessions, register and unregister, in batches; calls fail, a process is
// killed, power is cut within any call to the disk, bits flip while no process has the files open.
// After each life the store is opened again, and:
//
//  1. After kill -9, after a clean end, and with durability `full` after a power cut: all that was
//     acknowledged is there, in the same epoch; of what was not answered, each call wholly or not.
//  2. Otherwise, in the same epoch, the same. In a new epoch: one moment of the past.
//  3. What was refused was not visible while the store ran. (It may be after a crash: a disk that
//     fails a sync may have written.)
//  4. Without damage no open says that there is any; with a bit flipped, it is refused, or what is
//     served is right as in 1 and 2.
//  5. Every call is answered, once; and when the disk works, within a second, with success.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_STORE_STORY_H_
#define FAILBACK_TESTS_SIMULATE_DISK_STORE_STORY_H_

#include <cstdint>

#include "tests/simulate/disk/story_result.h"

namespace failback {

StoryResult TellStoreStory(uint64_t seed);

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_STORE_STORY_H_
