#include "registry/watch/watch_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::WatchCommand;
using registry::v1::WatchItem;

// About what an end takes, with its details.
constexpr size_t kEndBytes = 256;

// What comes before the bytes of an event in a WatchResponse: as a field of that, a WatchItem with
// its number and the head of its event.
std::string ItemHead(WatchFlow::Id id, size_t event_bytes) {
  std::string head;
  wire::AppendHead(WatchResponse::kItemsFieldNumber,
                   wire::NumberSize(id) + wire::BytesSize(event_bytes), &head);
  wire::AppendNumber(WatchItem::kWatchIdFieldNumber, id, &head);
  wire::AppendHead(WatchItem::kEventFieldNumber, event_bytes, &head);
  return head;
}

std::string EncodedEnd(WatchFlow::Id id, const absl::Status& status) {
  WatchResponse response;
  WatchItem& item = *response.add_items();
  item.set_watch_id(id);
  *item.mutable_end() = StatusToProto(status);
  return response.SerializeAsString();
}

}  // namespace

absl::Status WatchFlow::Receive(WatchRequest request) {
  if (request.commands().empty()) {
    return InvalidField("commands", "is empty: a message has at least one command");
  }
  if (static_cast<size_t>(request.commands_size()) > kMaxCommands) {
    return Refusal(
        registry::v1::ERROR_REASON_TOO_LARGE,
        absl::StrCat("commands: ", request.commands_size(), " in one message, at most ",
                     kMaxCommands, " are allowed"),
        {{"limit", absl::StrCat(kMaxCommands)}, {"actual", absl::StrCat(request.commands_size())}});
  }
  int number = 0;
  for (WatchCommand& command : *request.mutable_commands()) {
    const std::string at = absl::StrCat("commands[", number++, "].");
    const Id id = command.watch_id();
    switch (command.command_case()) {
      case WatchCommand::kSubscribe:
        if (id <= last_id_) {
          return InvalidField(at + "watch_id", absl::StrCat(id, " is not above ", last_id_,
                                                            ", the last one of this stream"));
        }
        last_id_ = id;
        commands_.push_back({id, std::move(*command.mutable_subscribe())});
        break;
      case WatchCommand::kUnsubscribe:
        if (id == 0) return InvalidField(at + "watch_id", "is missing");
        commands_.push_back({id, std::nullopt});
        break;
      case WatchCommand::COMMAND_NOT_SET:
        return InvalidField(at + "command", "is missing: subscribe or unsubscribe");
    }
  }
  return absl::OkStatus();
}

void WatchFlow::ReceiveOnly(SubscribeRequest request) {
  commands_.push_back({++last_id_, std::move(request)});
  half_closed_ = true;
}

bool WatchFlow::has_step() const {
  if (final_.has_value() || commands_.empty()) return false;
  return !commands_.front().subscribe.has_value() || waiting_bytes_ < limits_.begin_below;
}

std::optional<WatchFlow::Step> WatchFlow::NextStep() {
  while (has_step()) {
    Command command = std::move(commands_.front());
    commands_.pop_front();
    if (!command.subscribe.has_value()) {
      Subscription* const subscription = Find(command.id);
      if (subscription == nullptr) continue;
      End(subscription, absl::OkStatus(), /*drop=*/true);
      if (subscription->stream == nullptr) continue;
      return Step{command.id, std::nullopt, std::move(subscription->stream)};
    }
    auto& subscription = subscriptions_[command.id];
    subscription = std::make_unique<Subscription>(command.id, *command.subscribe);
    if (subscriptions_.size() - ending_ > limits_.subscriptions) {
      End(subscription.get(),
          Refusal(registry::v1::ERROR_REASON_LIMIT_REACHED,
                  absl::StrCat("subscriptions on one Watch stream: at most ", limits_.subscriptions,
                               " are allowed; end some"),
                  {{"limit", absl::StrCat(limits_.subscriptions)}}),
          /*drop=*/true);
      continue;
    }
    return Step{command.id, std::move(command.subscribe), nullptr};
  }
  return std::nullopt;
}

WatchFlow::Subscription* WatchFlow::Find(Id id) {
  const auto it = subscriptions_.find(id);
  return it == subscriptions_.end() ? nullptr : it->second.get();
}

void WatchFlow::End(Subscription* subscription, const absl::Status& status, bool drop) {
  if (subscription->end == nullptr) {
    subscription->end = std::make_unique<absl::Status>(status);
    ++ending_;
  }
  if (drop) subscription->conflator = Conflator(0, 0);
  Count(subscription);
  MakeReady(subscription);
}

void WatchFlow::Count(Subscription* subscription) {
  const size_t own = subscription->conflator.held_bytes();
  const size_t counted = own > kFreeBytes ? own : 0;
  const size_t waiting =
      subscription->conflator.waiting_bytes() + (subscription->end == nullptr ? 0 : kEndBytes);
  own_bytes_ += counted - std::exchange(subscription->own_bytes, counted);
  waiting_bytes_ += waiting - std::exchange(subscription->waiting_bytes, waiting);
}

void WatchFlow::MakeReady(Subscription* subscription) {
  if (std::exchange(subscription->ready, true)) return;
  ready_.push_back(subscription);
}

