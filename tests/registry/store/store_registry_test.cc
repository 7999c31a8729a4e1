#include "registry/store/store_registry.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/fake_storage.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kSessionUnknown = registry::v1::ERROR_REASON_SESSION_UNKNOWN;
constexpr auto kInvalidField = registry::v1::ERROR_REASON_INVALID_FIELD;
constexpr auto kReadOnly = registry::v1::ERROR_REASON_STORE_READ_ONLY;

TEST(StoreRegistry, RegistersListsAndUnregisters) {
  StoreHarness store;
  const std::string session = store.Session("a");
  const ServiceInstance one = MakeInstance("orders", "1");
  const Outcome registered = store.Register(session, one, 7);
  ASSERT_TRUE(registered.ok()) << registered.status;
  EXPECT_EQ(registered.generation, 7u);
  EXPECT_EQ(registered.revision, 1u);

  const auto records = store.List();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].instance().key().namespace_(), "default");
  EXPECT_EQ(records[0].instance().port(), 80u);
  EXPECT_EQ(records[0].incarnation(), "a");
  EXPECT_EQ(records[0].client_name(), "client of a");
  EXPECT_EQ(records[0].rank(), 1u);
  EXPECT_EQ(records[0].generation(), 7u);
  EXPECT_EQ(records[0].create_revision(), 1u);
  EXPECT_EQ(records[0].modify_revision(), 1u);
  EXPECT_EQ(records[0].create_time().seconds(), 1700000000);
  EXPECT_EQ(records[0].state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);

  store.clock().Advance(absl::Seconds(2));
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1", 81), 8).ok());
  const auto changed = store.List();
  EXPECT_EQ(changed[0].create_revision(), 1u);
  EXPECT_EQ(changed[0].modify_revision(), 2u);
  EXPECT_EQ(changed[0].create_time().seconds(), 1700000000);
  EXPECT_EQ(changed[0].modify_time().seconds(), 1700000002);

  const Outcome unregistered = store.Unregister(session, one.key(), 9);
  EXPECT_TRUE(unregistered.ok()) << unregistered.status;
  EXPECT_EQ(unregistered.revision, 3u);
  EXPECT_THAT(store.List(), IsEmpty());
}

TEST(StoreRegistry, BatchIsDecidedItemByItemInOneRevision) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "old"), 9).ok());
  RegisterRequest request;
  request.set_session_id(session);
  for (const char* id : {"1", "bad", "2", "old", "1"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", id);
    request.mutable_registrations(request.registrations_size() - 1)->set_generation(3);
  }
  request.mutable_registrations(1)->mutable_instance()->set_port(70000);
  const auto response = CallAndWait(*store, &Registry::Register, request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->results_size(), 5);
  EXPECT_EQ(response->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(response->results(0).generation(), 3u);
  EXPECT_THAT(response->results(1).status().message(),
              HasSubstr("registrations[1].instance.port: 70000 is not in 1..65535"));
  EXPECT_EQ(response->results(2).status().code(), 0);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(3).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(4).status())), kInvalidField);
  EXPECT_EQ(response->revision(), 2u);
  EXPECT_EQ(response->epoch(), store->epoch());
  EXPECT_THAT(store.Ids("orders"), ElementsAre("1", "2", "old"));
}

