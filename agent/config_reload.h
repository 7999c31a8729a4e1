// Takes a changed configuration file while the agent runs, or refuses it as a whole.
//
// What can change live: services, namespace, log, drain_deadline. A file that is invalid, or
// changes anything else, is refused: the configuration in force stays, the refusal is counted and
// reported in the agent's status until the file is good again.
//
// Thread safety: Reload and config on one thread; the rest from any.

#ifndef FAILBACK_AGENT_CONFIG_RELOAD_H_
#define FAILBACK_AGENT_CONFIG_RELOAD_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/agent/v1/config.pb.h"
#include "retry/mutex.h"

namespace failback {

class ConfigReload {
 public:
  // Puts a checked configuration in force; an error refuses it, and then nothing has changed.
  using Apply = std::function<absl::Status(const agent::v1::AgentConfig&)>;

  // `loader` outlives the object, and has loaded `config`, which is in force.
  ConfigReload(ConfigLoader* loader, const agent::v1::AgentConfig& config, Apply apply);

  // The files to look at.
  std::vector<std::string> files() const;

  // Reads everything again. Nothing happens when the files are as they were. With `always` it is
  // taken as a change all the same.
  void Reload(bool always);

  const agent::v1::AgentConfig& config() const { return config_; }
  // A copy of it, for other threads.
  agent::v1::AgentConfig ConfigInForce() const;
  agent::v1::ConfigStatus Status() const;

 private:
  std::string ReadFiles() const;
  absl::Status LoadAndApply();

  ConfigLoader* const loader_;
  const Apply apply_;
  // Changed under mu_, by the one thread that reads it without.
  agent::v1::AgentConfig config_;
  // The files as they were looked at last.
  std::string seen_;
  mutable Mutex mu_;
  agent::v1::ConfigStatus status_ ABSL_GUARDED_BY(mu_);
};

// INVALID_ARGUMENT, with the place in the file, when `next` changes what cannot change live.
absl::Status CheckLiveChange(const agent::v1::AgentConfig& now, const agent::v1::AgentConfig& next,
                             const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_AGENT_CONFIG_RELOAD_H_
