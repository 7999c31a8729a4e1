// What the server's calls have in common where they fail: a registry that throws, a client that
// disconnects, a server that stops.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_SERVER_REFUSALS_H_
#define FAILBACK_REGISTRY_SERVER_REFUSALS_H_

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"

namespace failback {

// Runs `call`, which calls the registry. INTERNAL when it throws.
template <typename Function>
absl::Status Guarded(Function call) {
  try {
    call();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the registry failed: ", e.what()));
  } catch (...) {
    return absl::InternalError("the registry failed");
  }
  return absl::OkStatus();
}

inline absl::Status Disconnected() { return absl::CancelledError("the client has disconnected"); }

inline absl::Status ShuttingDown() {
  return Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the server is stopping");
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_REFUSALS_H_
