// The folder `consul` of an agent's state directory: what clients of Consul have registered, a file
// each, so that their checks go on after a restart.
//
// A thread of its own writes: a registration does not wait for the disk. What was changed several
// times meanwhile is written once. After a crash of the machine the last changes may be missing; the
// registrations themselves are in the intent journal.
//
// Example:
//
//   auto folder = OpenConsulFolder(state_dir + "/consul");
//   options.folder = folder->get();
//
// Thread safety: all methods from any thread. Its destructor writes what is not written yet.

#ifndef FAILBACK_AGENT_CONSUL_FOLDER_H_
#define FAILBACK_AGENT_CONSUL_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gateway/consul/kept_service.h"

namespace failback {

// Makes the folder if it is not there. FAILED_PRECONDITION: it cannot be used, and why not.
absl::StatusOr<std::unique_ptr<consul::ServiceFolder>> OpenConsulFolder(const std::string& path);

}  // namespace failback

#endif  // FAILBACK_AGENT_CONSUL_FOLDER_H_
