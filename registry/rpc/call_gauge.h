// Counts what is under way, up to a limit: of a whole server, or for each of many keys.
//
//   Gauge calls(10000);
//   std::shared_ptr<void> permit = calls.Enter();
//   if (permit == nullptr) return Overloaded();   // it is free again when `permit` is destroyed
//
// Thread safety: all methods from any thread. A permit may outlive its gauge.

#ifndef FAILBACK_REGISTRY_RPC_CALL_GAUGE_H_
#define FAILBACK_REGISTRY_RPC_CALL_GAUGE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "retry/mutex.h"

namespace failback {

class Gauge {
 public:
  // 0: no limit.
  explicit Gauge(int limit) : limit_(limit) {}

  // A permit, in use until it is destroyed; null when there is none left.
  std::shared_ptr<void> Enter() {
    if (!Take()) return nullptr;
    return std::shared_ptr<void>(
        count_.get(), [count = count_](void*) { count->fetch_sub(1, std::memory_order_relaxed); });
  }

  // The same for who counts its permits itself: takes one, false when there is none left; and gives
  // some back.
  bool Take() {
    if (count_->fetch_add(1, std::memory_order_relaxed) < limit_ || limit_ == 0) return true;
    Give(1);
    return false;
  }
  void Give(int permits) { count_->fetch_sub(permits, std::memory_order_relaxed); }

  int limit() const { return limit_; }

  // Permits in use now.
  int count() const { return count_->load(std::memory_order_relaxed); }

 private:
  const int limit_;
  const std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

// What a call is charged to, of its peer: the connection. Empty on a Unix socket, whose clients
// look all alike.
inline std::string ConnectionOf(const std::string& peer) {
  return peer.rfind("unix:", 0) == 0 ? std::string() : peer;
}

// Streams of one kind on one connection on which nothing has been said, or that say next to
// nothing: each is cheap to begin and to keep for its client.
inline constexpr int kSilentStreamsPerConnection = 64;

class KeyedGauge {
 public:
  // 0: no limit.
  explicit KeyedGauge(int limit) : limit_(limit) {}

  // As Gauge::Enter, of the permits that `key` has. An empty key has no limit.
  std::shared_ptr<void> Enter(const std::string& key) {
    if (!Take(key)) return nullptr;
    if (!counts(key)) return counts_;
    return std::shared_ptr<void>(counts_.get(),
                                 [counts = counts_, key](void*) { counts->Give(key, 1); });
  }

  // As Gauge's.
  bool Take(const std::string& key) {
    if (!counts(key)) return true;
    MutexLock lock(&counts_->mu);
    int& count = counts_->by_key[key];
    if (count >= limit_) return false;
    ++count;
    return true;
  }
  void Give(const std::string& key, int permits) {
    if (counts(key)) counts_->Give(key, permits);
  }

  int limit() const { return limit_; }

 private:
  struct Counts {
    void Give(const std::string& key, int permits) {
      MutexLock lock(&mu);
      const auto it = by_key.find(key);
      if ((it->second -= permits) == 0) by_key.erase(it);
    }

    Mutex mu;
    absl::flat_hash_map<std::string, int> by_key ABSL_GUARDED_BY(mu);
  };

  bool counts(const std::string& key) const { return limit_ > 0 && !key.empty(); }

  const int limit_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

// Permits of several gauges.
struct Permits {
  std::vector<std::shared_ptr<void>> held;
  std::optional<size_t> full;  // the first gauge that had none
};

// What was entered, all or nothing: a call that one gauge refuses holds no permit of the others
// while its refusal is on its way, however long its client takes.
inline Permits AllOrNone(std::vector<std::shared_ptr<void>> entered) {
  for (size_t i = 0; i < entered.size(); ++i) {
    if (entered[i] == nullptr) return {{}, i};
  }
  return {std::move(entered), std::nullopt};
}

}  // namespace failback

#endif  // FAILBACK_REGISTRY_RPC_CALL_GAUGE_H_
