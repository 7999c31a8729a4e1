#include "registry/server/server_reactors.h"

#include "absl/status/statusor.h"
#include "registry/model/errors.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/refusals.h"

namespace failback {

namespace {

// A renewal's answer.
struct EncodeRenewal {
  using Response = KeepAliveResponse;

  grpc::ByteBuffer operator()(absl::StatusOr<KeepAliveResponse> result) const {
    KeepAliveResponse response;
    if (result.ok()) {
      response = *std::move(result);
    } else {
      *response.mutable_status() = StatusToProto(result.status());
    }
    response.set_session_id(session_id);
    return EncodedMessage(response);
  }

  std::string session_id;
};

ExchangeReactor::Options OptionsOf(grpc::CallbackServerContext* context, CallStats* stats,
                                   std::shared_ptr<void> silent) {
  ExchangeReactor::Options options;
  options.context = context;
  options.stats = stats;
  options.silent = std::move(silent);
  return options;
}

}  // namespace

RenewalReactor::RenewalReactor(grpc::CallbackServerContext* context,
                               std::shared_ptr<Registry> registry,
                               std::shared_ptr<StreamSessions> sessions, CallStats* stats,
                               std::shared_ptr<void> silent, StreamSessions::StreamId id,
                               OnStreamEnd on_end)
    : ExchangeReactor(OptionsOf(context, stats, std::move(silent))),
      registry_(std::move(registry)),
      sessions_(std::move(sessions)),
      id_(id),
      on_end_(std::move(on_end)) {
  Begin();
}

void RenewalReactor::OnRequest(grpc::ByteBuffer* bytes, const Slot& slot) {
  KeepAliveRequest request;
  if (absl::Status parsed = ParseWithin(kSmallRequest, *bytes, &request); !parsed.ok()) {
    return state()->End(parsed);
  }
  auto answer = std::make_unique<PendingAnswer<EncodeRenewal>>(state(), slot,
                                                               EncodeRenewal{request.session_id()});
  Guarded([&] {
    registry_->KeepAlive(request, [answer = std::move(answer), sessions = sessions_,
                                   id = id_](absl::StatusOr<KeepAliveResponse> result) {
      // Not of a session that the caller may not renew.
      if (result.ok()) sessions->Renewed(answer->encode().session_id, id);
      answer->Give(std::move(result));
    });
  }).IgnoreError();  // the callback's end has answered
}

}  // namespace failback