TEST(StoreRegistry, EncodedRegisterIsDecidedLikeAParsedOne) {
  StoreHarness store;
  RegisterRequest request;
  request.set_session_id(store.Session("a"));
  for (const char* id : {"1", "old", "2"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", id);
    request.mutable_registrations(request.registrations_size() - 1)->set_generation(3);
  }
  ASSERT_TRUE(store.Register(request.session_id(), MakeInstance("orders", "old"), 9).ok());
  absl::StatusOr<RegisterResponse> response;
  Callback<RegisterResponse> done = [&](auto answer) { response = std::move(answer); };
  ASSERT_TRUE(store->RegisterEncoded(request.SerializeAsString(), &done));
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->results_size(), 3);
  EXPECT_EQ(response->results(0).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(response->results(0).generation(), 3u);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(1).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(response->results(2).status().code(), 0);
  EXPECT_THAT(store.Ids("orders"), ElementsAre("1", "2", "old"));
}

// Bytes in, bytes out.
absl::StatusOr<RegisterResponse> RegisterToBytes(StoreHarness& store,
                                                 const RegisterRequest& request,
                                                 EncodedRegistrar::Results results) {
  absl::StatusOr<std::string> answer = absl::DataLossError("no answer");
  Callback<std::string> done = [&](auto bytes) { answer = std::move(bytes); };
  EXPECT_TRUE(store->RegisterToBytes(request.SerializeAsString(), results, &done));
  if (!answer.ok()) return answer.status();
  RegisterResponse response;
  EXPECT_TRUE(response.ParseFromString(*answer));
  return response;
}

TEST(StoreRegistry, ResultsAreLeftOutOnlyWhenEachIsAsAsked) {
  using Results = EncodedRegistrar::Results;
  StoreHarness store;
  RegisterRequest request;
  request.set_session_id(store.Session("a"));
  for (const char* id : {"1", "2"}) {
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", id);
    request.mutable_registrations(request.registrations_size() - 1)->set_generation(3);
  }
  auto response = RegisterToBytes(store, request, Results::kUnlessAsAsked);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->results_size(), 0);
  EXPECT_EQ(response->epoch(), store->epoch());
  EXPECT_EQ(response->revision(), 1u);
  // The same again changes nothing, and is as asked for.
  EXPECT_EQ(RegisterToBytes(store, request, Results::kUnlessAsAsked)->results_size(), 0);
  response = RegisterToBytes(store, request, Results::kAll);
  ASSERT_EQ(response->results_size(), 2);
  EXPECT_EQ(response->results(1).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(response->results(1).generation(), 3u);
  // Held under another generation than it came with.
  request.mutable_registrations(0)->set_generation(0);
  request.mutable_registrations(1)->set_generation(4);
  response = RegisterToBytes(store, request, Results::kUnlessAsAsked);
  ASSERT_EQ(response->results_size(), 2);
  EXPECT_EQ(response->results(0).generation(), 3u);
  EXPECT_EQ(response->results(1).generation(), 4u);
  // Refused, the last or the first.
  request.mutable_registrations(0)->set_generation(5);
  request.mutable_registrations(1)->set_generation(1);
  response = RegisterToBytes(store, request, Results::kUnlessAsAsked);
  ASSERT_EQ(response->results_size(), 2);
  EXPECT_EQ(response->results(0).generation(), 5u);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(1).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  request.mutable_registrations(0)->set_generation(1);
  request.mutable_registrations(1)->set_generation(5);
  EXPECT_EQ(RegisterToBytes(store, request, Results::kUnlessAsAsked)->results_size(), 2);
  // Of generation 0 where there was none before.
  *request.mutable_registrations(0)->mutable_instance() = MakeInstance("orders", "3");
  request.mutable_registrations(0)->set_generation(0);
  EXPECT_EQ(RegisterToBytes(store, request, Results::kUnlessAsAsked)->results_size(), 0);
  // Refused, and of generation 0 as well.
  ASSERT_TRUE(store.Register(store.Session("later"), MakeInstance("orders", "3", 81), 1).ok());
  response = RegisterToBytes(store, request, Results::kUnlessAsAsked);
  ASSERT_EQ(response->results_size(), 2);
  EXPECT_EQ(ReasonOf(StatusFromProto(response->results(0).status())),
            registry::v1::ERROR_REASON_SUPERSEDED);
  request.set_session_id("nobody");
  EXPECT_EQ(ReasonOf(RegisterToBytes(store, request, Results::kUnlessAsAsked).status()),
            kSessionUnknown);
}

TEST(StoreRegistry, EncodedRegisterThatIsToBeRefusedIsNotTaken) {
  StoreHarness store;
  int answers = 0;
  Callback<RegisterResponse> done = [&](const auto&) { ++answers; };
  EXPECT_FALSE(store->RegisterEncoded("\xff\xff", &done));
  RegisterRequest request;
  *request.add_registrations()->mutable_instance() = MakeInstance("orders", "1");
  request.mutable_registrations(0)->mutable_instance()->set_port(70000);
  EXPECT_FALSE(store->RegisterEncoded(request.SerializeAsString(), &done));
  EXPECT_TRUE(done);
  Callback<std::string> to_bytes = [&](const auto&) { ++answers; };
  EXPECT_FALSE(store->RegisterToBytes(request.SerializeAsString(),
                                      EncodedRegistrar::Results::kUnlessAsAsked, &to_bytes));
  EXPECT_TRUE(to_bytes);
  EXPECT_EQ(answers, 0);
  EXPECT_THAT(store.List(), IsEmpty());
}

TEST(StoreRegistry, BadRequestsFailAsAWhole) {
  StoreHarness store;
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Register, RegisterRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Unregister, UnregisterRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::OpenSession, OpenSessionRequest()).status()),
            kInvalidField);
  EXPECT_EQ(ReasonOf(store.KeepAlive("")), kInvalidField);
  EXPECT_EQ(ReasonOf(store.CloseSession("")), kInvalidField);
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = store.Subscribe(subscriber, "not a name!");
  EXPECT_NE(stream, nullptr);
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_EQ(ReasonOf(*subscriber->ended()), kInvalidField);
  RegisterRequest large;
  for (int i = 0; i < 1001; ++i) {
    *large.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(i));
  }
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::Register, large).status()),
            registry::v1::ERROR_REASON_TOO_LARGE);
}

