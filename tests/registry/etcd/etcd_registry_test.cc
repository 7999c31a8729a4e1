// EtcdRegistry on one real member of etcd: the contract of Registry, and what is etcd's own.

#include "registry/etcd/etcd_registry.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_GENERATION_REUSED;
using registry::v1::ERROR_REASON_INVALID_FIELD;
using registry::v1::ERROR_REASON_REPLACED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using registry::v1::ERROR_REASON_SUPERSEDED;

class EtcdRegistryTest : public EtcdTest {
 protected:
  // What etcd has below the harness's prefix.
  static int64_t CountKeys(const std::string& below) {
    const RunResult result = etcd().Ctl({"get", "--prefix", "--keys-only", below});
    return std::count(result.out.begin(), result.out.end(), '/') == 0
               ? 0
               : std::count(result.out.begin(), result.out.end(), '\n') / 2;
  }
};

InstanceKey Key(const std::string& service, const std::string& id) {
  return MakeInstance(service, id).key();
}

TEST_F(EtcdRegistryTest, WhatIsRegisteredIsListedUntilItIsUnregistered) {
  EtcdHarness registry(etcd(), NewPrefix());
  const OpenSessionResponse opened = registry.OpenSession("a");
  const std::string session = opened.session_id();
  EXPECT_GT(opened.rank(), 0u);
  EXPECT_FALSE(opened.resumed());
  const Outcome registered = registry.Register(session, MakeInstance("s", "1"), 1);
  ASSERT_TRUE(registered.ok()) << registered.status;
  EXPECT_EQ(registered.generation, 1u);
  const auto records = registry.List("s");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].incarnation(), "a");
  EXPECT_EQ(records[0].client_name(), "client of a");
  EXPECT_EQ(records[0].rank(), opened.rank());
  EXPECT_EQ(records[0].create_revision(), registered.revision);
  // The same again changes nothing: no commit.
  const Outcome again = registry.Register(session, MakeInstance("s", "1"), 1);
  ASSERT_TRUE(again.ok()) << again.status;
  EXPECT_EQ(registry.List("s")[0].modify_revision(), registered.revision);
  EXPECT_EQ(ReasonOf(registry.Register(session, MakeInstance("s", "1", 81), 1).status),
            ERROR_REASON_GENERATION_REUSED);
  ASSERT_TRUE(registry.Unregister(session, Key("s", "1"), 2).ok());
  EXPECT_TRUE(registry.List("s").empty());
}

TEST_F(EtcdRegistryTest, ResultsAreLeftOutOnlyWhenEachIsAsAsked) {
  EtcdHarness registry(etcd(), NewPrefix());
  RegisterRequest request;
  request.set_session_id(registry.Session("a"));
  // Two transactions of 125 operations, and a bit of a third.
  for (int i = 0; i < 2 * 125 + 1; ++i) {
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = MakeInstance("s", std::to_string(i));
    registration->set_generation(3);
  }
  const auto write = [&] {
    std::promise<absl::StatusOr<BatchResult>> answer;
    registry->Write(Batch::Of(request), [&](auto result) { answer.set_value(std::move(result)); });
    return answer.get_future().get();
  };
  auto response = write();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->results.size(), 0u);
  EXPECT_GT(response->epoch, 0u);
  EXPECT_GT(response->revision, 0u);
  ASSERT_EQ(registry.List("s").size(), static_cast<size_t>(request.registrations_size()));
  EXPECT_EQ(registry.List("s").front().generation(), 3u);
  // The same again changes nothing, and is as asked for.
  EXPECT_EQ(write()->results.size(), 0u);
  std::promise<absl::StatusOr<RegisterResponse>> whole;
  registry->Register(request, [&](auto response) { whole.set_value(std::move(response)); });
  EXPECT_EQ(whole.get_future().get()->results_size(), request.registrations_size());
  // One that is refused, or held under another generation, is reported with all others.
  ASSERT_TRUE(registry.Register(request.session_id(), MakeInstance("s", "7"), 9).ok());
  response = write();
  ASSERT_EQ(response->results.size(), static_cast<size_t>(request.registrations_size()));
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results[7].status())), ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(response->results[8].generation(), 3u);
  request.mutable_registrations(7)->set_generation(0);
  response = write();
  ASSERT_EQ(response->results.size(), static_cast<size_t>(request.registrations_size()));
  EXPECT_EQ(response->results[7].generation(), 9u);
}

