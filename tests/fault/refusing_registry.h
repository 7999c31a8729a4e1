// A registry that refuses what a test lets it refuse, in front of one that works.
//
//   RefusingRegistry registry(store.get());
//   registry.Refuse(absl::UnavailableError("away"), RefusingRegistry::kNothingLands);
//   …
//   registry.Serve();
//
// Register, Unregister, Subscribe and Unsubscribe are refused; sessions and listings go on, as of a
// registry that lives and does not like what it is asked.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_FAULT_REFUSING_REGISTRY_H_
#define FAILBACK_TESTS_FAULT_REFUSING_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "registry/registry.h"
#include "retry/mutex.h"
#include "tests/util/forwarding_registry.h"

namespace failback {

class RefusingRegistry final : public ForwardingRegistry {
 public:
  enum Landing {
    kNothingLands,
    // The call is carried out, and answered with the error all the same: an answer lost.
    kLands,
  };

  // `registry` outlives this.
  explicit RefusingRegistry(Registry* registry) : ForwardingRegistry(registry) {}

  // From now on calls fail with `status`.
  void Refuse(const absl::Status& status, Landing landing) {
    MutexLock lock(&mu_);
    refusal_ = status;
    landing_ = landing;
  }
  void Serve() {
    MutexLock lock(&mu_);
    refusal_.reset();
  }
  // Calls refused so far.
  int64_t refused() const {
    MutexLock lock(&mu_);
    return refused_;
  }

  void Write(Batch batch, Callback<BatchResult> done) override {
    Pass(&Registry::Write, std::move(batch), std::move(done));
  }
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override {
    Pass(&Registry::Unsubscribe, request, std::move(done));
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    const std::optional<std::pair<absl::Status, Landing>> refusal = NextRefusal();
    if (!refusal) return to()->Subscribe(request, std::move(listener));
    listener->OnEnd(refusal->first);
    return std::make_unique<SubscribeStream>();
  }

 private:
  std::optional<std::pair<absl::Status, Landing>> NextRefusal() {
    MutexLock lock(&mu_);
    if (!refusal_.has_value()) return std::nullopt;
    ++refused_;
    return std::make_pair(*refusal_, landing_);
  }

  template <typename Method, typename Request, typename Response>
  void Pass(Method method, Request request, Callback<Response> done) {
    const std::optional<std::pair<absl::Status, Landing>> refusal = NextRefusal();
    if (!refusal) return (to()->*method)(std::move(request), std::move(done));
    if (refusal->second == kNothingLands) return std::move(done)(refusal->first);
    (to()->*method)(std::move(request),
                    [done = std::move(done), status = refusal->first](
                        absl::StatusOr<Response>) mutable { std::move(done)(std::move(status)); });
  }

  mutable Mutex mu_;
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mu_);
  Landing landing_ ABSL_GUARDED_BY(mu_) = kNothingLands;
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_FAULT_REFUSING_REGISTRY_H_
