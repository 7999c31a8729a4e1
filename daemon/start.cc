#include "daemon/start.h"

#include <signal.h>

#include <cstdio>
#include <utility>

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

}  // namespace failback
