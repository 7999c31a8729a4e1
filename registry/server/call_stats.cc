#include "registry/server/call_stats.h"

#include <iterator>
#include <utility>

namespace failback {

namespace {

// In the order of the enums.
constexpr const char* kMethodNames[] = {"OpenSession",    "KeepAlive", "CloseSession", "Register",
                                        "Unregister",     "Subscribe", "Unsubscribe",  "List",
                                        "RegisterStream", "Watch"};
static_assert(std::size(kMethodNames) == CallStats::kMethods);

constexpr std::pair<const char*, const char*> kLimitNames[] = {
    {"calls", "calls"},
    {"bulk_bytes", "bytes of large calls"},
    {"subscriptions", "subscriptions"},
    {"subscriptions_per_connection", "subscriptions on one connection"},
    {"connections", "connections"},
    {"silent_streams", "streams without a message on one connection"},
    {"unread_bytes", "bytes of answers that are not read"},
};
static_assert(std::size(kLimitNames) == CallStats::kLimits);

}  // namespace

const char* CallStats::MethodName(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

const char* CallStats::LimitName(Limit limit) {
  return kLimitNames[static_cast<size_t>(limit)].first;
}

const char* CallStats::LimitText(Limit limit) {
  return kLimitNames[static_cast<size_t>(limit)].second;
}

CallStats::Snapshot CallStats::Take() const {
  Snapshot snapshot;
  for (size_t m = 0; m < kMethods; ++m) {
    auto& method = snapshot.methods.emplace_back();
    method.method = static_cast<Method>(m);
    for (size_t code = 0; code < kCodes; ++code) {
      method.ended[code] = methods_[m].ended[code].load(std::memory_order_relaxed);
    }
    method.duration_nanos = methods_[m].duration_nanos.Snapshot();
  }
  for (size_t i = 0; i < kLimits; ++i) {
    snapshot.refused[i] = refused_[i].load(std::memory_order_relaxed);
  }
  snapshot.snapshots_sent = snapshots_sent_.load(std::memory_order_relaxed);
  snapshot.deltas_sent = deltas_sent_.load(std::memory_order_relaxed);
  snapshot.conflated = conflated_.load(std::memory_order_relaxed);
  return snapshot;
}

}  // namespace failback
