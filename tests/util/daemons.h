// The real daemons and failbackctl, for tests of the whole.
//
// Example:
//
//   const TempDir dir;
//   Daemon registry = Daemon::Registry({"--store", "sqlite://" + dir.File("r.db")});
//   Daemon agent = Daemon::Agent(registry.address(), {"--listen", "unix:" + dir.File("a.sock")});
//   RunResult list = Ctl(agent.address(), {"list"});
//
// A test that uses this has the binaries in its `data`: see DAEMONS in tests/util/daemons.bzl.

#ifndef FAILBACK_TESTS_UTIL_DAEMONS_H_
#define FAILBACK_TESTS_UTIL_DAEMONS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "tests/util/eventually.h"
#include "tests/util/process.h"

namespace failback {

// Paths of the binaries.
std::string RegistryBinary();
std::string AgentBinary();
std::string CtlBinary();

// A daemon that has told that it serves.
class Daemon {
 public:
  // On a port of 127.0.0.1 that stays reserved (ReservedPort), unless `args` have --listen; without
  // an admin endpoint unless they have --admin.
  static Daemon Registry(std::vector<std::string> args);
  // With `registry` as upstream address, host:port or a whole URI.
  static Daemon Agent(const std::string& registry, std::vector<std::string> args);

  // Where it serves, as --target takes it.
  const std::string& address() const { return address_; }
  // HOST:PORT of the admin endpoint; empty: there is none.
  const std::string& admin() const { return admin_; }
  Process& process() { return *process_; }

  // SIGTERM, and the exit status.
  int Stop();
  // SIGKILL.
  void Kill() { process_->Kill(); }

 private:
  Daemon(const std::string& name, const std::vector<std::string>& args);

  std::unique_ptr<Process> process_;
  std::string address_;
  std::string admin_;
};

// `failbackctl --target TARGET ARGS…`, to its end.
RunResult Ctl(const std::string& target, const std::vector<std::string>& args);

// The ids of the instances that `failbackctl list SERVICE -o json` shows at the target, sorted; "?"
// when it fails.
std::vector<std::string> ListedIds(const std::string& target, const std::string& service);

// What `failbackctl pending -o json` shows.
std::vector<agent::v1::PendingOperation> PendingAt(const std::string& target);

// The messages that `failbackctl subscribe -o json` has printed.
std::vector<registry::v1::SubscribeResponse> ParseEvents(const std::string& out);

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_DAEMONS_H_
