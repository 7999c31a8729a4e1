// Numbers that a person gives a test: seeds, and how often something is tried.

#ifndef FAILBACK_TESTS_UTIL_ENVIRONMENT_H_
#define FAILBACK_TESTS_UTIL_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace failback {

// The variable `name`, or `otherwise` when it is not set. Text that is no number fails the test.
template <typename Number>
Number FromEnvironment(const char* name, Number otherwise) {
  const char* const text = std::getenv(name);
  Number value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) {
    ADD_FAILURE() << name << ": \"" << text << "\" is not a number";
  }
  return value;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_ENVIRONMENT_H_
