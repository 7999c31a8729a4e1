// The subscriptions on a Watch stream, and what is sent of them, as the client has them. Internal to
// WatchStream.
//
// Why: it knows no gRPC, lock or time, so that simulated streams flow as real ones do
// (docs/testing.md). The other side is registry/watch/watch_flow.h.
//
// Commands that come while a message is being written share the next one, within bounds. The owner
// ends the stream when its last subscription has left.
//
//   FollowFlow<Subscription> flow;
//   const auto id = flow.Join(subscription, encoded_subscribe_request);
//   if (id == 0) …                                   // another stream
//   if (auto message = flow.StartWrite()) …          // send it, and then flow.EndWrite()
//   if (auto to = flow.Find(item.watch_id)) …        // an item has come
//   if (flow.Leave(id, /*notify=*/true)) …           // end the stream
//   for (const auto& rest : flow.TakeAll()) …        // the stream has ended
//
// Thread safety: none of its own.
//
// Invariants:
//  1. Ids go up, and none is used again.
//  2. A subscription is found from Join until Leave or TakeAll.
//  3. After the last subscription has left no other joins.

#ifndef FAILBACK_REGISTRY_CLIENT_FOLLOW_FLOW_H_
#define FAILBACK_REGISTRY_CLIENT_FOLLOW_FLOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "registry/watch/watch_items.h"

namespace failback {

template <typename Subscription>
class FollowFlow {
 public:
  using Id = uint64_t;  // on its stream; not 0
  using SubscriptionPtr = std::shared_ptr<Subscription>;

  // Of one message; a registry takes more.
  static constexpr size_t kMaxCommands = 100;
  static constexpr size_t kFullBytes = size_t{32} << 10;

  // Begins a subscription. `request` is the bytes of a SubscribeRequest. 0: the stream takes no
  // more.
  Id Join(SubscriptionPtr subscription, std::string_view request) {
    if (over_) return 0;
    const Id id = ++last_id_;
    subscriptions_.emplace(id, std::move(subscription));
    commands_.push_back(SubscribeCommand(id, request));
    return id;
  }

  // Takes one out, if it is there. `notify`: the registry does not know. True: it was the last, and
  // the stream takes no more.
  bool Leave(Id id, bool notify) {
    if (subscriptions_.erase(id) == 0) return false;
    if (subscriptions_.empty()) {
      over_ = true;
      return true;
    }
    if (notify) commands_.push_back(UnsubscribeCommand(id));
    return false;
  }

  // Null: it has left.
  SubscriptionPtr Find(Id id) const {
    const auto it = subscriptions_.find(id);
    return it == subscriptions_.end() ? nullptr : it->second;
  }

  // The message to be sent now, if any; then it is being written until EndWrite.
  std::optional<std::string> StartWrite() {
    if (writing_ || broken_ || commands_.empty()) return std::nullopt;
    std::string message;
    for (size_t count = 0;
         !commands_.empty() && count < kMaxCommands && message.size() < kFullBytes; ++count) {
      // One large command goes alone.
      if (count > 0 && message.size() + commands_.front().size() > kFullBytes) break;
      message.append(commands_.front());
      commands_.pop_front();
    }
    writing_ = true;
    return message;
  }
  void EndWrite() { writing_ = false; }

  // Takes no more.
  void Retire() { over_ = true; }
  // The other side is gone: nothing more is sent.
  void Break() { over_ = broken_ = true; }

  // What is on the stream when it has ended, in the order of Join.
  std::vector<SubscriptionPtr> TakeAll() {
    std::vector<std::pair<Id, SubscriptionPtr>> all(std::make_move_iterator(subscriptions_.begin()),
                                                    std::make_move_iterator(subscriptions_.end()));
    subscriptions_.clear();
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<SubscriptionPtr> taken;
    taken.reserve(all.size());
    for (auto& [id, subscription] : all) taken.push_back(std::move(subscription));
    return taken;
  }

 private:
  bool over_ = false;
  bool broken_ = false;
  bool writing_ = false;
  Id last_id_ = 0;
  absl::flat_hash_map<Id, SubscriptionPtr> subscriptions_;
  std::deque<std::string> commands_;  // as fields of a WatchRequest
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_CLIENT_FOLLOW_FLOW_H_
