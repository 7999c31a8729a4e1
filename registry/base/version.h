// The version of Failback, as `--version`, GetStatus and the logs of a fleet report it.
//
// Example: a program that notices a shared library of another version than its headers.
//
//   if (Version() != std::string(kVersion)) return Fail(absl::FailedPreconditionError(Version()));
//
// Thread safety: all of it.

#ifndef FAILBACK_REGISTRY_BASE_VERSION_H_
#define FAILBACK_REGISTRY_BASE_VERSION_H_

#include <string>

namespace failback {

// The version of these headers: what a program is compiled against.
inline constexpr char kVersion[] = "0.1.0";

// The version of the library that is linked, as "0.1.0". The library's headers and its code have to
// be of one version: a program that links the shared library may compare this with kVersion.
const char* Version();

// The commit that the library was built from, as "b9aeebd0c1f2", with "-dirty" if files differed
// from it. Empty unless the build names it: `./dev build`, `install` and `package` do.
const char* Revision();

// "PROGRAM VERSION (REVISION)", as `--version` prints it; without the parentheses if there is none.
std::string VersionLine(const std::string& program);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_VERSION_H_
