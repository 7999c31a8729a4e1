// A FailbackRegistry over a FakeRegistry, on simulated time: what its tests have in common.

#ifndef FAILBACK_TESTS_REGISTRY_FAILBACK_FAILBACK_FIXTURE_H_
#define FAILBACK_TESTS_REGISTRY_FAILBACK_FAILBACK_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/failback/failback_registry.h"
#include "registry/model/errors.h"
#include "registry/watch/serial_notifier.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/message_listener.h"
#include "tests/util/instances.h"

namespace failback {

class FailbackRegistryPeer {
 public:
  static std::string CheckInvariants(const FailbackRegistry& registry) {
    return registry.CheckInvariants();
  }
};

inline RegisterRequest MakeRegister(const std::vector<ServiceInstance>& instances) {
  RegisterRequest request;
  for (const auto& instance : instances)
    *request.add_registrations()->mutable_instance() = instance;
  return request;
}

inline UnregisterRequest MakeUnregister(const std::string& id) {
  UnregisterRequest request;
  *request.add_deregistrations()->mutable_key() = MakeInstance(id).key();
  return request;
}

inline absl::Status Away() { return absl::UnavailableError("connection refused"); }

// An answer that waits to be looked at.
template <typename Response>
class Answer {
 public:
  Callback<Response> Catch() {
    return [slot = slot_](absl::StatusOr<Response> response) {
      EXPECT_FALSE(slot->has_value()) << "a callback ran twice";
      *slot = std::move(response);
    };
  }
  bool done() const { return slot_->has_value(); }
  const absl::StatusOr<Response>& get() const {
    EXPECT_TRUE(done()) << "no answer yet";
    static const absl::StatusOr<Response> none = absl::UnknownError("no answer yet");
    return done() ? **slot_ : none;
  }
  // Of the first item of a batch.
  absl::Status item(int i = 0) const {
    if (!get().ok()) return get().status();
    return StatusFromProto(get()->results(i).status());
  }

 private:
  std::shared_ptr<std::optional<absl::StatusOr<Response>>> slot_ =
      std::make_shared<std::optional<absl::StatusOr<Response>>>();
};

class FailbackTest : public testing::Test {
 protected:
  FailbackTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(std::move(timer)).value();
    options_.upstream_name = "grpc://fake";
    options_.incarnation = "inc";
    options_.timer = timer_.get();
    options_.random = [this] { return random_; };
    options_.anti_entropy_interval = absl::ZeroDuration();
    options_.on_event = [this](const IntentEvent& event) { events_.push_back(event); };
    auto fake = std::make_unique<FakeRegistry>();
    fake_ = fake.get();
    upstream_ = std::move(fake);
  }

  ~FailbackTest() override {
    if (registry_ != nullptr) CheckInvariants();
  }

  void Start() {
    auto created = FailbackRegistry::Create(std::move(upstream_), options_);
    ASSERT_TRUE(created.ok()) << created.status();
    registry_ = *std::move(created);
  }

  void CheckInvariants() { EXPECT_EQ(FailbackRegistryPeer::CheckInvariants(*registry_), ""); }

  // Every call fails as if no server listened at the address; until Back().
  void GoAway(const absl::Status& status = Away()) {
    fake_->opens.AnswerWith([status](const auto&) { return status; });
    fake_->keep_alives.AnswerWith([status](const auto&) { return status; });
    fake_->registers.AnswerWith([status](const auto&) { return status; });
    fake_->unregisters.AnswerWith([status](const auto&) { return status; });
    fake_->unsubscribes.AnswerWith([status](const auto&) { return status; });
    fake_->EndSubscriptionsWith(status);
  }

  // Everything is acknowledged again; `session` is what OpenSession hands out.
  void Back(const std::string& session = "session-2") {
    fake_->opens.AnswerWith(
        [session](const OpenSessionRequest& request) { return Opened(session); });
    fake_->keep_alives.AnswerWith([](const KeepAliveRequest& request) { return Renewed(request); });
    fake_->registers.AnswerWith([](const RegisterRequest& request) {
      RegisterResponse response;
      for (int i = 0; i < request.registrations_size(); ++i) response.add_results();
      return response;
    });
    fake_->unregisters.AnswerWith([](const UnregisterRequest& request) {
      UnregisterResponse response;
      for (int i = 0; i < request.deregistrations_size(); ++i) response.add_results();
      return response;
    });
    fake_->unsubscribes.AnswerWith([](const auto&) { return UnsubscribeResponse(); });
    fake_->EndSubscriptionsWith(std::nullopt);
  }

