// What StoreRegistry remembers, whose it is, and how much of it there may be.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kLimit = registry::v1::ERROR_REASON_LIMIT_REACHED;
constexpr auto kNotOwned = registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
constexpr auto kOverloaded = registry::v1::ERROR_REASON_OVERLOADED;

absl::StatusOr<OpenSessionResponse> Open(StoreHarness& store, const std::string& incarnation,
                                         const std::string& owner = "") {
  OpenSessionRequest request;
  request.set_incarnation(incarnation);
  request.set_owner(owner);
  return CallAndWait(*store, &Registry::OpenSession, request);
}

TEST(Owners, AnIncarnationIsItsOwnersAsLongAsItIsRemembered) {
  StoreHarness store;
  const auto opened = Open(store, "agent", "alice");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(ReasonOf(Open(store, "agent", "mallory").status()), kNotOwned) << "while it lives";
  ASSERT_TRUE(store.CloseSession(opened->session_id()).ok());
  EXPECT_EQ(ReasonOf(Open(store, "agent", "mallory").status()), kNotOwned) << "when it has ended";
  store.clock().Advance(absl::Hours(23));
  EXPECT_EQ(ReasonOf(Open(store, "agent", "mallory").status()), kNotOwned);
  const auto again = Open(store, "agent", "alice");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->rank(), opened->rank());
  // A server that does not tell callers apart lets everybody, and forgets nothing.
  ASSERT_TRUE(store.CloseSession(again->session_id()).ok());
  const auto anybody = Open(store, "agent");
  ASSERT_TRUE(anybody.ok()) << anybody.status();
  ASSERT_TRUE(store.CloseSession(anybody->session_id()).ok());
  EXPECT_EQ(ReasonOf(Open(store, "agent", "mallory").status()), kNotOwned);
}

TEST(Owners, OneThatHasNoneBelongsToWhoOpensItFirst) {
  StoreHarness store;
  const auto opened = Open(store, "agent");
  ASSERT_TRUE(store.CloseSession(opened->session_id()).ok());
  const auto first = Open(store, "agent", "alice");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(store.CloseSession(first->session_id()).ok());
  EXPECT_EQ(ReasonOf(Open(store, "agent", "mallory").status()), kNotOwned);
}

TEST(Ranks, AClaimedRankIsGivenOnce) {
  StoreHarness store;
  OpenSessionRequest request;
  request.set_store_id(store->store_id());
  request.set_rank(100);
  std::vector<uint64_t> ranks;
  for (const char* incarnation : {"a", "b", "c"}) {
    request.set_incarnation(incarnation);
    ranks.push_back(CallAndWait(*store, &Registry::OpenSession, request)->rank());
  }
  EXPECT_THAT(ranks, ElementsAreArray({100u, 101u, 102u}));
}

TEST(Bounds, ClientsThatAreRememberedAreBounded) {
  StoreRegistry::Options options;
  options.max_incarnations = 4;
  StoreHarness store(std::move(options));
  for (int i = 0; i < 4; ++i) {
    const auto opened = Open(store, absl::StrCat(i));
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(store.CloseSession(opened->session_id()).ok());
  }
  const absl::Status refused = Open(store, "one-more").status();
  EXPECT_EQ(ReasonOf(refused), kLimit) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("limits.max_incarnations"));
  EXPECT_TRUE(Open(store, "2").ok()) << "one that is remembered";
  store.clock().Advance(absl::Hours(30));
  EXPECT_EQ(store->Stats().incarnations, 0);
  EXPECT_TRUE(Open(store, "one-more").ok());
}

TEST(Bounds, AnOwnerHasHalfOfTheClientsAtMost) {
  StoreRegistry::Options options;
  options.max_incarnations = 10;
  StoreHarness store(std::move(options));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Open(store, absl::StrCat("m", i), "mallory").ok());
  const absl::Status refused = Open(store, "m5", "mallory").status();
  EXPECT_EQ(ReasonOf(refused), kLimit) << refused;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Open(store, absl::StrCat("a", i), "alice").ok());
  EXPECT_EQ(ReasonOf(Open(store, "b", "bob").status()), kLimit);
}

TEST(Bounds, AnOwnerHasHalfOfTheSessionsAtMost) {
  StoreRegistry::Options options;
  options.max_sessions = 4;
  StoreHarness store(std::move(options));
  const std::string first = Open(store, "m0", "mallory")->session_id();
  ASSERT_TRUE(Open(store, "m1", "mallory").ok());
  const absl::Status refused = Open(store, "m2", "mallory").status();
  EXPECT_EQ(ReasonOf(refused), kLimit) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its share of limits.max_sessions (4)"));
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "2");
  EXPECT_TRUE(Open(store, "m1", "mallory").ok()) << "the same again";
  EXPECT_TRUE(Open(store, "a", "alice").ok());
  ASSERT_TRUE(store.CloseSession(first).ok());
  EXPECT_TRUE(Open(store, "m2", "mallory").ok()) << "one has gone";
  EXPECT_EQ(ReasonOf(Open(store, "m3", "mallory").status()), kLimit);
}