TEST(StoreRegistry, UnknownSessionIsToldApart) {
  StoreHarness store;
  EXPECT_EQ(ReasonOf(store.KeepAlive("gone")), kSessionUnknown);
  EXPECT_EQ(ReasonOf(store.Register("gone", MakeInstance("orders", "1")).status), kSessionUnknown);
  EXPECT_EQ(ReasonOf(store.Unregister("gone", MakeInstance("orders", "1").key()).status),
            kSessionUnknown);
  EXPECT_TRUE(store.CloseSession("gone").ok());
  EXPECT_THAT(store.List(), IsEmpty());
}

// ---- Sessions and leases.

TEST(StoreRegistry, SessionAnswersWhatAClientNeeds) {
  StoreRegistry::Options options;
  options.max_instances_per_session = 42;
  StoreHarness store(std::move(options));
  const auto opened = store.OpenSession("a");
  EXPECT_EQ(opened.ttl().seconds(), 10);
  EXPECT_EQ(opened.rank(), 1u);
  EXPECT_EQ(opened.store_id(), store->store_id());
  EXPECT_EQ(opened.epoch(), store->epoch());
  EXPECT_FALSE(opened.resumed());
  EXPECT_EQ(opened.limits().max_batch(), 1000u);
  EXPECT_EQ(opened.limits().max_instances_per_session(), 42u);
  EXPECT_GE(opened.session_id().size(), 32u);

  const auto again = store.OpenSession("a");
  EXPECT_TRUE(again.resumed());
  EXPECT_EQ(again.session_id(), opened.session_id());
  EXPECT_EQ(store.OpenSession("short", absl::Milliseconds(1)).ttl().seconds(), 10);  // 0 s: unset
  EXPECT_EQ(store.OpenSession("long", absl::Hours(9)).ttl().seconds(), 3600);
  OpenSessionRequest brief;
  brief.set_incarnation("brief");
  brief.mutable_ttl()->set_nanos(1000);
  EXPECT_EQ(CallAndWait(*store, &Registry::OpenSession, brief)->ttl().seconds(), 1);
}

