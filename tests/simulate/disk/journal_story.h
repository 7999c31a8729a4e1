// One intent journal on a lying disk, through several lives: what it has reported as written is
// compared with what is there.
//
// After each life the journal is opened again, and:
//
//  1. After kill -9, after a clean end, and with `full_sync` after a power cut: what was reported
//     as written is there, with all before it and nothing that was removed; of what came later
//     there is all of one write or nothing. The incarnation is the same, and no number that was
//     written is given out again. Nothing says that the file was put back.
//  2. Without `full_sync` after a power cut: one moment of the past, whole.
//  3. Without damage no file is moved aside; with a bit flipped it is, or the file counts as put
//     back, or what it holds is right as in 1 and 2.
//  4. Each write that is tried is reported; and when the disk works, as written.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_JOURNAL_STORY_H_
#define FAILBACK_TESTS_SIMULATE_DISK_JOURNAL_STORY_H_

#include <cstdint>

#include "tests/simulate/disk/story_result.h"

namespace failback {

StoryResult TellJournalStory(uint64_t seed);

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_JOURNAL_STORY_H_
