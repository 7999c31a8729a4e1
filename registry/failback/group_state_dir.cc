#include "registry/failback/group_state_dir.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "registry/base/log.h"
#include "registry/base/small_file.h"
#include "registry/model/canonical.h"

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
  // Read as empty, what its upstreams are owed would be forgotten.
  const std::string file = absl::StrCat(dir, "/upstreams");
  const auto names = ReadFile(file);
  if (!names.ok() && !absl::IsNotFound(names.status())) {
    return Unusable(dir, absl::StrCat(file, " ", names.status().message()));
  }
  if (names.ok()) state.former_ = absl::StrSplit(*names, '\n', absl::SkipEmpty());
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

absl::StatusOr<std::optional<std::vector<IntentJournal::Intent>>> GroupStateDir::TakeOver() const {
  absl::Status unreadable;
  for (const std::string& name : former_) {
    IntentJournal::Options options;
    options.dir = Folder(name);
    options.manual = true;
    auto journal = IntentJournal::Open(options);
    if (journal.ok()) return std::make_optional((*journal)->TakeIntents());
    unreadable = journal.status();
    Log(LogLevel::kError, "what a former upstream held cannot be read",
        {{"upstream", name}, {"error", std::string(unreadable.message())}});
  }
  // Each of them held the same; beginning with nothing would lose it.
  if (!unreadable.ok()) return unreadable;
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
  const absl::Status kept = ReplaceFile(path, absl::StrCat(absl::StrJoin(names, "\n"), "\n"), 0600);
  return kept.ok() ? kept : Unusable(dir_, std::string(kept.message()));
}

}  // namespace failback