TEST(StoreRegistry, RankIsTakenOverOnlyForThisStore) {
  StoreHarness store;
  OpenSessionRequest request;
  request.set_incarnation("a");
  request.set_rank(12);
  request.set_store_id("another");
  EXPECT_EQ(CallAndWait(*store, &Registry::OpenSession, request)->rank(), 1u);
  request.set_incarnation("b");
  request.set_store_id(store->store_id());
  EXPECT_EQ(CallAndWait(*store, &Registry::OpenSession, request)->rank(), 12u);
}

TEST(StoreRegistry, LeaseNeverEndsEarlyAndEndsWithinATick) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1")).ok());
  store.clock().Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_THAT(store.Ids(), SizeIs(1));
  store.clock().Advance(absl::Milliseconds(10));
  EXPECT_THAT(store.Ids(), IsEmpty());
  EXPECT_EQ(ReasonOf(store.KeepAlive(session)), kSessionUnknown);
  EXPECT_EQ(store->Stats().expired_sessions, 1);
}

TEST(StoreRegistry, RenewalsKeepASessionAlive) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1")).ok());
  for (int i = 0; i < 100; ++i) {
    store.clock().Advance(absl::Seconds(9));
    KeepAliveRequest request;
    request.set_session_id(session);
    const auto response = CallAndWait(*store, &Registry::KeepAlive, request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->session_id(), session);
    EXPECT_EQ(response->ttl().seconds(), 10);
    EXPECT_EQ(response->epoch(), store->epoch());
    EXPECT_EQ(response->revision(), 1u);
  }
  EXPECT_THAT(store.Ids(), SizeIs(1));
  store.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(store.Ids(), IsEmpty());
}

TEST(StoreRegistry, OpeningAgainRenewsAndTakesTheNewTtl) {
  StoreHarness store;
  const std::string session = store.Session("a", absl::Seconds(10));
  store.clock().Advance(absl::Seconds(9));
  EXPECT_EQ(store.Session("a", absl::Seconds(30)), session);
  store.clock().Advance(absl::Seconds(29));
  EXPECT_TRUE(store.KeepAlive(session).ok());
  store.clock().Advance(absl::Seconds(31));
  EXPECT_FALSE(store.KeepAlive(session).ok());
}

TEST(StoreRegistry, ExpiryIsOneRevisionAndOneDelta) {
  StoreHarness store;
  const std::string session = store.Session("a");
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store.Register(session, MakeInstance("orders", std::to_string(i))).ok());
  }
  ServiceInstance persistent = MakeInstance("orders", "stays");
  persistent.set_persistent(true);
  ASSERT_TRUE(store.Register(session, persistent).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = store.Subscribe(subscriber, "orders");
  ASSERT_THAT(subscriber->ids(), SizeIs(51));
  const uint64_t before = store->revision();
  store.clock().Advance(absl::Seconds(11));
  EXPECT_EQ(store->revision(), before + 1);
  EXPECT_THAT(subscriber->ids(), ElementsAre("stays"));
  ASSERT_THAT(subscriber->events(), SizeIs(2));
  EXPECT_EQ(subscriber->events()[1]->delta().removals_size(), 50);
}

TEST(StoreRegistry, CloseTakesTheInstancesAtOnce) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1"), 5).ok());
  EXPECT_TRUE(store.CloseSession(session).ok());
  EXPECT_THAT(store.Ids(), IsEmpty());
  EXPECT_TRUE(store.CloseSession(session).ok());
  const std::string again = store.Session("a");
  EXPECT_NE(again, session);
  EXPECT_TRUE(store.Register(again, MakeInstance("orders", "1"), 5).ok());
}

