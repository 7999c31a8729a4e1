#include "tests/registry/failback/faulty_link.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/validation.h"
#include "tests/util/batch_requests.h"

namespace failback {
namespace {

// For people.
template <typename Message>
std::string TextOf(const Message& message) {
  return message.ShortDebugString();
}
std::string TextOf(const Batch& batch) {
  return batch.kind() == Batch::Kind::kRegister ? TextOf(ToRequest<RegisterRequest>(batch))
                                                : TextOf(ToRequest<UnregisterRequest>(batch));
}
std::string TextOf(const BatchResult& result) {
  return TextOf(BatchResult(result).ToResponse<RegisterResponse>());
}

int Pick(LinkWorld* world, int n) {
  return static_cast<int>((*world->random)() % static_cast<uint32_t>(n));
}

absl::Status Fault(LinkWorld* world) {
  switch (Pick(world, 14)) {
    case 0:
    case 1:
    case 2:
      return absl::UnavailableError("connection reset");
    case 3:
      return absl::DeadlineExceededError("deadline");
    case 4:
      return absl::AbortedError("aborted");
    case 5:
      return absl::InternalError("internal");
    case 6:
      return absl::UnknownError("unknown");
    case 7:
      return absl::CancelledError("cancelled by the peer");
    case 8:
      return absl::UnauthenticatedError("token expired");
    case 9:
      return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED, "busy"),
                            absl::Milliseconds(700));
    case 10:
      return Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY, "disk full");
    case 11:
      return Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "stopping");
    case 12:
      return absl::PermissionDeniedError("not you");
    default:
      return absl::ResourceExhaustedError("message too large");
  }
}

}  // namespace

absl::Duration Upto(LinkWorld* world, absl::Duration most) {
  return absl::Milliseconds(Pick(world, static_cast<int>(absl::ToInt64Milliseconds(most)) + 1));
}

LinkPlan DecideFate(LinkWorld* world) {
  LinkPlan plan;
  if (world->down) {
    plan.applied = false;
    plan.status = absl::UnavailableError("connection refused");
    plan.answer_after = Upto(world, absl::Milliseconds(5));
    return plan;
  }
  plan.apply_after = Upto(world, absl::Milliseconds(30));
  plan.answer_after = Upto(world, absl::Milliseconds(30));
  if (Pick(world, 100) >= world->fault_percent) return plan;
  switch (Pick(world, 5)) {
    case 0:  // refused, or lost on the way there
      plan.applied = false;
      plan.status = Fault(world);
      break;
    case 1:  // black hole
      plan.applied = false;
      plan.status = absl::DeadlineExceededError("deadline");
      plan.answer_after = world->deadline;
      break;
    case 2:  // applied late, and reported failed long before
      plan.apply_after = Upto(world, world->latest_application);
      plan.status = Pick(world, 2) == 0 ? absl::UnavailableError("connection reset")
                                        : absl::DeadlineExceededError("deadline");
      plan.answer_after = Pick(world, 2) == 0 ? Upto(world, world->deadline) : world->deadline;
      break;
    case 3:  // applied, and the answer is lost
      plan.status = Pick(world, 2) == 0 ? absl::UnavailableError("connection reset")
                                        : absl::InternalError("broken stream");
      break;
    case 4:  // slow, and overtaken by others
      plan.apply_after = Upto(world, world->deadline / 2);
      plan.answer_after = Upto(world, world->deadline / 2);
      break;
  }
  return plan;
}

struct FaultyLink::Shared {
  LinkWorld* world;
  bool destroyed = false;
  // Ends of the calls under way, by number.
  std::map<uint64_t, std::function<void()>> cancels;
  uint64_t last = 0;

  void After(absl::Duration delay, std::function<void()> work) {
    world->timer->NewTimeout(std::move(work), delay).IgnoreError();
  }
};

FaultyLink::FaultyLink(LinkWorld* world) : shared_(std::make_shared<Shared>()) {
  shared_->world = world;
}

FaultyLink::~FaultyLink() {
  shared_->destroyed = true;
  auto cancels = std::move(shared_->cancels);
  for (auto& [number, cancel] : cancels) cancel();
}

template <typename Method, typename Request, typename Response>
void FaultyLink::Carry(Method method, Request request, std::vector<std::string> keys,
                       Callback<Response> done) {
  auto shared = shared_;
  LinkWorld* const world = shared->world;
  for (const std::string& key : keys) {
    if (world->keys_in_flight.count(key) > 0) {
      absl::StrAppend(&world->violation, "two calls in flight for ", key, "\n");
    }
    world->keys_in_flight.insert(key);
  }
  if (!keys.empty() && ++world->calls_in_flight > world->max_calls_in_flight) {
    absl::StrAppend(&world->violation, world->calls_in_flight, " calls in flight\n");
  }
  const uint64_t number = ++shared->last;
  auto answer = std::make_shared<std::function<void(absl::StatusOr<Response>)>>();
  auto callback = std::make_shared<Callback<Response>>(std::move(done));
  *answer = [shared, number, callback, keys](absl::StatusOr<Response> response) {
    if (*callback == nullptr) return;
    Callback<Response> once = std::move(*callback);
    *callback = nullptr;
    shared->cancels.erase(number);
    for (const std::string& key : keys) {
      shared->world->keys_in_flight.erase(shared->world->keys_in_flight.find(key));
    }
    if (!keys.empty()) --shared->world->calls_in_flight;
    std::move(once)(std::move(response));
  };
  shared->cancels[number] = [answer] { (*answer)(absl::CancelledError("the link is destroyed")); };

  const LinkPlan plan = DecideFate(shared->world);
  if (world->trace) {
    world->trace(absl::StrCat("    call ", number, " ", TextOf(request), " applied ",
                              plan.applied ? absl::FormatDuration(plan.apply_after) : "never",
                              " answer ",
                              plan.status.has_value() ? plan.status->ToString() : "honest", " ",
                              absl::FormatDuration(plan.answer_after)));
  }
  if (plan.applied) {
    shared->After(plan.apply_after, [shared, method, request, answer, plan, number] {
      (shared->world->target()->*method)(
          request, [shared, answer, plan, number](absl::StatusOr<Response> response) {
            if (shared->world->trace) {
              shared->world->trace(
                  absl::StrCat("    applied ", number, " ",
                               response.ok() ? TextOf(*response) : response.status().ToString()));
            }
            if (plan.status.has_value()) return;
            shared->After(plan.answer_after,
                          [answer, response = std::move(response)] { (*answer)(response); });
          });
    });
  }
  if (plan.status.has_value()) {
    shared->After(plan.answer_after, [answer, status = *plan.status] { (*answer)(status); });
  }
}

