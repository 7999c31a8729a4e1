// In front of each file that bugs are planted in: whether this is the one that is played.
#include <cstdlib>
#include <string_view>

[[maybe_unused]] static bool Planted(std::string_view name) {
  static const char* const planted = std::getenv("PLANTED");
  return planted != nullptr && name == planted;
}
