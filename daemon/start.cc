#include "daemon/start.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/logging.h"

namespace failback {

std::optional<int> LoadConfiguration(int argc, char** argv, ConfigLoader* loader,
                                     google::protobuf::Message* config,
                                     const std::function<absl::Status()>& check) {
  if (const std::optional<int> status = loader->ParseCommandLine(argc, argv)) return status;
  absl::Status status = loader->Load(config);
  if (status.ok()) status = check();
  if (!status.ok()) return loader->Fail(status);
  if (!loader->validate_only()) return std::nullopt;
  std::printf("the configuration is valid\n");
  return 0;
}

void MakeFolderOf(const std::string& place, mode_t mode) {
  absl::string_view path = place;
  if (!absl::ConsumePrefix(&path, "unix:")) absl::ConsumePrefix(&path, "sqlite://");
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos || slash == 0) return;
  mkdir(std::string(path.substr(0, slash)).c_str(), mode);
}

void MakeDefaultFolder(const google::protobuf::Message& config, const std::string& key,
                       const std::string& place, mode_t mode) {
  const auto* const field = config.GetDescriptor()->FindFieldByName(key);
  if (field != nullptr && field->options().GetExtension(config::v1::key).default_() == place) {
    MakeFolderOf(place, mode);
  }
}

void WarnOfWritable(const std::string& key, const std::string& path) {
  struct stat info;
  if (path.empty() || stat(path.c_str(), &info) != 0 || (info.st_mode & S_IWOTH) == 0) return;
  Log(LogLevel::kWarning, "every user of this machine may write to it",
      {{"key", key}, {"path", path}, {"help", absl::StrCat("chmod o-w ", path)}});
}

absl::StatusOr<std::unique_ptr<HashedWheelTimer>> NewWheel(const std::string& name) {
  HashedWheelTimer::Options options;
  options.tick_duration = absl::Milliseconds(10);
  options.name = name;
  return HashedWheelTimer::Create(std::move(options));
}

void PrepareProcess(const config::v1::Log& log) {
  // Debian's Abseil looks for lock cycles, at a tenth of the CPU.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk to a store or a journal
  InstallLogging(log);
}

void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace failback
