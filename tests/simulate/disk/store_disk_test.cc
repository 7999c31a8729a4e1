// Stories of a store on a lying disk. FAILBACK_TEST_SEED=n tells that of one seed, with all that
// happens; FAILBACK_TEST_SEEDS=n that many, from FAILBACK_TEST_FIRST_SEED on.

#include "gtest/gtest.h"
#include "tests/simulate/disk/run_stories.h"
#include "tests/simulate/disk/store_story.h"

namespace failback {
namespace {

TEST(StoreDiskTest, WhatIsAcknowledgedIsThereOrTheEpochSaysThatItMayNotBe) {
  RunStories(&TellStoreStory, /*seeds=*/100);
}

}  // namespace
}  // namespace failback
