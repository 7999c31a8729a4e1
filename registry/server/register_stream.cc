#include "registry/server/register_stream.h"

#include <memory>
#include <utility>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "registry/model/errors.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/refusals.h"

namespace failback {
namespace {

using registry::v1::RegisterStreamResponse;

// The bytes of a RegisterResponse are those of a RegisterStreamResponse.
template <typename Response>
constexpr int kFields[3] = {Response::kResultsFieldNumber, Response::kEpochFieldNumber,
                            Response::kRevisionFieldNumber};
static_assert(kFields<RegisterResponse>[0] == kFields<RegisterStreamResponse>[0] &&
              kFields<RegisterResponse>[1] == kFields<RegisterStreamResponse>[1] &&
              kFields<RegisterResponse>[2] == kFields<RegisterStreamResponse>[2]);

struct EncodeAnswer {
  using Response = std::string;  // bytes

  grpc::ByteBuffer operator()(absl::StatusOr<std::string> response) const {
    if (response.ok()) return ToByteBuffer(*std::move(response));
    RegisterStreamResponse refused;
    *refused.mutable_status() = StatusToProto(response.status());
    return EncodedMessage(refused);
  }
};

}  // namespace

RegisterStreamReactor::RegisterStreamReactor(grpc::CallbackServerContext* context, CallStats* stats,
                                             std::shared_ptr<void> silent, CarryOut carry_out,
                                             OnStreamEnd on_end)
    : ExchangeReactor({context, stats, CallStats::Method::kRegisterStream,
                       CallStats::Method::kRegister, kRegisterStreamLimits, std::move(silent)}),
      carry_out_(std::move(carry_out)),
      on_end_(std::move(on_end)) {
  Begin();
}

void RegisterStreamReactor::OnRequest(grpc::ByteBuffer* request, const Slot& slot) {
  grpc::ByteBuffer taken;
  taken.Swap(request);
  auto answer = std::make_unique<PendingAnswer<EncodeAnswer>>(state(), slot, EncodeAnswer());
  Guarded([&] {
    carry_out_(taken, [answer = std::move(answer)](absl::StatusOr<std::string> response) {
      answer->Give(std::move(response));
    });
  }).IgnoreError();  // the callback's end has answered
}

}  // namespace failback
