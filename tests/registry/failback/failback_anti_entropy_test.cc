// Rule 9, the slow comparison with the registry; and the token bucket of rule 10.

#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "retry/token_bucket.h"
#include "tests/registry/failback/failback_fixture.h"

namespace failback {
namespace {

class FailbackAntiEntropyTest : public FailbackTest {
 protected:
  FailbackAntiEntropyTest() {
    options_.anti_entropy_interval = absl::Seconds(60);  // with random_ = 0.5: exactly
    SetLogSink(LogLevel::kWarning, [this](LogLevel, const std::string& event, const LogFields& f) {
      log_ += FormatLogLine(event, f) + "\n";
    });
    fake_->lists.AnswerWith([this](const ListRequest& request) { return Listing(request); });
  }
  ~FailbackAntiEntropyTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  // What the registry claims to hold, in pages of two.
  absl::StatusOr<ListResponse> Listing(const ListRequest& request) {
    EXPECT_EQ(request.incarnation(), "inc");
    EXPECT_FALSE(request.has_selector());
    ListResponse response;
    response.set_epoch(epoch_);
    response.set_coverage(coverage_);
    for (const auto& instance : held_) {
      const std::string key = CanonicalKey(instance.key());
      if (!request.page_token().empty() && key <= request.page_token()) continue;
      if (response.records_size() == 2) {
        response.set_next_page_token(CanonicalKey(response.records(1).instance().key()));
        break;
      }
      *response.add_records()->mutable_instance() = instance;
    }
    return response;
  }

  // Up to the end of the comparison that follows the first session; the next comes in a minute.
  void StartAndCompare() {
    Start();
    Advance(absl::Seconds(4));
    fake_->lists.ClearRequests();
  }