TEST_F(EtcdRegistryTest, ALateRegisterIsRefusedByTheTombstoneAlsoElsewhere) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  ASSERT_TRUE(registry.Unregister(session, Key("s", "1"), 3).ok());
  EtcdHarness other(etcd(), registry.prefix());
  const Outcome late = other.Register(session, MakeInstance("s", "1"), 2);
  EXPECT_EQ(ReasonOf(late.status), ERROR_REASON_SUPERSEDED) << late.status;
  EXPECT_EQ(ReasonMetadata(late.status, "generation"), "3");
  // An instance that never was leaves one, too.
  ASSERT_TRUE(registry.Unregister(session, Key("s", "2"), 5).ok());
  EXPECT_EQ(ReasonOf(other.Register(session, MakeInstance("s", "2"), 4).status),
            ERROR_REASON_SUPERSEDED);
  EXPECT_TRUE(other.Register(session, MakeInstance("s", "2"), 6).ok());
}

TEST_F(EtcdRegistryTest, TheLaterIncarnationWins) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string old_pod = registry.Session("old");
  const std::string new_pod = registry.Session("new");
  ASSERT_TRUE(registry.Register(new_pod, MakeInstance("s", "1", 2), 1).ok());
  EXPECT_EQ(ReasonOf(registry.Register(old_pod, MakeInstance("s", "1", 1), 9).status),
            ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonOf(registry.Unregister(old_pod, Key("s", "1"), 10).status),
            ERROR_REASON_SUPERSEDED);
  ASSERT_EQ(registry.List("s").size(), 1u);
  EXPECT_EQ(registry.List("s")[0].instance().port(), 2u);
  // An incarnation keeps its rank for all its sessions.
  const uint64_t rank = registry.OpenSession("old").rank();
  ASSERT_TRUE(registry.CloseSession(old_pod).ok());
  const OpenSessionResponse again = registry.OpenSession("old");
  EXPECT_FALSE(again.resumed());
  EXPECT_EQ(again.rank(), rank);
}

TEST_F(EtcdRegistryTest, ARankIsClaimedOnce) {
  EtcdHarness registry(etcd(), NewPrefix());
  OpenSessionRequest request;
  request.set_incarnation("a");
  const auto a = CallAndWait(*registry, &Registry::OpenSession, request);
  ASSERT_TRUE(a.ok()) << a.status();
  request.set_store_id(a->store_id());
  const auto claim = [&](const std::string& incarnation, uint64_t rank) {
    request.set_incarnation(incarnation);
    request.set_rank(rank);
    const auto opened = CallAndWait(*registry, &Registry::OpenSession, request);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *opened : OpenSessionResponse();
  };
  EXPECT_GT(claim("b", a->rank()).rank(), a->rank()) << "it is another's";
  const auto c = claim("c", a->rank() - 1);
  EXPECT_EQ(c.rank(), a->rank() - 1) << "nobody has it any more";
  EXPECT_GT(claim("d", a->rank() - 1).rank(), a->rank());
  ASSERT_TRUE(registry.CloseSession(c.session_id()).ok());
  EXPECT_GT(claim("e", a->rank() - 1).rank(), a->rank()) << "it is remembered";
  EXPECT_EQ(claim("c", a->rank() - 1).rank(), a->rank() - 1);
}

