#include "daemon/ready.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace failback {

void AnnounceReady(const std::string& program, const std::vector<std::string>& addresses,
                   const std::string& admin, const std::string& detail) {
  const std::string line =
      absl::StrCat(program, " listening on ", absl::StrJoin(addresses, " and "),
                   admin.empty() ? "" : absl::StrCat(", admin http://", admin), ", ", detail, "\n");
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace failback