  std::vector<ServiceInstance> held_;  // sorted by key
  uint64_t epoch_ = 1;
  registry::v1::ListCoverage coverage_ = registry::v1::LIST_COVERAGE_UNSPECIFIED;
  std::string log_;
};

TEST_F(FailbackAntiEntropyTest, Rule9_WhatIsEqualIsLeftAlone) {
  StartAndCompare();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")}));
  held_ = {MakeInstance("a"), MakeInstance("b"), MakeInstance("c")};
  Advance(absl::Minutes(10));
  EXPECT_EQ(fake_->lists.request_count(), 20) << "two pages a minute";
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(log_, "");
}

TEST_F(FailbackAntiEntropyTest, Rule9_AnOperatorsMarkIsNotRepaired) {
  StartAndCompare();
  // One that was read with a mark and registered again is kept without.
  ServiceInstance read = MakeInstance("b");
  read.mutable_offline()->set_reason("read");
  Register(MakeRegister({MakeInstance("a"), read}));
  EXPECT_FALSE(fake_->registers.last_request().registrations(1).instance().has_offline());
  held_ = {MakeInstance("a"), MakeInstance("b")};
  held_[0].mutable_offline()->set_reason("disk");
  Advance(absl::Minutes(10));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(log_, "");
}

// Killed and started again without a state directory, under the same incarnation.
TEST_F(FailbackAntiEntropyTest, Rule9_WhatAnEarlierProcessRegisteredHasATtlToBeClaimed) {
  fake_->opens.AnswerWith([](const OpenSessionRequest&) {
    OpenSessionResponse opened = Opened("session-1");
    opened.set_resumed(true);
    return opened;
  });
  held_ = {MakeInstance("claimed"), MakeInstance("left")};
  Start();
  Advance(absl::Seconds(12));
  EXPECT_EQ(fake_->unregisters.request_count(), 0) << "its owner may be on the way";
  Register("claimed");
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  const UnregisterRequest gone = fake_->unregisters.last_request();
  ASSERT_EQ(gone.deregistrations_size(), 1);
  EXPECT_EQ(gone.deregistrations(0).key().instance_id(), "left");
}

// What another process states under this incarnation is not this one's to remove.
TEST_F(FailbackAntiEntropyTest, Rule9_NothingIsComparedWhileAnotherProcessMayBeInTheSession) {
  Back("session-1");
  StartAndCompare();
  Register("a");
  held_ = {MakeInstance("a"), MakeInstance("another")};
  Advance(absl::Seconds(50));
  KeepAliveResponse contested = Renewed(fake_->keep_alives.last_request());
  contested.set_process(7);
  fake_->keep_alives.Answer(contested);
  Advance(absl::Seconds(16));
  EXPECT_EQ(fake_->lists.request_count(), 0) << "it was due 6 s ago";
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  Advance(absl::Seconds(20));  // no other has come back
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  const UnregisterRequest gone = fake_->unregisters.last_request();
  EXPECT_EQ(gone.deregistrations(0).key().instance_id(), "another");
}

TEST_F(FailbackAntiEntropyTest, Rule9_RepairsWhatIsMissingDifferentOrExtra) {
  StartAndCompare();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")}));
  held_ = {MakeInstance("a"), MakeInstance("c", 99), MakeInstance("x")};
  Advance(absl::Seconds(59));
  EXPECT_EQ(fake_->lists.request_count(), 0);
  Advance(absl::Seconds(1));
  ASSERT_EQ(fake_->registers.request_count(), 2);
  std::map<std::string, uint64_t> again;
  const RegisterRequest repair = fake_->registers.last_request();
  for (const auto& r : repair.registrations()) {
    again[r.instance().key().instance_id()] = r.generation();
  }
  EXPECT_EQ(again, (std::map<std::string, uint64_t>{{"b", 2}, {"c", 3}}))
      << "the same intents under their own numbers";
  ASSERT_EQ(fake_->unregisters.request_count(), 1);
  const auto gone = fake_->unregisters.last_request().deregistrations(0);
  EXPECT_EQ(gone.key().instance_id(), "x");
  EXPECT_EQ(gone.generation(), 4);
  EXPECT_NE(log_.find("missing=1 different=1 extra=1"), std::string::npos) << log_;
  EXPECT_EQ(registry_->Pending().size(), 0);
}

// A policy may hide what is there. What is listed compares as ever.
TEST_F(FailbackAntiEntropyTest, Rule9_WhatAPartialListingLacksIsNotMissing) {
  StartAndCompare();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")}));
  held_ = {MakeInstance("a"), MakeInstance("c", 99)};
  coverage_ = registry::v1::LIST_COVERAGE_PART;
  Advance(absl::Seconds(60));
  ASSERT_EQ(fake_->registers.request_count(), 2);
  ASSERT_EQ(fake_->registers.last_request().registrations_size(), 1);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().key().instance_id(), "c");
  EXPECT_NE(log_.find("missing=0 different=1 extra=0"), std::string::npos) << log_;
  // Nor does a listing that is refused say anything.
  fake_->lists.AnswerWith([](const ListRequest&) {
    return Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, "may not");
  });
  Advance(absl::Minutes(2));
  EXPECT_EQ(fake_->registers.request_count(), 2);
  // Where nothing is hidden, what is not listed is gone.
  fake_->lists.AnswerWith([this](const ListRequest& request) { return Listing(request); });
  held_ = {MakeInstance("a"), MakeInstance("c")};
  coverage_ = registry::v1::LIST_COVERAGE_WHOLE;
  Advance(absl::Minutes(1));
  ASSERT_EQ(fake_->registers.request_count(), 3);
  EXPECT_EQ(fake_->registers.last_request().registrations(0).instance().key().instance_id(), "b");
}

// The agent does not ask for what it has been told; that another process has removed it is the
// audit's to find.
TEST_F(FailbackAntiEntropyTest, Rule9_TheSameIntentAgainIsAnsweredAsKnownAndTheAuditRepairs) {
  StartAndCompare();
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  const auto acknowledged = [](const Answer<RegisterResponse>& answer) {
    return answer.done() && answer.get().ok() &&
           answer.get()->results(0).state() == registry::v1::INTENT_STATE_ACKNOWLEDGED;
  };
  EXPECT_TRUE(acknowledged(Register(request)));
  ASSERT_EQ(fake_->registers.request_count(), 1);
  held_ = {};
  EXPECT_TRUE(acknowledged(Register(request)));
  EXPECT_EQ(fake_->registers.request_count(), 1);
  Advance(absl::Seconds(75));
  EXPECT_EQ(fake_->registers.request_count(), 2);
}