WatchFlow::Change WatchFlow::Begun(Id id, std::unique_ptr<SubscribeStream> stream) {
  Change change;
  Subscription* const subscription = final_.has_value() ? nullptr : Find(id);
  if (subscription == nullptr) {
    change.ended = std::move(stream);
    return change;
  }
  change.open = true;
  subscription->begun = true;
  ++open_;
  if (subscription->end != nullptr) {
    change.ended = std::move(stream);
  } else {
    subscription->stream = std::move(stream);
  }
  return change;
}

WatchFlow::Change WatchFlow::OnEvent(Id id, EventPtr event, Conflator::Changes changes) {
  Change change;
  Subscription* const subscription = final_.has_value() ? nullptr : Find(id);
  if (subscription == nullptr || subscription->end != nullptr) return change;
  Conflator& conflator = subscription->conflator;
  change.conflated = event->is_delta() && conflator.pending() > 0;
  absl::Status status = conflator.Add(std::move(event), std::move(changes));
  Count(subscription);
  if (status.ok() && own_bytes_ > limits_.own_bytes && subscription->own_bytes > 0) {
    status = Refusal(registry::v1::ERROR_REASON_SUBSCRIBER_SLOW,
                     absl::StrCat("the subscriptions of this stream have ", own_bytes_,
                                  " bytes waiting: at most ", limits_.own_bytes, " are held"));
  }
  if (!status.ok()) {
    End(subscription, status, /*drop=*/true);
    change.ended = std::move(subscription->stream);
  }
  MakeReady(subscription);
  return change;
}

WatchFlow::Change WatchFlow::OnEnd(Id id, const absl::Status& status) {
  Change change;
  Subscription* const subscription = Find(id);
  if (subscription == nullptr || final_.has_value()) return change;
  End(subscription, status, /*drop=*/false);
  change.ended = std::move(subscription->stream);
  return change;
}

std::vector<WatchFlow::Piece> WatchFlow::Take() {
  for (Subscription* const written : std::exchange(in_flight_, {})) {
    written->conflator.Written();
    Count(written);
  }
  std::vector<Piece> message;
  const size_t most = framing_ == Framing::kWatch ? limits_.message_items : 1;
  size_t bytes = 0;
  while (!ready_.empty() && message.size() < most && bytes < limits_.message_bytes) {
    Subscription* const subscription = ready_.front();
    ready_.pop_front();
    subscription->ready = false;
    bytes += TakePart(subscription, &message);
    if (subscription->conflator.pending() > 0) {
      MakeReady(subscription);
    } else if (subscription->end != nullptr) {
      TakeEnd(subscription, &message);
    }
  }
  return message;
}

size_t WatchFlow::TakePart(Subscription* subscription, std::vector<Piece>* message) {
  // It may have nothing to say after all: what has changed has changed back.
  const Conflator::Message next = subscription->conflator.Take();
  if (next) {
    in_flight_.push_back(subscription);
    const size_t bytes = next.event->PartBytes(next.part);
    std::string head;
    if (framing_ == Framing::kWatch) head = ItemHead(subscription->id, bytes);
    message->push_back({std::move(head), next.event, next.part, subscription->id});
    Count(subscription);
    return message->back().head.size() + bytes;
  }
  Count(subscription);
  return 0;
}

void WatchFlow::TakeEnd(Subscription* subscription, std::vector<Piece>* message) {
  if (framing_ == Framing::kWatch) {
    Piece piece;
    piece.id = subscription->id;
    piece.head = EncodedEnd(subscription->id, *subscription->end);
    piece.end = subscription->end->code();
    message->push_back(std::move(piece));
  } else if (!final_.has_value()) {
    final_ = *subscription->end;
  }
  Forget(subscription);
}

void WatchFlow::Forget(Subscription* subscription) {
  if (subscription->begun) --open_;
  if (subscription->end != nullptr) --ending_;
  own_bytes_ -= subscription->own_bytes;
  waiting_bytes_ -= subscription->waiting_bytes;
  in_flight_.erase(std::remove(in_flight_.begin(), in_flight_.end(), subscription),
                   in_flight_.end());
  const Id id = subscription->id;
  subscriptions_.erase(id);
}

void WatchFlow::Drain(const absl::Status& status) {
  if (final_.has_value()) return;
  final_ = status;
  commands_.clear();
}

void WatchFlow::Abort(const absl::Status& status) {
  if (!final_.has_value()) final_ = status;
  aborted_ = true;
  commands_.clear();
  ready_.clear();
  in_flight_.clear();
  for (auto& [id, subscription] : subscriptions_) {
    subscription->ready = true;  // it does not become so again
    subscription->conflator = Conflator(0, 0);
    subscription->own_bytes = subscription->waiting_bytes = 0;
  }
  own_bytes_ = waiting_bytes_ = 0;
}

std::optional<absl::Status> WatchFlow::Finished() const {
  if (final_.has_value()) {
    if (aborted_ || ready_.empty()) return final_;
    return std::nullopt;
  }
  if (half_closed_ && idle()) return absl::OkStatus();
  return std::nullopt;
}

std::vector<std::unique_ptr<SubscribeStream>> WatchFlow::TakeStreams() {
  Abort(absl::CancelledError("the stream has ended"));
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (auto& [id, subscription] : subscriptions_) {
    if (subscription->stream != nullptr) streams.push_back(std::move(subscription->stream));
  }
  subscriptions_.clear();
  open_ = ending_ = 0;
  return streams;
}

}  // namespace failback
