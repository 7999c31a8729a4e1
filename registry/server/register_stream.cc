#include "registry/server/register_stream.h"

#include <memory>
#include <utility>

#include "failback/registry/v1/registry.pb.h"
#include "registry/server/server_reactors.h"

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
    grpc::ByteBuffer bytes;
    if (response.ok()) {
      PutResponse(*response, &bytes);
    } else {
      RegisterStreamResponse refused;
      *refused.mutable_status() = StatusToProto(response.status());
      PutResponse(std::move(refused), &bytes);
    }
    return bytes;
  }
};

}  // namespace

RegisterStreamReactor::RegisterStreamReactor(grpc::CallbackServerContext* context, CallStats* stats,
                                             std::shared_ptr<void> silent, CarryOut carry_out,
                                             std::function<void()> on_end)
    : ExchangeReactor({context, stats, CallStats::Method::kRegisterStream,
                       CallStats::Method::kRegister, Order::kAsAsked, kMaxOpen, kMaxOpenBytes,
                       std::move(silent)}),
      carry_out_(std::move(carry_out)),
      on_end_(std::move(on_end)) {
  Begin();
}

void RegisterStreamReactor::OnRequest(grpc::ByteBuffer* request, const Ticket& ticket) {
  grpc::ByteBuffer taken;
  taken.Swap(request);
  auto asked = std::make_unique<Asked<EncodeAnswer>>(state(), ticket, EncodeAnswer());
  Guarded([&] {
    carry_out_(taken, [asked = std::move(asked)](absl::StatusOr<std::string> response) {
      asked->Answer(std::move(response));
    });
  }).IgnoreError();  // the callback's end has answered
}

}  // namespace failback