TEST_F(FailbackAntiEntropyTest, Rule9_OnlyKeysThatAreIdleAndUnchangedSinceTheListingBegan) {
  StartAndCompare();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")}));
  fake_->lists.Hold();
  Advance(absl::Seconds(60));
  ASSERT_EQ(fake_->lists.held_count(), 1);
  Register("a", 2);  // changed since
  Unregister("b");   // gone since: the listing may still show it
  fake_->unregisters.Hold();
  Unregister("c");  // in flight
  held_ = {MakeInstance("a", 1)};
  const size_t registers = fake_->registers.request_count();
  fake_->lists.Release();
  EXPECT_EQ(fake_->registers.request_count(), registers);
  EXPECT_EQ(fake_->unregisters.request_count(), 2);
  EXPECT_EQ(log_, "");
}

TEST_F(FailbackAntiEntropyTest, Rule9_WhatComesBackOfATombstoneIsUnregisteredAgain) {
  StartAndCompare();
  Advance(absl::Seconds(30));
  LeaveTombstone("a");
  held_ = {MakeInstance("a")};  // put back by a concurrent writer
  Advance(absl::Seconds(30));
  ASSERT_EQ(fake_->unregisters.request_count(), 2);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).generation(), 3);
  EXPECT_NE(log_.find("missing=0 different=0 extra=1"), std::string::npos) << log_;
}

TEST_F(FailbackAntiEntropyTest, Rule9_NotBeforeWhatWasLostIsSentAgain) {
  StartAndCompare();
  Register("a");
  held_ = {MakeInstance("a")};
  fake_->registers.Hold();
  Back("session-2");
  fake_->keep_alives.Answer(SessionUnknown());
  Advance(absl::Minutes(3));
  EXPECT_EQ(fake_->lists.request_count(), 0);
  fake_->registers.Release();
  Advance(absl::Seconds(6));
  EXPECT_EQ(fake_->lists.request_count(), 1);
}

TEST_F(FailbackAntiEntropyTest, Rule9_WhatAnOperatorGaveUpIsNotRepaired) {
  StartAndCompare();
  Register("a");
  fake_->unregisters.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  Unregister("a");
  held_ = {MakeInstance("a")};
  EXPECT_EQ(*registry_->Cancel({}), 1);
  const size_t before = fake_->unregisters.request_count();
  Advance(absl::Minutes(10));
  EXPECT_EQ(fake_->unregisters.request_count(), before);
}

TEST_F(FailbackAntiEntropyTest, Rule9_AListingOfAnotherLifeComparesWithNothing) {
  StartAndCompare();
  Register(MakeRegister({MakeInstance("a"), MakeInstance("b"), MakeInstance("c")}));
  held_ = {MakeInstance("x"), MakeInstance("y"), MakeInstance("z")};
  fake_->lists.AnswerWith([this](const ListRequest& request) {
    auto response = Listing(request);
    ++epoch_;  // between the pages
    return response;
  });
  Advance(absl::Minutes(5));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  EXPECT_EQ(fake_->registers.request_count(), 1);
  fake_->lists.AnswerWith([this](const ListRequest& request) {
    auto response = Listing(request);
    response->set_stale(true);  // from an agent's memory
    return response;
  });
  Advance(absl::Minutes(5));
  EXPECT_EQ(fake_->unregisters.request_count(), 0);
  fake_->lists.AnswerWith([](const auto&) { return absl::UnimplementedError("no lists"); });
  Advance(absl::Minutes(5));
  EXPECT_GE(fake_->lists.request_count(), 15) << "tried on";
  EXPECT_EQ(fake_->registers.request_count(), 1);
}

TEST_F(FailbackAntiEntropyTest, Rule9_NotWhileTheRegistryIsAwayAndNotWhenSwitchedOff) {
  GoAway();
  Start();
  Advance(absl::Minutes(10));
  EXPECT_EQ(fake_->lists.request_count(), 0);
  options_.anti_entropy_interval = absl::ZeroDuration();
  auto off = std::make_unique<FakeRegistry>();
  FakeRegistry* const fake = off.get();
  auto registry = FailbackRegistry::Create(std::move(off), options_).value();
  Advance(absl::Hours(1));
  EXPECT_EQ(fake->lists.request_count(), 0);
}

