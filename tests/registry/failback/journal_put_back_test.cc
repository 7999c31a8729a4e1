// An agent whose journal was put back to an earlier moment, at a registry that knows better.

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/validation.h"
#include "registry/store/store_registry.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class JournalPutBackTest : public ::testing::Test {
 protected:
  JournalPutBackTest() {
    SetLogSink(LogLevel::kWarning, [this](LogLevel, const std::string& event, const LogFields& f) {
      log_ += FormatLogLine(event, f) + "\n";
    });
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer_ = HashedWheelTimer::Create(timer).value();
    StoreRegistry::Options store;
    store.timer = timer_.get();
    store.commit_inline = true;
    store_ = StoreRegistry::Open(store).value();
    world_.target = [this] { return store_.get(); };
    world_.timer = timer_.get();
    world_.random = &random_;
    options_.upstream_name = "registry";
    options_.timer = timer_.get();
    options_.state_dir = dir_.File("state");
    options_.manual_journal = true;
    options_.session_ttl = absl::Seconds(10);
    Start();
  }
  ~JournalPutBackTest() override {
    Kill();
    SetLogSink(LogLevel::kWarning, nullptr);
  }

  void Start() {
    registry_ = FailbackRegistry::Create(std::make_unique<FaultyLink>(&world_), options_).value();
    Advance(absl::Seconds(1));
  }
  void Kill() {
    if (registry_ == nullptr) return;
    EXPECT_EQ(FailbackRegistryPeer::CheckInvariants(*registry_), "");
    incarnation_ = registry_->incarnation();
    registry_.reset();
  }
  void Save() {
    std::filesystem::remove_all(dir_.File("saved"));
    std::filesystem::copy(dir_.File("state"), dir_.File("saved"));
  }
  void PutBack() {
    std::filesystem::remove_all(dir_.File("state"));
    std::filesystem::copy(dir_.File("saved"), dir_.File("state"));
  }
  // A life that has registered these is not in the journal of the next one.
  void PutBackBefore(const std::vector<std::string>& ids) {
    Kill();
    Save();
    Start();
    for (const std::string& id : ids) Register(id);
    Kill();
    PutBack();
    Start();
    Advance(absl::Seconds(5));
  }
  void Advance(absl::Duration time) { clock_.Advance(time); }

  void Register(const std::string& id, uint32_t port = 8080) {
    registry_->Register(MakeRegister({MakeInstance(id, port)}),
                        [](const absl::StatusOr<RegisterResponse>& response) {
                          EXPECT_TRUE(response.ok()) << response.status();
                        });
    Advance(absl::Seconds(1));
  }
  void Unregister(const std::string& id) {
    registry_->Unregister(MakeUnregister(id), [](const absl::StatusOr<UnregisterResponse>& done) {
      EXPECT_TRUE(done.ok()) << done.status();
    });
    Advance(absl::Seconds(1));
  }

  // The agent's session, as another process of its incarnation gets it.
  std::string SessionAtTheRegistry(const std::string& incarnation) {
    OpenSessionRequest open;
    open.set_incarnation(incarnation);
    open.mutable_ttl()->set_seconds(10);
    std::string session_id;
    store_->OpenSession(open, [&](const absl::StatusOr<OpenSessionResponse>& opened) {
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_TRUE(opened->resumed());
      session_id = opened->session_id();
    });
    return session_id;
  }
  // What a life that is in no journal has stated.
  void StateAtTheRegistry(const std::string& id, uint32_t port, uint64_t generation) {
    RegisterRequest request = MakeRegister({MakeInstance(id, port)});
    request.set_session_id(SessionAtTheRegistry(incarnation_));
    request.mutable_registrations(0)->set_generation(generation);
    store_->Register(request, [](const absl::StatusOr<RegisterResponse>& response) {
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(response->results(0).status().code(), 0) << response->ShortDebugString();
    });
  }
  void EndSessionAtTheRegistry() {
    CloseSessionRequest close;
    close.set_session_id(SessionAtTheRegistry(registry_->incarnation()));
    store_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>& closed) {
      EXPECT_TRUE(closed.ok()) << closed.status();
    });
  }

  // What the registry holds: ports by id.
  std::map<std::string, uint32_t> Held() {
    std::map<std::string, uint32_t> held;
    store_->List({}, [&](const absl::StatusOr<ListResponse>& response) {
      ASSERT_TRUE(response.ok()) << response.status();
      for (const InstanceRecord& record : response->records()) {
        held[record.instance().key().instance_id()] = record.instance().port();
      }
    });
    return held;
  }
  // Ids of what is parked.
  std::vector<std::string> Parked() {
    std::vector<std::string> ids;
    for (const auto& operation : registry_->Pending()) {
      if (operation.state() != agent::v1::PENDING_STATE_PARKED) continue;
      EXPECT_THAT(operation.last_status().message(), HasSubstr("the journal was put back"));
      ids.push_back(operation.key().instance_id());
    }
    return ids;
  }

  TempDir dir_;
  std::string log_;
  std::string incarnation_;  // of the last life
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::mt19937 random_{1};
  LinkWorld world_;
  FailbackRegistry::Options options_;
  std::unique_ptr<FailbackRegistry> registry_;
};

