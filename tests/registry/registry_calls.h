// Short words for the calls of any Registry, and a subscriber that checks what it receives.

#ifndef FAILBACK_TESTS_REGISTRY_REGISTRY_CALLS_H_
#define FAILBACK_TESTS_REGISTRY_REGISTRY_CALLS_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/registry.h"
#include "tests/registry/message_listener.h"
#include "tests/util/instances.h"

namespace failback {

// The result of one call, waited for.
template <typename Response, typename Request>
absl::StatusOr<Response> CallAndWait(Registry& registry,
                                     void (Registry::*method)(const Request&, Callback<Response>),
                                     const Request& request) {
  struct Result {
    std::mutex mu;
    std::condition_variable ready;
    std::optional<absl::StatusOr<Response>> value;
  };
  auto result = std::make_shared<Result>();
  (registry.*method)(request, [result](absl::StatusOr<Response> response) {
    std::lock_guard<std::mutex> lock(result->mu);
    EXPECT_FALSE(result->value.has_value()) << "a callback ran twice";
    result->value = std::move(response);
    result->ready.notify_all();
  });
  std::unique_lock<std::mutex> lock(result->mu);
  if (!result->ready.wait_for(lock, std::chrono::seconds(60),
                              [&] { return result->value.has_value(); })) {
    return absl::DeadlineExceededError("the callback did not run within a minute");
  }
  return *result->value;
}

// One outcome of a batch of one; the call's own status where the call failed.
struct Outcome {
  absl::Status status;
  uint64_t generation = 0;
  uint64_t revision = 0;

  bool ok() const { return status.ok(); }
};

// What the subscriber's application would have: applies events, and checks the stream's rules.
class FakeSubscriber : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    std::lock_guard<std::mutex> lock(mu_);
    EXPECT_FALSE(ended_.has_value()) << "an event after the end";
    events_.push_back(event);
    const auto before = instances_;
    if (event->has_snapshot()) {
      if (!in_parts_) instances_.clear();
      in_parts_ = event->snapshot().more();
      for (const auto& instance : event->snapshot().instances()) Put(instance);
    } else {
      EXPECT_TRUE(event->has_delta());
      EXPECT_FALSE(in_parts_) << "a delta within a snapshot";
      EXPECT_EQ(event->epoch(), epoch_);
      EXPECT_EQ(event->delta().base_revision(), revision_) << "a gap";
      EXPECT_GE(event->revision(), revision_);
      for (const auto& instance : event->delta().upserts()) Put(instance);
      for (const auto& key : event->delta().removals()) {
        EXPECT_EQ(instances_.erase(KeyText(key)), 1u) << "removed, but was not there";
      }
      // Only the first message of a stream may leave all as it was.
      if (told_) {
        EXPECT_NE(before, instances_) << "the same state twice";
      }
    }
    told_ = true;
    epoch_ = event->epoch();
    revision_ = event->revision();
  }
  void OnEnd(const absl::Status& status) override {
    std::lock_guard<std::mutex> lock(mu_);
    EXPECT_FALSE(ended_.has_value()) << "ended twice";
    ended_ = status;
  }

  // A new stream goes on where this one was.
  void BeginAgain() {
    std::lock_guard<std::mutex> lock(mu_);
    told_ = false;
    ended_.reset();
    events_.clear();
  }

  std::vector<std::shared_ptr<const SubscribeResponse>> events() const {
    std::lock_guard<std::mutex> lock(mu_);
    return events_;
  }
  std::optional<absl::Status> ended() const {
    std::lock_guard<std::mutex> lock(mu_);
    return ended_;
  }
  // Serialized, by `namespace/service/id`.
  std::map<std::string, std::string> instances() const {
    std::lock_guard<std::mutex> lock(mu_);
    return instances_;
  }
  std::vector<std::string> ids() const {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<std::string> ids;
    for (const auto& [key, bytes] : instances_) ids.push_back(key.substr(key.rfind('/') + 1));
    return ids;
  }
  uint64_t epoch() const {
    std::lock_guard<std::mutex> lock(mu_);
    return epoch_;
  }
  uint64_t revision() const {
    std::lock_guard<std::mutex> lock(mu_);
    return revision_;
  }

 private:
  void Put(const ServiceInstance& instance) {
    instances_[KeyText(instance.key())] = CanonicalInstance(instance);
  }

  mutable std::mutex mu_;
  std::vector<std::shared_ptr<const SubscribeResponse>> events_;
  std::map<std::string, std::string> instances_;
  std::optional<absl::Status> ended_;
  bool told_ = false;
  bool in_parts_ = false;
  uint64_t epoch_ = 0;
  uint64_t revision_ = 0;
};

// Calls that wait for their answer.
class RegistryCalls {
 public:
  virtual ~RegistryCalls() = default;

  OpenSessionResponse OpenSession(const std::string& incarnation,
                                  absl::Duration ttl = absl::ZeroDuration()) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_client_name("client of " + incarnation);
    request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(ttl));
    auto response = CallAndWait(registry(), &Registry::OpenSession, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : OpenSessionResponse();
  }
  std::string Session(const std::string& incarnation, absl::Duration ttl = absl::ZeroDuration()) {
    return OpenSession(incarnation, ttl).session_id();
  }
  absl::Status KeepAlive(const std::string& session) {
    KeepAliveRequest request;
    request.set_session_id(session);
    return CallAndWait(registry(), &Registry::KeepAlive, request).status();
  }
  absl::Status CloseSession(const std::string& session) {
    CloseSessionRequest request;
    request.set_session_id(session);
    return CallAndWait(registry(), &Registry::CloseSession, request).status();
  }

  Outcome Register(const std::string& session, const ServiceInstance& instance,
                   uint64_t generation = 0) {
    RegisterRequest request;
    request.set_session_id(session);
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = instance;
    registration->set_generation(generation);
    return One(CallAndWait(registry(), &Registry::Register, request));
  }
  Outcome Unregister(const std::string& session, const InstanceKey& key, uint64_t generation = 0) {
    UnregisterRequest request;
    request.set_session_id(session);
    auto* deregistration = request.add_deregistrations();
    *deregistration->mutable_key() = key;
    deregistration->set_generation(generation);
    return One(CallAndWait(registry(), &Registry::Unregister, request));
  }

  std::vector<InstanceRecord> List(const std::string& service = "") {
    ListRequest request;
    request.mutable_selector()->set_service(service);
    auto response = CallAndWait(registry(), &Registry::List, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return {response->records().begin(), response->records().end()};
  }
  std::vector<std::string> Ids(const std::string& service = "") {
    std::vector<std::string> ids;
    for (const auto& record : List(service)) ids.push_back(record.instance().key().instance_id());
    return ids;
  }

  std::unique_ptr<SubscribeStream> Subscribe(const std::shared_ptr<FakeSubscriber>& subscriber,
                                             const std::string& service, bool go_on = false) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    if (go_on) {
      request.set_epoch(subscriber->epoch());
      request.set_revision(subscriber->revision());
      subscriber->BeginAgain();
    }
    return registry().Subscribe(request, subscriber);
  }

 protected:
  virtual Registry& registry() = 0;

 private:
  template <typename Response>
  static Outcome One(const absl::StatusOr<Response>& response) {
    if (!response.ok()) return {response.status()};
    EXPECT_EQ(response->results_size(), 1);
    return {StatusFromProto(response->results(0).status()), response->results(0).generation(),
            response->revision()};
  }
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_REGISTRY_CALLS_H_