TEST_F(FailbackAntiEntropyTest, Rule9_TheIntervalIsJittered) {
  random_ = 0.0;
  Start();
  Advance(absl::Seconds(2));  // the comparison after the first session
  fake_->lists.ClearRequests();
  Advance(absl::Milliseconds(44999));
  EXPECT_EQ(fake_->lists.request_count(), 0);
  random_ = 0.999;
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(fake_->lists.request_count(), 1);
  Advance(absl::Seconds(74));
  EXPECT_EQ(fake_->lists.request_count(), 1);
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->lists.request_count(), 2);
}

TEST_F(FailbackAntiEntropyTest, Rule9_ComparesSoonAfterWhatWasLostIsSentAgain) {
  StartAndCompare();
  Register("a");
  Unregister("b");
  // A store that was restored from a backup: an older epoch's "b" is back from the dead.
  held_ = {MakeInstance("a"), MakeInstance("b")};
  epoch_ = 2;
  fake_->keep_alives.AnswerWith(
      [](const KeepAliveRequest& request) { return Renewed(request, /*epoch=*/2); });
  Advance(absl::Seconds(3));  // the renewal that tells
  const size_t before = fake_->unregisters.request_count();
  Advance(absl::Seconds(4));
  EXPECT_EQ(fake_->lists.request_count(), 1);
  ASSERT_EQ(fake_->unregisters.request_count(), before + 1);
  EXPECT_EQ(fake_->unregisters.last_request().deregistrations(0).key().instance_id(), "b");
}

TEST_F(FailbackAntiEntropyTest, Rule9_TheComparisonAfterALossIsSpread) {
  random_ = 0.9;
  Start();
  Advance(absl::Milliseconds(5599));
  EXPECT_EQ(fake_->lists.request_count(), 0) << "amid the recovery of a fleet";
  Advance(absl::Milliseconds(2));
  EXPECT_EQ(fake_->lists.request_count(), 1);
}

TEST_F(FailbackAntiEntropyTest, Rule9_ALocalClientComparesWithItsOwnIntents) {
  Start();
  const std::string session = OpenLocal("app", 3600);
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_session_id(session);
  request.mutable_registrations(0)->set_generation(5);
  Register(request);
  Register("b");
  ListRequest list;
  list.set_incarnation("app");
  Answer<ListResponse> answer;
  registry_->List(list, answer.Catch());
  ASSERT_EQ(answer.get()->records_size(), 1);
  EXPECT_EQ(answer.get()->records(0).generation(), 5);
  EXPECT_EQ(answer.get()->records(0).incarnation(), "app");
  EXPECT_FALSE(answer.get()->stale());
}

TEST_F(FailbackAntiEntropyTest, Rule10_RetriesAreBoundByTheTokenBucket) {
  options_.retries_per_second = 10;
  options_.retry_burst = 5;
  options_.retry.retry_period = absl::Seconds(1);
  options_.max_batch = 1;
  Start();
  fake_->registers.AnswerWith([](const auto&) { return absl::InternalError("no"); });
  std::vector<ServiceInstance> instances;
  instances.reserve(100);
  for (int i = 0; i < 100; ++i) instances.push_back(MakeInstance(absl::StrCat(i)));
  Register(MakeRegister(instances));
  ASSERT_EQ(fake_->registers.request_count(), 100) << "first attempts are not retries";
  Advance(absl::Seconds(1));
  EXPECT_EQ(fake_->registers.request_count(), 105);
  for (int second = 1; second <= 8; ++second) {
    Advance(absl::Seconds(1));
    EXPECT_NEAR(fake_->registers.request_count(), 105 + 10 * second, 1);
  }
  CheckInvariants();
}

TEST(TokenBucketTest, BurstThenRate) {
  TokenBucket bucket(10, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bucket.Take(0), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(0), absl::Milliseconds(100));
  EXPECT_EQ(bucket.Take(0), absl::Milliseconds(200));
  // The next is due at 300 ms, for the first that comes then.
  EXPECT_EQ(bucket.Take(300000000), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(350000000), absl::Milliseconds(50));
}

TEST(TokenBucketTest, FillsUpToItsBurstAndNoMore) {
  TokenBucket bucket(10, 3);
  const int64_t later = int64_t{3600} * 1000000000;
  int now = 0;
  while (bucket.Take(later) == absl::ZeroDuration()) ++now;
  EXPECT_EQ(now, 3);
}

}  // namespace
}  // namespace failback
