// A network between a client and a Registry that delays, reorders, loses, and lies about what
// happened. On the time of its timer.
//
// Thread safety: none; everything happens on the thread that advances the clock.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_FAULTY_LINK_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_FAULTY_LINK_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "registry/registry.h"
#include "retry/hashed_wheel_timer.h"

namespace failback {

// What the test sets and reads; outlives the link.
struct LinkWorld {
  // The registry behind the link now.
  std::function<Registry*()> target;
  HashedWheelTimer* timer = nullptr;
  std::mt19937* random = nullptr;
  // Share of the calls that meet a fault, in percent.
  int fault_percent = 0;
  bool down = false;
  // Calls answer at most this late; what they do may happen later.
  absl::Duration deadline = absl::Seconds(5);
  absl::Duration latest_application = absl::Seconds(20);
  // A List is answered so late, with what there was.
  absl::Duration lists_late;

  // Hears of each call, for people.
  std::function<void(const std::string&)> trace;

  // Keys whose call has not been answered yet.
  std::multiset<std::string> keys_in_flight;
  int calls_in_flight = 0;
  std::string violation;
  int max_calls_in_flight = 0;  // the client's bound, for Register and Unregister
};

// The fate of one call.
struct LinkPlan {
  bool applied = true;
  absl::Duration apply_after;
  // Instead of the registry's answer.
  std::optional<absl::Status> status;
  // After the application; or, with a status, after the call.
  absl::Duration answer_after;
};
LinkPlan DecideFate(LinkWorld* world);
// Random, up to `most`.
absl::Duration Upto(LinkWorld* world, absl::Duration most);

class FaultyLink final : public Registry {
 public:
  explicit FaultyLink(LinkWorld* world);
  ~FaultyLink() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;

 private:
  class Stream;
  struct Shared;
  template <typename Method, typename Request, typename Response>
  void Carry(Method method, Request request, std::vector<std::string> keys,
             Callback<Response> done);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_FAULTY_LINK_H_
