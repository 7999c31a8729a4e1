#include "registry/watch/watch_items.h"

#include "failback/registry/v1/registry.pb.h"
#include "failback/rpc/v1/status.pb.h"
#include "registry/model/errors.h"
#include "registry/model/wire_reader.h"
#include "registry/model/wire_writer.h"

namespace failback {
namespace {

using registry::v1::WatchCommand;
using registry::v1::WatchItem;
using registry::v1::WatchRequest;
using registry::v1::WatchResponse;

// `body` is that of the command's own field `number`.
std::string Command(uint64_t watch_id, int number, std::string_view body) {
  std::string field;
  wire::AppendHead(WatchRequest::kCommandsFieldNumber,
                   wire::NumberSize(watch_id) + wire::BytesSize(body.size()), &field);
  wire::AppendNumber(WatchCommand::kWatchIdFieldNumber, watch_id, &field);
  wire::AppendBytes(number, body, &field);
  return field;
}

absl::Status NoResponse() { return absl::InternalError("a message is no WatchResponse"); }

// False: it is none. Of several steps the last counts, as for a parser.
bool ReadItem(std::string_view bytes, WatchItemView* item, bool* known) {
  wire::Field step;
  wire::Reader fields(bytes);
  for (wire::Field field; fields.Next(&field);) {
    if (field.Is(WatchItem::kWatchIdFieldNumber, wire::kVarint)) {
      item->watch_id = field.value;
    } else if (field.Is(WatchItem::kEventFieldNumber, wire::kBytes) ||
               field.Is(WatchItem::kEndFieldNumber, wire::kBytes)) {
      step = field;
    }
  }
  if (!fields.ok() || item->watch_id == 0) return false;
  *known = step.number != 0;
  if (step.number == WatchItem::kEventFieldNumber) {
    item->event = step.bytes;
  } else if (*known) {
    rpc::v1::Status end;
    if (!end.ParseFromArray(step.bytes.data(), static_cast<int>(step.bytes.size()))) return false;
    item->end = StatusFromProto(end);
  }
  return true;
}

}  // namespace

std::string SubscribeCommand(uint64_t watch_id, std::string_view request) {
  return Command(watch_id, WatchCommand::kSubscribeFieldNumber, request);
}

std::string UnsubscribeCommand(uint64_t watch_id) {
  return Command(watch_id, WatchCommand::kUnsubscribeFieldNumber, "");
}

absl::Status ForEachWatchItem(std::string_view message,
                              absl::FunctionRef<absl::Status(const WatchItemView&)> use) {
  wire::Reader items(message);
  for (wire::Field field; items.Next(&field);) {
    if (!field.Is(WatchResponse::kItemsFieldNumber, wire::kBytes)) continue;
    WatchItemView item;
    bool known = false;
    if (!ReadItem(field.bytes, &item, &known)) return NoResponse();
    if (!known) continue;
    if (absl::Status status = use(item); !status.ok()) return status;
  }
  return items.ok() ? absl::OkStatus() : NoResponse();
}

}  // namespace failback
