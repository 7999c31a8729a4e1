// Rule 8 of the failback core: a session that is lost, an epoch that has changed, a connection that
// is back: everything is sent again.

#include <set>
#include <string>

#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

class FailbackResyncTest : public FailbackTest {};

TEST_F(FailbackResyncTest, Rule8_ALostSessionIsOpenedAnewAndEverythingIsSentAgain) {
  Start();
  Register("a");
  Register("b");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  const RegisterRequest sent = fake_->registers.last_request();
  EXPECT_EQ(sent.session_id(), "session-2");
  EXPECT_EQ(sent.registrations_size(), 2);
  EXPECT_EQ(fake_->opens.last_request().incarnation(), "inc");
}

TEST_F(FailbackResyncTest, Rule8_WhatALostSessionHadIsPendingAgain) {
  Start();
  Register("a");
  EXPECT_EQ(registry_->Pending().size(), 0);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.Hold();
  Advance(absl::Seconds(4));
  EXPECT_EQ(registry_->Pending().size(), 1);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 0);
  fake_->registers.Release();
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackResyncTest, Rule8_IsSentAgainInTheOrderInWhichItWasStated) {
  options_.max_calls_in_flight = 1;
  Start();
  std::vector<std::string> stated;
  for (int i = 0; i < 50; ++i) stated.push_back(absl::StrCat("i", i * 37 % 50));
  for (const std::string& id : stated) Register(id);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  fake_->registers.ClearRequests();
  Advance(absl::Seconds(4));
  std::vector<std::string> sent;
  for (const auto& request : fake_->registers.requests()) {
    for (const auto& r : request.registrations()) sent.push_back(r.instance().key().instance_id());
  }
  EXPECT_EQ(sent, stated);
}

TEST_F(FailbackResyncTest, Rule8_DeregistrationsAreSentAgainFirst) {
  options_.max_calls_in_flight = 1;
  Start();
  for (const char* id : {"a", "b", "c"}) Register(id);
  GoAway();
  Unregister("b");
  Advance(absl::Seconds(2));
  Back("session-2");
  std::vector<std::string> sent;
  fake_->registers.AnswerWith([&](const RegisterRequest& request) {
    RegisterResponse response;
    for (int i = 0; i < request.registrations_size(); ++i) response.add_results();
    sent.push_back("register");
    return response;
  });
  fake_->unregisters.AnswerWith([&](const UnregisterRequest&) {
    UnregisterResponse response;
    response.add_results();
    sent.push_back("unregister");
    return response;
  });
  Advance(absl::Seconds(2));
  EXPECT_EQ(sent, (std::vector<std::string>{"unregister", "register"}));
}

TEST_F(FailbackResyncTest, Rule8_SessionUnknownFromARegisterLeadsToAResync) {
  Start();
  Register("a");
  Back("session-2");
  fake_->registers.Answer(SessionUnknown());
  Register("b");
  Advance(absl::Seconds(2));
  std::set<std::string> sent;
  for (const auto& request : fake_->registers.requests()) {
    if (request.session_id() != "session-2") continue;
    for (const auto& r : request.registrations()) sent.insert(r.instance().key().instance_id());
  }
  EXPECT_EQ(sent, (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(registry_->Pending().size(), 0);
}

TEST_F(FailbackResyncTest, Rule8_AChangedEpochResyncs) {
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  fake_->keep_alives.AnswerWith([](const KeepAliveRequest& r) { return Renewed(r, 2); });
  Advance(absl::Seconds(4));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).generation(), 1)
      << "the same intent keeps its number";
}

TEST_F(FailbackResyncTest, Rule8_ConnectionBackAfterALossResyncs) {
  Back("session-1");
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  GoAway();
  Advance(absl::Seconds(4));
  Back("session-1");  // which has outlived the loss
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackResyncTest, Rule8_OneUnavailableAnswerIsNotALossOfTheConnection) {
  Start();
  Register("a");
  fake_->registers.ClearRequests();
  fake_->registers.AnswerWith([](const RegisterRequest& request) { return Away(); });
  Register("b");
  Advance(absl::Seconds(30));
  for (const auto& request : fake_->registers.requests()) {
    EXPECT_EQ(request.registrations(0).instance().key().instance_id(), "b")
        << "renewals succeed all the while: nothing was lost";
  }
  EXPECT_LT(fake_->registers.request_count(), 12);
  EXPECT_LT(fake_->keep_alives.request_count(), 30);
}

TEST_F(FailbackResyncTest, Rule8_AnAnswerFromBeforeTheLossDoesNotCount) {
  Start();
  fake_->registers.Hold();
  Register("a");
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  RegisterResponse ok;
  ok.add_results();
  fake_->registers.Complete(ok);  // answered in the session that is lost
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 0);
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().session_id(), "session-2");
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackResyncTest, Rule8_OutageCostsOneCallASecondAndNotOnePerRecord) {
  Start();
  for (int i = 0; i < 100; ++i) Register(absl::StrCat("i", i));
  GoAway();
  Advance(absl::Seconds(10));
  const auto all = [&] {
    return fake_->opens.request_count() + fake_->keep_alives.request_count() +
           fake_->registers.request_count();
  };
  const size_t before = all();
  for (int i = 100; i < 200; ++i) Register(absl::StrCat("i", i));
  Advance(absl::Seconds(30));
  const size_t calls = all() - before;
  EXPECT_GE(calls, 25);
  EXPECT_LE(calls, 45);
}

TEST_F(FailbackResyncTest, Rule8_ATombstoneIsNotSentAgain) {
  Start();
  LeaveTombstone("a");
  EXPECT_EQ(fake_->unregisters.request_count(), 1);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Seconds(4));
  EXPECT_EQ(fake_->opens.request_count(), 2);
  EXPECT_EQ(fake_->unregisters.request_count(), 1) << "the registry knows that it is gone";
  EXPECT_EQ(registry_->Pending().size(), 0);
}

}  // namespace
}  // namespace failback
