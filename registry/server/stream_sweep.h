// The open streams of a server, and the plan by which those that are stopped, silent or old end: a
// periodic task counts each stream's sweeps.
//
// Thread safety: OpenStreams from any thread; the rest is plain values and pure functions.

#ifndef FAILBACK_REGISTRY_SERVER_STREAM_SWEEP_H_
#define FAILBACK_REGISTRY_SERVER_STREAM_SWEEP_H_

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

// How often streams are looked at, and after how many sweeps one has been so for too long: at least
// the timeout, and a quarter more at most.
struct SweepPlan {
  // Each may be infinite, but not all.
  static SweepPlan Of(absl::Duration stalled, absl::Duration silent, absl::Duration oldest);

  absl::Duration period;
  int stalled = 0;
  int silent = 0;
  int oldest = 0;
};

// `sweeps`, or up to a fifth less, always the same for a stream: not all end at once.
int Jittered(int sweeps, const void* stream);

// How old a stream becomes where connections end at `connection_age`, so that each stream ends
// before its connection, with a status that makes the client go on on a new one:
//   at g (gRPC moves it by a tenth)  no more calls are taken on the connection (GOAWAY);
//   when it is g old at most         each stream ends, on any connection;
//   1.1 g after the first            what is left is cut off.
// The three together are 2.1 g, give or take a tenth of g, which is what this returns.
absl::Duration OldestStream(absl::Duration connection_age);

// The states of open streams of one kind.
template <typename State>
class OpenStreams {
 public:
  // False after Close(), which has not seen `state`.
  bool Add(const std::shared_ptr<State>& state) {
    MutexLock lock(&mu_);
    if (!closed_) states_.insert(state);
    return !closed_;
  }

  void Remove(const std::shared_ptr<State>& state) {
    MutexLock lock(&mu_);
    states_.erase(state);
  }

  std::vector<std::shared_ptr<State>> Open() {
    MutexLock lock(&mu_);
    return {states_.begin(), states_.end()};
  }

  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(states_.size());
  }

  std::set<std::shared_ptr<State>> Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    return std::exchange(states_, {});
  }

 private:
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<State>> states_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SERVER_STREAM_SWEEP_H_
