// What stands around the rules of the failback core: waiting for an acknowledgement, the operator's
// view, listings.

#include <set>
#include <string>

#include "registry/failback/merged_pages.h"
#include "registry/model/validation.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACCEPTED;
using registry::v1::INTENT_STATE_ACKNOWLEDGED;

using FailbackOperatorTest = FailbackTest;

// --- wait_for.

TEST_F(FailbackOperatorTest, WaitForAcknowledgedOutlivesAnOutage) {
  GoAway();
  Start();
  RegisterRequest request = MakeRegister({MakeInstance("a"), MakeInstance("b")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto answer = Register(request);
  Advance(absl::Minutes(10));
  EXPECT_FALSE(answer.done());
  Back();
  Advance(absl::Seconds(2));
  ASSERT_TRUE(answer.done());
  EXPECT_TRUE(answer.item(0).ok());
  EXPECT_EQ(answer.get()->results(1).state(), INTENT_STATE_ACKNOWLEDGED);
}

TEST_F(FailbackOperatorTest, WaitForWhatIsAlreadyAcknowledgedAnswersAtOnce) {
  Start();
  Register("a");
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(Register(request).get()->results(0).state(), INTENT_STATE_ACKNOWLEDGED);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

// --- The operator.

TEST_F(FailbackOperatorTest, PendingRowsTellEverything) {
  options_.retry.retry_times = 5;
  options_.retry.retry_period = absl::Seconds(5);
  Start();
  fake_->registers.Answer(absl::InternalError("broken"));
  Advance(absl::Milliseconds(100));
  Register("a");
  fake_->unregisters.Hold();
  Unregister("b");
  Advance(absl::Seconds(1));
  const auto rows = registry_->Pending();
  ASSERT_EQ(rows.size(), 2);
  const auto& row = rows[0];
  EXPECT_EQ(row.id(), "register default/orders/a");
  EXPECT_EQ(row.kind(), agent::v1::OPERATION_KIND_REGISTER);
  EXPECT_EQ(row.key().instance_id(), "a");
  EXPECT_EQ(row.generation(), 1);
  EXPECT_EQ(row.state(), agent::v1::PENDING_STATE_WAITING);
  EXPECT_EQ(row.times(), 1);
  EXPECT_EQ(row.retry_times(), 5);
  EXPECT_EQ(row.since().seconds(), 1700000000);
  EXPECT_EQ(row.since().nanos(), 100000000);
  EXPECT_EQ(row.next_attempt().seconds(), 1700000005);
  EXPECT_EQ(row.next_attempt().nanos(), 100000000);
  EXPECT_EQ(StatusFromProto(row.last_status()).message(), "broken");
  EXPECT_EQ(row.upstream(), "grpc://fake");
  EXPECT_EQ(rows[1].id(), "unregister default/orders/b");
  EXPECT_EQ(rows[1].state(), agent::v1::PENDING_STATE_IN_FLIGHT);
  EXPECT_EQ(rows[1].times(), 0);
  EXPECT_FALSE(rows[1].has_last_status());
}

// The renewals of a session may go through a stream that was opened with another token.
TEST_F(FailbackOperatorTest, CallsThatAreNotLetInAreToldThoughTheSessionLives) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::UnauthenticatedError("not known"); });
  Register("a");
  agent::v1::UpstreamStatus status = registry_->UpstreamStatus();
  EXPECT_EQ(status.state(), agent::v1::UPSTREAM_STATE_READY);
  EXPECT_TRUE(status.refused());
  EXPECT_NE(status.last_error().message().find("not known; the registry refuses this agent"),
            std::string::npos)
      << status.last_error().message();
  Advance(absl::Seconds(10));
  EXPECT_TRUE(registry_->UpstreamStatus().refused()) << "renewals go on";
  fake_->registers.AnswerWith([](const auto&) { return RegisterResponse(); });
  Register("b");
  status = registry_->UpstreamStatus();
  EXPECT_FALSE(status.refused());
  EXPECT_FALSE(status.has_last_error());
}

TEST_F(FailbackOperatorTest, RetryNamesAnUnknownIdAndDoesNothing) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  const auto result = registry_->Retry({"register default/orders/a", "register default/orders/x"});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(result.status().message().find("register default/orders/x"), std::string::npos);
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackOperatorTest, RetryDoesNotWait) {
  Start();
  fake_->registers.Answer(absl::InternalError("no"));
  Register("a");
  EXPECT_EQ(*registry_->Retry({"register default/orders/a"}), 1);
  EXPECT_EQ(fake_->registers.request_count(), 2);
  Advance(absl::Seconds(60));
  EXPECT_EQ(fake_->registers.request_count(), 2) << "the timeout on the wheel was cancelled";
}

TEST_F(FailbackOperatorTest, CancelGivesUpUntilANewIntent) {
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Register("a");
  int64_t sent = 0;
  EXPECT_EQ(*registry_->Cancel({"register default/orders/a"}, &sent), 1);
  EXPECT_EQ(sent, 0) << "its attempt has ended";
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(registry_->Cancel({"register default/orders/a"}).status().code(),
            absl::StatusCode::kNotFound);
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Minutes(1));
  EXPECT_EQ(fake_->registers.request_count(), 1) << "not even a resync tries it again";
  Register("a");
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackOperatorTest, WhatWasCancelledIsNotListed) {
  Start();
  GoAway();
  Advance(absl::Seconds(5));
  Register("a");
  Register("b");
  ASSERT_EQ(*registry_->Cancel({"register default/orders/a"}), 1);
  Answer<ListResponse> listed;
  registry_->List(ListRequest(), listed.Catch());
  ASSERT_TRUE(listed.get().ok()) << listed.get().status();
  ASSERT_EQ(listed.get()->records_size(), 1);
  EXPECT_EQ(listed.get()->records(0).instance().key().instance_id(), "b");
}