TEST_F(JournalPutBackTest, TheRegistrysWordHolds) {
  Register("kept");
  Register("gone");
  Register("changed", 1);
  Kill();
  Save();
  Start();
  Unregister("gone");
  Register("changed", 2);
  Register("later");
  ASSERT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("kept", 8080), Pair("later", 8080)));
  Kill();
  PutBack();
  Start();
  Advance(absl::Seconds(3));
  EXPECT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("kept", 8080), Pair("later", 8080)))
      << "neither is the unregistered one back, nor has the old payload won";
  EXPECT_THAT(Parked(), ElementsAre("gone", "later"));
  EXPECT_THAT(log_, HasSubstr("the intent journal is not as it was last"));
  EXPECT_THAT(log_, HasSubstr("newer_at_the_registry=1 parked=1 only_at_the_registry=1"));

  // What the journal does not know lives on, and is shown.
  Advance(absl::Minutes(3));
  EXPECT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("kept", 8080), Pair("later", 8080)));
  // The next life is in doubt as long as something is.
  Kill();
  Start();
  Advance(absl::Minutes(3));
  EXPECT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("kept", 8080), Pair("later", 8080)));
  EXPECT_THAT(Parked(), ElementsAre("gone", "later"));
  Unregister("later");
  EXPECT_THAT(Parked(), ElementsAre("gone"));
  EXPECT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("kept", 8080)));
  Register("gone");
  EXPECT_THAT(Parked(), ElementsAre());
  Kill();
  log_.clear();
  Start();
  EXPECT_EQ(log_, "");
  EXPECT_THAT(Held(), ElementsAre(Pair("changed", 2), Pair("gone", 8080), Pair("kept", 8080)));
}

TEST_F(JournalPutBackTest, WhatTheJournalDoesNotKnowIsForItsOwnerOrAnOperatorToSay) {
  Kill();
  Save();
  Start();
  for (const char* id : {"cancelled", "ended", "owned", "retried"}) Register(id);
  const auto four = ElementsAre("cancelled", "ended", "owned", "retried");
  Kill();
  PutBack();
  for (int life = 0; life < 2; ++life) {
    Start();
    Advance(absl::Seconds(3));
    EXPECT_THAT(Parked(), four) << "an empty journal, too, is in doubt, in life " << life;
    Advance(absl::Minutes(3));
    EXPECT_EQ(Held().size(), 4);
    if (life == 0) Kill();
  }
  Register("owned", 2);
  EXPECT_EQ(registry_->Retry({"register default/orders/retried"}).value_or(-1), 1);
  EXPECT_EQ(registry_->Cancel({"register default/orders/cancelled"}).value_or(-1), 1);
  Unregister("ended");
  Advance(absl::Minutes(3));
  EXPECT_THAT(Parked(), ElementsAre());
  const auto three = ElementsAre(Pair("cancelled", 8080), Pair("owned", 2), Pair("retried", 8080));
  EXPECT_THAT(Held(), three);
  Kill();
  log_.clear();
  Start();
  Advance(absl::Minutes(3));
  EXPECT_EQ(log_, "") << "nothing is in doubt any more";
  EXPECT_THAT(Held(), three);
  // What has gone with its session is not brought back.
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
}

TEST_F(JournalPutBackTest, WhatTheRegistryNoLongerHoldsIsNotKept) {
  PutBackBefore({"later"});
  ASSERT_THAT(Parked(), ElementsAre("later"));
  UnregisterRequest by_hand = MakeUnregister("later");
  store_->Unregister(by_hand, [](const absl::StatusOr<UnregisterResponse>&) {});
  Advance(absl::Minutes(3));
  EXPECT_THAT(Held(), ElementsAre());
  EXPECT_THAT(Parked(), ElementsAre());
}