TEST(Bounds, AnOwnerHasHalfOfTheInstancesAtMost) {
  StoreRegistry::Options options;
  options.max_instances = 8;
  StoreHarness store(std::move(options));
  const std::string one = Open(store, "m1", "mallory")->session_id();
  const std::string two = Open(store, "m2", "mallory")->session_id();
  const std::string alice = Open(store, "a", "alice")->session_id();
  const auto instance = [](const std::string& id) { return MakeInstance("orders", id); };
  // In one call, and of more than one incarnation.
  RegisterRequest request;
  request.set_session_id(one);
  for (int i = 0; i < 3; ++i) {
    *request.add_registrations()->mutable_instance() = instance(absl::StrCat("m", i));
  }
  ASSERT_TRUE(CallAndWait(*store, &Registry::Register, request).ok());
  EXPECT_TRUE(store.Register(two, instance("m3"), 1).ok());
  const absl::Status refused = store.Register(two, instance("m4"), 1).status;
  EXPECT_EQ(ReasonOf(refused), kLimit) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its share of limits.max_instances (8)"));
  EXPECT_TRUE(store.Register(two, instance("m3"), 2).ok()) << "what is there may change";
  ASSERT_TRUE(store.Register(alice, instance("a0"), 1).ok());
  // A key that is another's counts too.
  const std::string three = Open(store, "m3", "mallory")->session_id();
  EXPECT_EQ(ReasonOf(store.Register(three, instance("a0"), 1).status), kLimit);
  EXPECT_TRUE(store.Register(three, instance("m0"), 1).ok()) << "one's own changes hands";
  for (int i = 1; i < 4; ++i) {
    EXPECT_TRUE(store.Register(alice, instance(absl::StrCat("a", i)), 1).ok()) << i;
  }
  // Sessions that end give them back.
  ASSERT_TRUE(store.CloseSession(one).ok());
  EXPECT_TRUE(store.Register(two, instance("m4"), 2).ok());
  EXPECT_TRUE(store.Register(two, instance("m5"), 2).ok());
  EXPECT_EQ(ReasonOf(store.Register(two, instance("m6"), 2).status), kLimit);
}

TEST(Bounds, WithoutNamesThereIsNoShare) {
  StoreRegistry::Options options;
  options.max_instances = 4;
  StoreHarness store(std::move(options));
  const std::string session = store.Session("a");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(store.Register(session, MakeInstance("orders", absl::StrCat(i)), 1).ok());
  }
  EXPECT_TRUE(store.Register("", MakeInstance("orders", "detached"), 0).ok());
  const absl::Status refused = store.Register(session, MakeInstance("orders", "4"), 1).status;
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "4");
}

TEST(Bounds, InstancesWithoutAnOwnerTogetherHaveTheShareOfOne) {
  StoreRegistry::Options options;
  options.max_instances = 4;
  options.callers_have_names = true;
  StoreHarness store(std::move(options));
  const auto instance = [](int id) { return MakeInstance("orders", absl::StrCat(id)); };
  EXPECT_TRUE(store.Register("", instance(0), 0).ok());
  EXPECT_TRUE(store.Register("", instance(1), 0).ok());
  EXPECT_EQ(ReasonOf(store.Register("", instance(2), 0).status), kLimit);
  EXPECT_TRUE(store.Register("", instance(1), 0).ok());
  const std::string alice = Open(store, "a", "alice")->session_id();
  EXPECT_TRUE(store.Register(alice, instance(1), 1).ok()) << "it has an owner now";
  EXPECT_TRUE(store.Register("", instance(2), 0).ok());
  EXPECT_EQ(ReasonOf(store.Register("", instance(3), 0).status), kLimit);
}

TEST(Bounds, KeysWhoseInstancesAreGoneAreBounded) {
  StoreRegistry::Options options;
  options.max_tombstones = 4;
  options.default_ttl = absl::Minutes(1);
  StoreHarness store(std::move(options));
  const std::string session = store.Session("a");
  const auto key = [](int id) { return MakeInstance("orders", absl::StrCat(id)).key(); };
  ASSERT_TRUE(store.Register(session, MakeInstance("orders", "there"), 1).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(store.Unregister(session, key(i), 1).ok());
  const absl::Status refused = store.Unregister(session, key(4), 1).status;
  EXPECT_EQ(ReasonOf(refused), kOverloaded) << refused;
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("limits.max_tombstones"));
  EXPECT_EQ(ReasonOf(store.Register(session, MakeInstance("orders", "new"), 1).status), kOverloaded)
      << "it would be one more when it goes";
  // What is known is served as ever.
  EXPECT_TRUE(store.Unregister(session, key(2), 2).ok());
  EXPECT_TRUE(store.Register(session, MakeInstance("orders", "3"), 2).ok());
  EXPECT_TRUE(store.Unregister(session, MakeInstance("orders", "there").key(), 2).ok());
  for (int i = 0; i < 4; ++i) {
    store.clock().Advance(absl::Seconds(20));
    ASSERT_TRUE(store.KeepAlive(session).ok());
  }
  EXPECT_EQ(store->Stats().tombstones, 0);
  EXPECT_TRUE(store.Unregister(session, key(4), 1).ok());
}