TEST(StoreRegistry, OwnPauseIsNotBlamedOnClients) {
  StoreHarness store;
  const std::string a = store.Session("a", absl::Seconds(10));
  const std::string b = store.Session("b", absl::Seconds(30));
  ASSERT_TRUE(store.Register(a, MakeInstance("orders", "a")).ok());
  ASSERT_TRUE(store.Register(b, MakeInstance("orders", "b")).ok());
  store.clock().Advance(absl::Seconds(5));
  store.clock().Jump(absl::Seconds(100));
  store.clock().Advance(absl::ZeroDuration());
  EXPECT_THAT(store.Ids(), SizeIs(2));
  EXPECT_EQ(store->Stats().leases.pauses, 1);
  // Full leases from here on, no more and no less.
  store.clock().Advance(absl::Seconds(9));
  EXPECT_THAT(store.Ids(), SizeIs(2));
  store.clock().Advance(absl::Seconds(2));
  EXPECT_THAT(store.Ids(), ElementsAre("b"));
  store.clock().Advance(absl::Seconds(20));
  EXPECT_THAT(store.Ids(), IsEmpty());
  EXPECT_EQ(store->Stats().leases.pauses, 1);
}

TEST(StoreRegistry, PauseThatEndsJustAfterADeadlineIsNoticedByTheHeartbeat) {
  StoreHarness store;
  const std::string session = store.Session("a", absl::Seconds(10));
  store.clock().Advance(absl::Seconds(1));
  // Away for nearly the whole TTL; the lease itself fires in time.
  store.clock().Jump(absl::Milliseconds(8999));
  store.clock().Advance(absl::Milliseconds(20));
  EXPECT_TRUE(store.KeepAlive(session).ok());
  EXPECT_EQ(store->Stats().leases.pauses, 1);
}

// Sessions renewed every third of their TTL, some of which fall silent.
class GuardTest : public ::testing::Test {
 protected:
  void Open(StoreHarness& store, int n) {
    for (int i = 0; i < n; ++i) {
      sessions_.push_back(store.Session("incarnation-" + std::to_string(i)));
      EXPECT_TRUE(store.Register(sessions_.back(), MakeInstance("orders", std::to_string(i))).ok());
    }
  }
  // All but the first `silent` renew, for as long as given.
  void Live(StoreHarness& store, absl::Duration time, int silent) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      store.clock().Advance(absl::Seconds(1));
      if (++seconds_ % 3 != 0) continue;
      for (size_t i = silent; i < sessions_.size(); ++i) {
        EXPECT_TRUE(store.KeepAlive(sessions_[i]).ok());
      }
    }
  }
  std::vector<std::string> sessions_;
  int seconds_ = 0;
};

TEST_F(GuardTest, FewLossesAreBelieved) {
  StoreHarness store;
  Open(store, 20);
  Live(store, absl::Seconds(30), 0);
  Live(store, absl::Seconds(30), 3);  // 15 %
  EXPECT_THAT(store.Ids(), SizeIs(17));
  EXPECT_EQ(store->Stats().leases.held, 0);
  EXPECT_EQ(store->Stats().leases.holds, 0) << "not for a moment";
}

TEST_F(GuardTest, ManyLossesAtOnceAreHeldUntilTheyComeBack) {
  StoreHarness store;
  Open(store, 20);
  Live(store, absl::Seconds(30), 0);
  Live(store, absl::Seconds(60), 4);
  EXPECT_THAT(store.Ids(), SizeIs(20)) << "not one of them is ended";
  EXPECT_EQ(store->Stats().leases.held, 4);
  EXPECT_EQ(store->Stats().leases.holds, 4);
  Live(store, absl::Seconds(60), 0);  // they renew
  EXPECT_THAT(store.Ids(), SizeIs(20));
  EXPECT_EQ(store->Stats().leases.held, 0);
  Live(store, absl::Seconds(30), 1);
  EXPECT_THAT(store.Ids(), SizeIs(19)) << "one alone is believed again";
}

TEST_F(GuardTest, HeldSessionsGoWhenTheShareIsSmallerOrTheGuardIsSwitchedOff) {
  StoreHarness store;
  Open(store, 20);
  Live(store, absl::Seconds(30), 0);
  Live(store, absl::Seconds(30), 10);
  EXPECT_EQ(store->Stats().leases.held, 10);
  store->SetEvictionGuard(false);
  EXPECT_THAT(store.Ids(), SizeIs(10));
  EXPECT_EQ(store->Stats().leases.held, 0);
  store->SetEvictionGuard(true);

  StoreHarness other;
  sessions_.clear();
  Open(other, 20);
  Live(other, absl::Seconds(30), 4);
  EXPECT_EQ(other->Stats().leases.held, 4);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(other.CloseSession(sessions_[i]).ok());
  sessions_.erase(sessions_.begin(), sessions_.begin() + 2);
  Live(other, absl::Seconds(5), 2);
  EXPECT_THAT(other.Ids(), SizeIs(16)) << "two of eighteen are few enough";
}

