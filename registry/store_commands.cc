#include "registry/store_commands.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "daemon/command_line.h"
#include "daemon/config_file.h"
#include "failback/config/v1/config.pb.h"
#include "failback/registry/v1/config.pb.h"
#include "registry/backup_folder.h"
#include "registry/store/store_maintenance.h"

namespace failback {

const char kStoreCommandsHelp[] =
    "  failback-registry backup --to /backup/registry-1.db    the store may be in use\n"
    "  failback-registry backup --to-folder /backup --keep 14 named after the moment\n"
    "  failback-registry restore --from /backup/registry-1.db the registry must be stopped\n"
    "  failback-registry check                                reads all of it, changes nothing\n";

namespace {

constexpr char kProgram[] = "failback-registry";
constexpr int kFailed = 1;
constexpr int kBadInput = 2;

struct Arguments {
  std::string config;
  std::string store;
  std::string from;
  std::string to;
  std::string folder;  // of backups, in the place of `from` or `to`
  int keep = 0;        // all
  bool progress = false;
};

int Fail(const std::string& command, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s: %s\n", kProgram, command.c_str(),
               std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return kBadInput;
    default:
      return kFailed;
  }
}

// The path of the store's file: from --store, else the configuration file, else the default.
absl::StatusOr<std::string> StorePath(const Arguments& arguments) {
  std::string uri = arguments.store;
  if (uri.empty() && !arguments.config.empty()) {
    registry::v1::RegistryConfig config;
    if (auto status = ParseYamlFile(arguments.config, &config); !status.ok()) return status;
    uri = config.store();
  }
  if (uri.empty()) {
    uri = registry::v1::RegistryConfig::descriptor()
              ->FindFieldByName("store")
              ->options()
              .GetExtension(config::v1::key)
              .default_();
  }
  absl::string_view path = uri;
  // A path may have a colon, as that of a backup with the time in its name.
  if ((!absl::ConsumePrefix(&path, "sqlite://") &&
       (absl::StrContains(uri, "://") || uri == "memory:")) ||
      path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store: \"", uri, "\" is neither sqlite:///PATH nor a path"));
  }
  // What is beside the store is found by its folder.
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(std::string(path), error);
  return error ? std::string(path) : absolute.string();
}

// Says every tenth part on stderr.
CopyProgress Progress(const std::string& command, bool wanted) {
  if (!wanted && isatty(STDERR_FILENO) == 0) return nullptr;
  return [command, printed = int64_t{-1}](int64_t done, int64_t total) mutable {
    const int64_t tenths = total == 0 ? 10 : 10 * done / total;
    if (tenths == printed) return;
    printed = tenths;
    std::fprintf(stderr, "%s: %s: %d %%\n", kProgram, command.c_str(),
                 static_cast<int>(10 * tenths));
  };
}

void Print(const StoreSummary& summary) {
  std::printf(
      "store id      %s\n"
      "schema        %d\n"
      "epoch         %llu\n"
      "revision      %llu\n"
      "services      %lld\n"
      "instances     %lld\n"
      "tombstones    %lld\n"
      "sessions      %lld\n"
      "incarnations  %lld\n"
      "bytes         %lld\n",
      summary.identity.store_id.c_str(), summary.schema,
      static_cast<unsigned long long>(summary.identity.epoch),
      static_cast<unsigned long long>(summary.identity.revision),
      static_cast<long long>(summary.services), static_cast<long long>(summary.instances),
      static_cast<long long>(summary.tombstones), static_cast<long long>(summary.sessions),
      static_cast<long long>(summary.incarnations), static_cast<long long>(summary.bytes));
}

int Check(const std::string& store) {
  const auto summary = CheckStore(store);
  if (!summary.ok()) return Fail("check", summary.status());
  std::printf("%s: good\n", store.c_str());
  Print(*summary);
  return 0;
}

int BackUp(const std::string& store, const Arguments& arguments) {
  const std::string to =
      arguments.to.empty() ? BackupPath(arguments.folder, absl::Now()) : arguments.to;
  const auto summary = BackUpStore(store, to, Progress("backup", arguments.progress));
  if (!summary.ok()) return Fail("backup", summary.status());
  std::printf("%s: backed up to %s\n", store.c_str(), to.c_str());
  Print(*summary);
  if (arguments.keep == 0) return 0;
  const auto removed = RemoveOldBackups(to, arguments.keep);
  if (!removed.ok()) return Fail("backup", removed.status());
  if (*removed > 0) std::printf("%d older removed\n", *removed);
  return 0;
}

