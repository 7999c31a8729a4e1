#include "registry/server/call_stats.h"

namespace failback {

const char* CallStats::MethodName(Method method) {
  switch (method) {
    case Method::kOpenSession:
      return "OpenSession";
    case Method::kKeepAlive:
      return "KeepAlive";
    case Method::kCloseSession:
      return "CloseSession";
    case Method::kRegister:
      return "Register";
    case Method::kUnregister:
      return "Unregister";
    case Method::kSubscribe:
      return "Subscribe";
    case Method::kUnsubscribe:
      return "Unsubscribe";
    case Method::kList:
      return "List";
    case Method::kRegisterStream:
      return "RegisterStream";
  }
  return "";
}

const char* CallStats::LimitName(Limit limit) {
  switch (limit) {
    case Limit::kCalls:
      return "calls";
    case Limit::kBulkBytes:
      return "bulk_bytes";
    case Limit::kSubscriptions:
      return "subscriptions";
    case Limit::kSubscriptionsPerConnection:
      return "subscriptions_per_connection";
    case Limit::kConnections:
      return "connections";
    case Limit::kSilentStreams:
      return "silent_streams";
  }
  return "";
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
