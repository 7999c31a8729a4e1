// What a server that follows a service leaves of what has expired, on one real member of etcd.

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_SUPERSEDED;
using Ids = std::vector<std::string>;

class FencesTest : public EtcdTest {
 protected:
  static std::string Keys(const EtcdHarness& registry) {
    return etcd().Ctl({"get", "--prefix", "--keys-only", registry.prefix() + "/v1/default"}).out;
  }
  static std::string KeyOf(const EtcdHarness& registry, const std::string& id) {
    return absl::StrCat(registry.prefix(), "/v1/default/s/", id, "\n");
  }

  // A subscriber that has received everything.
  static std::shared_ptr<FakeSubscriber> Follow(EtcdHarness& registry,
                                                std::unique_ptr<SubscribeStream>* stream) {
    auto subscriber = std::make_shared<FakeSubscriber>();
    *stream = registry.Subscribe(subscriber, "s");
    EXPECT_TRUE(Eventually([&] { return !subscriber->events().empty(); }));
    return subscriber;
  }
};

TEST_F(FencesTest, AnOlderIncarnationDoesNotTakeWhatHasExpired) {
  EtcdHarness registry(etcd(), NewPrefix());
  EtcdHarness other(etcd(), registry.prefix());
  std::unique_ptr<SubscribeStream> stream;
  const auto subscriber = Follow(registry, &stream);
  const std::string older = registry.Session("older", absl::Seconds(30));
  const std::string later = registry.Session("later", absl::Seconds(1));
  ASSERT_TRUE(registry.Register(later, MakeInstance("s", "1", 2), 1).ok());
  ASSERT_TRUE(Eventually([&] { return subscriber->ids() == Ids({"1"}); }));
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().empty(); }));
  // At the server that follows from the moment on at which it tells that the instance has gone.
  EXPECT_EQ(ReasonOf(registry.Register(older, MakeInstance("s", "1", 1), 1).status),
            ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(Keys(registry), KeyOf(registry, "1") + "\n");
  EXPECT_EQ(ReasonOf(other.Register(older, MakeInstance("s", "1", 1), 1).status),
            ERROR_REASON_SUPERSEDED);
  EXPECT_TRUE(registry.List("s").empty());
  // Who it was comes back under its number.
  const Outcome back = other.Register(registry.Session("later"), MakeInstance("s", "1", 2), 1);
  EXPECT_TRUE(back.ok()) << back.status;
  EXPECT_EQ(registry.Ids("s"), Ids({"1"}));
}

// Does something as soon as it receives the first removal.
class QuickSubscriber final : public FakeSubscriber {
 public:
  explicit QuickSubscriber(std::function<void()> on_removal) : on_removal_(std::move(on_removal)) {}

  void OnMessage(const MessagePtr& event) override {
    FakeSubscriber::OnMessage(event);
    if (event->delta().removals().empty()) return;
    if (auto on_removal = std::exchange(on_removal_, nullptr)) on_removal();
  }

 private:
  std::function<void()> on_removal_;
};

// The fence is still to be written then: a caller waits for it.
TEST_F(FencesTest, AnOlderIncarnationIsNotFasterThanTheFence) {
  std::promise<absl::StatusOr<RegisterResponse>> answer;  // outlives who gives it
  EtcdHarness registry(etcd(), NewPrefix());
  RegisterRequest request;
  request.set_session_id(registry.Session("older", absl::Seconds(30)));
  *request.add_registrations()->mutable_instance() = MakeInstance("s", "1", 1);
  request.mutable_registrations(0)->set_generation(1);
  auto subscriber = std::make_shared<QuickSubscriber>([&] {
    registry->Register(request, [&](absl::StatusOr<RegisterResponse> response) {
      answer.set_value(std::move(response));
    });
  });
  const auto stream = registry.Subscribe(subscriber, "s");
  ASSERT_TRUE(Eventually([&] { return !subscriber->events().empty(); }));
  const std::string later = registry.Session("later", absl::Seconds(1));
  ASSERT_TRUE(registry.Register(later, MakeInstance("s", "1", 2), 1).ok());
  auto answered = answer.get_future();
  ASSERT_TRUE(Eventually(
      [&] { return answered.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  const absl::StatusOr<RegisterResponse> response = answered.get();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(0).status())), ERROR_REASON_SUPERSEDED);
  EXPECT_TRUE(registry.List("s").empty());
}

