// Counts what a server is called for and how it answers: calls by method and status code, how long
// unary ones took, what was refused for want of room, and what subscribers were sent.
//
// An ended call costs two or three relaxed additions. The counters are shared with the calls under
// way.
//
// Thread safety: all methods from any thread. A snapshot is not of one moment.

#ifndef FAILBACK_REGISTRY_SERVER_CALL_STATS_H_
#define FAILBACK_REGISTRY_SERVER_CALL_STATS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "retry/histogram.h"

namespace failback {

class CallStats {
 public:
  enum class Method {
    kOpenSession,
    kKeepAlive,  // the stream
    kCloseSession,
    kRegister,  // calls, and messages of RegisterStream
    kUnregister,
    kSubscribe,  // the stream, and each subscription of a Watch
    kUnsubscribe,
    kList,
    kRegisterStream,  // the stream; likewise
    kWatch,
  };
  static constexpr size_t kMethods = 10;
  static const char* MethodName(Method method);

  // What there may be too many of.
  enum class Limit {
    kCalls,
    kBulkBytes,
    kSubscriptions,
    kSubscriptionsPerConnection,
    kConnections,
    kSilentStreams,
    kUnreadBytes,
  };
  static constexpr size_t kLimits = 7;
  // For metrics, and for the text of an error.
  static const char* LimitName(Limit limit);
  static const char* LimitText(Limit limit);

  // gRPC's codes are 0 to 16.
  static constexpr size_t kCodes = 17;
  using ByCode = std::array<int64_t, kCodes>;

  struct Snapshot {
    struct OfMethod {
      Method method;
      ByCode ended;
      // Of unary calls and the like, in nanoseconds; empty for streams.
      Histogram duration_nanos{kLatencyBoundsNanos};
    };
    std::vector<OfMethod> methods;
    std::array<int64_t, kLimits> refused;
    int64_t snapshots_sent;  // or parts of large ones
    int64_t deltas_sent;
    int64_t conflated;  // messages merged, as the subscriber had not read the ones before
  };

  // A call has ended.
  void Ended(Method method, absl::StatusCode code) {
    const auto index = static_cast<size_t>(code);
    Of(method).ended[index < kCodes ? index : kUnknown].fetch_add(1, std::memory_order_relaxed);
  }
  // A unary one, or a message that is one, which took so long.
  void Ended(Method method, absl::StatusCode code, int64_t nanos) {
    Ended(method, code);
    Of(method).duration_nanos.Observe(nanos);
  }

  void Refused(Limit limit) { Add(&refused_[static_cast<size_t>(limit)]); }
  void Sent(bool snapshot) { Add(snapshot ? &snapshots_sent_ : &deltas_sent_); }
  void Conflated() { Add(&conflated_); }

  Snapshot Take() const;

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(absl::StatusCode::kUnknown);
  struct alignas(64) Counters {
    std::array<std::atomic<int64_t>, kCodes> ended{};
    AtomicHistogram duration_nanos{kLatencyBoundsNanos};
  };

  static void Add(std::atomic<int64_t>* counter) {
    counter->fetch_add(1, std::memory_order_relaxed);
  }
  Counters& Of(Method method) { return methods_[static_cast<size_t>(method)]; }

  std::array<Counters, kMethods> methods_;
  std::array<std::atomic<int64_t>, kLimits> refused_{};
  std::atomic<int64_t> snapshots_sent_{0};
  std::atomic<int64_t> deltas_sent_{0};
  std::atomic<int64_t> conflated_{0};
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_CALL_STATS_H_
