// The core on its journal (rules 11, 12 and 15): what another life of the process finds.

#include <sqlite3.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "retry/mutex.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/util/process.h"

namespace failback {
namespace {

class FailbackJournalTest : public FailbackTest {
 protected:
  FailbackJournalTest() {
    options_.incarnation.clear();
    options_.state_dir = dir_.File("state");
    options_.manual_journal = true;
  }
  // As after kill -9: the process is gone, and nothing was told to the registry.
  void Restart() {
    End();
    Start();
  }
  // The registry is unavailable when the next process starts.
  void RestartAway() {
    End();
    GoAway();
    Start();
  }
  void End() {
    registry_.reset();
    auto fake = std::make_unique<FakeRegistry>();
    fake_ = fake.get();
    upstream_ = std::move(fake);
  }
  // The registry answers, and still has the session of the process before.
  void BackResumed() {
    Back();
    fake_->opens.AnswerWith([](const auto&) {
      OpenSessionResponse response = Opened("session-1");
      response.set_resumed(true);
      return response;
    });
  }
  TempDir dir_;
};

TEST_F(FailbackJournalTest, Rule11_IntentsSurviveUnregistersIncluded) {
  GoAway();
  Start();
  Register("a", 1);
  Register("a", 2);
  Register("b");
  Unregister("b");
  Unregister("c");
  const std::string incarnation = registry_->incarnation();
  Restart();
  EXPECT_EQ(registry_->incarnation(), incarnation);
  EXPECT_EQ(fake_->opens.last_request().incarnation(), incarnation);
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 2);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations_size(), 2);
  Register("d");
  EXPECT_GT(fake_->registers.last_request().registrations(0).generation(), 5) << "numbers go on";
}

// The journal keeps no times: `since` is of this process.
TEST_F(FailbackJournalTest, Rule11_SinceBeginsAnewWithTheProcess) {
  const auto refuse = [](const auto&) { return absl::InvalidArgumentError("never"); };
  fake_->registers.AnswerWith(refuse);
  Start();
  const absl::Time submitted = clock_.WallNow();
  Register("a");
  Advance(absl::Hours(1));
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  EXPECT_EQ(FromProto(registry_->Pending()[0].since()), submitted);
  registry_.reset();
  auto fake = std::make_unique<FakeRegistry>();
  fake_ = fake.get();
  fake_->registers.AnswerWith(refuse);
  upstream_ = std::move(fake);
  Start();
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].state(), agent::v1::PENDING_STATE_PARKED);
  EXPECT_EQ(FromProto(registry_->Pending()[0].since()), clock_.WallNow());
}

TEST_F(FailbackJournalTest, Rule11_WhatIsDoneIsForgotten) {
  Start();
  Register("a");
  Unregister("a");
  Restart();
  EXPECT_EQ(fake_->registers.request_count(), 0);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  Register("a");
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 3);
}