TEST_F(FailbackOperatorTest, CancelLetsACallInFlightFinishAndKeepsItTheOnlyOne) {
  Start();
  fake_->registers.Hold();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  const auto waiting = Register(request);
  int64_t sent = 0;
  EXPECT_EQ(*registry_->Cancel({}, &sent), 1);
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(waiting.item().code(), absl::StatusCode::kCancelled);
  Register("a", 2);
  EXPECT_EQ(fake_->registers.held_count(), 1) << "two calls of one key in flight";
  fake_->registers.Release();
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().port(), 2);
  EXPECT_EQ(registry_->UpstreamStatus().acknowledged(), 1);
}

TEST_F(FailbackOperatorTest, WhatWasCancelledInFlightStaysSoHoweverThatEnds) {
  Start();
  uint32_t port = 0;
  for (const absl::Status& end :
       {absl::UnavailableError("busy"), absl::InternalError("no"),
        Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "a later incarnation holds it",
                {{"rank", "9"}, {"generation", "1"}})}) {
    fake_->registers.Hold();
    Register("a", ++port);
    ASSERT_EQ(*registry_->Cancel({}), 1);
    ASSERT_TRUE(fake_->registers.Complete(end));
    fake_->registers.Release();
    EXPECT_EQ(registry_->Pending().size(), 0) << end;
    CheckInvariants();
    Advance(absl::Minutes(1));
    EXPECT_EQ(fake_->registers.request_count(), port) << end;
  }
}

// --- List.

TEST_F(FailbackOperatorTest, ListAsksTheRegistryAndAnswersFromMemoryWhileThatIsAway) {
  Start();
  Register("a");
  ListResponse there;
  *there.add_records()->mutable_instance() = MakeInstance("elsewhere");
  fake_->lists.Answer(there);
  Answer<ListResponse> answer;
  registry_->List(ListRequest(), answer.Catch());
  EXPECT_EQ(answer.get()->records_size(), 1);
  EXPECT_FALSE(answer.get()->stale());

  GoAway();
  Advance(absl::Seconds(5));
  Register("b");
  Unregister("a");
  Answer<ListResponse> known;
  registry_->List(ListRequest(), known.Catch());
  ASSERT_EQ(known.get()->records_size(), 1);
  EXPECT_TRUE(known.get()->stale());
  EXPECT_EQ(known.get()->records(0).instance().key().instance_id(), "b");
  EXPECT_EQ(known.get()->records(0).state(), INTENT_STATE_ACCEPTED);
  EXPECT_EQ(known.get()->records(0).incarnation(), "inc");
}

TEST_F(FailbackOperatorTest, ListFromMemoryPages) {
  GoAway();
  Start();
  for (int i = 0; i < 25; ++i) Register(absl::StrCat("i", i));
  ListRequest request;
  request.set_page_size(10);
  std::set<std::string> seen;
  for (int page = 0; page < 3; ++page) {
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    ASSERT_TRUE(answer.get().ok());
    for (const auto& record : answer.get()->records()) {
      EXPECT_TRUE(seen.insert(record.instance().key().instance_id()).second);
    }
    request.set_page_token(answer.get()->next_page_token());
  }
  EXPECT_EQ(seen.size(), 25);
  EXPECT_EQ(request.page_token(), "");
}

TEST_F(FailbackOperatorTest, ListFromMemory_BoundsThePageAsTheStoreDoes) {
  GoAway();
  Start();
  for (int i = 0; i <= kMaxPageSize; ++i) Register(absl::StrCat("i", i));
  for (const int page_size : {0, kMaxPageSize + 1}) {
    ListRequest request;
    request.set_page_size(page_size);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    ASSERT_TRUE(answer.get().ok());
    EXPECT_EQ(answer.get()->records_size(), kMaxPageSize);
    EXPECT_NE(answer.get()->next_page_token(), "");
  }
  // Large ones: the bytes end the page.
  for (int i = 0; i < 200; ++i) {
    ServiceInstance instance = MakeInstance(absl::StrCat("a", i));
    for (int entry = 0; entry < 15; ++entry) {
      (*instance.mutable_metadata())[absl::StrCat("key", entry)] = std::string(1000, 'x');
    }
    Register(MakeRegister({instance}));
  }
  Answer<ListResponse> answer;
  registry_->List(ListRequest(), answer.Catch());
  ASSERT_TRUE(answer.get().ok());
  EXPECT_LE(answer.get()->ByteSizeLong(), kPageBytes + (64 << 10));
  EXPECT_LT(answer.get()->records_size(), 200);
  EXPECT_NE(answer.get()->next_page_token(), "");
}

TEST_F(FailbackOperatorTest, ListFromMemory_RefusesATokenThatIsNoPlace) {
  GoAway();
  Start();
  Register("a");
  for (const char* token : {"$", "bm8ga2V5"}) {  // not base64; "no key"
    ListRequest request;
    request.set_page_token(token);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    EXPECT_EQ(answer.get().status().message(), "page_token: is not a token of an earlier page");
  }
}

}  // namespace
}  // namespace failback
