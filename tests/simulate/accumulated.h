// A file that says which stories one build of the simulation has told: several runs, one after the
// other, add to it, and each begins where the one before has ended.
//
//   absl::StatusOr<Accumulated> told = Accumulated::Open("/var/tmp/stories", /*large=*/false);
//   while (told->next() <= 1000000) {
//     …                                              // stories told->next() to told->next() + 999
//     if (absl::Status s = told->Add(1000, failures); !s.ok()) …
//   }
//
// A run that is killed loses the stories since its last Add.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_ACCUMULATED_H_
#define FAILBACK_TESTS_SIMULATE_ACCUMULATED_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace failback::simulate {

class Accumulated {
 public:
  // A story that failed: its seed and the property that does not hold, in words.
  using Failure = std::pair<uint64_t, std::string>;

  // Creates the file if it is not there. FAILED_PRECONDITION: it is of another build, or of stories
  // of the other size; INVALID_ARGUMENT names a line that cannot be read.
  static absl::StatusOr<Accumulated> Open(const std::string& path, bool large);

  // The first seed that has not been told.
  uint64_t next() const { return next_; }
  const std::vector<Failure>& failures() const { return failures_; }

  // The next `count` have been told, all but `failures` well.
  absl::Status Add(uint64_t count, const std::vector<Failure>& failures);

 private:
  explicit Accumulated(std::string path) : path_(std::move(path)) {}

  std::string path_;
  uint64_t next_ = 1;
  std::vector<Failure> failures_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_ACCUMULATED_H_