TEST_F(FailbackJournalTest, Rule11_AcceptedAndSentOnlyWhenWritten) {
  options_.manual_journal = false;
  Start();
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((options_.state_dir + "/journal.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  Mutex mu;
  CondVar changed;
  std::optional<absl::Status> answer;
  registry_->Register(MakeRegister({MakeInstance("a")}),
                      [&](const absl::StatusOr<RegisterResponse>& response) {
                        MutexLock lock(&mu);
                        answer = StatusFromProto(response->results(0).status());
                        changed.SignalAll();
                      });
  {
    MutexLock lock(&mu);
    while (!answer.has_value()) ASSERT_TRUE(changed.WaitFor(&mu, absl::Seconds(30)) || answer);
    EXPECT_EQ(ReasonOf(*answer), registry::v1::ERROR_REASON_STORE_READ_ONLY)
        << "the caller knows that it would not survive: " << *answer;
    EXPECT_NE(answer->message().find("sent to the registry all the same"), std::string::npos)
        << *answer;
  }
  EXPECT_TRUE(fake_->registers.WaitForRequests(1)) << "and the registry is told all the same";
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
}

// The caller does as it was told, and states the same once more.
TEST_F(FailbackJournalTest, Rule11_NorIsTheSameIntentAcceptedWhileItIsNotWritten) {
  Start();
  Register("a");
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((options_.state_dir + "/journal.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  GoAway();
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(ReasonOf(Unregister("a").item()), registry::v1::ERROR_REASON_STORE_READ_ONLY)
        << "attempt " << attempt;
  }
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(Unregister("a").item(), absl::OkStatus());
  Restart();
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "what was accepted is owed";
}

TEST_F(FailbackJournalTest, WhatWasCancelledStaysCancelledInTheNextLives) {
  options_.anti_entropy_interval = absl::Seconds(60);
  std::vector<ServiceInstance> held = {MakeInstance("there")};
  const auto listing = [&held](const ListRequest&) -> absl::StatusOr<ListResponse> {
    ListResponse response;
    response.set_epoch(1);
    for (const auto& instance : held) *response.add_records()->mutable_instance() = instance;
    return response;
  };
  fake_->lists.AnswerWith(listing);
  Start();
  Register("there");
  GoAway();
  Unregister("there");
  Register("never");
  EXPECT_EQ(*registry_->Cancel({}), 2);
  absl::Status durable = absl::UnknownError("no answer");
  registry_->WhenDurable([&](const absl::Status& status) { durable = status; });
  EXPECT_EQ(durable, absl::OkStatus());
  EXPECT_EQ(EventNames().back().substr(0, 9), "cancelled");
  for (int life = 0; life < 3; ++life) {
    Restart();
    fake_->lists.AnswerWith(listing);
    EXPECT_EQ(registry_->Pending().size(), 0);
    Advance(absl::Minutes(5));
    EXPECT_GT(fake_->lists.request_count(), 3);
    EXPECT_EQ(fake_->unregisters.request_count(), 0);
    EXPECT_EQ(fake_->registers.request_count(), 0);
    EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
    CheckInvariants();
  }
  // A new intent is one.
  Unregister("there");
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  held.clear();
  Advance(absl::Minutes(3));
  Restart();
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

// The call in flight comes through, so that the same intent stated again needs nothing.
TEST_F(FailbackJournalTest, WhatWasCancelledAndAcknowledgedAllTheSameIsAnIntentInTheNextLife) {
  Start();
  fake_->registers.Hold();
  Register("a");
  EXPECT_EQ(*registry_->Cancel({}), 1);
  ASSERT_FALSE(events_.empty());
  EXPECT_EQ(events_.back().kind, IntentEvent::Kind::kCancelled);
  EXPECT_EQ(events_.back().status,
            absl::CancelledError("it had been sent, and may still take effect"));
  std::string log;
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    log += FormatLogLine(event, fields);
  });
  fake_->registers.Release();
  SetLogSink(LogLevel::kWarning, nullptr);
  EXPECT_NE(log.find("a cancelled intent has taken effect"), std::string::npos) << log;
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
  EXPECT_EQ(Register("a").item(), absl::OkStatus());
  EXPECT_EQ(fake_->registers.request_count(), 1);
  Restart();
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 1);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackJournalTest, WhatWasCancelledIsForgottenWhenTheRegistryDoesNotHoldIt) {
  options_.anti_entropy_interval = absl::Seconds(60);
  options_.max_records = 1;
  Start();
  GoAway();
  Advance(absl::Seconds(5));
  Register("a");
  EXPECT_EQ(*registry_->Cancel({}), 1);
  EXPECT_EQ(ReasonOf(Register("b").item()), registry::v1::ERROR_REASON_LIMIT_REACHED);
  Back("session-1");
  Advance(absl::Minutes(3));
  EXPECT_EQ(Register("b").item(), absl::OkStatus());
}

TEST_F(FailbackJournalTest, ACancelIsNotDurableWhileTheJournalCannotBeWritten) {
  GoAway();
  Start();
  Register("a");
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((options_.state_dir + "/journal.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(*registry_->Cancel({}), 1);
  absl::Status durable;
  registry_->WhenDurable([&](const absl::Status& status) { durable = status; });
  EXPECT_EQ(ReasonOf(durable), registry::v1::ERROR_REASON_STORE_READ_ONLY);
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  registry_->WhenDurable([&](const absl::Status& status) { durable = status; });
  EXPECT_EQ(durable, absl::OkStatus());
}

// A local session that closes takes back what it stated: that is an intent too.
TEST_F(FailbackJournalTest, Rule11_AClosedSessionIsAnsweredWhenWritten) {
  options_.manual_journal = false;
  options_.on_event = nullptr;  // other threads would tell it
  Start();
  const auto wait = [](std::future<absl::Status> answer) {
    if (answer.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return answer.get();
    return absl::DeadlineExceededError("no answer");
  };
  const auto promise = [] { return std::make_shared<std::promise<absl::Status>>(); };
  OpenSessionRequest open;
  open.set_incarnation("app");
  std::string session_id;
  const auto opened = promise();
  registry_->OpenSession(open, [&, opened](const absl::StatusOr<OpenSessionResponse>& response) {
    if (response.ok()) session_id = response->session_id();
    opened->set_value(response.status());
  });
  ASSERT_EQ(wait(opened->get_future()), absl::OkStatus());
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session_id);
  const auto registered = promise();
  registry_->Register(request, [registered](const absl::StatusOr<RegisterResponse>& response) {
    registered->set_value(response.status());
  });
  ASSERT_EQ(wait(registered->get_future()), absl::OkStatus());
  const auto close = [&](const std::string& id) {
    CloseSessionRequest closing;
    closing.set_session_id(id);
    const auto closed = promise();
    registry_->CloseSession(closing,
                            [closed](const absl::StatusOr<CloseSessionResponse>& response) {
                              closed->set_value(response.status());
                            });
    return wait(closed->get_future());
  };

  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((options_.state_dir + "/journal.db").c_str(), &other), SQLITE_OK);
  sqlite3_busy_timeout(other, 30000);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  const absl::Status closed = close(session_id);
  EXPECT_EQ(ReasonOf(closed), registry::v1::ERROR_REASON_STORE_READ_ONLY)
      << "the caller knows that it would not survive: " << closed;
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(close("nobody"), absl::OkStatus());
}

TEST_F(FailbackJournalTest, Rule11_NothingIsSentBeforeItIsWritten) {
  options_.manual_journal = false;
  // So that newer intents find theirs still queued.
  options_.max_calls_in_flight = 1;
  options_.max_batch = 1;
  Start();
  std::atomic<int> early{0}, sent{0};
  fake_->registers.AnswerWith([&](const RegisterRequest& request) {
    RegisterResponse response;
    for (const auto& registration : request.registrations()) {
      // What another process would find now.
      sqlite3* db = nullptr;
      EXPECT_EQ(sqlite3_open((options_.state_dir + "/journal.db").c_str(), &db), SQLITE_OK);
      sqlite3_stmt* statement = nullptr;
      sqlite3_prepare_v2(db, "SELECT 1 FROM intents WHERE key = ? AND generation >= ?", -1,
                         &statement, nullptr);
      const std::string key = CanonicalKey(registration.instance().key());
      sqlite3_bind_blob(statement, 1, key.data(), static_cast<int>(key.size()), SQLITE_STATIC);
      sqlite3_bind_int64(statement, 2, static_cast<int64_t>(registration.generation()));
      if (sqlite3_step(statement) != SQLITE_ROW) ++early;
      ++sent;
      sqlite3_finalize(statement);
      sqlite3_close(db);
      response.add_results();
    }
    return response;
  });
  std::atomic<int> waiting{0};
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (uint32_t i = 0; sent < 200 && absl::Now() < deadline; ++i) {
    RegisterRequest request = MakeRegister({MakeInstance(absl::StrCat("i", i % 5), 1 + i % 9999)});
    request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    ++waiting;
    registry_->Register(request, [&](const absl::StatusOr<RegisterResponse>&) { --waiting; });
  }
  while (waiting > 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(waiting, 0);
  EXPECT_GE(sent, 200);
  EXPECT_EQ(early, 0);
  registry_.reset();
}

TEST_F(FailbackJournalTest, Rule15_DestructionAnswersWhoWaitsForTheJournal) {
  options_.manual_journal = false;
  Start();
  constexpr int kCalls = 200;
  std::atomic<int> answered{0};
  for (int i = 0; i < kCalls; ++i) {
    registry_->Register(MakeRegister({MakeInstance(absl::StrCat("i", i))}),
                        [&](const absl::StatusOr<RegisterResponse>&) { ++answered; });
  }
  registry_.reset();
  EXPECT_EQ(answered, kCalls);
}

TEST_F(FailbackJournalTest, Rule11_ATombstoneForLocalClientsIsNotOwedAgain) {
  Start();
  const std::string session = OpenLocal("app");
  UnregisterRequest gone = MakeUnregister("a");
  gone.set_session_id(session);
  gone.mutable_deregistrations(0)->set_generation(2);
  EXPECT_TRUE(Unregister(gone).item().ok());
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  Restart();
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(FailbackJournalTest, Rule11_OwnedIntentsHaveAFullTtlToBeClaimed) {
  Start();
  const std::string session = OpenLocal("app", 10);
  RegisterRequest request = MakeRegister({MakeInstance("a"), MakeInstance("b")});
  request.set_session_id(session);
  Register(request);
  const std::string other = OpenLocal("dead", 10);
  RegisterRequest unclaimed = MakeRegister({MakeInstance("x")});
  unclaimed.set_session_id(other);
  Register(unclaimed);
  Restart();
  EXPECT_EQ(registry_->local_sessions(), 2);
  Advance(absl::Seconds(9));
  const std::string again = OpenLocal("app", 10);
  EXPECT_NE(again, "");
  Advance(absl::Seconds(2));
  EXPECT_EQ(registry_->local_sessions(), 1) << "nobody has claimed the other";
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).key().instance_id(), "x");
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
  Advance(absl::Seconds(9));
  EXPECT_EQ(registry_->UpstreamStatus().desired(), 0);
}

// Whoever comes first after a restart must not end what another program has registered.
TEST_F(FailbackJournalTest, Rule11_OnlyTheOwnerOfALocalSessionResumesItInTheNextLife) {
  Start();
  const auto open = [this](const std::string& incarnation, const std::string& owner) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.set_owner(owner);
    Answer<OpenSessionResponse> answer;
    registry_->OpenSession(request, answer.Catch());
    return answer.get();
  };
  for (const char* owner : {"shop", ""}) {
    RegisterRequest request = MakeRegister({MakeInstance(absl::StrCat("of-", owner))});
    request.set_session_id(open(absl::StrCat("app-", owner), owner)->session_id());
    Register(request);
  }
  for (int life = 0; life < 2; ++life) {
    Restart();
    for (const char* incarnation : {"app-shop", "app-"}) {
      EXPECT_EQ(ReasonOf(open(incarnation, "thief").status()),
                registry::v1::ERROR_REASON_SESSION_NOT_OWNED)
          << incarnation;
    }
    EXPECT_EQ(registry_->UpstreamStatus().desired(), 2);
    const auto resumed = open("app-shop", "shop");
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_TRUE(resumed->resumed());
    const auto unowned = open("app-", "");
    ASSERT_TRUE(unowned.ok()) << unowned.status();
    EXPECT_TRUE(unowned->resumed()) << "callers were not told apart";
  }
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

// Another caller has opened a session under this agent's name, and may keep it for ever.
TEST_F(FailbackJournalTest, AnIncarnationThatIsKeptForAnotherIsReplacedForGood) {
  for (const char* configured : {"", "pod-uid"}) {
    registry_.reset();
    options_.state_dir = dir_.File(absl::StrCat("state", configured));
    options_.incarnation = configured;
    std::string taken;
    const auto refuse =
        [&taken](const OpenSessionRequest& request) -> absl::StatusOr<OpenSessionResponse> {
      if (taken.empty()) taken = request.incarnation();
      if (request.incarnation() == taken) return SessionNotOwned();
      return Opened("session-2");
    };
    const auto start = [&] {
      auto fake = std::make_unique<FakeRegistry>();
      fake_ = fake.get();
      upstream_ = std::move(fake);
      fake_->opens.AnswerWith(refuse);
      Start();
    };
    start();
    Register("a");
    Advance(absl::Seconds(2));
    const std::string replacement = registry_->incarnation();
    EXPECT_NE(replacement, taken);
    EXPECT_EQ(fake_->opens.last_request().incarnation(), replacement);
    EXPECT_EQ(fake_->opens.last_request().rank(), 0);
    EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
    CheckInvariants();
    registry_.reset();
    start();
    EXPECT_EQ(registry_->incarnation(), replacement) << "also where the other one is configured";
    EXPECT_EQ(fake_->opens.request_count(), 1);
  }
}

TEST_F(FailbackJournalTest, Rule11_ACheckedIntentIsNotReplayed) {
  Start();
  Register("b", 1);
  fake_->registers.Hold();
  RegisterRequest fresh = MakeRegister({MakeInstance("a")});
  fresh.set_check(true);
  Register(fresh);
  Restart();
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations_size(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().key().instance_id(), "b");
  RegisterRequest update = MakeRegister({MakeInstance("b", 2)});
  update.set_check(true);
  EXPECT_TRUE(Register(update).item().ok());
  Restart();
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2)
      << "one that has passed is an intent as any other";
}

TEST_F(FailbackJournalTest, Rule11_ACheckedIntentIsNotReplayedWhoseSessionEnded) {
  Start();
  Register("a");
  const std::string session = OpenLocal("client");
  fake_->unregisters.Hold();
  UnregisterRequest gone = MakeUnregister("a");
  gone.set_session_id(session);
  gone.set_check(true);
  Unregister(gone);
  CloseSessionRequest close;
  close.set_session_id(session);
  registry_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  Restart();
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

// Its owner has gone while a checked intent stood in its place, and then the process.
TEST_F(FailbackJournalTest, Rule11_WhatACheckedIntentStoodInForDoesNotComeBackWithoutItsOwner) {
  Start();
  RegisterRequest owned = MakeRegister({MakeInstance("a", 1), MakeInstance("b", 1)});
  owned.mutable_registrations(1)->mutable_instance()->set_persistent(true);
  owned.set_session_id(OpenLocal("client"));
  Register(owned);
  fake_->registers.Hold();
  for (const char* id : {"a", "b"}) {
    RegisterRequest check = MakeRegister({MakeInstance(id, 2)});
    check.set_check(true);
    Register(check);
  }
  CloseSessionRequest close;
  close.set_session_id(owned.session_id());
  registry_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "another has taken the key over";
  CheckInvariants();
  const uint64_t sent = last_generation(fake_->registers.last_request());
  Restart();
  EXPECT_EQ(registry_->local_sessions(), 0);
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  const auto gone = fake_->unregisters.last_request().deregistrations(0);
  EXPECT_EQ(gone.key().instance_id(), "a");
  EXPECT_GT(gone.generation(), sent) << "the checked intent may have landed";
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations_size(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().key().instance_id(), "b")
      << "which is persistent, and needs no owner";
}

TEST_F(FailbackJournalTest, Rule11_WhatIsRestoredWhileTheRegistryIsAwayIsPending) {
  Start();
  Register("a");
  registry_.reset();
  auto fake = std::make_unique<FakeRegistry>();
  fake_ = fake.get();
  upstream_ = std::move(fake);
  GoAway();
  Start();
  CheckInvariants();
  Advance(absl::Seconds(1));
  CheckInvariants();
  ASSERT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->Pending()[0].last_status().code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(FailbackJournalTest, Rule11_APersistentInstanceIsNoLongerItsEndedSessionsInTheNextLife) {
  Start();
  RegisterRequest stays = MakeRegister({MakeInstance("a")});
  stays.mutable_registrations(0)->mutable_instance()->set_persistent(true);
  stays.set_session_id(OpenLocal("client"));
  Register(stays);
  CloseSessionRequest close;
  close.set_session_id(stays.session_id());
  registry_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  Restart();
  EXPECT_EQ(fake_->registers.request_count(), 1) << "it stays";
  EXPECT_EQ(registry_->local_sessions(), 0);
}

TEST_F(FailbackJournalTest, Rule12_DrainWritesNoTombstonesAndTheNextLifeRegistersAgain) {
  Start();
  Register("a");
  Register("b");
  GoAway();
  Unregister("b");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  Advance(absl::Seconds(2));
  EXPECT_TRUE(drained.done());
  Restart();
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().key().instance_id(), "a");
  ASSERT_EQ(fake_->unregisters.request_count(), 1) << "what the app itself unregistered stays owed";
  Answer<agent::v1::DrainResponse> again;
  registry_->Drain(absl::Seconds(1), again.Catch());
  EXPECT_EQ(again.get()->unregistered(), 1);
  Restart();
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
}

TEST_F(FailbackJournalTest, Rule12_WhatAnEarlierProcessRegisteredRemainsUntilItsSessionEnds) {
  Start();
  ServiceInstance stays = MakeInstance("d-p");
  stays.set_persistent(true);
  Register(MakeRegister({MakeInstance("d-1"), MakeInstance("d-5"), stays}));
  RestartAway();
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(2), drained.Catch());
  EXPECT_FALSE(drained.done()) << "the registry has not been asked";
  Advance(absl::Seconds(3));
  ASSERT_TRUE(drained.done());
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 2);
  EXPECT_EQ(drained.get()->persistent(), 1);
  EXPECT_EQ(fake_->closes.request_count(), 0);
  Answer<agent::v1::DrainResponse> again;
  registry_->Drain(absl::Minutes(1), again.Catch());
  BackResumed();
  Advance(absl::Seconds(5));
  EXPECT_EQ(fake_->registers.request_count(), 0);
  ASSERT_EQ(fake_->closes.request_count(), 1);
  EXPECT_EQ(fake_->closes.last_request().session_id(), "session-1");
  ASSERT_TRUE(again.done());
  EXPECT_EQ(again.get()->unregistered(), 2);
  EXPECT_EQ(again.get()->remaining(), 0);
  EXPECT_EQ(again.get()->persistent(), 1);
  Restart();
  EXPECT_EQ(fake_->registers.last_request().registrations_size(), 3) << "the journal keeps them";
}

