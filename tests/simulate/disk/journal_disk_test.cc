// Stories of an intent journal on a lying disk. FAILBACK_TEST_SEED=n tells that of one seed, with
// all that happens; FAILBACK_TEST_SEEDS=n that many, from FAILBACK_TEST_FIRST_SEED on.

#include "gtest/gtest.h"
#include "tests/simulate/disk/journal_story.h"
#include "tests/simulate/disk/run_stories.h"

namespace failback {
namespace {

TEST(JournalDiskTest, WhatIsReportedAsWrittenIsThere) {
  RunStories(&TellJournalStory, /*seeds=*/200);
}

}  // namespace
}  // namespace failback
