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
#include <string_view>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "registry/encoded_registrar.h"
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

class WatchedUpstream final : public Registry, public EncodedRegistrar {
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
  void Register(const RegisterRequest& request, Callback<RegisterResponse> done) override {
    upstream_->Register(request, Watched(request.registrations_size(), std::move(done)));
  }
  EncodedRegistrar* encoded() override { return upstream_->encoded() == nullptr ? nullptr : this; }
  bool RegisterEncoded(std::string_view request, Results results,
                       Callback<RegisterResponse>* done) override {
    Callback<RegisterResponse> watched = Watched(RegistrationsIn(request), std::move(*done));
    if (!upstream_->encoded()->RegisterEncoded(request, results, &watched)) {
      RegisterRequest parsed;
      parsed.ParseFromArray(request.data(), static_cast<int>(request.size()));
      upstream_->Register(parsed, std::move(watched));
    }
    return true;
  }
  void Unregister(const UnregisterRequest& request, Callback<UnregisterResponse> done) override {
    ++traffic_->attempts;
    upstream_->Unregister(request, std::move(done));
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
  static int64_t RegistrationsIn(std::string_view request) {
    using google::protobuf::internal::WireFormatLite;
    google::protobuf::io::CodedInputStream bytes(reinterpret_cast<const uint8_t*>(request.data()),
                                                 static_cast<int>(request.size()));
    int64_t count = 0;
    while (const uint32_t tag = bytes.ReadTag()) {
      count += WireFormatLite::GetTagFieldNumber(tag) == RegisterRequest::kRegistrationsFieldNumber;
      if (!WireFormatLite::SkipField(&bytes, tag)) break;
    }
    return count;
  }

  // Begins a Register of `count`, whose answer is counted and goes to `done`.
  Callback<RegisterResponse> Watched(int64_t count, Callback<RegisterResponse> done) {
    ++traffic_->attempts;
    ++traffic_->registers;
    const int64_t now = ++traffic_->in_flight;
    int64_t peak = traffic_->peak_in_flight;
    while (now > peak && !traffic_->peak_in_flight.compare_exchange_weak(peak, now)) {
    }
    return [count, traffic = traffic_, own = own_,
            done = std::move(done)](absl::StatusOr<RegisterResponse> response) mutable {
      --traffic->in_flight;
      if (response.ok()) {
        // Without results all is as asked.
        int64_t fine = response->results().empty() ? count : 0;
        for (const auto& result : response->results()) {
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
