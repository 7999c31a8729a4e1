// Writes of the front doors, over a real store: sessions per instance, renewals, turns.

#include "gateway/door/door_sessions.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/store/store_registry.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_NOT_FOUND;
using registry::v1::ERROR_REASON_SUPERSEDED;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Answer = absl::StatusOr<LiveInstance>;

class DoorSessionsTest : public ::testing::Test {
 protected:
  DoorSessionsTest() {
    StoreRegistry::Options options;
    options.uri = "memory:";
    options.timer = timer_.get();
    options.commit_inline = true;
    store_ = StoreRegistry::Open(options).value();
    sessions_ = std::make_unique<DoorSessions>(store_.get(), nullptr,
                                               DoorSessions::Options{timer_.get(), "http"});
  }

  Answer Put(const ServiceInstance& instance, absl::Duration ttl) {
    std::optional<Answer> answer;
    sessions_->Put(Identity(), {instance, ttl}, [&](Answer got) { answer = std::move(got); });
    return Now(std::move(answer));
  }
  Answer Renew(const std::string& id) {
    std::optional<Answer> answer;
    sessions_->Renew(Identity(), MakeInstance(id).key(), absl::ZeroDuration(),
                     [&](Answer got) { answer = std::move(got); });
    return Now(std::move(answer));
  }
  Answer Remove(const std::string& id) {
    std::optional<Answer> answer;
    sessions_->Remove(Identity(), MakeInstance(id).key(), registry::v1::INTENT_STATE_UNSPECIFIED,
                      [&](Answer got) { answer = std::move(got); });
    return Now(std::move(answer));
  }
  std::vector<InstanceRecord> Listed() {
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    std::vector<InstanceRecord> records;
    store_->List(request, [&](absl::StatusOr<ListResponse> response) {
      ASSERT_TRUE(response.ok()) << response.status();
      records.assign(response->records().begin(), response->records().end());
    });
    return records;
  }
  // What another client does, in a session of its own.
  void RegisterAsAnother(const std::string& id) {
    OpenSessionRequest open;
    open.set_incarnation("another");
    open.mutable_ttl()->set_seconds(3600);
    RegisterRequest call;
    store_->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> session) {
      ASSERT_TRUE(session.ok()) << session.status();
      call.set_session_id(session->session_id());
    });
    *call.add_registrations()->mutable_instance() = MakeInstance(id, 9999);
    store_->Register(call, [](absl::StatusOr<RegisterResponse> response) {
      ASSERT_TRUE(response.ok()) << response.status();
      ASSERT_EQ(response->results(0).status().code(), 0) << response->DebugString();
    });
  }

  static Answer Now(std::optional<Answer> answer) {
    return answer.has_value() ? *std::move(answer) : absl::InternalError("not answered at once");
  }

  SimulatedClock clock_;
  const std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<DoorSessions> sessions_;
};

TEST_F(DoorSessionsTest, WithoutATtlItIsPersistent) {
  const Answer put = Put(MakeInstance("1"), absl::ZeroDuration());
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->ttl, absl::ZeroDuration());
  EXPECT_EQ(put->state, registry::v1::INTENT_STATE_ACKNOWLEDGED);
  clock_.Advance(absl::Hours(48));
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_TRUE(Listed()[0].instance().persistent());
  EXPECT_EQ(ReasonOf(Renew("1").status()), ERROR_REASON_NOT_FOUND);
  EXPECT_TRUE(Remove("1").ok());
  EXPECT_TRUE(Remove("1").ok()) << "one that is not there";
  EXPECT_TRUE(Listed().empty());
}

TEST_F(DoorSessionsTest, WithATtlItLivesOnRenewals) {
  const Answer put = Put(MakeInstance("1"), absl::Seconds(30));
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->ttl, absl::Seconds(30));
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_EQ(Listed()[0].incarnation(), "http:default/orders/1");
  EXPECT_EQ(Listed()[0].client_name(), "http anonymous");
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(25));
    EXPECT_TRUE(Renew("1").ok());
  }
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(25));
    EXPECT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  }
  EXPECT_EQ(Listed().size(), 1u);
  EXPECT_EQ(sessions_->live(), 1);
  clock_.Advance(absl::Seconds(40));
  EXPECT_TRUE(Listed().empty());
  EXPECT_EQ(ReasonOf(Renew("1").status()), ERROR_REASON_NOT_FOUND);
  EXPECT_TRUE(Listed().empty()) << "late, it has not brought it back";
  EXPECT_EQ(sessions_->live(), 0);
  EXPECT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(sessions_->live(), 0) << "forgotten, though it was not asked for";
  EXPECT_EQ(ReasonOf(Renew("1").status()), ERROR_REASON_NOT_FOUND);
  EXPECT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok()) << "it may come back";
  EXPECT_EQ(Listed().size(), 1u);
}

// The registry gives every session its time again, and so it is here.
TEST_F(DoorSessionsTest, ARenewalAfterAPauseIsInTime) {
  ASSERT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  clock_.Jump(absl::Seconds(45));
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_TRUE(Renew("1").ok());
  EXPECT_EQ(Listed().size(), 1u);
}

TEST_F(DoorSessionsTest, ARenewalBringsBackWhatAnOperatorRemoved) {
  ASSERT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  UnregisterRequest call;
  *call.add_deregistrations()->mutable_key() = MakeInstance("1").key();
  store_->Unregister(
      call, [](const absl::StatusOr<UnregisterResponse>& response) { ASSERT_TRUE(response.ok()); });
  ASSERT_TRUE(Listed().empty());
  EXPECT_TRUE(Renew("1").ok());
  EXPECT_EQ(Listed().size(), 1u);
}

