// `register -f` and `unregister -f`: many instances of a file, in batches, with a bar at a
// terminal.
//
// Thread safety: none.

#ifndef FAILBACK_AGENT_CTL_BULK_INTENTS_H_
#define FAILBACK_AGENT_CTL_BULK_INTENTS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ctl/commands.h"
#include "failback/registry/v1/registry.pb.h"

namespace failback {

struct BulkWork {
  // "register", "registering", "registered".
  std::string command;
  std::string doing;
  std::string done;
  // "-" is standard input.
  std::string file;
  // Of instances that name none.
  std::string default_namespace;
};

using BulkResults = absl::StatusOr<google::protobuf::RepeatedPtrField<registry::v1::IntentResult>>;

// Sends one batch; a result for each instance.
using SendBatch = std::function<BulkResults(const registry::v1::ServiceInstance* begin,
                                            const registry::v1::ServiceInstance* end)>;

// Reads the file, sends all of it, prints what became of it; returns the exit status. A call that
// fails as a whole ends it.
int RunBulk(const BulkWork& work, const SendBatch& send, CtlContext* context);

}  // namespace failback

#endif  // FAILBACK_AGENT_CTL_BULK_INTENTS_H_