TEST_F(GuardTest, BelowTheNumberThereIsNoGuard) {
  StoreHarness store;
  Open(store, 19);
  store.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(store.Ids(), IsEmpty());
}

TEST_F(GuardTest, SlowRenewersAreNotTakenForDead) {
  StoreHarness store;
  Open(store, 30);
  // All renew at eight tenths of the TTL; one dies.
  for (int round = 0; round < 6; ++round) {
    store.clock().Advance(absl::Seconds(8));
    for (size_t i = round < 3 ? 0 : 1; i < sessions_.size(); ++i) {
      EXPECT_TRUE(store.KeepAlive(sessions_[i]).ok());
    }
  }
  EXPECT_THAT(store.Ids(), SizeIs(29));
}

TEST(StoreRegistry, TombstonesGoByThemselvesAndThenNothingIsPending) {
  StoreHarness store;
  const std::string session = store.Session("a");
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(store.Unregister(session, MakeInstance("orders", "1").key(), 2).ok());
  EXPECT_EQ(store->Stats().tombstones, 1);
  for (int i = 0; i < 59; ++i) {
    store.clock().Advance(absl::Seconds(1));
    ASSERT_TRUE(store.KeepAlive(session).ok());
  }
  EXPECT_EQ(store->Stats().tombstones, 1);
  store.clock().Advance(absl::Seconds(2));
  EXPECT_EQ(store->Stats().tombstones, 0);
  ASSERT_TRUE(store.CloseSession(session).ok());
  store.clock().Advance(absl::Hours(30));
  EXPECT_EQ(store->Stats().incarnations, 0) << "forgotten after a day";
}

// ---- Listing.

TEST(StoreRegistry, ListPagesThroughEverything) {
  StoreHarness store;
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(store.Register("", MakeInstance("orders", "i" + std::to_string(100 + i))).ok());
  }
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_page_size(10);
  std::vector<int> sizes;
  std::string last;
  for (int page = 0; page < 10; ++page) {
    const auto response = CallAndWait(*store, &Registry::List, request);
    ASSERT_TRUE(response.ok()) << response.status();
    sizes.push_back(response->records_size());
    for (const auto& record : response->records()) {
      EXPECT_LT(last, record.instance().key().instance_id());
      last = record.instance().key().instance_id();
      EXPECT_EQ(record.incarnation(), "");
      EXPECT_EQ(record.rank(), 0u);
    }
    EXPECT_EQ(response->revision(), 25u);
    request.set_page_token(response->next_page_token());
    if (request.page_token().empty()) break;
  }
  EXPECT_THAT(sizes, ElementsAre(10, 10, 5));
  request.set_page_token("nonsense!");
  EXPECT_EQ(ReasonOf(CallAndWait(*store, &Registry::List, request).status()), kInvalidField);
}

TEST(StoreRegistry, ListFiltersAndPagesThroughMatches) {
  StoreHarness store;
  for (int i = 0; i < 30; ++i) {
    ServiceInstance instance = MakeInstance("orders", "i" + std::to_string(100 + i));
    instance.set_zone(i % 3 == 0 ? "a" : "b");
    if (i % 2 == 0) instance.set_status(registry::v1::HEALTH_STATUS_DRAINING);
    ASSERT_TRUE(store.Register("", instance).ok());
  }
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  request.mutable_selector()->add_zones("a");
  request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
  request.set_page_size(2);
  std::vector<std::string> ids;
  for (int page = 0; page < 10; ++page) {
    const auto response = CallAndWait(*store, &Registry::List, request);
    ASSERT_TRUE(response.ok()) << response.status();
    for (const auto& record : response->records()) {
      ids.push_back(record.instance().key().instance_id());
    }
    request.set_page_token(response->next_page_token());
    if (request.page_token().empty()) break;
  }
  EXPECT_THAT(ids, ElementsAre("i103", "i109", "i115", "i121", "i127"));
}