TEST_F(EtcdRegistryTest, AnIncarnationIsItsOwnersAsLongAsItIsRemembered) {
  EtcdHarness registry(etcd(), NewPrefix());
  OpenSessionRequest request;
  request.set_incarnation("agent");
  request.set_owner("alice");
  const auto opened = CallAndWait(*registry, &Registry::OpenSession, request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(registry.CloseSession(opened->session_id()).ok());
  request.set_owner("mallory");
  EXPECT_EQ(ReasonOf(CallAndWait(*registry, &Registry::OpenSession, request).status()),
            registry::v1::ERROR_REASON_SESSION_NOT_OWNED);
  request.set_owner("alice");
  EXPECT_TRUE(CallAndWait(*registry, &Registry::OpenSession, request).ok());
}

TEST_F(EtcdRegistryTest, ASessionIsTheSameThroughEveryServer) {
  EtcdHarness one(etcd(), NewPrefix());
  EtcdHarness two(etcd(), one.prefix());
  const OpenSessionResponse opened = one.OpenSession("a");
  ASSERT_TRUE(one.Register(opened.session_id(), MakeInstance("s", "1"), 1).ok());
  const OpenSessionResponse resumed = two.OpenSession("a");
  EXPECT_TRUE(resumed.resumed());
  EXPECT_EQ(resumed.session_id(), opened.session_id());
  EXPECT_EQ(resumed.store_id(), opened.store_id());
  EXPECT_EQ(resumed.epoch(), opened.epoch());
  EXPECT_EQ(two.KeepAlive(opened.session_id()), absl::OkStatus());
  ASSERT_TRUE(two.Register(opened.session_id(), MakeInstance("s", "2"), 1).ok());
  EXPECT_EQ(one.Ids("s"), (std::vector<std::string>{"1", "2"}));
  ASSERT_TRUE(two.CloseSession(opened.session_id()).ok());
  EXPECT_TRUE(one.Ids("s").empty());
  EXPECT_EQ(ReasonOf(one.KeepAlive(opened.session_id())), ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(ReasonOf(one.Register(opened.session_id(), MakeInstance("s", "1"), 2).status),
            ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(EtcdRegistryTest, ASessionThatIsNotRenewedEndsWithItsInstances) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().lease_spread = 0;
  registry.Open();
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "s");
  const std::string session = registry.Session("a", absl::Seconds(4));
  ServiceInstance stays = MakeInstance("s", "stays");
  stays.set_persistent(true);
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "goes"), 1).ok());
  ASSERT_TRUE(registry.Register(session, stays, 1).ok());
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().size() == 2; }));
  EXPECT_TRUE(Eventually([&] { return subscriber->ids() == std::vector<std::string>{"stays"}; }));
  EXPECT_EQ(ReasonOf(registry.KeepAlive(session)), ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(EtcdRegistryTest, ABigSessionHasManyLeasesAndIsListedByItsIncarnation) {
  EtcdHarness registry(etcd(), NewPrefix());
  registry.options().keys_per_lease = 150;
  registry.Open();
  const std::string session = registry.Session("a");
  constexpr int kInstances = 1000;
  RegisterRequest request;
  request.set_session_id(session);
  for (int i = 0; i < kInstances; ++i) {
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = MakeInstance("s", absl::StrCat("i", i));
    registration->mutable_instance()->set_persistent(i % 100 == 0);
    registration->set_generation(1);
  }
  const auto response = CallAndWait<RegisterResponse>(*registry, &Registry::Register, request);
  ASSERT_TRUE(response.ok()) << response.status();
  for (const auto& result : response->results()) {
    EXPECT_EQ(StatusFromProto(result.status()), absl::OkStatus());
  }
  EXPECT_EQ(registry.KeepAlive(session), absl::OkStatus());

  // Through another server, which knows nothing of the session.
  EtcdHarness other(etcd(), registry.prefix());
  std::set<std::string> ids;
  ListRequest list;
  list.set_incarnation("a");
  list.set_page_size(300);
  for (;;) {
    const auto page = CallAndWait<ListResponse>(*other, &Registry::List, list);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const auto& record : page->records()) {
      EXPECT_TRUE(ids.insert(record.instance().key().instance_id()).second);
    }
    if (page->next_page_token().empty()) break;
    list.set_page_token(page->next_page_token());
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kInstances));
  EXPECT_EQ(registry.List("s").size(), static_cast<size_t>(kInstances));

  ASSERT_TRUE(other.CloseSession(session).ok());
  EXPECT_EQ(registry.List("s").size(), 10u) << "the persistent ones stay";
}

