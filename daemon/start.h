// How both daemons begin and end: process settings, the configuration, the wheel, the signal.
//
// Thread safety: none; they belong to main().

#ifndef FAILBACK_DAEMON_START_H_
#define FAILBACK_DAEMON_START_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/config.h"
#include "daemon/ready.h"
#include "daemon/signals.h"
#include "failback/config/v1/config.pb.h"
#include "google/protobuf/message.h"
#include "registry/base/log.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// Reads the command line and everything it names into `config`, and has `check` look at it: what
// the schema cannot say, files that it names. Returns the exit status when there is nothing more to
// do: after --help, --validate-config, or an error, which is on stderr then.
std::optional<int> LoadConfiguration(int argc, char** argv, ConfigLoader* loader,
                                     google::protobuf::Message* config,
                                     const std::function<absl::Status()>& check);

// Makes the folder of `place`, "unix:/run/failback/agent.sock" or "sqlite:///var/lib/x/y.db", if it
// is not there and its parent is. Where it cannot, the code that uses the place says what is
// missing.
void MakeFolderOf(const std::string& place, mode_t mode);

// The same of `place` if it is the default of `key` in the configuration: what an operator has
// written may be misspelled, and is not made.
void MakeDefaultFolder(const google::protobuf::Message& config, const std::string& key,
                       const std::string& place, mode_t mode);

// Logs a warning where users other than the owner and the group may write to `path`, which `key` of
// the configuration names. Empty, or nothing there: says nothing.
void WarnOfWritable(const std::string& key, const std::string& path);

// The wheel that everything in a daemon waits on.
absl::StatusOr<std::unique_ptr<HashedWheelTimer>> NewWheel(const std::string& name);

// Settings of the process and its log, before the first thread.
void PrepareProcess(const config::v1::Log& log);

// The life of a daemon: Start() and, until a signal ends it, Run(signals), which returns that; then
// Stop(). Returns the exit status.
template <typename Daemon>
int RunDaemon(Daemon* daemon, StopSignals* signals, const ConfigLoader& loader) {
  if (const absl::Status status = daemon->Start(); !status.ok()) return loader.Fail(status);
  const int signal = daemon->Run(signals);
  Log(LogLevel::kInfo, "stopping", {{"signal", absl::StrCat(signal)}});
  AnnounceStopping();
  daemon->Stop();
  Log(LogLevel::kInfo, "stopped");
  return 0;
}

// Takes all the descriptors that the system allows: each client is one, and the usual limit is meant
// for other programs.
void RaiseFileLimit();

}  // namespace failback

#endif  // FAILBACK_DAEMON_START_H_
