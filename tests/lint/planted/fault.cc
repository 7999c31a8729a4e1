#include "tests/lint/planted/fault.h"

#include <cstddef>
#include <string>
#include <utility>

namespace failback {

size_t AfterMove(std::string text) {
  std::string moved = std::move(text);
  return moved.size() + text.size();
}

}  // namespace failback