TEST_F(DoorSessionsTest, ALaterClientSupersedesAndARenewalSaysSo) {
  ASSERT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  RegisterAsAnother("1");
  EXPECT_EQ(ReasonOf(Renew("1").status()), ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonOf(Put(MakeInstance("1"), absl::Seconds(30)).status()), ERROR_REASON_SUPERSEDED);
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_EQ(Listed()[0].instance().port(), 9999u);
}

TEST_F(DoorSessionsTest, RemovedAndPutAgain) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
    EXPECT_EQ(Listed().size(), 1u);
    ASSERT_TRUE(Remove("1").ok());
    EXPECT_TRUE(Listed().empty());
    EXPECT_EQ(store_->Stats().sessions, 0) << "the session takes no place";
  }
}

TEST_F(DoorSessionsTest, FromATtlToPersistentAndBack) {
  ASSERT_TRUE(Put(MakeInstance("1"), absl::Seconds(30)).ok());
  ASSERT_TRUE(Put(MakeInstance("1", 81), absl::ZeroDuration()).ok());
  EXPECT_EQ(store_->Stats().sessions, 0);
  clock_.Advance(absl::Minutes(5));
  ASSERT_EQ(Listed().size(), 1u);
  EXPECT_EQ(Listed()[0].instance().port(), 81u);
  ASSERT_TRUE(Put(MakeInstance("1", 82), absl::Seconds(30)).ok());
  EXPECT_FALSE(Listed()[0].instance().persistent());
  clock_.Advance(absl::Minutes(5));
  EXPECT_TRUE(Listed().empty());
}

TEST_F(DoorSessionsTest, WhatIsWrongIsNamedAndLeavesNothing) {
  const Answer port = Put(MakeInstance("1", 70000), absl::Seconds(30));
  EXPECT_EQ(port.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(port.status().message()), HasSubstr("port: 70000"));
  ServiceInstance both = MakeInstance("1");
  both.set_persistent(true);
  EXPECT_THAT(std::string(Put(both, absl::Seconds(30)).status().message()),
              HasSubstr("persistent"));
  EXPECT_FALSE(Renew("").ok());
  EXPECT_FALSE(Remove(std::string(1000, 'x')).ok());
  EXPECT_EQ(store_->Stats().sessions, 0);
  EXPECT_EQ(sessions_->live(), 0);
}

// Over a link that takes its time, so that writes of one key meet.
class DoorTurnsTest : public DoorSessionsTest {
 protected:
  DoorTurnsTest() {
    world_.target = [this] { return store_.get(); };
    world_.timer = timer_.get();
    world_.random = &random_;
    world_.max_calls_in_flight = 1000;
    sessions_ = std::make_unique<DoorSessions>(&link_, nullptr,
                                               DoorSessions::Options{timer_.get(), "http"});
  }

  // What is said of the answer: its order among all.
  Callback<LiveInstance> Noting(const std::string& what) {
    return [this, what](const Answer& answer) {
      answers_.push_back(what + (answer.ok() ? "" : ": " + std::string(answer.status().message())));
    };
  }

  LinkWorld world_;
  std::mt19937 random_{1};
  FaultyLink link_{&world_};
  std::vector<std::string> answers_;
};

TEST_F(DoorTurnsTest, WritesOfAKeyTakeTurns) {
  for (int round = 0; round < 20; ++round) {
    answers_.clear();
    const InstanceKey key = MakeInstance("1").key();
    sessions_->Put(Identity(), {MakeInstance("1", 80), absl::Seconds(30)}, Noting("put"));
    sessions_->Remove(Identity(), key, registry::v1::INTENT_STATE_UNSPECIFIED, Noting("remove"));
    sessions_->Put(Identity(), {MakeInstance("1", 81), absl::Seconds(30)}, Noting("again"));
    sessions_->Renew(Identity(), key, absl::ZeroDuration(), Noting("renew"));
    clock_.Advance(absl::Seconds(2));
    EXPECT_THAT(answers_, ElementsAre("put", "remove", "again", "renew"));
    EXPECT_EQ(world_.violation, "");
    ASSERT_EQ(Listed().size(), 1u) << "the remove has not taken the later put along";
    EXPECT_EQ(Listed()[0].instance().port(), 81u);
    EXPECT_EQ(sessions_->live(), 1);
  }
}

TEST_F(DoorTurnsTest, WhoWaitsForAKeyIsBounded) {
  for (size_t i = 0; i < DoorSessions::kMostWaiting + 2; ++i) {
    sessions_->Put(Identity(), {MakeInstance("1", 80), absl::ZeroDuration()}, Noting("put"));
  }
  ASSERT_THAT(answers_, ElementsAre(HasSubstr("writes of this instance wait already")));
  sessions_->Put(Identity(), {MakeInstance("2", 80), absl::ZeroDuration()}, Noting("other"));
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(answers_.size(), DoorSessions::kMostWaiting + 3);
  EXPECT_THAT(answers_, Contains("other"));
  EXPECT_EQ(Listed().size(), 2u);
}

TEST(DoorIncarnationTest, IsTheDoorAndTheKeyAndNeverTooLong) {
  EXPECT_EQ(DoorIncarnation("eureka", MakeInstance("1").key()), "eureka:default/orders/1");
  const InstanceKey one = MakeInstance(std::string(253, 'x') + "1").key();
  const InstanceKey other = MakeInstance(std::string(253, 'x') + "2").key();
  EXPECT_EQ(DoorIncarnation("http", one).size(), 128u);
  EXPECT_NE(DoorIncarnation("http", one), DoorIncarnation("http", other));
  EXPECT_NE(DoorIncarnation("http", one), DoorIncarnation("consul", one));
}

}  // namespace
}  // namespace failback
