// The messages of a Watch stream as its client writes and reads them, on bytes.
//
//   std::string request = SubscribeCommand(1, encoded_subscribe_request) + UnsubscribeCommand(0);
//   absl::Status status = ForEachWatchItem(response, [&](const WatchItemView& item) {
//     return item.end.has_value() ? End(item.watch_id, *item.end) : Apply(item.watch_id, item.event);
//   });
//
// Thread safety: all functions are pure.

#ifndef FAILBACK_REGISTRY_WATCH_WATCH_ITEMS_H_
#define FAILBACK_REGISTRY_WATCH_WATCH_ITEMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace failback {

// A command as a field of a WatchRequest: a message is some of them one after the other. `request`
// is the bytes of a SubscribeRequest.
std::string SubscribeCommand(uint64_t watch_id, std::string_view request);
std::string UnsubscribeCommand(uint64_t watch_id);

// An item where it is in its message: an event, which is the bytes of a SubscribeResponse, or an
// end.
struct WatchItemView {
  uint64_t watch_id = 0;  // not 0
  std::string_view event;
  std::optional<absl::Status> end;
};

// Calls `use` with the items of `message`, in order, until one is an error, which is returned. Items
// of a later version are left out. INTERNAL: the bytes are no WatchResponse; what came before has
// been used.
absl::Status ForEachWatchItem(std::string_view message,
                              absl::FunctionRef<absl::Status(const WatchItemView&)> use);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_WATCH_WATCH_ITEMS_H_