TEST(StoreRegistry, ListOfAnIncarnationIsOfAllNamespaces) {
  StoreHarness store;
  const std::string a = store.Session("a");
  const std::string b = store.Session("b");
  ServiceInstance elsewhere = MakeInstance("orders", "2");
  elsewhere.mutable_key()->set_namespace_("prod");
  ASSERT_TRUE(store.Register(a, MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store.Register(a, elsewhere).ok());
  ASSERT_TRUE(store.Register(b, MakeInstance("orders", "3")).ok());
  ListRequest request;
  request.set_incarnation("a");
  EXPECT_EQ(CallAndWait(*store, &Registry::List, request)->records_size(), 2);
  request.mutable_selector()->set_namespace_("prod");
  EXPECT_EQ(CallAndWait(*store, &Registry::List, request)->records_size(), 1);
  EXPECT_EQ(CallAndWait(*store, &Registry::List, ListRequest())->records_size(), 2);
}

// ---- A store that cannot be written.

class ReadOnlyTest : public ::testing::Test {
 protected:
  ReadOnlyTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(10);
    timer_ = HashedWheelTimer::Create(timer).value();
    StoreRegistry::Options options;
    options.timer = timer_.get();
    registry_ = StoreRegistry::OpenOn(options, std::make_unique<FakeStorage>(&rows_)).value();
  }
  absl::StatusOr<OpenSessionResponse> OpenSession(const std::string& incarnation) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    return CallAndWait(*registry_, &Registry::OpenSession, request);
  }
  absl::Status Register(const std::string& session, const ServiceInstance& instance) {
    RegisterRequest request;
    request.set_session_id(session);
    *request.add_registrations()->mutable_instance() = instance;
    const auto response = CallAndWait(*registry_, &Registry::Register, request);
    return response.ok() ? StatusFromProto(response->results(0).status()) : response.status();
  }
  int Count() { return CallAndWait(*registry_, &Registry::List, ListRequest())->records_size(); }

  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRows rows_;
  std::unique_ptr<StoreRegistry> registry_;
};

TEST_F(ReadOnlyTest, WritesAreRefusedReadsGoOnAndItRecovers) {
  const std::string session = OpenSession("a")->session_id();
  ASSERT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  SubscribeRequest subscribe;
  subscribe.mutable_selector()->set_service("orders");
  const auto stream = registry_->Subscribe(subscribe, subscriber);

  rows_.write_status = absl::UnavailableError("disk full");
  const absl::Status refused = Register(session, MakeInstance("orders", "2"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), kReadOnly);
  EXPECT_EQ(RetryDelayOf(refused), absl::Seconds(1));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("disk full"));
  EXPECT_EQ(ReasonOf(OpenSession("b").status()), kReadOnly);
  EXPECT_EQ(ReasonOf(registry_->Stats().write_status), registry::v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_FALSE(registry_->Stats().write_status.ok());
  EXPECT_EQ(Count(), 1);
  EXPECT_EQ(registry_->revision(), 1u);
  EXPECT_THAT(subscriber->events(), SizeIs(1));
  // What changes nothing needs no disk.
  EXPECT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  KeepAliveRequest renewal;
  renewal.set_session_id(session);
  EXPECT_TRUE(CallAndWait(*registry_, &Registry::KeepAlive, renewal).ok());

  rows_.write_status = absl::OkStatus();
  EXPECT_EQ(ReasonOf(Register(session, MakeInstance("orders", "2"))), kReadOnly)
      << "not tried before the delay is over";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Register(session, MakeInstance("orders", "2")).ok());
  EXPECT_TRUE(registry_->Stats().write_status.ok());
  EXPECT_THAT(subscriber->ids(), ElementsAre("1", "2"));
  EXPECT_EQ(registry_->CheckInvariants(), absl::OkStatus());
}

