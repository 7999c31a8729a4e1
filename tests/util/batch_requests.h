// A Batch as the request that it was made of, and back: for registries of tests that know messages.
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_TESTS_UTIL_BATCH_REQUESTS_H_
#define FAILBACK_TESTS_UTIL_BATCH_REQUESTS_H_

#include <utility>

#include "registry/registry.h"

namespace failback {

// `Request` is that of the batch's kind. What validation refuses is in it as it came.
template <typename Request>
Request ToRequest(const Batch& batch) {
  Request request;
  request.ParseFromString(batch.Encode());
  return request;
}

// Answers `done` with the results of a RegisterResponse or UnregisterResponse.
template <typename Response>
Callback<Response> InResults(Callback<BatchResult> done) {
  return [done = std::move(done)](absl::StatusOr<Response> response) mutable {
    if (!response.ok()) return std::move(done)(response.status());
    std::move(done)(BatchResult::Of(*std::move(response)));
  };
}

// Carries out a batch with `on_register(request, done)` or `on_unregister(request, done)`.
template <typename OnRegister, typename OnUnregister>
void WriteInMessages(const Batch& batch, Callback<BatchResult> done, OnRegister on_register,
                     OnUnregister on_unregister) {
  if (batch.kind() == Batch::Kind::kRegister) {
    on_register(ToRequest<RegisterRequest>(batch), InResults<RegisterResponse>(std::move(done)));
  } else {
    on_unregister(ToRequest<UnregisterRequest>(batch),
                  InResults<UnregisterResponse>(std::move(done)));
  }
}

}  // namespace failback

#endif  // FAILBACK_TESTS_UTIL_BATCH_REQUESTS_H_
