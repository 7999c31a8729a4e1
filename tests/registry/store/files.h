// Files of a store as a test looks at them from outside.

#ifndef FAILBACK_TESTS_REGISTRY_STORE_FILES_H_
#define FAILBACK_TESTS_REGISTRY_STORE_FILES_H_

#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace failback {

// -1: it is not there.
inline int64_t SizeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? int64_t{info.st_size} : -1;
}

inline void CopyFile(const std::string& from, const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  std::ofstream out(to, std::ios::binary);
  if (in.peek() != std::ifstream::traits_type::eof()) out << in.rdbuf();
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_STORE_FILES_H_