TEST_F(ReadOnlyTest, SessionsThatCannotBeEndedLiveOnAndEndLater) {
  const std::string session = OpenSession("a")->session_id();
  ASSERT_TRUE(Register(session, MakeInstance("orders", "1")).ok());
  rows_.write_status = absl::UnavailableError("disk full");
  clock_.Advance(absl::Seconds(15));
  EXPECT_EQ(Count(), 1);
  rows_.write_status = absl::OkStatus();
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(Count(), 0);
  EXPECT_EQ(registry_->Stats().leases.pauses, 0);
}

// ---- Callbacks, life and death.

TEST(StoreRegistry, CallbacksMayCallBack) {
  StoreHarness store;
  int depth = 0;
  std::function<void(int)> next = [&](int left) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("orders", std::to_string(left));
    store->Register(request, [&, left](absl::StatusOr<RegisterResponse> response) {
      EXPECT_TRUE(response.ok());
      ++depth;
      if (left > 0) next(left - 1);
    });
  };
  next(20);
  EXPECT_EQ(depth, 21);
  EXPECT_THAT(store.Ids(), SizeIs(21));
}

TEST(StoreRegistry, ListenerMayRegisterAndEndItsOwnStream) {
  StoreHarness store;
  class Greedy : public FakeSubscriber {
   public:
    Greedy(StoreHarness* store, std::unique_ptr<SubscribeStream>* stream)
        : store_(store), stream_(stream) {}
    void OnNotify(const std::shared_ptr<const SubscribeResponse>& event) override {
      FakeSubscriber::OnNotify(event);
      const int known = static_cast<int>(ids().size());
      if (known < 5) {
        EXPECT_TRUE(store_->Register("", MakeInstance("orders", std::to_string(known))).ok());
      } else {
        stream_->reset();
        EXPECT_TRUE(store_->Register("", MakeInstance("orders", "unheard")).ok());
      }
    }

   private:
    StoreHarness* const store_;
    std::unique_ptr<SubscribeStream>* const stream_;
  };
  std::unique_ptr<SubscribeStream> stream;
  auto subscriber = std::make_shared<Greedy>(&store, &stream);
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "first")).ok());
  // The stream is there from the second event on, as the first is told before Subscribe returns.
  SubscribeRequest request;
  request.mutable_selector()->set_service("none");
  stream = store->Subscribe(request, std::make_shared<FakeSubscriber>());
  stream = store.Subscribe(subscriber, "orders");
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "more")).ok());
  EXPECT_EQ(store->Stats().subscribers, stream == nullptr ? 0 : 1);
}

TEST(StoreRegistry, DestructionEndsStreams) {
  auto subscriber = std::make_shared<FakeSubscriber>();
  std::unique_ptr<SubscribeStream> stream;
  {
    StoreHarness store;
    stream = store.Subscribe(subscriber, "orders");
  }
  ASSERT_TRUE(subscriber->ended().has_value());
  EXPECT_EQ(subscriber->ended()->code(), absl::StatusCode::kCancelled);
  stream.reset();
}

TEST(StoreRegistry, BadOptionsAreNamed) {
  const auto open = [](const std::string& uri) {
    StoreRegistry::Options options;
    options.uri = uri;
    auto timer = HashedWheelTimer::Create({}).value();
    options.timer = timer.get();
    return StoreRegistry::Open(options).status();
  };
  for (const char* uri : {"", "memory", "mysql://x", "sqlite:relative.db", "sqlite://relative.db",
                          "sqlite:///", "sqlite:///folder/"}) {
    const absl::Status status = open(uri);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(std::string(status.message()), HasSubstr("store: '" + std::string(uri) + "'"));
  }
  EXPECT_TRUE(open("memory:").ok());
}

}  // namespace
}  // namespace failback
