// In front of each file that bugs are planted in: whether this is the one that is played.
#ifndef FAILBACK_PLANTED
#define FAILBACK_PLANTED
#include <cstdlib>
#include <string_view>

[[maybe_unused]] static bool Planted(std::string_view name) {
  static const char* const planted = std::getenv("PLANTED");
  return planted != nullptr && name == planted;
}
#endif