TEST(Bounds, AnOwnerHasHalfOfTheKeysWhoseInstancesAreGone) {
  StoreRegistry::Options options;
  options.max_tombstones = 8;
  StoreHarness store(std::move(options));
  const std::string mallory = Open(store, "m", "mallory")->session_id();
  const std::string alice = Open(store, "a", "alice")->session_id();
  UnregisterRequest request;
  request.set_session_id(mallory);
  for (int i = 0; i < 6; ++i) {
    auto* const deregistration = request.add_deregistrations();
    *deregistration->mutable_key() = MakeInstance("orders", absl::StrCat("m", i)).key();
    deregistration->set_generation(1);
  }
  const auto response = CallAndWait(*store, &Registry::Unregister, request);
  ASSERT_TRUE(response.ok()) << response.status();
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(ReasonOf(StatusFromProto(response->results(i).status())) == kOverloaded, i >= 4) << i;
  }
  EXPECT_EQ(store->Stats().tombstones, 4);
  EXPECT_TRUE(store.Register(alice, MakeInstance("orders", "new"), 1).ok());
}

// However many are due at once, no commit forgets more than a few thousand.
TEST(Purge, GoesInSlices) {
  StoreRegistry::Options options;
  options.default_ttl = absl::Hours(1);
  StoreHarness store(std::move(options));
  const std::string session = store.Session("a", absl::Seconds(1));
  constexpr int kKeys = 9000;
  for (int i = 0; i < kKeys; i += 1000) {
    UnregisterRequest request;
    request.set_session_id(session);
    for (int k = i; k < i + 1000; ++k) {
      auto* const deregistration = request.add_deregistrations();
      *deregistration->mutable_key() = MakeInstance("orders", absl::StrCat(k)).key();
      deregistration->set_generation(1);
    }
    ASSERT_TRUE(CallAndWait(*store, &Registry::Unregister, request).ok());
  }
  ASSERT_EQ(store->Stats().tombstones, kKeys);
  int64_t before = kKeys;
  int64_t most = 0;
  for (int tick = 0; tick < 70 * 100 && before > 0; ++tick) {
    store.clock().Advance(absl::Milliseconds(10));
    const int64_t now = store->Stats().tombstones;
    most = std::max(most, before - now);
    before = now;
  }
  EXPECT_EQ(before, 0);
  EXPECT_GT(most, 0);
  EXPECT_LE(most, 2000);
}

// Pages of one incarnation, beside changes, are those of the whole listing.
TEST(Listing, PagesOfAnIncarnationAreInOrderAndComplete) {
  StoreHarness store;
  std::mt19937 random(1);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  const std::vector<std::string> sessions = {store.Session("a", absl::Hours(1)),
                                             store.Session("b", absl::Hours(1))};
  const auto pages = [&](const std::string& incarnation, const std::string& service, int size) {
    std::vector<std::string> keys;
    ListRequest request;
    request.set_incarnation(incarnation);
    if (!service.empty()) request.mutable_selector()->set_service(service);
    request.set_page_size(size);
    do {
      const auto response = CallAndWait(*store, &Registry::List, request);
      EXPECT_TRUE(response.ok()) << response.status();
      EXPECT_LE(response->records_size(), size);
      for (const auto& record : response->records())
        keys.push_back(KeyText(record.instance().key()));
      request.set_page_token(response->next_page_token());
    } while (!request.page_token().empty());
    return keys;
  };
  EXPECT_THAT(pages("a", "", 1), IsEmpty());
  for (int step = 0; step < 400; ++step) {
    const ServiceInstance instance =
        MakeInstance(absl::StrCat("s", pick(4)), absl::StrCat(pick(12)));
    const std::string& session = sessions[pick(2)];
    if (pick(3) == 0) {
      store.Unregister(session, instance.key());
    } else {
      store.Register(session, instance);
    }
    if (step % 10 != 0) continue;
    for (const char* incarnation : {"a", "b"}) {
      for (const char* service : {"", "s1", "s3"}) {
        std::vector<std::string> expected;
        for (const InstanceRecord& record : store.List(service)) {
          if (record.incarnation() == incarnation) {
            expected.push_back(KeyText(record.instance().key()));
          }
        }
        std::sort(expected.begin(), expected.end());
        ASSERT_THAT(pages(incarnation, service, 1 + pick(3)), ElementsAreArray(expected));
      }
    }
  }
  ASSERT_TRUE(store.CloseSession(sessions[0]).ok());
  EXPECT_THAT(pages("a", "", 2), IsEmpty());
}

}  // namespace
}  // namespace failback
