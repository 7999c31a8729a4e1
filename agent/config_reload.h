// Takes a changed configuration file while the agent runs, or refuses it as a whole.
//
// What can change live: services, namespace, log, drain_deadline. A file that is invalid, or
// changes anything else, is refused: the configuration in force stays, the refusal is counted and
// reported in the agent's status until the file is good again.
//
// Services are most of a large configuration, and are seldom read again: they are kept encoded,
// which is smaller.
//
// Thread safety: Reload and config on one thread; the rest from any.

#ifndef FAILBACK_AGENT_CONFIG_RELOAD_H_
#define FAILBACK_AGENT_CONFIG_RELOAD_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/static_service_config.h"
#include "daemon/config.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/agent/v1/config.pb.h"
#include "retry/mutex.h"

namespace failback {

class ConfigReload {
 public:
  // Puts a checked configuration and its services in force.
  using Apply =
      std::function<void(const agent::v1::AgentConfig&, std::vector<StaticServiceSpec> services)>;

  // `loader` outlives the object, and has loaded `config`, which is in force.
  ConfigReload(ConfigLoader* loader, agent::v1::AgentConfig config, Apply apply);

  // The files to look at.
  std::vector<std::string> files() const;

  // Reads everything again. Nothing happens when the files are as they were. With `always` it is
  // taken as a change all the same.
  void Reload(bool always);

  // All but the services.
  const agent::v1::AgentConfig& config() const { return config_; }
  // All, as a copy, for other threads.
  agent::v1::AgentConfig ConfigInForce() const;
  agent::v1::ConfigStatus Status() const;

 private:
  size_t HashFiles() const;
  absl::Status LoadAndApply();

  ConfigLoader* const loader_;
  const Apply apply_;
  // Changed under mu_, by the one thread that reads it without.
  agent::v1::AgentConfig config_;
  // A hash of the files as they were looked at last.
  size_t seen_;
  mutable Mutex mu_;
  std::string services_ ABSL_GUARDED_BY(mu_);  // an AgentConfig with nothing else, encoded
  agent::v1::ConfigStatus status_ ABSL_GUARDED_BY(mu_);
};

// INVALID_ARGUMENT, with the place in the file, when `next` changes what cannot change live.
// Services are not looked at.
absl::Status CheckLiveChange(const agent::v1::AgentConfig& now, const agent::v1::AgentConfig& next,
                             const ConfigLoader& loader);

}  // namespace failback

#endif  // FAILBACK_AGENT_CONFIG_RELOAD_H_
