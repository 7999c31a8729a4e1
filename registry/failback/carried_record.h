// A registration that an agent carries, and how far it has come at one upstream: for an operator.
//
// An agent may carry a hundred thousand, and most readers count them or look at a page. So a record
// shares the registration's bytes, and a message is made of it only where one is sent.
//
// Thread safety: a plain value.

#ifndef FAILBACK_REGISTRY_FAILBACK_CARRIED_RECORD_H_
#define FAILBACK_REGISTRY_FAILBACK_CARRIED_RECORD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "failback/agent/v1/agent.pb.h"
#include "registry/model/blob.h"

namespace failback {

struct CarriedRecord {
  agent::v1::CarriedIntent ToProto() const;

  std::string key;  // canonical
  Blob instance;    // canonical
  registry::v1::IntentState state;
  uint64_t generation;
  std::string upstream;
  absl::Status last_status;  // OK when it is acknowledged, or no attempt has ended
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_CARRIED_RECORD_H_
