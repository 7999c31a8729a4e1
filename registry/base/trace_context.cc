#include "registry/base/trace_context.h"

#include <utility>

namespace failback {
namespace {

thread_local const std::string* current = nullptr;

const std::string& None() {
  static const std::string* const none = new std::string;
  return *none;
}

// Whether `size` characters from `at` are lower-case hex digits.
bool IsHex(const std::string& text, size_t at, size_t size) {
  return text.find_first_not_of("0123456789abcdef", at) >= at + size;
}

bool IsId(const std::string& text, size_t at, size_t size) {
  return IsHex(text, at, size) && text.find_first_not_of('0', at) < at + size;
}

}  // namespace

bool IsTraceParent(const std::string& text) {
  constexpr size_t kSize = 55;
  return text.size() == kSize && text.compare(0, 3, "00-") == 0 && IsId(text, 3, 32) &&
         text[35] == '-' && IsId(text, 36, 16) && text[52] == '-' && IsHex(text, 53, 2);
}

ScopedTrace::ScopedTrace(std::string traceparent)
    : traceparent_(IsTraceParent(traceparent) ? std::move(traceparent) : std::string()),
      outer_(std::exchange(current, &traceparent_)) {}

ScopedTrace::~ScopedTrace() { current = outer_; }

const std::string& CurrentTrace() { return current == nullptr ? None() : *current; }

}  // namespace failback
