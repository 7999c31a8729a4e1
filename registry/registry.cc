#include "registry/registry.h"

namespace failback {
namespace {

// Answers `done` with what has become of a batch of which `asked` were the generations.
template <typename Response>
Callback<BatchResult> InMessages(Batch::Generations asked, Callback<Response> done) {
  return [asked = std::move(asked),
          done = std::move(done)](absl::StatusOr<BatchResult> result) mutable {
    if (!result.ok()) return std::move(done)(result.status());
    FillIn(asked, &*result);
    std::move(done)((*std::move(result)).ToResponse<Response>());
  };
}

}  // namespace

void Registry::Register(const RegisterRequest& request, Callback<RegisterResponse> done) {
  Batch batch = Batch::Of(request);
  auto answer = InMessages(batch.generations(), std::move(done));
  Write(std::move(batch), std::move(answer));
}

void Registry::Unregister(const UnregisterRequest& request, Callback<UnregisterResponse> done) {
  Batch batch = Batch::Of(request);
  auto answer = InMessages(batch.generations(), std::move(done));
  Write(std::move(batch), std::move(answer));
}

}  // namespace failback