// The agent was stopped for longer than its session's TTL. No hand has removed the instance.
TEST_F(JournalPutBackTest, WhatGoesWithTheAgentsOwnSessionIsShownAndSaidToBeGone) {
  PutBackBefore({"cancelled", "retried"});
  ASSERT_THAT(Parked(), ElementsAre("cancelled", "retried"));
  EXPECT_THAT(registry_->Pending()[0].last_status().message(), HasSubstr("is left there"));
  world_.down = true;
  Advance(absl::Minutes(5));
  ASSERT_THAT(Held(), ElementsAre());
  world_.down = false;
  for (int life = 0; life < 2; ++life) {
    Advance(absl::Minutes(1));
    EXPECT_THAT(Held(), ElementsAre()) << "a reconnect sends nothing that is in doubt";
    EXPECT_THAT(Parked(), ElementsAre("cancelled", "retried")) << "in life " << life;
    for (const auto& operation : registry_->Pending()) {
      EXPECT_THAT(operation.last_status().message(),
                  HasSubstr(life == 0 ? "does not hold it any more" : "holds no such instance"));
    }
    if (life > 0) break;
    Kill();
    Start();
  }
  EXPECT_EQ(registry_->Retry({"register default/orders/retried"}).value_or(-1), 1);
  EXPECT_EQ(registry_->Cancel({"register default/orders/cancelled"}).value_or(-1), 1);
  Advance(absl::Minutes(1));
  EXPECT_THAT(Parked(), ElementsAre());
  EXPECT_THAT(Held(), ElementsAre(Pair("retried", 8080)));
  Kill();
  Start();
  EXPECT_THAT(Parked(), ElementsAre());
  EXPECT_THAT(Held(), ElementsAre(Pair("retried", 8080)));
}

// A comparison may come before the agent has learned that its session is over: that the instance is
// not there does not say that a hand has removed it.
TEST_F(JournalPutBackTest, WhatIsMissedBeforeTheSessionsEndIsKnownIsNotForgotten) {
  options_.anti_entropy_interval = absl::Milliseconds(500);
  options_.random = [] { return 0.5; };
  std::vector<std::string> ids;
  for (int offset_ms = 0; offset_ms < 4000; offset_ms += 300) {
    SCOPED_TRACE(offset_ms);
    ids.push_back(absl::StrCat("later-", 10000 + offset_ms));
    PutBackBefore({ids.back()});
    ASSERT_THAT(Parked(), ElementsAreArray(ids));
    ASSERT_THAT(Held(), ElementsAre(Pair(ids.back(), 8080)));
    // The first comparison waits for a predecessor's clients, a TTL long.
    Advance(absl::Seconds(15) + absl::Milliseconds(offset_ms));
    EndSessionAtTheRegistry();
    ASSERT_THAT(Held(), ElementsAre());
    Advance(absl::Seconds(10));
    ASSERT_THAT(Parked(), ElementsAreArray(ids));
    EXPECT_THAT(registry_->Pending().back().last_status().message(),
                HasSubstr("the session that it was in has ended"));
  }
}

// An unregister of the journal's is carried out while the registry is asked, whose answer still has
// the instance.
TEST_F(JournalPutBackTest, WhatIsUnregisteredWhileTheRegistryIsAskedIsNotTakenForUnknown) {
  Register("doubted");
  Kill();
  Save();
  Start();
  Unregister("doubted");
  Register("owed");
  Register("since");
  Kill();
  PutBack();
  Start();
  Advance(absl::Seconds(5));
  ASSERT_THAT(Parked(), ElementsAre("doubted", "owed", "since"));
  Register("owed", 2);
  Register("since", 2);
  EXPECT_THAT(Parked(), ElementsAre("doubted"));
  world_.down = true;
  Advance(absl::Seconds(2));
  registry_->Unregister(MakeUnregister("owed"), [](const absl::StatusOr<UnregisterResponse>&) {});
  Kill();
  world_.down = false;
  world_.lists_late = absl::Seconds(3);
  Start();
  Unregister("since");
  ASSERT_THAT(Held(), ElementsAre()) << "both have arrived";
  Advance(absl::Seconds(5));
  EXPECT_THAT(Parked(), ElementsAre("doubted"));
  Advance(absl::Minutes(3));
  EXPECT_THAT(Parked(), ElementsAre("doubted"));
  EXPECT_THAT(Held(), ElementsAre());
}

