// The eviction guard of a StoreRegistry: what it holds back, who is notified, and when it lets go.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/event_order.h"
#include "tests/registry/message_listener.h"
#include "tests/registry/store/harness.h"

namespace failback {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

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

TEST_F(GuardTest, FewLossesAreAccepted) {
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
  Live(store, absl::Seconds(60), 5);
  EXPECT_THAT(store.Ids(), SizeIs(20)) << "not one of them is ended";
  EXPECT_EQ(store->Stats().leases.held, 5);
  EXPECT_EQ(store->Stats().leases.holds, 5);
  EXPECT_TRUE(store.KeepAlive(sessions_[0]).ok());
  EXPECT_EQ(store->Stats().leases.held, 4) << "one that renews is let go at once";
  Live(store, absl::Seconds(60), 0);  // they renew
  EXPECT_THAT(store.Ids(), SizeIs(20));
  EXPECT_EQ(store->Stats().leases.held, 0);
  Live(store, absl::Seconds(30), 1);
  EXPECT_THAT(store.Ids(), SizeIs(19)) << "one alone is accepted again";
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

TEST_F(GuardTest, WhatIsHeldIsMarkedAndEndsWhenItIsReleased) {
  StoreHarness store;
  Open(store, 20);
  Live(store, absl::Seconds(30), 10);
  const auto held = [&] {
    int count = 0;
    const auto listed = CallAndWait<ListResponse>(*store, &Registry::List, ListRequest());
    for (const InstanceRecord& record : listed->records()) count += record.held() ? 1 : 0;
    return count;
  };
  EXPECT_EQ(held(), 10);
  EXPECT_TRUE(store->Describe(MakeInstance("orders", "3").key())->instance().record().held());
  EXPECT_FALSE(store->Describe(MakeInstance("orders", "13").key())->instance().record().held());
  EXPECT_EQ(store->ReleaseHeldSessions(), 10);
  EXPECT_THAT(store.Ids(), SizeIs(10));
  EXPECT_EQ(held(), 0);
}

// Each of the ways in which a session that was held ends is distinguished, with the operator's
// name.
TEST_F(GuardTest, HistoryAndLogSayWhyAHeldSessionEnded) {
  struct Case {
    std::string log;
    admin::v1::EndCause cause;
    std::string by;
    std::string detail;  // what follows the TTL
    std::function<void(StoreHarness&)> end;
  };
  const std::string held = "; the eviction guard held it until ";
  const Case cases[] = {
      {"longest hold", admin::v1::END_CAUSE_LONGEST_HOLD, "", held + "its longest hold was over",
       [&](StoreHarness& store) { Live(store, absl::Seconds(100), 10); }},
      {"hold over", admin::v1::END_CAUSE_HOLD_OVER, "", held + "few enough sessions were missing",
       [&](StoreHarness& store) {
         // Six of the ten come back, and one closes.
         for (int i = 4; i < 10; ++i) EXPECT_TRUE(store.KeepAlive(sessions_[i]).ok());
         EXPECT_TRUE(store.CloseSession(sessions_[1]).ok());
         EXPECT_TRUE(store.CloseSession(sessions_[2]).ok());
         Live(store, absl::Seconds(5), 4);
       }},
      {"released", admin::v1::END_CAUSE_RELEASED, "alice@host by fleet",
       held + "it was released by alice@host by fleet",
       [&](StoreHarness& store) { store->ReleaseHeldSessions("alice@host by fleet"); }},
      {"guard off", admin::v1::END_CAUSE_GUARD_OFF, "bob", held + "that was switched off by bob",
       [&](StoreHarness& store) { store->SetEvictionGuard(false, "bob"); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.log);
    sessions_.clear();
    seconds_ = 0;
    std::vector<LogFields> lines;
    SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string& event, const LogFields& fields) {
      if (event == "sessions expired") lines.push_back(fields);
    });
    const absl::Cleanup reset = [] { SetLogSink(LogLevel::kWarning, nullptr); };
    StoreHarness store;
    Open(store, 20);
    Live(store, absl::Seconds(30), 0);
    Live(store, absl::Seconds(30), 10);
    ASSERT_EQ(store->Stats().leases.held, 10);
    ASSERT_THAT(lines, IsEmpty());
    one.end(store);
    const auto described = store->Describe(MakeInstance("orders", "0").key());
    ASSERT_TRUE(described.ok()) << described.status();
    ASSERT_FALSE(described->has_instance());
    const admin::v1::InstanceChange& change = described->history(0);
    EXPECT_EQ(change.kind(), admin::v1::CHANGE_KIND_EXPIRED);
    EXPECT_EQ(change.by(), "client of incarnation-0") << "whose it was";
    EXPECT_EQ(change.cause(), one.cause);
    EXPECT_EQ(change.ended_by(), one.by);
    EXPECT_EQ(change.detail(), "its session was not renewed within the TTL" + one.detail);
    ASSERT_THAT(lines, Not(IsEmpty()));
    for (const LogFields& line : lines) {
      EXPECT_THAT(line, Contains(Pair("cause", one.log)));
      if (one.by.empty()) continue;
      EXPECT_THAT(line, Contains(Pair("by", one.by)));
    }
  }
}

// What one subscriber receives.
class Receiver final : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    EXPECT_EQ(CheckOrder(&order_, *event), absl::OkStatus());
    last = *event;
    ++messages;
  }
  void OnEnd(const absl::Status& status) override { ADD_FAILURE() << status; }

  SubscribeResponse last;
  int messages = 0;

 private:
  EventOrder order_;
};

