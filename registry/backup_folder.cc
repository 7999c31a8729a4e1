#include "registry/backup_folder.h"

#include <algorithm>
#include <cctype>
#include <chrono>
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

// A backup that is being made writes all the time. A day without a write, by the clock of the
// folder's disk, is that of one that was interrupted, on whichever machine.
constexpr std::chrono::hours kInterrupted(24);

struct Names {
  std::vector<std::string> backups;   // the oldest first
  std::vector<std::string> beside;    // what a `check` of one leaves
  std::vector<std::string> partials;  // being made, or interrupted
};

absl::StatusOr<Names> Read(const std::string& folder) {
  Names names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!HasShape(name)) continue;
    const std::string rest = name.substr(kShape.size());
    if (rest.empty()) {
      names.backups.push_back(std::move(name));
    } else if (rest == "-wal" || rest == "-shm") {
      names.beside.push_back(std::move(name));
    } else if (absl::StartsWith(rest, ".partial-")) {
      names.partials.push_back(std::move(name));
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(folder, ": cannot be read: ", error.message()));
  }
  std::sort(names.backups.begin(), names.backups.end());
  return names;
}

// Whether the file was written last so long before `made` that it is not being written. One that is
// not there any more, as when it has got its name just now, is not in question.
bool WasInterrupted(const std::filesystem::path& file, const std::filesystem::path& made) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(file, error);
  if (error) return false;
  const auto now = std::filesystem::last_write_time(made, error);
  return !error && now - written > kInterrupted;
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be removed: ", error.message()));
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
  std::vector<std::string> removed;
  for (std::string& name : names->partials) {
    if (WasInterrupted(absl::StrCat(folder, "/", name), path_made)) {
      removed.push_back(std::move(name));
    }
  }
  const int old = std::max(static_cast<int>(names->backups.size()) - keep, 0);
  const std::string oldest_kept = names->backups[old];
  removed.insert(removed.end(), names->backups.begin(), names->backups.begin() + old);
  for (std::string& name : names->beside) {
    if (name < oldest_kept) removed.push_back(std::move(name));
  }
  for (const std::string& name : removed) {
    if (auto status = Remove(absl::StrCat(folder, "/", name)); !status.ok()) return status;
  }
  return old;
}

}  // namespace failback