// The registry was put back, too: what it has again is in no doubt, in this life as in the next.
TEST_F(JournalPutBackTest, WhatTheRegistryHasAgainGoesOn) {
  Register("again");
  Kill();
  Save();
  Start();
  Unregister("again");
  Kill();
  PutBack();
  Start();
  Advance(absl::Seconds(5));
  ASSERT_THAT(Parked(), ElementsAre("again"));
  EXPECT_THAT(registry_->Pending()[0].last_status().message(),
              HasSubstr("the registry holds no such instance of this agent"));
  incarnation_ = registry_->incarnation();
  StateAtTheRegistry("again", 8080, 100);
  Advance(absl::Minutes(3));
  EXPECT_THAT(Parked(), ElementsAre());
  EXPECT_THAT(Held(), ElementsAre(Pair("again", 8080)));
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
}

// However far the life that is not in the journal has counted.
TEST_F(JournalPutBackTest, NewNumbersBeginAboveThoseThatTheRegistryLists) {
  constexpr uint64_t kFar = 5000000;
  Register("known", 1);
  Kill();
  Save();
  StateAtTheRegistry("known", 2, kFar);
  StateAtTheRegistry("unknown", 2, kFar + 1);
  PutBack();
  Start();
  Advance(absl::Seconds(3));
  EXPECT_THAT(Parked(), ElementsAre("unknown"));
  Register("unknown", 3);
  EXPECT_THAT(Held(), ElementsAre(Pair("known", 2), Pair("unknown", 3)));
  const FailbackStatistics::ByCode registers =
      registry_->Stats().counters.attempts[static_cast<size_t>(OperationKind::kRegister)];
  EXPECT_EQ(registers[static_cast<size_t>(absl::StatusCode::kFailedPrecondition)], 0)
      << "no number was refused as an old one";
  EXPECT_GE(registers[static_cast<size_t>(absl::StatusCode::kOk)], 2);
}

// While something of it is parked, and that may be for weeks, the agent lives as ever: what it
// accepts holds at the next start, whether the registry has it then or not.
TEST_F(JournalPutBackTest, WhatIsStatedSinceIsInNoDoubt) {
  for (const char* id : {"cancelled", "parked", "retried", "unregistered"}) Register(id);
  Kill();
  Save();
  PutBack();
  Advance(absl::Minutes(5));  // its session is over
  Start();
  Advance(absl::Seconds(5));
  ASSERT_THAT(Parked(), ElementsAre("cancelled", "parked", "retried", "unregistered"));
  Register("since", 1);
  Unregister("unregistered");
  EXPECT_EQ(registry_->Retry({"register default/orders/retried"}).value_or(-1), 1);
  EXPECT_EQ(registry_->Cancel({"register default/orders/cancelled"}).value_or(-1), 1);
  Advance(absl::Seconds(5));
  for (int life = 0; life < 3; ++life) {
    SCOPED_TRACE(life);
    EXPECT_THAT(Parked(), ElementsAre("parked"));
    EXPECT_THAT(Held(), ElementsAre(Pair("retried", 8080), Pair("since", 1)));
    Kill();
    Advance(absl::Minutes(5));
    ASSERT_THAT(Held(), ElementsAre()) << "its session is over";
    Start();
    Advance(absl::Seconds(5));
  }
  Unregister("parked");
  Kill();
  log_.clear();
  Start();
  EXPECT_EQ(log_, "");
  EXPECT_THAT(Held(), ElementsAre(Pair("retried", 8080), Pair("since", 1)));
}

// What the registry has confirmed in one life is as what is stated in it.
TEST_F(JournalPutBackTest, WhatTheRegistryHasConfirmedIsInNoDoubt) {
  Register("held");
  Register("parked");
  Kill();
  Save();
  Start();
  Unregister("parked");
  Kill();
  PutBack();
  Start();
  Advance(absl::Seconds(5));
  EXPECT_THAT(Held(), ElementsAre(Pair("held", 8080)));
  EXPECT_THAT(Parked(), ElementsAre("parked"));
  Kill();
  Advance(absl::Minutes(5));  // its session is over
  Start();
  Advance(absl::Seconds(5));
  EXPECT_THAT(Held(), ElementsAre(Pair("held", 8080)));
  EXPECT_THAT(Parked(), ElementsAre("parked"));
}