TEST_F(GuardTest, FollowersAreNotifiedThatSessionsAreHeldAndWhenTheyAreNot) {
  StoreHarness store;
  Open(store, 20);
  ASSERT_TRUE(store.Register("", MakeInstance("payments", "1")).ok());
  const auto follow = [&](const std::string& service, const std::string& zone) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    if (!zone.empty()) request.mutable_selector()->add_zones(zone);
    auto receiver = std::make_shared<Receiver>();
    auto stream = store->Subscribe(request, receiver);
    return std::pair(receiver, std::move(stream));
  };
  const auto orders = follow("orders", "");
  const auto filtered = follow("orders", "elsewhere");
  const auto payments = follow("payments", "");
  Live(store, absl::Seconds(30), 0);
  EXPECT_EQ(orders.first->messages, 1);
  EXPECT_FALSE(orders.first->last.held());
  Live(store, absl::Seconds(30), 10);
  ASSERT_EQ(store->Stats().leases.held, 10);
  for (const auto& receiver : {orders.first, filtered.first}) {
    EXPECT_EQ(receiver->messages, 2) << "once for the set, however many are held";
    EXPECT_TRUE(receiver->last.held());
    EXPECT_FALSE(receiver->last.has_delta() || receiver->last.has_snapshot());
  }
  EXPECT_EQ(payments.first->messages, 1) << "nobody of theirs is held";
  const auto newcomer = follow("orders", "");
  EXPECT_TRUE(newcomer.first->last.has_snapshot());
  EXPECT_TRUE(newcomer.first->last.held());
  ASSERT_TRUE(store.Register("", MakeInstance("orders", "new")).ok());
  EXPECT_TRUE(orders.first->last.has_delta());
  EXPECT_TRUE(orders.first->last.held());

  store->ReleaseHeldSessions();
  store.clock().Advance(absl::Seconds(2));
  EXPECT_THAT(store.Ids(), SizeIs(12));
  for (const auto& receiver : {orders.first, filtered.first, newcomer.first}) {
    EXPECT_FALSE(receiver->last.held());
    EXPECT_FALSE(receiver->last.has_delta() || receiver->last.has_snapshot());
  }
  const int messages = orders.first->messages;
  Live(store, absl::Seconds(30), 10);
  EXPECT_EQ(orders.first->messages, messages);
}

TEST_F(GuardTest, WhoComesWhileAnotherTakesItsSnapshotGetsWhatIsHeldNow) {
  class Slow final : public NotifyListener {
   public:
    void OnEvent(const EventPtr&) override {
      if (meanwhile != nullptr) std::exchange(meanwhile, nullptr)();
    }
    void OnEnd(const absl::Status& status) override { ADD_FAILURE() << status; }

    std::function<void()> meanwhile;
  };
  StoreHarness store;
  Open(store, 20);
  Live(store, absl::Seconds(30), 0);
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  const auto slow = std::make_shared<Slow>();
  const auto late = std::make_shared<Receiver>();
  std::unique_ptr<SubscribeStream> late_stream;
  slow->meanwhile = [&] {
    Live(store, absl::Seconds(30), 10);
    ASSERT_EQ(store->Stats().leases.held, 10);
    late_stream = store->Subscribe(request, late);
  };
  const auto stream = store->Subscribe(request, slow);
  EXPECT_TRUE(late->last.has_snapshot());
  EXPECT_TRUE(late->last.held());
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

}  // namespace
}  // namespace failback
