// The agent against a real registry: a StoreRegistry behind a RegistryServer, over real gRPC on a
// Unix socket, whose name is the test's own while the registry is unavailable (a port would not
// be). What takes time is waited for with a deadline.

#include "agent/agent.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A registry on a socket that can go away and come back, with or without its memory.
class LocalRegistry {
 public:
  LocalRegistry() {
    timer_ = NewTimer(absl::Milliseconds(10));
    char folder[] = "/tmp/failback-agent-test-XXXXXX";
    folder_ = mkdtemp(folder);
    NewStore();
    Start();
  }
  ~LocalRegistry() {
    Stop();
    std::filesystem::remove_all(folder_);
  }

  std::string uri() const { return "unix:" + folder_ + "/registry.sock"; }
  Registry* store() { return store_.get(); }

  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(absl::ZeroDuration());
    server_.reset();
  }
  void Restart() { Start(); }
  void RestartEmpty() {
    NewStore();
    Start();
  }

 private:
  void NewStore() {
    store_.reset();
    StoreRegistry::Options options;
    options.timer = timer_.get();
    store_ = StoreRegistry::Open(options).value();
  }
  void Start() {
    RegistryServer::Options options;
    options.listen = {uri()};
    auto server = RegistryServer::Start(store_.get(), options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryServer> server_;
  std::string folder_;
};

// Collects what callbacks bring, and waits for what is expected of it.
template <typename T>
class Collector {
 public:
  void Add(const T& value) {
    MutexLock lock(&mu_);
    values_.push_back(value);
    changed_.SignalAll();
  }
  bool WaitFor(const std::function<bool(const std::vector<T>&)>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mu_);
    while (!condition(values_)) {
      if (absl::Now() >= deadline) return false;
      changed_.WaitFor(&mu_, absl::Milliseconds(100));
    }
    return true;
  }
  std::vector<T> values() {
    MutexLock lock(&mu_);
    return values_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<T> values_ ABSL_GUARDED_BY(mu_);
};

std::vector<std::string> Ids(const ServiceSnapshot& snapshot) {
  std::vector<std::string> ids;
  for (const auto& instance : snapshot.instances) ids.push_back(instance.key().instance_id());
  return ids;
}

class AgentTest : public ::testing::Test {
 protected:
  std::unique_ptr<Agent> NewAgent(absl::Duration drain = absl::Seconds(5)) {
    Agent::Options options;
    options.registry = registry_.uri();
    options.drain_deadline = drain;
    auto agent = Agent::Create(options);
    EXPECT_TRUE(agent.ok()) << agent.status();
    return *std::move(agent);
  }

  // What the registry holds for a service now.
  std::vector<std::string> Listed(const std::string& service) {
    ListRequest request;
    request.mutable_selector()->set_service(service);
    Collector<absl::StatusOr<ListResponse>> answer;
    registry_.store()->List(
        request, [&](const absl::StatusOr<ListResponse>& response) { answer.Add(response); });
    EXPECT_TRUE(answer.WaitFor([](const auto& values) { return !values.empty(); }));
    std::vector<std::string> ids;
    const ListResponse listed = answer.values()[0].value();
    for (const auto& record : listed.records()) {
      ids.push_back(record.instance().key().instance_id());
    }
    return ids;
  }

  LocalRegistry registry_;
};

// Waits for an event of this kind.
auto Has(IntentEvent::Kind kind) {
  return [kind](const std::vector<IntentEvent>& events) {
    return std::any_of(events.begin(), events.end(),
                       [kind](const IntentEvent& event) { return event.kind == kind; });
  };
}

TEST_F(AgentTest, RegisteredWhileTheHandleLives) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  auto registration = agent->Register(MakeInstance("orders", "a"),
                                      [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(registration.ok()) << registration.status();
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  EXPECT_THAT(Listed("orders"), ElementsAre("a"));
  registration->Unregister();
  agent.reset();  // drains
  EXPECT_THAT(Listed("orders"), IsEmpty());
}

TEST_F(AgentTest, WhatAHandleHasReleasedStaysUntilTheAgentIsGone) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  agent->Register(MakeInstance("orders", "a"))->Release();
  auto later = agent->Register(MakeInstance("orders", "b"),
                               [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  EXPECT_THAT(Listed("orders"), ElementsAre("a", "b"));
  agent.reset();
  EXPECT_THAT(Listed("orders"), IsEmpty());
}

TEST_F(AgentTest, DestructionOfTheAgentDrains) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  auto registration = agent->Register(MakeInstance("orders", "a"),
                                      [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  agent.reset();
  EXPECT_THAT(Listed("orders"), IsEmpty());
  EXPECT_FALSE(registration->Update(MakeInstance("orders", "a", 9)).ok()) << "the agent is gone";
}

TEST_F(AgentTest, AnUpdateLeavesNoGap) {
  auto agent = NewAgent();
  Collector<ServiceSnapshot> seen;
  auto subscription =
      agent->Subscribe("orders", [&](const ServiceSnapshot& now) { seen.Add(now); });
  auto registration = agent->Register(MakeInstance("orders", "a"));
  ASSERT_TRUE(
      seen.WaitFor([](const auto& v) { return !v.empty() && v.back().instances.size() == 1; }));
  ServiceInstance heavier = registration->instance();
  heavier.set_weight(300);
  ASSERT_TRUE(registration->Update(heavier).ok());
  ASSERT_TRUE(seen.WaitFor([](const auto& v) {
    return v.back().instances.size() == 1 && v.back().instances[0].weight() == 300;
  }));
  bool listed = false;
  for (const auto& snapshot : seen.values()) {
    EXPECT_FALSE(listed && snapshot.instances.empty()) << "a gap";
    listed = listed || !snapshot.instances.empty();
  }
  const absl::Status other = registration->Update(MakeInstance("orders", "b"));
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("default/orders/b is not default/orders/a"));
}

TEST_F(AgentTest, BadInstancesAreRefusedAtOnceByFieldAndValue) {
  auto agent = NewAgent();
  const auto refused = agent->Register(MakeInstance("orders", "a", 70000));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("70000"));
  EXPECT_EQ(agent->Register(MakeInstance("", "a")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(agent->Subscribe("", nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  Agent::Options options;
  options.registry = "http://nowhere";
  EXPECT_THAT(std::string(Agent::Create(options).status().message()), HasSubstr("http://nowhere"));
}

TEST_F(AgentTest, AnOutageIsBridged) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  auto kept = agent->Register(MakeInstance("orders", "kept"),
                              [&](const IntentEvent& event) { events.Add(event); });
  Collector<IntentEvent> leaves_events;
  auto leaves = agent->Register(MakeInstance("orders", "leaves"),
                                [&](const IntentEvent& event) { leaves_events.Add(event); });
  Collector<ServiceSnapshot> seen;
  auto subscription =
      agent->Subscribe("orders", [&](const ServiceSnapshot& now) { seen.Add(now); });
  ASSERT_TRUE(
      seen.WaitFor([](const auto& v) { return !v.empty() && v.back().instances.size() == 2; }));
  // Until their answers have come they are pending as well.
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  ASSERT_TRUE(leaves_events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));

  registry_.Stop();
  leaves->Unregister();
  Collector<IntentEvent> joins_events;
  auto joins = agent->Register(MakeInstance("orders", "joins"),
                               [&](const IntentEvent& event) { joins_events.Add(event); });
  ASSERT_TRUE(joins.ok()) << "accepted at once: " << joins.status();
  ASSERT_TRUE(joins_events.WaitFor(Has(IntentEvent::Kind::kRetrying)));
  // register, unregister, and subscribe as soon as its stream has broken
  EXPECT_TRUE(Eventually([&] { return agent->Pending().size() == 3; }));

  registry_.Restart();
  ASSERT_TRUE(joins_events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  ASSERT_TRUE(seen.WaitFor([](const auto& v) {
    return Ids(v.back()) == std::vector<std::string>{"joins", "kept"} && !v.back().stale;
  }));
  EXPECT_THAT(Listed("orders"), ElementsAre("joins", "kept"));
}

TEST_F(AgentTest, ARegistryThatForgotEverythingIsToldAgain) {
  auto agent = NewAgent();
  Collector<ServiceSnapshot> seen;
  auto subscription =
      agent->Subscribe("orders", [&](const ServiceSnapshot& now) { seen.Add(now); });
  auto registration = agent->Register(MakeInstance("orders", "a"));
  ASSERT_TRUE(
      seen.WaitFor([](const auto& v) { return !v.empty() && v.back().instances.size() == 1; }));
  const uint64_t epoch = seen.values().back().epoch;
  registry_.Stop();
  registry_.RestartEmpty();
  ASSERT_TRUE(seen.WaitFor([&](const auto& v) {
    return v.back().epoch != epoch && v.back().instances.size() == 1 && !v.back().stale;
  }));
  EXPECT_THAT(Listed("orders"), ElementsAre("a"));
  bool listed = false;
  for (const auto& snapshot : seen.values()) {
    EXPECT_FALSE(listed && snapshot.instances.empty()) << "the empty store was shown";
    listed = listed || !snapshot.instances.empty();
  }
}

TEST_F(AgentTest, TheNewerHandleOfAKeyOwnsIt) {
  auto agent = NewAgent();
  auto older = agent->Register(MakeInstance("orders", "a"));
  Collector<IntentEvent> events;
  auto newer = agent->Register(MakeInstance("orders", "a", 9090),
                               [&](const IntentEvent& event) { events.Add(event); });
  older->Unregister();  // no longer its to unregister
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  EXPECT_THAT(Listed("orders"), ElementsAre("a"));
}

TEST_F(AgentTest, HandlesMayEndInTheirOwnCallbacksAndOutliveTheAgent) {
  auto agent = NewAgent();
  Collector<int> calls;
  Mutex mu;
  CondVar made;
  Subscription subscription;
  auto subscribed = agent->Subscribe("orders", [&](const ServiceSnapshot&) {
    MutexLock lock(&mu);
    while (!subscription) made.Wait(&mu);
    subscription = Subscription();  // unsubscribes in its own callback
    calls.Add(1);
  });
  {
    MutexLock lock(&mu);
    ASSERT_TRUE(subscribed.ok());
    subscription = *std::move(subscribed);
    made.SignalAll();
  }
  auto registration = agent->Register(MakeInstance("orders", "a"));
  ASSERT_TRUE(calls.WaitFor([](const auto& v) { return !v.empty(); }));
  agent.reset();
  EXPECT_EQ(calls.values().size(), 1u);
  EXPECT_TRUE(registration.ok());  // outlives it
}

TEST_F(AgentTest, TheAgentMayEndInACallback) {
  Mutex mu;
  std::unique_ptr<Agent> agent;
  Collector<int> done;
  absl::StatusOr<Registration> registration;
  {
    MutexLock lock(&mu);
    agent = NewAgent();
    registration = agent->Register(MakeInstance("orders", "a"), [&](const IntentEvent&) {
      {
        MutexLock callback_lock(&mu);
        agent.reset();
      }
      done.Add(1);
    });
  }
  ASSERT_TRUE(done.WaitFor([](const auto& v) { return !v.empty(); }));
}

TEST_F(AgentTest, ACallbackThatThrowsIsLoggedAndTheNextComes) {
  auto agent = NewAgent();
  Collector<ServiceSnapshot> seen;
  auto subscription = agent->Subscribe("orders", [&](const ServiceSnapshot& now) {
    seen.Add(now);
    throw std::runtime_error("a bug of the host's");
  });
  auto a = agent->Register(MakeInstance("orders", "a"));
  ASSERT_TRUE(
      seen.WaitFor([](const auto& v) { return !v.empty() && v.back().instances.size() == 1; }));
  auto b = agent->Register(MakeInstance("orders", "b"));
  ASSERT_TRUE(seen.WaitFor([](const auto& v) { return v.back().instances.size() == 2; }));
}

// Rule 15. The child leaves through exit(), with all that runs then.
TEST_F(AgentTest, Rule15_AForkedChildHasNoAgentAndHurtsNobody) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  absl::StatusOr<Registration> registration = agent->Register(
      MakeInstance("orders", "a"), [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(registration.ok());
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  Collector<ServiceSnapshot> snapshots;
  absl::StatusOr<Subscription> subscription =
      agent->Subscribe("orders", [&](const ServiceSnapshot& snapshot) { snapshots.Add(snapshot); });
  ASSERT_TRUE(subscription.ok());
  ASSERT_TRUE(snapshots.WaitFor([](const auto& values) { return !values.empty(); }));

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // rather killed than hanging
    const auto refused = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition &&
             status.message().find("fork") != std::string::npos;
    };
    bool drained = false;
    agent->Drain(absl::Seconds(10), [&](const auto&) { drained = true; });
    const bool right = refused(agent->Register(MakeInstance("orders", "b")).status()) &&
                       refused(agent->Subscribe("orders", nullptr).status()) &&
                       refused(registration->Update(MakeInstance("orders", "a", 1))) &&
                       refused(subscription->Current().status) &&
                       registration->instance().key().instance_id() == "a" &&
                       agent->Status().empty() && agent->Pending().empty() &&
                       agent->Stats().empty() && drained;
    registration->Unregister();
    *subscription = Subscription();
    agent.reset();
    // What the parent's threads hold would be reported as leaks.
    if (kAddressSanitizer) _exit(right ? 0 : 1);
    exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_THAT(Listed("orders"), ElementsAre("a"));
  // The parent's agent goes on as if nothing had been.
  ASSERT_TRUE(registration->Update(MakeInstance("orders", "a", 9)).ok());
  EXPECT_TRUE(snapshots.WaitFor([](const auto& values) {
    return !values.back().instances.empty() && values.back().instances[0].port() == 9;
  }));
}

TEST_F(AgentTest, SeveralRegistriesAtOnce) {
  LocalRegistry other;
  Agent::Options options;
  options.registries = {"old=" + registry_.uri(), "new=" + other.uri()};
  auto agent = Agent::Create(options);
  ASSERT_TRUE(agent.ok()) << agent.status();
  Collector<IntentEvent> events;
  auto registration = (*agent)->Register(MakeInstance("orders", "a"),
                                         [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(registration.ok());
  EXPECT_TRUE(events.WaitFor([](const std::vector<IntentEvent>& values) {
    std::set<std::string> from;
    for (const auto& event : values) from.insert(event.upstream);
    return from == std::set<std::string>{"old", "new"};
  }));
  EXPECT_THAT(Listed("orders"), ElementsAre("a"));
  // One that only the other registry knows.
  Agent::Options alone;
  alone.registry = other.uri();
  auto elsewhere = Agent::Create(alone);
  ASSERT_TRUE(elsewhere.ok());
  auto b = (*elsewhere)->Register(MakeInstance("orders", "b"));
  ASSERT_TRUE(b.ok());
  Collector<std::vector<std::string>> merged, old_only;
  auto both = (*agent)->Subscribe(
      "orders", [&](const ServiceSnapshot& snapshot) { merged.Add(Ids(snapshot)); });
  Selector selector;
  selector.set_service("orders");
  auto one = (*agent)->Subscribe(
      selector, [&](const ServiceSnapshot& snapshot) { old_only.Add(Ids(snapshot)); }, "old");
  const auto are = [](const std::vector<std::string>& ids) {
    return [ids](const auto& values) { return !values.empty() && values.back() == ids; };
  };
  EXPECT_TRUE(merged.WaitFor(are({"a", "b"})));
  EXPECT_TRUE(old_only.WaitFor(are({"a"})));
  const auto status = (*agent)->Status();
  ASSERT_EQ(status.size(), 2);
  EXPECT_EQ(status[0].name(), "old");
  EXPECT_EQ(status[1].acknowledged(), 1);
  const std::vector<FailbackStatistics> stats = (*agent)->Stats();
  ASSERT_EQ(stats.size(), 2);
  EXPECT_EQ(stats[0].upstream, "old");
  EXPECT_EQ(stats[1].acknowledged, 1);
  EXPECT_TRUE(stats[1].up);
}

TEST_F(AgentTest, HealthyInstancesComeFirst) {
  auto agent = NewAgent();
  Collector<ServiceSnapshot> seen;
  auto subscription =
      agent->Subscribe("orders", [&](const ServiceSnapshot& now) { seen.Add(now); });
  ServiceInstance sick = MakeInstance("orders", "a-sick");
  sick.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  ServiceInstance leaving = MakeInstance("orders", "b-draining");
  leaving.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  auto one = agent->Register(sick);
  auto two = agent->Register(leaving);
  auto three = agent->Register(MakeInstance("orders", "c-healthy"));
  ASSERT_TRUE(
      seen.WaitFor([](const auto& v) { return !v.empty() && v.back().instances.size() == 3; }));
  EXPECT_THAT(Ids(seen.values().back()), ElementsAre("c-healthy", "b-draining", "a-sick"));
  EXPECT_THAT(Ids(subscription->Current()), ElementsAre("c-healthy", "b-draining", "a-sick"));
}

TEST_F(AgentTest, DrainEndsEverythingAndRefusesNewIntents) {
  auto agent = NewAgent();
  Collector<IntentEvent> events;
  auto registration = agent->Register(MakeInstance("orders", "a"),
                                      [&](const IntentEvent& event) { events.Add(event); });
  ASSERT_TRUE(events.WaitFor(Has(IntentEvent::Kind::kAcknowledged)));
  Collector<agent::v1::DrainResponse> drained;
  agent->Drain(absl::Seconds(10), [&](const auto& response) { drained.Add(response); });
  ASSERT_TRUE(drained.WaitFor([](const auto& v) { return !v.empty(); }));
  EXPECT_EQ(drained.values()[0].unregistered(), 1);
  EXPECT_EQ(drained.values()[0].remaining(), 0);
  EXPECT_THAT(Listed("orders"), IsEmpty());
  EXPECT_EQ(ReasonOf(agent->Register(MakeInstance("orders", "b")).status()),
            registry::v1::ERROR_REASON_DRAINING);
}

}  // namespace
}  // namespace failback
