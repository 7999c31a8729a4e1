#include "registry/register_stream.h"

#include <memory>
#include <utility>

#include "failback/registry/v1/registry.pb.h"
#include "registry/server_reactors.h"

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

std::string Encoded(absl::StatusOr<std::string> response) {
  if (response.ok()) return *std::move(response);
  RegisterStreamResponse refused;
  *refused.mutable_status() = StatusToProto(response.status());
  return refused.SerializeAsString();
}

}  // namespace

// Answers also when the registry throws or drops the callback.
struct RegisterStreamReactor::Asked {
  Asked(std::shared_ptr<State> state, const Ticket& ticket)
      : state(std::move(state)), ticket(ticket) {}
  Asked(const Asked&) = delete;
  ~Asked() {
    if (state != nullptr) Answer(absl::InternalError("the registry dropped the call"));
  }

  void Answer(absl::StatusOr<std::string> response) {
    const absl::StatusCode code = response.status().code();
    grpc::ByteBuffer bytes;
    PutResponse(Encoded(std::move(response)), &bytes);
    std::exchange(state, nullptr)->Answer(ticket, std::move(bytes), code);
  }

  std::shared_ptr<State> state;  // null once answered
  const Ticket ticket;
};

RegisterStreamReactor::RegisterStreamReactor(grpc::CallbackServerContext* context, CallStats* stats,
                                             CarryOut carry_out, std::function<void()> on_end)
    : ExchangeReactor({context, stats, CallStats::Method::kRegisterStream,
                       CallStats::Method::kRegister, Order::kAsAsked, kMaxOpen, kMaxOpenBytes}),
      carry_out_(std::move(carry_out)),
      on_end_(std::move(on_end)) {
  Begin();
}

void RegisterStreamReactor::OnRequest(grpc::ByteBuffer* request, const Ticket& ticket) {
  grpc::ByteBuffer taken;
  taken.Swap(request);
  auto asked = std::make_unique<Asked>(state(), ticket);
  Guarded([&] {
    carry_out_(std::move(taken), [asked = std::move(asked)](absl::StatusOr<std::string> response) {
      asked->Answer(std::move(response));
    });
  }).IgnoreError();  // the callback's end has answered
}

}  // namespace failback
