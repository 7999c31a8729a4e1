// Sessions of StoreRegistry: leases, their end, what is remembered afterwards.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr auto kSessionUnknown = registry::v1::ERROR_REASON_SESSION_UNKNOWN;

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

// Ended incarnations are looked at once an hour, which must not make fences wait.
TEST(StoreRegistry, AFenceIsForgottenInTimeAlsoBesideAnEndedIncarnation) {
  StoreHarness store;
  ASSERT_TRUE(store.CloseSession(store.Session("ended")).ok());
  const std::string older = store.Session("older", absl::Hours(1));
  const std::string newer = store.Session("newer");
  ASSERT_TRUE(store.Register(newer, MakeInstance("orders", "1")).ok());
  store.clock().Advance(absl::Seconds(11));  // its lease runs out
  EXPECT_EQ(ReasonOf(store.Register(older, MakeInstance("orders", "1")).status),
            registry::v1::ERROR_REASON_SUPERSEDED);
  store.clock().Advance(absl::Seconds(60));
  EXPECT_EQ(store->Stats().tombstones, 0);
  EXPECT_TRUE(store.Register(older, MakeInstance("orders", "1")).ok());
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

// Who is paged for an instance that has gone finds out whose it was.
TEST(StoreRegistry, TheLogTellsWhoseSessionsExpired) {
  std::vector<LogFields> lines;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string& event, const LogFields& fields) {
    if (event == "sessions expired") lines.push_back(fields);
  });
  const absl::Cleanup reset = [] { SetLogSink(LogLevel::kWarning, nullptr); };
  StoreHarness store;
  for (int i = 0; i < 7; ++i) {
    const std::string session = store.Session(absl::StrCat("agent-", i));
    ASSERT_TRUE(store.Register(session, MakeInstance("orders", std::to_string(i))).ok());
    ServiceInstance persistent = MakeInstance("kept", std::to_string(i));
    persistent.set_persistent(true);
    ASSERT_TRUE(store.Register(session, persistent).ok());
  }
  store.clock().Advance(absl::Seconds(11));
  // The first was due a moment before the others.
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0], ElementsAre(Pair("sessions", "1"), Pair("instances", "1"),
                                    Pair("clients", "client of agent-0"), Pair("cause", "ttl")));
  EXPECT_THAT(lines[1], ElementsAre(Pair("sessions", "6"), Pair("instances", "6"),
                                    Pair("clients",
                                         "client of agent-1, client of agent-2, client of agent-3,"
                                         " client of agent-4, client of agent-5 and 1 more"),
                                    Pair("cause", "ttl")));
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

TEST(StoreRegistry, AfterAPauseALeaseThatHadNotRunOutIsAFullOneToo) {
  StoreHarness store;
  const std::string a = store.Session("a", absl::Seconds(10));
  ASSERT_TRUE(store.Register(a, MakeInstance("orders", "a")).ok());
  store.clock().Advance(absl::Seconds(4));
  const std::string b = store.Session("b", absl::Seconds(10));
  ASSERT_TRUE(store.Register(b, MakeInstance("orders", "b")).ok());
  store.clock().Advance(absl::Seconds(1));
  store.clock().Jump(absl::Seconds(8));  // to a second before the end of the second one
  store.clock().Advance(absl::ZeroDuration());
  EXPECT_EQ(store->Stats().leases.pauses, 1);
  store.clock().Advance(absl::Milliseconds(9900));
  EXPECT_THAT(store.Ids(), SizeIs(2));
  store.clock().Advance(absl::Milliseconds(200));
  EXPECT_THAT(store.Ids(), IsEmpty());
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

TEST(StoreRegistry, ADescriptionTellsOfTheFenceForAsLongAsItStands) {
  StoreHarness store;
  const std::string older = store.Session("older", absl::Hours(1));
  const std::string newer = store.Session("newer");
  const std::string closed = store.Session("closed");
  ASSERT_TRUE(store.Register(newer, MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store.Register(closed, MakeInstance("orders", "2")).ok());
  const auto describe = [&](const std::string& id) {
    return store->Describe(MakeInstance("orders", id).key()).value();
  };
  EXPECT_FALSE(describe("1").has_fence_end_time()) << "it is there";
  ASSERT_TRUE(store.CloseSession(closed).ok());
  EXPECT_FALSE(describe("2").has_fence_end_time()) << "closing leaves none";
  store.clock().Advance(absl::Seconds(11));
  const auto fenced = describe("1");
  EXPECT_EQ(fenced.fence_rank(), 2u);
  const absl::Duration left = FromProto(fenced.fence_end_time()) - store.clock().WallNow();
  EXPECT_LE(left, absl::Seconds(60));
  EXPECT_GT(left, absl::Seconds(58));
  EXPECT_EQ(ReasonOf(store.Register(older, MakeInstance("orders", "1")).status),
            registry::v1::ERROR_REASON_SUPERSEDED);
  store.clock().Advance(absl::Seconds(61));
  EXPECT_FALSE(describe("1").has_fence_end_time());
  EXPECT_TRUE(store.Register(older, MakeInstance("orders", "1")).ok());
}

TEST(StoreRegistry, HistorySaysThatAnOwnerHadBeenShutOut) {
  StoreHarness store;
  const auto open = [&](const std::string& incarnation) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_owner("alice");
    return CallAndWait(*store, &Registry::OpenSession, request)->session_id();
  };
  ASSERT_TRUE(store.Register(open("a"), MakeInstance("orders", "1")).ok());
  const State::Holdings has = store->SetRevoked("alice", "token alice");
  EXPECT_EQ(has.sessions, 1);
  EXPECT_EQ(has.instances, 1);
  EXPECT_EQ(store->SetRevoked("bob", "token bob").sessions, 0);
  store.clock().Advance(absl::Seconds(11));
  const auto last = [&](const std::string& id) {
    return store->Describe(MakeInstance("orders", id).key())->history(0);
  };
  EXPECT_EQ(last("1").kind(), admin::v1::CHANGE_KIND_EXPIRED);
  EXPECT_EQ(last("1").revoked(), "token alice");
  EXPECT_EQ(last("1").detail(),
            "its session was not renewed within the TTL; token alice is no longer let in: its "
            "token, or what the policy allowed it, was removed");
  store->SetRevoked("alice", "");
  ASSERT_TRUE(store.Register(open("b"), MakeInstance("orders", "2")).ok());
  store.clock().Advance(absl::Seconds(11));
  EXPECT_EQ(last("2").kind(), admin::v1::CHANGE_KIND_EXPIRED);
  EXPECT_EQ(last("2").revoked(), "");
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

}  // namespace
}  // namespace failback