TEST_F(FencesTest, WhatIsClosedIsLeftToOthersAlsoWhenItsIncarnationIsBack) {
  for (const bool back : {false, true}) {
    EtcdHarness registry(etcd(), NewPrefix());
    std::unique_ptr<SubscribeStream> stream;
    const auto subscriber = Follow(registry, &stream);
    const std::string older = registry.Session("older");
    const std::string later = registry.Session("later");
    ASSERT_TRUE(registry.Register(later, MakeInstance("s", "1", 2), 1).ok());
    ASSERT_TRUE(Eventually([&] { return subscriber->ids() == Ids({"1"}); }));
    ASSERT_TRUE(registry.CloseSession(later).ok());
    if (back) registry.Session("later");
    ASSERT_TRUE(Eventually([&] { return subscriber->ids().empty(); }));
    const Outcome taken = registry.Register(older, MakeInstance("s", "1", 1), 1);
    EXPECT_TRUE(taken.ok()) << taken.status;
    // Nothing that came later has taken it away.
    ASSERT_TRUE(Eventually([&] { return subscriber->ids() == Ids({"1"}); }));
    EXPECT_EQ(registry.List("s").at(0).instance().port(), 1u);
  }
}

TEST_F(FencesTest, OfSeveralServersOneWritesHoweverMuchExpiresAtOnce) {
  constexpr int kInstances = 350;
  EtcdHarness registry(etcd(), NewPrefix());
  EtcdHarness other(etcd(), registry.prefix());
  std::unique_ptr<SubscribeStream> stream;
  std::unique_ptr<SubscribeStream> other_stream;
  const auto subscriber = Follow(registry, &stream);
  const auto other_subscriber = Follow(other, &other_stream);
  RegisterRequest request;
  request.set_session_id(registry.Session("a", absl::Seconds(1)));
  for (int i = 0; i < kInstances; ++i) {
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = MakeInstance("s", absl::StrCat("i", i));
    registration->set_generation(1);
  }
  ASSERT_TRUE(CallAndWait(*registry, &Registry::Register, request).ok());
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().size() == kInstances; }));
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().empty(); }));
  const auto stored = [&] {
    const RunResult all =
        etcd().Ctl({"get", "--prefix", "-w", "fields", registry.prefix() + "/v1/default/s/"});
    std::vector<int> versions(3);
    for (const int version : {1, 2}) {
      const std::string line = absl::StrCat("\"Version\" : ", version, "\n");
      for (size_t at = all.out.find(line); at != std::string::npos;
           at = all.out.find(line, at + 1)) {
        ++versions[static_cast<size_t>(version)];
      }
    }
    return versions;
  };
  ASSERT_TRUE(Eventually([&] { return stored() == std::vector<int>({0, kInstances, 0}); }));
  EXPECT_TRUE(other.List("s").empty());
}

// As docs/etcd.md says.
TEST_F(FencesTest, WhereNobodyFollowsThereIsNone) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string older = registry.Session("older", absl::Seconds(30));
  const std::string later = registry.Session("later", absl::Seconds(1));
  ASSERT_TRUE(registry.Register(later, MakeInstance("s", "1"), 1).ok());
  ASSERT_TRUE(Eventually([&] { return registry.Ids("s").empty(); }));
  EXPECT_EQ(Keys(registry), "");
  EXPECT_TRUE(registry.Register(older, MakeInstance("s", "1"), 1).ok());
}

}  // namespace
}  // namespace failback
