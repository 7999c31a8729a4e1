// The client's ends of streams: what WatchStream and ClientExchange are around the same flows.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "registry/model/errors.h"
#include "registry/watch/watch_items.h"
#include "tests/simulate/wire_shared.h"

namespace failback::simulate {

// --- Watch.

bool WireRegistry::Shared::FollowEnd::Join(const std::shared_ptr<Subscription>& subscription) {
  const uint64_t id = flow_.Join(subscription, subscription->request);
  if (id == 0) return false;
  subscription->on = weak_from_this();
  subscription->id = id;
  Write();
  return true;
}

void WireRegistry::Shared::FollowEnd::Leave(uint64_t id, bool notify) {
  if (!flow_.Leave(id, notify)) return Write();
  stream_->Cancel();
  OnOver(absl::CancelledError("nothing is followed any more"));
}

void WireRegistry::Shared::FollowEnd::Write() {
  std::optional<std::string> message = flow_.StartWrite();
  if (message.has_value()) stream_->Write(Way::kToRegistry, *std::move(message));
}

void WireRegistry::Shared::FollowEnd::OnWritten() {
  flow_.EndWrite();
  Write();
}

void WireRegistry::Shared::FollowEnd::OnMessage(const std::string& bytes) {
  const absl::Status status = ForEachWatchItem(bytes, [this](const WatchItemView& item) {
    Take(item.watch_id, item.event, item.end.has_value() ? &*item.end : nullptr);
    return absl::OkStatus();
  });
  if (!status.ok()) {
    if (const auto shared = shared_.lock()) shared->network()->on_protocol_error(status.ToString());
    return Abandon(status);
  }
  stream_->Read(Way::kToClient);
}

void WireRegistry::Shared::FollowEnd::Take(uint64_t id, std::string_view event,
                                           const absl::Status* end) {
  const std::shared_ptr<Subscription> subscription = flow_.Find(id);
  if (subscription == nullptr) return;  // it has left
  if (end != nullptr) {
    Leave(id, /*notify=*/false);
    return subscription->listener->OnEnd(*end);
  }
  absl::StatusOr<EventPtr> read = subscription->reader.Read(event);
  if (!read.ok()) {
    if (const auto shared = shared_.lock()) {
      shared->network()->on_protocol_error(read.status().ToString());
    }
    Leave(id, /*notify=*/true);
    return subscription->listener->OnEnd(read.status());
  }
  if (*read != nullptr) subscription->listener->OnEvent(*read);
}

void WireRegistry::Shared::FollowEnd::OnOver(const absl::Status& reported) {
  const auto self = shared_from_this();
  flow_.Break();
  if (const auto shared = shared_.lock()) shared->Forget(this);
  const absl::Status status =
      reported.ok() ? absl::UnavailableError("the registry has ended the watch stream") : reported;
  for (const auto& subscription : flow_.TakeAll()) subscription->listener->OnEnd(status);
}

// --- KeepAlive and RegisterStream.

WireRegistry::Shared::ExchangeEnd::ExchangeEnd(std::weak_ptr<Shared> shared,
                                               std::shared_ptr<WireStream> stream)
    : ClientEnd(std::move(shared), std::move(stream)),
      flow_(renews() ? WhenIdle::kStay : WhenIdle::kEnd) {}

bool WireRegistry::Shared::ExchangeEnd::Send(const std::shared_ptr<Asked>& asked) {
  if (!flow_.Send(asked)) return false;
  Write();
  return true;
}

void WireRegistry::Shared::ExchangeEnd::Write() {
  if (const Asked* const next = flow_.StartWrite()) {
    stream_->Write(Way::kToRegistry, next->request);
  } else if (flow_.Close()) {
    stream_->HalfClose();
  }
}

void WireRegistry::Shared::ExchangeEnd::OnWritten() {
  flow_.EndWrite();
  Write();
}

std::shared_ptr<WireRegistry::Shared::ExchangeEnd::Asked> WireRegistry::Shared::ExchangeEnd::Read(
    const std::string& bytes, absl::Status* status) {
  if (renews()) {
    KeepAliveResponse response;
    response.ParseFromString(bytes);
    if (response.has_status()) *status = StatusFromProto(response.status());
    return flow_.Answered(
        [&](const Asked& asked) { return asked.session_id == response.session_id(); });
  }
  registry::v1::RegisterStreamResponse response;
  response.ParseFromString(bytes);
  if (response.has_status()) *status = StatusFromProto(response.status());
  return flow_.Answered([](const Asked&) { return true; });
}

void WireRegistry::Shared::ExchangeEnd::OnMessage(const std::string& bytes) {
  const auto shared = shared_.lock();
  if (shared == nullptr) return;
  absl::Status status;
  const std::shared_ptr<Asked> asked = Read(bytes, &status);
  if (flow_.over()) {
    shared->Drop(this);
    Write();
  }
  stream_->Read(Way::kToClient);
  if (asked == nullptr) return;
  status.ok() ? shared->Complete(asked->id, bytes) : shared->Complete(asked->id, status);
}

void WireRegistry::Shared::ExchangeEnd::OnOver(const absl::Status& reported) {
  const auto self = shared_from_this();
  flow_.Break();
  const auto shared = shared_.lock();
  if (shared == nullptr) return;
  shared->Forget(this);
  const absl::Status status =
      reported.ok() ? absl::UnavailableError("the registry has ended the stream") : reported;
  const auto waiting = flow_.TakeWaiting();
  for (const auto& asked : waiting) shared->Complete(asked->id, status);
  const bool lost = ReasonOf(reported) != registry::v1::ERROR_REASON_IDLE;
  if (renews() && waiting.empty() && !abandoned_ && lost) shared->Disconnected(status);
}

}  // namespace failback::simulate
