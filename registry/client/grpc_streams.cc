#include "registry/client/grpc_streams.h"

#include "absl/status/statusor.h"
#include "registry/model/errors.h"

namespace failback {

using registry::v1::RegisterStreamResponse;

// --- Renewals.

GrpcRegistry::KeepAliveStream::KeepAliveStream(std::shared_ptr<Core> core)
    : ClientExchange(WhenIdle::kStay), core_(std::move(core)), channel_(core_->channels.Pick()) {}

void GrpcRegistry::KeepAliveStream::Start() {
  const absl::Status ready = core_->channels.Authenticate(context());
  channel_.stub->async()->KeepAlive(context(), this);
  Begin(shared_from_this(), ready);
}

bool GrpcRegistry::KeepAliveStream::Answers(const KeepAliveResponse& response,
                                            const Renewal& renewal) const {
  return response.session_id() == renewal.request.session_id();
}

void GrpcRegistry::KeepAliveStream::OnAnswer(const std::shared_ptr<Renewal>& renewal,
                                             KeepAliveResponse response) {
  renewal->Cancel();
  if (response.has_status() && response.status().code() != 0) {
    core_->Complete<KeepAliveResponse>(renewal, StatusFromProto(response.status()));
  } else {
    core_->Complete<KeepAliveResponse>(renewal, std::move(response));
  }
}

void GrpcRegistry::KeepAliveStream::OnOver() { core_->Drop(this); }

void GrpcRegistry::KeepAliveStream::OnEnd(End end) {
  core_->channels.Report(channel_, end.reported);
  if (end.status.ok()) {
    end.status = absl::UnavailableError("the registry has ended the keep-alive stream");
  }
  for (const auto& renewal : end.waiting) {
    renewal->Cancel();
    core_->Complete<KeepAliveResponse>(renewal, end.status);
  }
  // A stream that the server ends for its age is opened again with the next renewal.
  const bool lost = ReasonOf(end.reported) != registry::v1::ERROR_REASON_IDLE;
  if (end.waiting.empty() && !end.abandoned && lost) core_->Disconnected(end.status);
}

// --- Streamed Registers.

GrpcRegistry::RegisterStream::RegisterStream(std::shared_ptr<Core> core)
    : ClientExchange(WhenIdle::kEnd),
      core_(std::move(core)),
      channel_(core_->channels.Pick()),
      stub_(channel_.channel) {}

void GrpcRegistry::RegisterStream::Start() {
  const absl::Status ready = core_->channels.Authenticate(context());
  stub_.PrepareBidiStreamingCall(context(), Core::PathOf("RegisterStream"), grpc::StubOptions(),
                                 this);
  Begin(shared_from_this(), ready);
}

void GrpcRegistry::RegisterStream::OnAnswer(const std::shared_ptr<StreamedRegister>& asked,
                                            RegisterStreamResponse response) {
  asked->Cancel();
  if (response.has_status() && response.status().code() != 0) {
    const absl::Status status = StatusFromProto(response.status());
    if (absl::IsUnauthenticated(status)) Retire();
    return core_->Complete<RegisterResponse>(asked, status);
  }
  RegisterResponse plain;
  plain.mutable_results()->Swap(response.mutable_results());
  plain.set_epoch(response.epoch());
  plain.set_revision(response.revision());
  core_->Complete<RegisterResponse>(asked, std::move(plain));
}

void GrpcRegistry::RegisterStream::OnOver() { core_->Drop(this); }

void GrpcRegistry::RegisterStream::OnEnd(End end) {
  core_->channels.Report(channel_, end.reported);
  if (end.status.ok()) {
    end.status = absl::UnavailableError("the registry has ended the register stream");
  }
  const bool unknown = absl::IsUnimplemented(end.reported);
  for (const auto& asked : end.waiting) {
    asked->Cancel();
    if (unknown) {
      core_->CallInstead(asked);
    } else {
      core_->Complete<RegisterResponse>(asked, end.status);
    }
  }
}

}  // namespace failback