TEST_F(EtcdRegistryTest, ASubscriberGetsASnapshotThenDeltasAndGoesOnWhereItWas) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  auto stream = registry.Subscribe(subscriber, "s");
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().size() == 1; }));
  EXPECT_TRUE(subscriber->events()[0]->has_snapshot());
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "2"), 1).ok());
  ASSERT_TRUE(Eventually([&] { return subscriber->ids().size() == 2; }));
  // The same payload again, and another service: nothing is reported.
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "2"), 2).ok());
  ASSERT_TRUE(registry.Register(session, MakeInstance("t", "1"), 1).ok());
  stream.reset();
  ASSERT_TRUE(registry.Unregister(session, Key("s", "1"), 2).ok());
  auto witness = std::make_shared<FakeSubscriber>();
  const auto witness_stream = registry.Subscribe(witness, "s");
  ASSERT_TRUE(Eventually([&] { return witness->ids() == std::vector<std::string>{"2"}; }));
  stream = registry.Subscribe(subscriber, "s", /*go_on=*/true);
  ASSERT_TRUE(Eventually([&] { return subscriber->ids() == std::vector<std::string>{"2"}; }));
  ASSERT_EQ(subscriber->events().size(), 1u);
  EXPECT_TRUE(subscriber->events()[0]->has_delta());
  EXPECT_EQ(registry->Stats().watched_services, 1) << "one watch, however many follow";
}

TEST_F(EtcdRegistryTest, TheServicesOfANamespaceCanBeFollowed) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "");
  ASSERT_TRUE(Eventually([&] { return subscriber->instances().size() == 1; }));
  ASSERT_TRUE(registry.Register(session, MakeInstance("t", "1"), 1).ok());
  ASSERT_TRUE(registry.Register(session, MakeInstance("t", "2"), 1).ok());
  ASSERT_TRUE(Eventually([&] {
    for (const auto& [key, bytes] : subscriber->instances()) {
      ServiceInstance entry;
      entry.ParseFromString(bytes);
      if (entry.instance_count() == 2) return subscriber->instances().size() == 2;
    }
    return false;
  }));
  ASSERT_TRUE(registry.Unregister(session, Key("s", "1"), 2).ok());
  EXPECT_TRUE(Eventually([&] { return subscriber->instances().size() == 1; }));
}

TEST_F(EtcdRegistryTest, SubscriptionsOfASessionHaveNamesAndEndWithIt) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  const auto subscribe = [&](uint64_t generation, std::shared_ptr<FakeSubscriber> subscriber) {
    SubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id("x");
    request.set_generation(generation);
    request.mutable_selector()->set_service("s");
    return registry->Subscribe(request, std::move(subscriber));
  };
  const auto ended = [](const std::shared_ptr<FakeSubscriber>& subscriber) {
    EXPECT_TRUE(Eventually([&] { return subscriber->ended().has_value(); }));
    return subscriber->ended().value_or(absl::UnknownError("goes on"));
  };
  auto first = std::make_shared<FakeSubscriber>();
  const auto first_stream = subscribe(1, first);
  ASSERT_TRUE(Eventually([&] { return !first->events().empty(); }));
  auto second = std::make_shared<FakeSubscriber>();
  const auto second_stream = subscribe(2, second);
  EXPECT_EQ(ReasonOf(ended(first)), ERROR_REASON_REPLACED);
  UnsubscribeRequest unsubscribe;
  unsubscribe.set_session_id(session);
  unsubscribe.set_subscription_id("x");
  unsubscribe.set_generation(3);
  ASSERT_TRUE(
      CallAndWait<UnsubscribeResponse>(*registry, &Registry::Unsubscribe, unsubscribe).ok());
  EXPECT_EQ(ended(second), absl::OkStatus());
  auto late = std::make_shared<FakeSubscriber>();
  const auto late_stream = subscribe(2, late);
  EXPECT_EQ(ReasonOf(ended(late)), ERROR_REASON_SUPERSEDED);
  auto last = std::make_shared<FakeSubscriber>();
  const auto last_stream = subscribe(4, last);
  ASSERT_TRUE(Eventually([&] { return !last->events().empty(); }));
  ASSERT_TRUE(registry.CloseSession(session).ok());
  EXPECT_EQ(ReasonOf(ended(last)), ERROR_REASON_SESSION_UNKNOWN);
  auto unknown = std::make_shared<FakeSubscriber>();
  const auto unknown_stream = subscribe(5, unknown);
  EXPECT_EQ(ReasonOf(ended(unknown)), ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(EtcdRegistryTest, NamesWithSlashesAndPercentsAreSafe) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("pod/%2F");
  ASSERT_TRUE(registry.Register(session, MakeInstance("a/b", "c/d%2Fe"), 1).ok());
  ASSERT_TRUE(registry.Register(session, MakeInstance("a", "b/c"), 1).ok());
  EXPECT_EQ(registry.Ids("a/b"), std::vector<std::string>{"c/d%2Fe"});
  EXPECT_EQ(registry.Ids("a"), std::vector<std::string>{"b/c"});
  EXPECT_EQ(registry.Ids().size(), 2u);
}

