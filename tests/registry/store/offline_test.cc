// An operator's mark: what it shows, what it survives, and where it ends.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/registry/store/harness.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class OfflineTest : public ::testing::Test {
 protected:
  static StoreRegistry::Options On(const std::string& path) {
    StoreRegistry::Options options;
    options.uri = "sqlite://" + path;
    options.durability = Durability::kOff;
    return options;
  }

  absl::StatusOr<SetOfflineResponse> SetOffline(const std::string& id, bool offline,
                                                const std::string& reason = "disk") {
    SetOfflineRequest request;
    *request.mutable_key() = MakeInstance("orders", id).key();
    request.set_offline(offline);
    request.set_reason(reason);
    request.set_by("alice");
    return CallAndWait(*store_, &Registry::SetOffline, request);
  }

  absl::StatusOr<InstanceRecord> Find(const std::string& id) {
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    const auto list = CallAndWait(*store_, &Registry::List, request);
    if (!list.ok()) return list.status();
    for (const InstanceRecord& record : list->records()) {
      if (record.instance().key().instance_id() == id) return record;
    }
    return absl::NotFoundError(id);
  }

  // "offline", "in" (rotation), or why neither.
  std::string Rotation(const std::string& id) {
    const auto record = Find(id);
    if (!record.ok()) return record.status().ToString();
    return record->instance().has_offline() ? "offline" : "in";
  }

  std::vector<std::string> History(const std::string& id) {
    const auto description = store_->Describe(MakeInstance("orders", id).key());
    if (!description.ok()) return {description.status().ToString()};
    std::vector<std::string> kinds;
    for (const auto& change : description->history()) {
      kinds.push_back(admin::v1::ChangeKind_Name(change.kind()).substr(sizeof("CHANGE_KIND_") - 1));
    }
    return kinds;
  }

  const TempDir dir_;
  StoreHarness store_{On(dir_.File("registry.db"))};
};

// Not the one whose instance it was: that is another host.
TEST_F(OfflineTest, TheHistoryNamesWhoUnregistered) {
  const std::string earlier = store_.Session("a");
  const std::string later = store_.Session("b");
  ASSERT_TRUE(store_.Register(earlier, MakeInstance("orders", "1"), 1).ok());
  UnregisterRequest request;
  request.set_session_id(later);
  *request.add_deregistrations()->mutable_key() = MakeInstance("orders", "1").key();
  request.mutable_deregistrations(0)->set_generation(1);
  ASSERT_TRUE(CallAndWait(*store_, &Registry::Unregister, request).ok());
  const auto description = store_->Describe(MakeInstance("orders", "1").key());
  ASSERT_TRUE(description.ok()) << description.status();
  std::vector<std::string> history;
  for (const auto& change : description->history()) {
    history.push_back(absl::StrCat(admin::v1::ChangeKind_Name(change.kind()), " by ", change.by()));
  }
  EXPECT_THAT(history, ElementsAre("CHANGE_KIND_UNREGISTERED by client of b",
                                   "CHANGE_KIND_REGISTERED by client of a"));
}

