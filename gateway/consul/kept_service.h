// A service that a client of Consul has registered, as text: what an agent keeps over a restart.
//
// The registry's intents are durable without it: they have the instance. This has what the agent
// alone knows of it: its checks, and who registered it.
//
// Example:
//
//   folder->Keep("o1", KeptText({service, "default", caller}));
//   for (const std::string& text : folder->All()) {
//     absl::StatusOr<KeptService> kept = ParseKept(text);
//     …
//   }
//
// Thread safety: plain values; the functions are pure. ServiceFolder: all methods from any thread.

#ifndef FAILBACK_GATEWAY_CONSUL_KEPT_SERVICE_H_
#define FAILBACK_GATEWAY_CONSUL_KEPT_SERVICE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/consul/definition.h"
#include "registry/security/identity.h"

namespace failback::consul {

struct KeptService {
  ServiceDefinition definition;  // each check with the status that it has now
  std::string name_space;
  Identity owner;
  bool maintenance = false;
  std::string reason;  // of the maintenance
};

std::string KeptText(const KeptService& service);
// INVALID_ARGUMENT names what is wrong.
absl::StatusOr<KeptService> ParseKept(std::string_view text);

// Where they are kept. What cannot be kept is logged there, and lost at the next restart.
class ServiceFolder {
 public:
  virtual ~ServiceFolder() = default;
  // The text of a service from now on; soon on the disk.
  virtual void Keep(const std::string& id, std::string text) = 0;
  virtual void Forget(const std::string& id) = 0;
  // What was kept when it was opened, once.
  virtual std::vector<std::string> TakeAll() = 0;
};

}  // namespace failback::consul

#endif  // FAILBACK_GATEWAY_CONSUL_KEPT_SERVICE_H_