TEST_F(FailbackJournalTest, Rule12_WhatWentWithTheSessionOfAnEarlierProcessCountsNowhere) {
  Start();
  Register("a");
  RestartAway();
  Back();
  fake_->registers.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Advance(absl::Seconds(5));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  EXPECT_EQ(drained.get()->unregistered(), 0);
  EXPECT_EQ(drained.get()->remaining(), 0);
}

TEST_F(FailbackJournalTest, Rule12_AnUnregisterThatADrainLeavesOwedIsCarriedOn) {
  Start();
  ServiceInstance stays = MakeInstance("stays");
  stays.set_persistent(true);
  Register(MakeRegister({stays, MakeInstance("goes")}));
  fake_->unregisters.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  Unregister("stays");
  Unregister("goes");
  Answer<agent::v1::DrainResponse> drained;
  registry_->Drain(absl::Seconds(1), drained.Catch());
  EXPECT_EQ(drained.get()->unregistered(), 1);
  EXPECT_EQ(drained.get()->remaining(), 1);
  Restart();
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  ASSERT_EQ(fake_->unregisters.last_request().deregistrations_size(), 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).key().instance_id(), "stays");
}

TEST_F(FailbackJournalTest, TheLastGoodSnapshotIsServedStaleAtOnce) {
  Start();
  auto stream = Subscribe(std::make_shared<RecordingListener>());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a"), MakeInstance("b")}));
  Advance(absl::Seconds(2));
  stream.reset();
  registry_.reset();
  auto fake = std::make_unique<FakeRegistry>();
  fake_ = fake.get();
  upstream_ = std::move(fake);
  GoAway();
  Start();
  auto listener = std::make_shared<RecordingListener>();
  auto again = Subscribe(listener);
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_TRUE(listener->events()[0]->stale());
  EXPECT_EQ(listener->events()[0]->snapshot().instances_size(), 2);
  Back();
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->subscriptions().back()->request().revision(), 5) << "it resumes there";
  fake_->subscriptions().back()->Push(DeltaEvent(5, 9, {}, {"a"}));
  ASSERT_EQ(listener->events().size(), 2);
  EXPECT_FALSE(listener->events()[1]->stale());
}

TEST_F(FailbackJournalTest, AStateDirectoryInUseIsAnErrorOfCreate) {
  Start();
  const auto second = FailbackRegistry::Create(std::make_unique<FakeRegistry>(), options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(options_.state_dir), std::string::npos);
}

TEST_F(FailbackJournalTest, DestructionFromTheJournalsOwnThread) {
  options_.manual_journal = false;
  Start();
  Mutex mu;
  CondVar changed;
  bool done = false;
  registry_->Register(MakeRegister({MakeInstance("a")}),
                      [&](const absl::StatusOr<RegisterResponse>& response) {
                        EXPECT_TRUE(response.ok());
                        registry_.reset();
                        MutexLock lock(&mu);
                        done = true;
                        changed.SignalAll();
                      });
  MutexLock lock(&mu);
  while (!done) ASSERT_TRUE(changed.WaitFor(&mu, absl::Seconds(30)) || done);
}

}  // namespace
}  // namespace failback
