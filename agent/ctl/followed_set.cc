#include "agent/ctl/followed_set.h"

#include <utility>

#include "google/protobuf/util/message_differencer.h"

namespace failback {
namespace {

using google::protobuf::util::MessageDifferencer;
using registry::v1::InstanceKey;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;

std::string NameOf(const InstanceKey& key) {
  return key.instance_id().empty() ? key.service() : key.instance_id();
}

using Instances = std::map<std::string, ServiceInstance>;

bool SameSet(const Instances& a, const Instances& b) {
  if (a.size() != b.size()) return false;
  for (auto left = a.begin(), right = b.begin(); left != a.end(); ++left, ++right) {
    if (!MessageDifferencer::Equals(left->second, right->second)) return false;
  }
  return true;
}

}  // namespace

std::optional<SubscribeResponse> FollowedSet::Apply(const SubscribeResponse& message) {
  SubscribeResponse event = message;
  Instances next = instances_;
  if (message.has_snapshot()) {
    parts_.mutable_instances()->MergeFrom(message.snapshot().instances());
    if (message.snapshot().more()) return std::nullopt;
    event.mutable_snapshot()->Clear();
    event.mutable_snapshot()->Swap(&parts_);
    next.clear();
    for (const ServiceInstance& instance : event.snapshot().instances()) {
      next[NameOf(instance.key())] = instance;
    }
  } else if (message.has_delta()) {
    for (const ServiceInstance& instance : message.delta().upserts()) {
      next[NameOf(instance.key())] = instance;
    }
    for (const InstanceKey& key : message.delta().removals()) next.erase(NameOf(key));
  }
  const bool changed = !known_ || stale_ != message.stale() || epoch_ != message.epoch() ||
                       !SameSet(instances_, next);
  instances_ = std::move(next);
  known_ = true;
  stale_ = message.stale();
  epoch_ = message.epoch();
  revision_ = message.revision();
  if (!changed) return std::nullopt;
  return event;
}

}  // namespace failback