// One stream: what the registry says arrives later, in order, until it is destroyed or breaks.
class FaultyLink::Stream final : public SubscribeStream {
 public:
  struct State {
    std::shared_ptr<NotifyListener> listener;
    std::unique_ptr<SubscribeStream> target;
    std::deque<std::function<void(NotifyListener*)>> queue;
    bool ended = false;
  };

  class Listener final : public NotifyListener {
   public:
    Listener(std::shared_ptr<Shared> shared, std::weak_ptr<State> state)
        : shared_(std::move(shared)), state_(std::move(state)) {}
    void OnEvent(const EventPtr& event) override {
      Post([event](NotifyListener* listener) { listener->OnEvent(event); });
    }
    void OnEnd(const absl::Status& status) override {
      Post([status](NotifyListener* listener) { listener->OnEnd(status); });
    }

   private:
    void Post(std::function<void(NotifyListener*)> call) {
      auto state = state_.lock();
      if (state == nullptr || state->ended) return;
      state->queue.push_back(std::move(call));
      shared_->After(Upto(shared_->world, absl::Milliseconds(30)), [weak = state_] {
        auto state = weak.lock();
        if (state == nullptr || state->ended || state->queue.empty()) return;
        auto next = std::move(state->queue.front());
        state->queue.pop_front();
        const auto listener = state->listener;
        next(listener.get());
      });
    }
    const std::shared_ptr<Shared> shared_;
    const std::weak_ptr<State> state_;
  };

  explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Stream() override {
    state_->ended = true;
    state_->target.reset();
  }

 private:
  const std::shared_ptr<State> state_;
};

std::unique_ptr<SubscribeStream> FaultyLink::Subscribe(const SubscribeRequest& request,
                                                       std::shared_ptr<NotifyListener> listener) {
  auto state = std::make_shared<Stream::State>();
  state->listener = std::move(listener);
  auto shared = shared_;
  const LinkPlan plan = DecideFate(shared->world);
  std::weak_ptr<Stream::State> weak = state;
  if (plan.applied) {
    shared->After(plan.apply_after, [shared, weak, request] {
      auto state = weak.lock();
      // One that was given up may arrive all the same, and has no caller.
      auto heard = std::make_shared<Stream::Listener>(shared, weak);
      auto target = shared->world->target()->Subscribe(request, heard);
      if (state != nullptr && !state->ended) state->target = std::move(target);
    });
  }
  if (plan.status.has_value()) {
    shared->After(plan.answer_after, [weak, status = *plan.status] {
      auto state = weak.lock();
      if (state == nullptr || state->ended) return;
      state->ended = true;
      const auto listener = state->listener;
      state->target.reset();
      listener->OnEnd(status);
    });
  }
  return std::make_unique<Stream>(std::move(state));
}

void FaultyLink::OpenSession(const OpenSessionRequest& request,
                             Callback<OpenSessionResponse> done) {
  Carry(&Registry::OpenSession, request, {}, std::move(done));
}
void FaultyLink::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  Carry(&Registry::KeepAlive, request, {}, std::move(done));
}
void FaultyLink::CloseSession(const CloseSessionRequest& request,
                              Callback<CloseSessionResponse> done) {
  Carry(&Registry::CloseSession, request, {}, std::move(done));
}
void FaultyLink::Write(Batch batch, Callback<BatchResult> done) {
  if (auto status = batch.Check(kDefaultMaxBatch); !status.ok()) return std::move(done)(status);
  std::vector<std::string> keys;
  for (const Intent& intent : batch.intents()) keys.push_back(CanonicalKeyText(intent.key));
  Carry(&Registry::Write, std::move(batch), keys, std::move(done));
}
void FaultyLink::Unsubscribe(const UnsubscribeRequest& request,
                             Callback<UnsubscribeResponse> done) {
  Carry(&Registry::Unsubscribe, request, {}, std::move(done));
}
void FaultyLink::List(const ListRequest& request, Callback<ListResponse> done) {
  Callback<ListResponse> answer = std::move(done);
  if (shared_->world->lists_late > absl::ZeroDuration()) {
    auto late = std::make_shared<Callback<ListResponse>>(std::move(answer));
    answer = [shared = shared_, late](absl::StatusOr<ListResponse> response) {
      shared->After(shared->world->lists_late, [shared, late, response = std::move(response)] {
        if (!shared->destroyed) std::move (*late)(response);
      });
    };
  }
  Carry(&Registry::List, request, {}, std::move(answer));
}

}  // namespace failback