// A drain ends what the registry holds, and decides nothing of what is in doubt.
TEST_F(JournalPutBackTest, ADrainDecidesNothing) {
  Register("parked");
  Kill();
  Save();
  Start();
  Unregister("parked");
  Register("later");
  Kill();
  PutBack();
  Start();
  Advance(absl::Seconds(5));
  ASSERT_THAT(Parked(), ElementsAre("later", "parked"));
  Register("since");
  for (int life = 0; life < 2; ++life) {
    SCOPED_TRACE(life);
    registry_->Drain(absl::Seconds(5), [](const absl::StatusOr<agent::v1::DrainResponse>& drained) {
      ASSERT_TRUE(drained.ok()) << drained.status();
      EXPECT_EQ(drained->remaining(), 0);
    });
    Advance(absl::Seconds(5));
    ASSERT_THAT(Held(), ElementsAre());
    Kill();
    Start();
    Advance(absl::Seconds(5));
    EXPECT_THAT(Held(), ElementsAre(Pair("since", 8080)));
    EXPECT_THAT(Parked(), ElementsAre("later", "parked"));
  }
  // What may have been unregistered is not among all.
  EXPECT_EQ(registry_->Retry({}).value_or(-1), 0);
  EXPECT_THAT(Parked(), ElementsAre("later", "parked"));
}

// Not even when the process is gone for longer than its session lives.
TEST_F(JournalPutBackTest, WhatIsLeftThereIsNotForgotten) {
  PutBackBefore({"later"});
  ASSERT_THAT(Parked(), ElementsAre("later"));
  Kill();
  Start();
  Advance(absl::Seconds(5));
  ASSERT_THAT(Parked(), ElementsAre("later"));
  EXPECT_THAT(registry_->Pending()[0].last_status().message(), HasSubstr("is left there"));
  Kill();
  Advance(absl::Minutes(5));
  ASSERT_THAT(Held(), ElementsAre());
  world_.down = true;
  Start();
  Advance(absl::Seconds(5));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_THAT(registry_->Pending()[0].last_status().message(),
              HasSubstr("waits until the registry"));
  world_.down = false;
  Advance(absl::Minutes(1));
  EXPECT_THAT(Parked(), ElementsAre("later"));
  EXPECT_THAT(registry_->Pending()[0].last_status().message(), HasSubstr("does not hold"));
}

// Above it no number is valid: not for the registry, nor in the journal of the next run.
TEST_F(JournalPutBackTest, NewNumbersAreNotAboveTheHighestThatTheRegistryLists) {
  Kill();
  Save();
  StateAtTheRegistry("last", 2, kMaxGeneration);
  PutBack();
  Start();
  Advance(absl::Seconds(3));
  EXPECT_THAT(Parked(), ElementsAre("last"));
  Register("new", 3);
  EXPECT_THAT(Held(), ElementsAre(Pair("last", 2), Pair("new", 3)));
  Kill();
  Start();
  EXPECT_THAT(log_, Not(HasSubstr("left out")));
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
}

TEST_F(JournalPutBackTest, WhatIsStatedAfterwardsWins) {
  Register("a", 1);
  Kill();
  Save();
  Start();
  for (uint32_t port = 2; port < 10; ++port) Register("a", port);
  Register("b", 1);
  Kill();
  PutBack();
  world_.down = true;
  Start();
  Register("a", 100);
  Unregister("b");
  world_.down = false;
  Advance(absl::Seconds(10));
  EXPECT_THAT(Held(), ElementsAre(Pair("a", 100)));
  EXPECT_THAT(Parked(), ElementsAre());
}

TEST_F(JournalPutBackTest, WhatNobodyKnowsIsForAnOperatorToSay) {
  Register("a");
  Register("b");
  Kill();
  Save();
  PutBack();
  Advance(absl::Minutes(5));  // its session is over
  ASSERT_THAT(Held(), ElementsAre());
  Start();
  Advance(absl::Seconds(5));
  EXPECT_THAT(Held(), ElementsAre());
  EXPECT_THAT(Parked(), ElementsAre("a", "b"));
  for (const auto& operation : registry_->Pending()) {
    const bool retry = operation.key().instance_id() == "a";
    const auto done =
        retry ? registry_->Retry({operation.id()}) : registry_->Cancel({operation.id()});
    EXPECT_EQ(done.value_or(-1), 1) << done.status();
  }
  Advance(absl::Seconds(5));
  EXPECT_THAT(Held(), ElementsAre(Pair("a", 8080)));
  EXPECT_THAT(Parked(), ElementsAre());
}

}  // namespace
}  // namespace failback
