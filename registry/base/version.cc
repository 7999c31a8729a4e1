#include "registry/base/version.h"

namespace failback {

const char* Version() { return kVersion; }

std::string VersionLine(const std::string& program) {
  const std::string revision = Revision();
  return program + " " + Version() + (revision.empty() ? "" : " (" + revision + ")");
}

}  // namespace failback
