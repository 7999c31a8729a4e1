// What the demo prints: a line for each thing that happens, with the time, and a line for each
// thing that has to hold.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_DEMO_MAIN_TIMELINE_H_
#define FAILBACK_TESTS_DEMO_MAIN_TIMELINE_H_

#include <string>

#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

class Timeline {
 public:
  // Time starts. With `colour`, checks stand out.
  explicit Timeline(bool colour);

  // A blank line and a title.
  void Chapter(const std::string& title);
  // "  1.23s  who         what". Further lines of `what` are indented.
  void Event(const std::string& who, const std::string& what);
  // "  1.23s  ok          what", or FAILED; returns `held`.
  bool Check(bool held, const std::string& what);

  int checks() const;
  int failures() const;
  absl::Duration elapsed() const;

 private:
  void Line(const std::string& who, const std::string& what, const char* colour);

  const bool colour_;
  const absl::Time start_;
  mutable Mutex mu_;
  int checks_ ABSL_GUARDED_BY(mu_) = 0;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_DEMO_MAIN_TIMELINE_H_
