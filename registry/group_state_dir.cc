#include "registry/group_state_dir.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "registry/canonical.h"
#include "registry/log.h"

namespace failback {
namespace {

// Of a folder's name that is made of an upstream's, which may be a URI.
constexpr size_t kMaxFolderName = 64;

absl::Status Unusable(const std::string& dir, const std::string& problem) {
  return absl::FailedPreconditionError(absl::StrCat("state directory ", dir, ": ", problem));
}

}  // namespace

absl::StatusOr<GroupStateDir> GroupStateDir::Open(const std::string& dir) {
  struct stat info;
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return Unusable(dir, absl::StrCat("cannot be created: ", std::strerror(errno)));
  }
  if (stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Unusable(dir, "is not a directory");
  }
  auto lock = FileLock::Acquire(absl::StrCat(dir, "/lock"));
  if (!lock.ok()) return Unusable(dir, std::string(lock.status().message()));
  GroupStateDir state(dir);
  state.lock_ = std::make_unique<FileLock>(*std::move(lock));
  std::ifstream names(absl::StrCat(dir, "/upstreams"));
  for (std::string name; std::getline(names, name);) {
    if (!name.empty()) state.former_.push_back(name);
  }
  return state;
}

bool GroupStateDir::WasThere(const std::string& name) const {
  return std::find(former_.begin(), former_.end(), name) != former_.end();
}

std::string GroupStateDir::Folder(const std::string& name) const {
  std::string folder = name.substr(0, kMaxFolderName);
  for (char& c : folder) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '.') c = '_';
  }
  // Two names must not lead to one folder.
  if (folder != name) absl::StrAppend(&folder, absl::StrFormat("-%016x", Digest64(name)));
  return absl::StrCat(dir_, "/upstream-", folder);
}

std::optional<std::vector<IntentJournal::Intent>> GroupStateDir::TakeOver() const {
  for (const std::string& name : former_) {
    IntentJournal::Options options;
    options.dir = Folder(name);
    options.manual = true;
    auto journal = IntentJournal::Open(options);
    if (journal.ok()) return (*journal)->TakeIntents();
    Log(LogLevel::kError, "what a former upstream held cannot be read",
        {{"upstream", name}, {"error", std::string(journal.status().message())}});
  }
  return std::nullopt;
}

absl::Status GroupStateDir::Keep(const std::vector<std::string>& names) const {
  for (const std::string& name : former_) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    Log(LogLevel::kWarning,
        "an upstream is no longer configured: what is owed there stays owed, what is registered "
        "there ends with its session",
        {{"upstream", name}, {"kept", Folder(name)}});
  }
  if (names == former_) return absl::OkStatus();
  const std::string path = absl::StrCat(dir_, "/upstreams");
  const std::string next = absl::StrCat(path, ".next");
  std::ofstream file(next, std::ios::trunc);
  for (const std::string& name : names) file << name << "\n";
  file.close();
  if (!file || std::rename(next.c_str(), path.c_str()) != 0) {
    return Unusable(dir_, absl::StrCat(path, " cannot be written: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace failback
