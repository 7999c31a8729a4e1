#include "registry/backup_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace failback {
namespace {

// Of a backup's name; `0` stands for a digit.
constexpr absl::string_view kShape = "registry-00000000T000000Z.db";

bool HasShape(absl::string_view name) {
  if (name.size() < kShape.size()) return false;
  return std::equal(kShape.begin(), kShape.end(), name.begin(), [](char shape, char found) {
    return shape == '0' ? std::isdigit(static_cast<unsigned char>(found)) != 0 : shape == found;
  });
}

// What a backup, a `check` of one and an interrupted backup leave beside its name.
bool BelongsToABackup(absl::string_view name) {
  if (!HasShape(name)) return false;
  const absl::string_view rest = name.substr(kShape.size());
  return rest == "-wal" || rest == "-shm" || absl::StartsWith(rest, ".partial-");
}

struct Names {
  std::vector<std::string> backups;  // the oldest first
  std::vector<std::string> rest;
};

absl::StatusOr<Names> Read(const std::string& folder) {
  Names names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (HasShape(name) && name.size() == kShape.size()) {
      names.backups.push_back(std::move(name));
    } else if (BelongsToABackup(name)) {
      names.rest.push_back(std::move(name));
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(folder, ": cannot be read: ", error.message()));
  }
  std::sort(names.backups.begin(), names.backups.end());
  return names;
}

}  // namespace

std::string BackupPath(const std::string& folder, absl::Time moment) {
  return absl::StrCat(folder, "/",
                      absl::FormatTime("registry-%Y%m%dT%H%M%SZ.db", moment, absl::UTCTimeZone()));
}

absl::StatusOr<std::string> NewestBackup(const std::string& folder) {
  const auto names = Read(folder);
  if (!names.ok()) return names.status();
  if (names->backups.empty()) {
    return absl::NotFoundError(absl::StrCat(folder, ": has no backup, which are called ",
                                            BackupPath("", absl::UnixEpoch()).substr(1)));
  }
  return absl::StrCat(folder, "/", names->backups.back());
}

absl::StatusOr<int> RemoveOldBackups(const std::string& made, int keep) {
  const std::filesystem::path path_made(made);
  const std::string folder = path_made.parent_path().string();
  auto names = Read(folder);
  if (!names.ok()) return names.status();
  if (const std::string name = path_made.filename().string();
      names->backups.empty() || names->backups.back() != name) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": its newest backup by name is not ", name, ", which was made just now, but ",
        names->backups.empty() ? "none" : names->backups.back(),
        ": a clock was ahead; rename or remove that one. Nothing is removed"));
  }
  const int old = static_cast<int>(names->backups.size()) - keep;
  if (old <= 0) return 0;
  const std::string oldest_kept = names->backups[old];
  names->backups.resize(old);
  std::vector<std::string> removed = names->backups;
  for (std::string& name : names->rest) {
    if (name < oldest_kept) removed.push_back(std::move(name));
  }
  for (const std::string& name : removed) {
    const std::string path = absl::StrCat(folder, "/", name);
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat(path, ": cannot be removed: ", error.message()));
    }
  }
  return old;
}

}  // namespace failback
