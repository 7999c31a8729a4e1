// A Registry that counts what passes through it: sessions, calls begun, calls in flight, intents
// acknowledged, and when.
//
// Many upstreams share one Traffic, so a fleet is counted as a whole.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_BENCH_RECOVERY_WATCHED_UPSTREAM_H_
#define FAILBACK_TESTS_BENCH_RECOVERY_WATCHED_UPSTREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "registry/registry.h"
#include "tests/bench/load.h"

namespace failback {

struct Traffic {
  // Calls of any kind that were begun.
  std::atomic<int64_t> attempts{0};
  // Sessions that were not there before.
  std::atomic<int64_t> sessions{0};
  // Register calls.
  std::atomic<int64_t> registers{0};
  std::atomic<int64_t> in_flight{0};
  std::atomic<int64_t> peak_in_flight{0};
  std::atomic<int64_t> acknowledged{0};
  std::atomic<int64_t> refused{0};
  // When the first OpenSession that succeeded was begun, seconds; 0 until then.
  std::atomic<double> connected_at{0};

  void Reset() {
    for (auto* counter : {&attempts, &sessions, &registers, &acknowledged, &refused}) *counter = 0;
    peak_in_flight = in_flight.load();
    connected_at = 0;
  }
};

class WatchedUpstream final : public Registry {
 public:
  // `own` counts this upstream's acknowledged intents; may be null. Both outlive it.
  WatchedUpstream(std::unique_ptr<Registry> upstream, Traffic* traffic,
                  std::atomic<int64_t>* own = nullptr)
      : upstream_(std::move(upstream)), traffic_(traffic), own_(own) {}

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override {
    ++traffic_->attempts;
    upstream_->OpenSession(
        request, [traffic = traffic_, began = NowSeconds(),
                  done = std::move(done)](absl::StatusOr<OpenSessionResponse> response) mutable {
          double none = 0;
          if (response.ok()) {
            traffic->connected_at.compare_exchange_strong(none, began);
            if (!response->resumed()) ++traffic->sessions;
          }
          std::move(done)(std::move(response));
        });
  }
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override {
    ++traffic_->attempts;
    upstream_->KeepAlive(request, std::move(done));
  }
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override {
    ++traffic_->attempts;
    upstream_->CloseSession(request, std::move(done));
  }
  void Write(Batch batch, Callback<BatchResult> done) override {
    if (batch.kind() == Batch::Kind::kRegister) {
      done = Watched(static_cast<int64_t>(batch.size()), std::move(done));
    } else {
      ++traffic_->attempts;
    }
    upstream_->Write(std::move(batch), std::move(done));
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    ++traffic_->attempts;
    return upstream_->Subscribe(request, std::move(listener));
  }
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override {
    ++traffic_->attempts;
    upstream_->Unsubscribe(request, std::move(done));
  }
  void List(const ListRequest& request, Callback<ListResponse> done) override {
    ++traffic_->attempts;
    upstream_->List(request, std::move(done));
  }
  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) override {
    upstream_->SetDisconnectListener(listener);
  }

 private:
  // Begins a Register of `count`, whose answer is counted and goes to `done`.
  Callback<BatchResult> Watched(int64_t count, Callback<BatchResult> done) {
    ++traffic_->attempts;
    ++traffic_->registers;
    const int64_t now = ++traffic_->in_flight;
    int64_t peak = traffic_->peak_in_flight;
    while (now > peak && !traffic_->peak_in_flight.compare_exchange_weak(peak, now)) {
    }
    return [count, traffic = traffic_, own = own_,
            done = std::move(done)](absl::StatusOr<BatchResult> response) mutable {
      --traffic->in_flight;
      if (response.ok()) {
        // Without results all is as asked.
        int64_t fine = response->results.empty() ? count : 0;
        for (const auto& result : response->results) {
          fine += result.status().code() == 0 ? 1 : 0;
        }
        traffic->acknowledged += fine;
        traffic->refused += count - fine;
        if (own != nullptr) *own += fine;
      }
      std::move(done)(std::move(response));
    };
  }

  const std::unique_ptr<Registry> upstream_;
  Traffic* const traffic_;
  std::atomic<int64_t>* const own_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_RECOVERY_WATCHED_UPSTREAM_H_