int Restore(const std::string& store, const Arguments& arguments) {
  std::string from = arguments.from;
  if (from.empty()) {
    auto newest = NewestBackup(arguments.folder);
    if (!newest.ok()) return Fail("restore", newest.status());
    from = *std::move(newest);
  }
  const auto restored = RestoreStore(from, store, Progress("restore", arguments.progress));
  if (!restored.ok()) return Fail("restore", restored.status());
  std::printf("%s: restored from %s; a new epoch begins\n", store.c_str(), from.c_str());
  if (!restored->replaced.empty()) {
    std::printf("what was there is kept in %s\n", restored->replaced.c_str());
  }
  Print(restored->store);
  return 0;
}

// Where a backup is: a file, or a folder of backups.
void AddPlace(CLI::App* sub, const std::string& direction, std::string* file, const char* file_help,
              std::string* folder, const char* folder_help) {
  auto* const option = sub->add_option("--" + direction, *file, file_help)->type_name("FILE");
  sub->add_option("--" + direction + "-folder", *folder, folder_help)
      ->type_name("FOLDER")
      ->excludes(option);
}

}  // namespace

std::optional<int> RunStoreCommand(int argc, const char* const* argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command != "backup" && command != "restore" && command != "check") return std::nullopt;

  signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk
  Arguments arguments;
  CLI::App app("", kProgram);
  app.require_subcommand(1);
  CLI::App* const sub = app.add_subcommand(command);
  app.get_formatter()->column_width(30);
  sub->add_option("--store", arguments.store,
                  "the store: sqlite:///PATH or a path [as in --config, or the daemon's default]")
      ->envname("FAILBACK_STORE")
      ->type_name("URI");
  sub->add_option("--config", arguments.config, "take the store from this YAML file")
      ->envname("FAILBACK_CONFIG")
      ->type_name("FILE");
  if (command == "backup") {
    sub->description("Copies the store, which may be in use, into a new file.");
    AddPlace(sub, "to", &arguments.to, "the backup to make", &arguments.folder,
             "make it in this folder, called registry-20261123T170739Z.db after the moment (UTC)");
    sub->add_option("--keep", arguments.keep, "remove the folder's oldest backups beyond so many")
        ->needs("--to-folder")
        ->check(CLI::Range(1, 1000000))
        ->type_name("N");
  } else if (command == "restore") {
    sub->description(
        "Puts a backup in the place of the store. The registry must be stopped. What was there is\n"
        "kept beside it; a new epoch begins, so agents send everything again.");
    AddPlace(sub, "from", &arguments.from, "the backup", &arguments.folder,
             "the newest of the backups in this folder");
  } else {
    sub->description("Reads all of the store, which may be in use, and says what is in it.");
  }
  if (command != "check") {
    sub->add_flag("--progress", arguments.progress, "say how far it is, also without a terminal");
  }
  sub->footer(
      "Exit status: 0 done, 1 failed or the store is damaged, 2 bad input (flags, no such file, "
      "not "
      "a\nstore, in use).");
  const auto fail = [](const std::string& problem) {
    std::fprintf(stderr, "%s: %s\n", kProgram, problem.c_str());
    return kBadInput;
  };
  if (const auto status = ParseArguments(&app, argc, argv, fail)) return status;
  if (command != "check" && arguments.from.empty() && arguments.to.empty() &&
      arguments.folder.empty()) {
    const std::string flag = command == "backup" ? "--to" : "--from";
    return fail(absl::StrCat(command, " needs ", flag, " FILE or ", flag, "-folder FOLDER"));
  }
  const absl::StatusOr<std::string> store = StorePath(arguments);
  if (!store.ok()) return Fail(command, store.status());
  if (command == "backup") return BackUp(*store, arguments);
  if (command == "restore") return Restore(*store, arguments);
  return Check(*store);
}

}  // namespace failback