TEST_F(EtcdRegistryTest, WhatAnotherHandHasPutThereCounts) {
  EtcdHarness registry(etcd(), NewPrefix());
  const std::string session = registry.Session("a");
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  const std::string key = registry.prefix() + "/v1/default/s/1";
  // Rubbish is nothing, and is written over.
  ASSERT_EQ(etcd().Ctl({"put", key, "rubbish"}).status, 0);
  EXPECT_TRUE(registry.Ids("s").empty());
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  EXPECT_EQ(registry.Ids("s").size(), 1u);
  // The very same bytes without the lease would outlive the session.
  ASSERT_EQ(etcd().Ctl({"del", key}).status, 0);
  ASSERT_TRUE(registry.Register(session, MakeInstance("s", "1"), 1).ok());
  EXPECT_EQ(registry.Ids("s").size(), 1u);
  ASSERT_TRUE(registry.CloseSession(session).ok());
  EXPECT_EQ(CountKeys(registry.prefix() + "/v1/default/"), 0);
}

TEST_F(EtcdRegistryTest, BadRequestsNameTheField) {
  EtcdHarness registry(etcd(), NewPrefix());
  EXPECT_EQ(ReasonOf(registry.Register("", MakeInstance("s", "")).status),
            ERROR_REASON_INVALID_FIELD);
  ListRequest list;
  list.set_page_token("no token");
  EXPECT_EQ(ReasonOf(CallAndWait<ListResponse>(*registry, &Registry::List, list).status()),
            ERROR_REASON_INVALID_FIELD);
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = registry.Subscribe(subscriber, "not a name!");
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_EQ(ReasonOf(*subscriber->ended()), ERROR_REASON_INVALID_FIELD);
}

TEST_F(EtcdRegistryTest, DestructionAnswersEveryCallUnderWayAlsoFromACallback) {
  const std::string prefix = NewPrefix();
  for (int round = 0; round < 20; ++round) {
    EtcdHarness registry(etcd(), prefix);
    const std::string session = round % 2 == 0 ? "" : registry.Session("a");
    std::atomic<int> answered{0};
    auto subscriber = std::make_shared<FakeSubscriber>();
    const auto stream = registry.Subscribe(subscriber, "s");
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() = MakeInstance("s", "1");
    for (int i = 0; i < 50; ++i) {
      registry->Register(request, [&](const absl::StatusOr<RegisterResponse>&) { ++answered; });
    }
    if (round % 4 == 3) {
      std::promise<void> destroyed;
      registry->List(ListRequest(), [&](const absl::StatusOr<ListResponse>&) {
        registry.Close();
        destroyed.set_value();
      });
      destroyed.get_future().wait();
    } else {
      registry.Close();
    }
    EXPECT_EQ(answered, 50);
    // From a callback another thread may be telling the subscriber something else just now.
    EXPECT_TRUE(Eventually([&] { return subscriber->ended().has_value(); }));
  }
}

}  // namespace
}  // namespace failback
