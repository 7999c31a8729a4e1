// What has become of one story on a lying disk.

#ifndef FAILBACK_TESTS_SIMULATE_DISK_STORY_RESULT_H_
#define FAILBACK_TESTS_SIMULATE_DISK_STORY_RESULT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace failback {

struct StoryResult {
  std::string violation;  // of a promise; empty: none
  std::vector<std::string> told;
  int64_t calls = 0;  // to the disk
  int64_t acknowledged = 0;
  int64_t refused = 0;
  int64_t cuts = 0;
  int64_t flips = 0;
  int64_t flips_refused = 0;
  int64_t doubts = 0;  // new epochs, or files that count as put back
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SIMULATE_DISK_STORY_RESULT_H_