TEST_F(OfflineTest, IsToldInOneRevisionAndLeavesWhatTheOwnerSaid) {
  const std::string session = store_.Session("a");
  ServiceInstance instance = MakeInstance("orders", "1");
  (*instance.mutable_metadata())["version"] = "1.2.3";
  ASSERT_TRUE(store_.Register(session, instance, 1).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = store_.Subscribe(subscriber, "orders");
  const uint64_t before = store_->revision();

  const auto offline = SetOffline("1", true);
  ASSERT_TRUE(offline.ok()) << offline.status();
  EXPECT_EQ(offline->offline().reason(), "disk");
  EXPECT_EQ(offline->offline().by(), "alice");
  EXPECT_TRUE(offline->offline().has_time());
  EXPECT_FALSE(offline->unchanged());
  EXPECT_EQ(offline->revision(), before + 1);
  ASSERT_THAT(subscriber->events(), SizeIs(2));
  const auto& delta = *subscriber->events()[1];
  EXPECT_EQ(delta.revision(), before + 1);
  ASSERT_EQ(delta.delta().upserts_size(), 1);
  EXPECT_EQ(delta.delta().upserts(0).offline().reason(), "disk");
  EXPECT_EQ(delta.delta().upserts(0).metadata().at("version"), "1.2.3");

  const auto again = SetOffline("1", true);
  EXPECT_TRUE(again->unchanged());
  EXPECT_EQ(again->revision(), before + 1);
  EXPECT_FALSE(SetOffline("1", true, "still the disk")->unchanged());

  ASSERT_TRUE(SetOffline("1", false).ok());
  EXPECT_EQ(subscriber->events().back()->delta().upserts(0).ByteSizeLong(),
            Find("1")->instance().ByteSizeLong());
  EXPECT_EQ(Rotation("1"), "in");
  EXPECT_EQ(Find("1")->instance().metadata().at("version"), "1.2.3");
  EXPECT_TRUE(SetOffline("1", false)->unchanged());
}

TEST_F(OfflineTest, ANewSubscriberAndTheCountsSeeIt) {
  ASSERT_TRUE(store_.Register("", MakeInstance("orders", "1")).ok());
  ASSERT_TRUE(store_.Register("", MakeInstance("orders", "2")).ok());
  ASSERT_EQ(store_->ServiceSummaries().at(0).instances().healthy(), 2);
  ASSERT_TRUE(SetOffline("1", true).ok());
  auto subscriber = std::make_shared<FakeSubscriber>();
  const auto stream = store_.Subscribe(subscriber, "orders");
  EXPECT_TRUE(subscriber->events()[0]->snapshot().instances(0).has_offline());
  EXPECT_FALSE(subscriber->events()[0]->snapshot().instances(1).has_offline());
  const auto services = store_->ServiceSummaries();
  ASSERT_THAT(services, SizeIs(1));
  EXPECT_EQ(services[0].name(), "orders");
  EXPECT_EQ(services[0].instances().total(), 2);
  EXPECT_EQ(services[0].instances().offline(), 1);
  EXPECT_EQ(services[0].instances().healthy(), 1);
  EXPECT_EQ(services[0].instances().persistent(), 0);
}

TEST_F(OfflineTest, TheOwnersWordDoesNotEndIt) {
  const std::string session = store_.Session("a");
  const ServiceInstance instance = MakeInstance("orders", "1");
  ASSERT_TRUE(store_.Register(session, instance, 1).ok());
  ASSERT_TRUE(SetOffline("1", true).ok());
  const uint64_t marked = store_->revision();
  // The same again, as after an answer that was lost: nothing has changed.
  ASSERT_TRUE(store_.Register(session, instance, 1).ok());
  EXPECT_EQ(store_->revision(), marked);
  // An update; and one that was read, mark and all, and written back.
  ASSERT_TRUE(store_.Register(session, MakeInstance("orders", "1", 81), 2).ok());
  EXPECT_EQ(Rotation("1"), "offline");
  ServiceInstance read = Find("1")->instance();
  read.mutable_offline()->set_reason("forged");
  ASSERT_TRUE(store_.Register(session, read, 3).ok());
  EXPECT_EQ(Find("1")->instance().offline().reason(), "disk");
  // Another incarnation takes over.
  ASSERT_TRUE(store_.Register(store_.Session("b"), instance, 1).ok());
  EXPECT_EQ(Rotation("1"), "offline");
  ASSERT_TRUE(SetOffline("1", false).ok());
  EXPECT_EQ(Rotation("1"), "in");
  // A forged mark marks nothing.
  ASSERT_TRUE(store_.Register("", read).ok());
  EXPECT_EQ(Rotation("1"), "in");
}

TEST_F(OfflineTest, SurvivesRestartsExpiryAndClosedSessions) {
  ASSERT_TRUE(
      store_.Register(store_.Session("a", absl::Seconds(10)), MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(SetOffline("1", true).ok());
  store_.Reopen();
  EXPECT_EQ(Find("1")->instance().offline().reason(), "disk");

  store_.clock().Advance(absl::Seconds(11));
  EXPECT_TRUE(absl::IsNotFound(Find("1").status()));
  store_.clock().Advance(absl::Hours(20));
  store_.Reopen();
  const std::string session = store_.Session("a");
  ASSERT_TRUE(store_.Register(session, MakeInstance("orders", "1"), 2).ok());
  EXPECT_EQ(Rotation("1"), "offline");

  ASSERT_EQ(store_.CloseSession(session), absl::OkStatus());
  ASSERT_TRUE(store_.Register(store_.Session("a"), MakeInstance("orders", "1"), 1).ok());
  EXPECT_EQ(Rotation("1"), "offline");
}

// A mark is kept for a day; the fence of the instance that it is on for max(TTL, 60 s).
TEST_F(OfflineTest, AnOlderIncarnationTakesTheKeyWhenTheFenceHasGoneAndGetsTheMark) {
  for (const bool restarts : {false, true}) {
    SCOPED_TRACE(restarts ? "with restarts" : "without restarts");
    const std::string id = restarts ? "2" : "1";
    const auto pause = [&] {
      if (restarts) store_.Reopen();
    };
    const std::string older = store_.Session("older" + id, absl::Hours(1));
    const std::string newer = store_.Session("newer" + id, absl::Seconds(10));
    ASSERT_TRUE(store_.Register(newer, MakeInstance("orders", id), 1).ok());
    ASSERT_TRUE(SetOffline(id, true).ok());
    pause();
    store_.clock().Advance(absl::Seconds(11));
    ASSERT_TRUE(absl::IsNotFound(Find(id).status()));
    const auto described = store_->Describe(MakeInstance("orders", id).key());
    ASSERT_TRUE(described.ok()) << described.status();
    EXPECT_EQ(described->fence_end_time().seconds() - described->history(0).time().seconds(), 60);
    pause();
    store_.clock().Advance(absl::Seconds(55));
    EXPECT_EQ(ReasonOf(store_.Register(older, MakeInstance("orders", id), 1).status),
              registry::v1::ERROR_REASON_SUPERSEDED);
    store_.clock().Advance(absl::Seconds(7));
    pause();
    ASSERT_TRUE(store_.Register(older, MakeInstance("orders", id), 1).ok());
    EXPECT_EQ(Rotation(id), "offline");
  }
}

TEST_F(OfflineTest, EndsWithUnregisterOrADayLater) {
  const std::string session = store_.Session("a", absl::Seconds(10));
  const ServiceInstance instance = MakeInstance("orders", "1");
  ASSERT_TRUE(store_.Register(session, instance, 1).ok());
  ASSERT_TRUE(SetOffline("1", true).ok());
  ASSERT_TRUE(store_.Unregister(session, instance.key(), 2).ok());
  ASSERT_TRUE(store_.Register(session, instance, 3).ok());
  EXPECT_EQ(Rotation("1"), "in");

  ASSERT_TRUE(SetOffline("1", true).ok());
  store_.clock().Advance(absl::Hours(25));
  ASSERT_TRUE(store_.Register(store_.Session("a"), instance, 4).ok());
  EXPECT_EQ(Rotation("1"), "in");

  ASSERT_TRUE(SetOffline("1", true).ok());
  ASSERT_TRUE(store_.Unregister("", instance.key()).ok());  // a concurrent writer
  ASSERT_TRUE(store_.Register("", instance).ok());
  EXPECT_EQ(Rotation("1"), "in");
}

TEST_F(OfflineTest, WhatIsNotThereCannotBeMarkedButAMarkThatIsLeftCanBeTakenOff) {
  EXPECT_EQ(SetOffline("1", true).status().code(), absl::StatusCode::kNotFound);
  const auto unknown = SetOffline("1", false);
  EXPECT_EQ(ReasonOf(unknown.status()), registry::v1::ERROR_REASON_NOT_FOUND) << unknown.status();
  EXPECT_EQ(unknown.status().message(), "key: default/orders/1 is not registered");
  ASSERT_TRUE(
      store_.Register(store_.Session("a", absl::Seconds(10)), MakeInstance("orders", "1"), 1).ok());
  EXPECT_TRUE(SetOffline("1", false)->unchanged());
  ASSERT_TRUE(SetOffline("1", true).ok());
  store_.clock().Advance(absl::Seconds(11));
  EXPECT_EQ(SetOffline("1", true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(SetOffline("1", false)->unchanged());
  EXPECT_TRUE(absl::IsNotFound(SetOffline("1", false).status()));
  ASSERT_TRUE(store_.Register(store_.Session("a"), MakeInstance("orders", "1"), 2).ok());
  EXPECT_EQ(Rotation("1"), "in");
}

TEST_F(OfflineTest, RequestsAreChecked) {
  EXPECT_EQ(ReasonOf(SetOffline("", true).status()), registry::v1::ERROR_REASON_INVALID_FIELD);
  EXPECT_EQ(ReasonOf(SetOffline("1", true, std::string(257, 'x')).status()),
            registry::v1::ERROR_REASON_INVALID_FIELD);
}

TEST_F(OfflineTest, AnInstanceIsDescribedWithItsHistory) {
  EXPECT_EQ(store_->Describe(MakeInstance("orders", "1").key()).status().code(),
            absl::StatusCode::kNotFound);
  const std::string session = store_.Session("a", absl::Seconds(10));
  ASSERT_TRUE(store_.Register(session, MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(store_.Register(session, MakeInstance("orders", "2"), 1).ok());
  ASSERT_TRUE(store_.Register(session, MakeInstance("orders", "1", 81), 2).ok());
  ASSERT_TRUE(SetOffline("1", true).ok());
  const auto description = store_->Describe(MakeInstance("orders", "1").key());
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->instance().state(), admin::v1::INSTANCE_STATE_OFFLINE);
  EXPECT_EQ(description->instance().record().instance().port(), 81u);
  EXPECT_EQ(description->session().incarnation(), "a");
  EXPECT_EQ(description->session().instances(), 2);
  EXPECT_EQ(description->session().ttl().seconds(), 10);
  EXPECT_TRUE(description->session().has_expire_time());
  EXPECT_EQ(description->history(0).by(), "alice");
  EXPECT_EQ(description->history(0).detail(), "disk");
  EXPECT_EQ(description->history(1).by(), "client of a");
  EXPECT_EQ(description->history(1).generation(), 2u);
  EXPECT_THAT(History("1"), ElementsAre("OFFLINE", "UPDATED", "REGISTERED"));
  EXPECT_THAT(History("2"), ElementsAre("REGISTERED"));

  ASSERT_TRUE(store_.Register(store_.Session("b"), MakeInstance("orders", "1"), 1).ok());
  ASSERT_TRUE(SetOffline("1", false).ok());
  store_.clock().Advance(absl::Seconds(11));
  EXPECT_THAT(History("1"),
              ElementsAre("EXPIRED", "ONLINE", "REPLACED", "OFFLINE", "UPDATED", "REGISTERED"));
  EXPECT_THAT(History("2"), ElementsAre("EXPIRED", "REGISTERED"));
  EXPECT_EQ(store_->Describe(MakeInstance("orders", "2").key())->history(0).detail(),
            "its session was not renewed within the TTL");
}

TEST_F(OfflineTest, TheHistoryIsBounded) {
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(store_.Register("", MakeInstance("orders", "1", 80 + i % 2)).ok());
  }
  ASSERT_TRUE(store_.Register("", MakeInstance("orders", "2")).ok());
  EXPECT_THAT(History("1"), SizeIs(5000));
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(store_.Register("", MakeInstance("orders", "2", 80 + (i + 1) % 2)).ok());
  }
  const size_t left = History("1").size() + History("2").size();
  EXPECT_EQ(left, 8192u);
  EXPECT_EQ(History("2").back(), "REGISTERED");
}

}  // namespace
}  // namespace failback