  static OpenSessionResponse Opened(const std::string& session, const std::string& store = "store",
                                    uint64_t epoch = 1) {
    OpenSessionResponse response;
    response.set_session_id(session);
    response.mutable_ttl()->set_seconds(9);
    response.set_rank(7);
    response.set_store_id(store);
    response.set_epoch(epoch);
    return response;
  }

  static KeepAliveResponse Renewed(const KeepAliveRequest& request, uint64_t epoch = 1) {
    KeepAliveResponse response;
    response.set_session_id(request.session_id());
    response.mutable_ttl()->set_seconds(9);
    response.set_epoch(epoch);
    return response;
  }

  Answer<RegisterResponse> Register(const RegisterRequest& request) {
    Answer<RegisterResponse> answer;
    registry_->Register(request, answer.Catch());
    return answer;
  }
  Answer<RegisterResponse> Register(const std::string& id, uint32_t port = 8080) {
    return Register(MakeRegister({MakeInstance(id, port)}));
  }
  Answer<UnregisterResponse> Unregister(const UnregisterRequest& request) {
    Answer<UnregisterResponse> answer;
    registry_->Unregister(request, answer.Catch());
    return answer;
  }
  Answer<UnregisterResponse> Unregister(const std::string& id) {
    return Unregister(MakeUnregister(id));
  }

  std::string OpenLocal(const std::string& incarnation, int ttl_seconds = 10) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.mutable_ttl()->set_seconds(ttl_seconds);
    Answer<OpenSessionResponse> answer;
    registry_->OpenSession(request, answer.Catch());
    return answer.get().ok() ? answer.get()->session_id() : "";
  }

  // A client that numbers its intents registers the instance and unregisters it.
  void LeaveTombstone(const std::string& id) {
    const std::string session = OpenLocal("client", 600);
    RegisterRequest there = MakeRegister({MakeInstance(id)});
    there.set_session_id(session);
    there.mutable_registrations(0)->set_generation(1);
    Register(there);
    UnregisterRequest gone = MakeUnregister(id);
    gone.set_session_id(session);
    gone.mutable_deregistrations(0)->set_generation(2);
    Unregister(gone);
  }

  std::unique_ptr<SubscribeStream> Subscribe(std::shared_ptr<NotifyListener> listener,
                                             const std::string& service = "orders",
                                             const std::string& session = "",
                                             const std::string& id = "", uint64_t generation = 0) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    request.set_session_id(session);
    request.set_subscription_id(id);
    request.set_generation(generation);
    return registry_->Subscribe(request, std::move(listener));
  }

  // Time passes in small steps, so that what one step starts happens in the next.
  void Advance(absl::Duration duration) { clock_.Advance(duration); }

  uint64_t last_generation(const RegisterRequest& request) {
    return request.registrations(request.registrations_size() - 1).generation();
  }

  std::vector<std::string> EventNames() const {
    static const char* const kNames[] = {"acknowledged", "retrying", "parked", "superseded",
                                         "cancelled",    "lapsed",   "renewed"};
    std::vector<std::string> names;
    for (const auto& event : events_) {
      names.push_back(absl::StrCat(kNames[static_cast<int>(event.kind)], " ", event.id));
    }
    return names;
  }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  double random_ = 0.5;
  FailbackRegistry::Options options_;
  std::vector<IntentEvent> events_;
  FakeRegistry* fake_ = nullptr;
  std::unique_ptr<Registry> upstream_;
  std::unique_ptr<FailbackRegistry> registry_;
};

// Messages of an upstream's stream.
inline SubscribeResponse SnapshotEvent(uint64_t revision,
                                       const std::vector<ServiceInstance>& instances,
                                       uint64_t epoch = 1, bool more = false) {
  SubscribeResponse event;
  event.set_epoch(epoch);
  event.set_revision(revision);
  for (const auto& instance : instances) *event.mutable_snapshot()->add_instances() = instance;
  event.mutable_snapshot()->set_more(more);
  return event;
}

inline SubscribeResponse DeltaEvent(uint64_t base, uint64_t revision,
                                    const std::vector<ServiceInstance>& upserts,
                                    const std::vector<std::string>& removals = {},
                                    uint64_t epoch = 1) {
  SubscribeResponse event;
  event.set_epoch(epoch);
  event.set_revision(revision);
  event.mutable_delta()->set_base_revision(base);
  for (const auto& instance : upserts) *event.mutable_delta()->add_upserts() = instance;
  for (const auto& id : removals) {
    *event.mutable_delta()->add_removals() = MakeInstance(id).key();
  }
  return event;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_FAILBACK_FAILBACK_FIXTURE_H_
