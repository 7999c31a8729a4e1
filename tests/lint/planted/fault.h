// Faults that `./dev lint` has to find: only then does it count that it finds none elsewhere. Nothing
// uses them.

#ifndef FAILBACK_TESTS_LINT_PLANTED_FAULT_H_
#define FAILBACK_TESTS_LINT_PLANTED_FAULT_H_

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "retry/mutex.h"

namespace failback {

inline size_t Length(std::string by_value) { return by_value.size(); }

class Counter {
 public:
  void Add() { ++count_; }  // without the lock

 private:
  Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_LINT_PLANTED_FAULT_H_
