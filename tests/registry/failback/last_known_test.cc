// What an agent says of a service while its registry is unavailable: the last known sets, kept for
// the next that subscribes or lists, and never in place of something newer that a subscriber has.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "registry/failback/last_known_sets.h"
#include "registry/failback/status_policy.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/owned_subscriber.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(LastKnownSetsTest, TheOldestGoesFirstByNumberAndByBytes) {
  LastKnownSets sets(3, 1000);
  for (const char* selector : {"a", "b", "c", "a"}) {
    EXPECT_THAT(sets.Put(selector, "1"), IsEmpty());
  }
  EXPECT_THAT(sets.Put("d", "1"), ElementsAre("b")) << "a was kept again";
  EXPECT_EQ(sets.Take("b"), nullptr);
  EXPECT_THAT(sets.Put("e", std::string(997, 'x')), ElementsAre("c", "a"));
  EXPECT_EQ(sets.size(), 2);
  EXPECT_EQ(sets.bytes(), 1000);
  EXPECT_THAT(sets.Put("f", std::string(1000, 'x')), ElementsAre("d", "e", "f"))
      << "one that is larger than all may be";
  EXPECT_EQ(sets.size(), 0);
  EXPECT_EQ(sets.bytes(), 0);
}

TEST(LastKnownSetsTest, NoOwnerPushesOutWhatOthersHaveLeft) {
  LastKnownSets sets(4, 1000);
  EXPECT_THAT(sets.Put("alice", "1", "alice"), IsEmpty());
  EXPECT_THAT(sets.Put("bob", "1", "bob"), IsEmpty());
  EXPECT_THAT(sets.Put("m1", "1", "mallory"), IsEmpty());
  EXPECT_THAT(sets.Put("m2", "1", "mallory"), IsEmpty());
  EXPECT_THAT(sets.Put("m3", "1", "mallory"), ElementsAre("m1"));
  EXPECT_THAT(sets.Put("m4", std::string(900, 'x'), "mallory"), ElementsAre("m2"));
  EXPECT_THAT(sets.Put("m5", std::string(900, 'x'), "mallory"), ElementsAre("m3", "m4"));
  EXPECT_TRUE(sets.Contains("alice"));
  EXPECT_TRUE(sets.Contains("bob"));
  // By bytes, for another service.
  EXPECT_THAT(sets.Put("c", std::string(400, 'x'), "carol"), ElementsAre("m5"));
  // Where none has too much the oldest is removed.
  EXPECT_THAT(sets.Put("d", "1", "dave"), IsEmpty());
  EXPECT_THAT(sets.Put("e", "1", ""), ElementsAre("alice"));
}

class LastKnownTest : public FailbackTest {
 protected:
  using Listener = std::shared_ptr<RecordingListener>;

  static Listener NewListener() { return std::make_shared<RecordingListener>(); }

  // With a state directory; the process is killed, and the registry is unavailable when it starts.
  void Persist() {
    options_.incarnation.clear();
    options_.state_dir = dir_.File("state");
    options_.manual_journal = true;
  }
  void RestartWithoutRegistry() {
    registry_.reset();
    auto fake = std::make_unique<FakeRegistry>();
    fake_ = fake.get();
    upstream_ = std::move(fake);
    GoAway();
    Start();
    Advance(absl::Milliseconds(10));
  }

  std::unique_ptr<SubscribeStream> SubscribeFrom(const Listener& listener, uint64_t epoch,
                                                 uint64_t revision) {
    SubscribeRequest request;
    request.mutable_selector()->set_service("orders");
    request.set_epoch(epoch);
    request.set_revision(revision);
    return registry_->Subscribe(request, listener);
  }

  // The registry tells a set, which is written.
  void Know(const std::vector<ServiceInstance>& instances, uint64_t revision = 5) {
    auto stream = Subscribe(NewListener());
    fake_->subscriptions().back()->Push(SnapshotEvent(revision, instances));
    Advance(absl::Seconds(2));
  }

  absl::StatusOr<ListResponse> List(const std::string& service, const std::string& token = "") {
    ListRequest request;
    request.mutable_selector()->set_service(service);
    request.set_page_token(token);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    return answer.get();
  }

  // Nothing of the registry can be reached, and the agent has noticed.
  void Lose() {
    GoAway();
    fake_->lists.AnswerWith([](const auto&) { return Away(); });
    for (const auto& subscription : fake_->subscriptions()) subscription->End(Away());
    Advance(absl::Seconds(5));
  }

  const TempDir dir_;
};

TEST_F(LastKnownTest, ASetOutlivesItsLastSubscriberInAnOutage) {
  Start();
  auto stream = Subscribe(NewListener());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a"), MakeInstance("b")}));
  Lose();
  stream.reset();
  Advance(absl::Minutes(5));
  for (int i = 0; i < 3; ++i) {
    const Listener listener = NewListener();
    auto next = Subscribe(listener);
    ASSERT_EQ(listener->events().size(), 1) << i;
    EXPECT_TRUE(listener->events()[0]->stale());
    EXPECT_EQ(listener->events()[0]->snapshot().instances_size(), 2);
    CheckInvariants();
  }
  const Listener listener = NewListener();
  auto next = Subscribe(listener);
  Back();
  Advance(absl::Seconds(2));
  EXPECT_EQ(fake_->subscriptions().back()->request().revision(), 5) << "it resumes there";
  fake_->subscriptions().back()->Push(DeltaEvent(5, 9, {}, {"a"}));
  ASSERT_EQ(listener->events().size(), 2);
  EXPECT_FALSE(listener->events()[1]->stale());
}

// It takes requests and answers none: nothing shows that it is unavailable.
TEST_F(LastKnownTest, AListThatTheRegistryDoesNotAnswerIsAnsweredOfWhatIsKnown) {
  Start();
  auto stream = Subscribe(NewListener());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a"), MakeInstance("b")}));
  fake_->lists.Hold();
  const auto ask = [this](const std::string& service) {
    ListRequest request;
    request.mutable_selector()->set_service(service);
    Answer<ListResponse> answer;
    registry_->List(request, answer.Catch());
    return answer;
  };
  const auto known = ask("orders");
  const auto unknown = ask("payments");
  Advance(absl::Milliseconds(2900));
  EXPECT_FALSE(known.done());
  Advance(absl::Milliseconds(200));
  ASSERT_TRUE(known.get().ok()) << known.get().status();
  EXPECT_TRUE(known.get()->stale());
  EXPECT_EQ(known.get()->records_size(), 2);
  EXPECT_EQ(unknown.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(unknown.get().status()), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE);
  EXPECT_THAT(std::string(unknown.get().status().message()), HasSubstr("DEADLINE_EXCEEDED"));
  fake_->lists.Release();  // too late: the callers have their answers
  fake_->lists.AnswerWith([](const auto&) { return absl::DeadlineExceededError("late"); });
  const auto refused = ask("orders");
  ASSERT_TRUE(refused.get().ok()) << refused.get().status();
  EXPECT_TRUE(refused.get()->stale());
}

TEST_F(LastKnownTest, AfterARestartEverySubscriberOfAnOutageGetsTheSet) {
  Persist();
  Start();
  Know({MakeInstance("a"), MakeInstance("b")});
  RestartWithoutRegistry();
  for (int i = 0; i < 3; ++i) {
    const Listener listener = NewListener();
    auto stream = Subscribe(listener);
    ASSERT_EQ(listener->events().size(), 1) << i;
    EXPECT_TRUE(listener->events()[0]->stale());
    EXPECT_EQ(listener->events()[0]->snapshot().instances_size(), 2);
    // One that resumes from something newer does not use it up either.
    auto newer = SubscribeFrom(NewListener(), 1, 90);
  }
  RestartWithoutRegistry();
  const auto listed = List("orders");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_TRUE(listed->stale());
  EXPECT_EQ(listed->records_size(), 2);
}

TEST_F(LastKnownTest, WhatIsKnownIsToldOnlyWhenTheRegistryDoesNotAnswer) {
  Start();
  Know({MakeInstance("a")});
  const Listener listener = NewListener();
  auto stream = Subscribe(listener);
  EXPECT_THAT(listener->events(), IsEmpty()) << "the registry says at once what is so";
  fake_->subscriptions().back()->Push(SnapshotEvent(7, {MakeInstance("b")}));
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_FALSE(listener->events()[0]->stale());
  stream.reset();
  const Listener patient = NewListener();
  auto silent = Subscribe(patient);
  Advance(absl::Milliseconds(999));
  EXPECT_THAT(patient->events(), IsEmpty());
  Advance(absl::Milliseconds(1));
  ASSERT_EQ(patient->events().size(), 1) << "it has not said anything in time";
  EXPECT_TRUE(patient->events()[0]->stale());
  EXPECT_EQ(patient->events()[0]->snapshot().instances(0).key().instance_id(), "b");
  fake_->subscriptions().back()->Push(SnapshotEvent(8, {MakeInstance("b")}));
  ASSERT_EQ(patient->events().size(), 2);
  EXPECT_FALSE(patient->events()[1]->stale());
}

TEST_F(LastKnownTest, SetsBeyondTheBoundAreForgottenOnDiskToo) {
  Persist();
  options_.max_subscriptions = 2;
  Start();
  for (const char* service : {"s1", "s2", "s3"}) {
    auto stream = Subscribe(NewListener(), service);
    fake_->subscriptions().back()->Push(SnapshotEvent(1, {MakeInstance("a", 1, service)}));
    Advance(absl::Seconds(2));
  }
  options_.max_subscriptions = 10;
  RestartWithoutRegistry();
  EXPECT_EQ(List("s1").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(List("s2").ok());
  EXPECT_TRUE(List("s3").ok());
}

TEST_F(LastKnownTest, NoCallersSetsPushOutWhatAnotherHasLeft) {
  options_.max_subscriptions = 4;
  Start();
  const auto leave = [this](const std::string& owner, const std::string& service) {
    auto stream = Subscribe(std::make_shared<OwnedSubscriber>(owner, NewListener()), service);
    fake_->subscriptions().back()->Push(SnapshotEvent(1, {MakeInstance("a", 1, service)}));
  };
  leave("alice", "first");
  for (const char* service : {"m1", "m2", "m3", "m4"}) leave("mallory", service);
  Lose();
  EXPECT_TRUE(List("first").ok()) << List("first").status();
  EXPECT_EQ(List("m1").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(List("m4").ok());
}

// --- List.

TEST_F(LastKnownTest, AListOfWhatIsNotKnownSaysSo) {
  Start();
  Know({MakeInstance("a"), MakeInstance("b")});
  auto empty = Subscribe(NewListener(), "empty");
  fake_->subscriptions().back()->Push(SnapshotEvent(5, {}));
  Lose();
  const auto known = List("orders");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_TRUE(known->stale());
  EXPECT_EQ(known->records_size(), 2);
  const auto none = List("empty");
  ASSERT_TRUE(none.ok()) << "known to have none: " << none.status();
  EXPECT_EQ(none->records_size(), 0);
  const auto unknown = List("other");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(unknown.status()), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("default/other: UNAVAILABLE"));
  EXPECT_THAT(std::string(unknown.status().message()), Not(HasSubstr("connection refused")))
      << "words are for operators";
  ListRequest others;
  others.set_incarnation("another-client");
  Answer<ListResponse> answer;
  registry_->List(others, answer.Catch());
  EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(List("").value().records_size(), 2) << "of the namespace, what is known";
}

// The call shows the agent's credentials, and the caller is not to look for the fault in its own.
TEST_F(LastKnownTest, AListThatTheRegistryRefusesTheAgentIsNoWordAboutTheCaller) {
  Start();
  Know({MakeInstance("a")});
  const auto expect_no_word = [](const absl::Status& status, const std::string& code) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(code));
    EXPECT_THAT(status.ToString(), Not(HasSubstr("/etc/secret"))) << "payloads too";
  };
  fake_->lists.AnswerWith(
      [](const auto&) { return absl::UnauthenticatedError("token_file: '/etc/secret'"); });
  expect_no_word(List("other").status(), "UNAUTHENTICATED");
  EXPECT_FALSE(IsDeniedUpstream(List("other").status()));
  const auto known = List("orders");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_TRUE(known->stale());
  EXPECT_EQ(known->records_size(), 1);

  fake_->lists.AnswerWith([](const auto&) {
    return Refusal(registry::v1::ERROR_REASON_ACCESS_DENIED, "'/etc/secret' does not allow it");
  });
  for (const char* service : {"other", "orders"}) {
    expect_no_word(List(service).status(), "PERMISSION_DENIED [ACCESS_DENIED]");
    EXPECT_TRUE(IsDeniedUpstream(List(service).status())) << service;
  }

  // The same once no session is to be had.
  const auto refuse = [](const auto&) {
    return absl::UnauthenticatedError("token_file: '/etc/secret'");
  };
  fake_->opens.AnswerWith(refuse);
  fake_->keep_alives.AnswerWith(refuse);
  Advance(absl::Minutes(1));
  ASSERT_TRUE(registry_->UpstreamStatus().refused());
  fake_->lists.AnswerWith(refuse);
  expect_no_word(List("other").status(), "UNAUTHENTICATED");
}

// Of what is known here, too, a caller is shown what its scopes show; the registry gets them as
// they came.
TEST_F(LastKnownTest, AListShowsWhatItsScopesShow) {
  Start();
  Know({MakeInstance("a"), MakeInstance("b")});
  ListRequest request;
  auto* const grant = request.add_scopes()->add_grants();
  grant->add_namespaces("*");
  grant->add_services("hidden");
  Answer<ListResponse> asked;
  registry_->List(request, asked.Catch());
  ASSERT_EQ(fake_->lists.last_request().scopes_size(), 1);
  Lose();
  Answer<ListResponse> hidden;
  registry_->List(request, hidden.Catch());
  EXPECT_EQ(hidden.get().status().code(), absl::StatusCode::kUnavailable)
      << "as if nothing were known";
  grant->add_services("ord*");
  Answer<ListResponse> shown;
  registry_->List(request, shown.Catch());
  ASSERT_TRUE(shown.get().ok()) << shown.get().status();
  EXPECT_EQ(shown.get()->records_size(), 2);
}

// What has gone since must not come back from an older set.
TEST_F(LastKnownTest, OfSeveralSetsTheNewestCounts) {
  Start();
  SubscribeRequest filtered;
  filtered.mutable_selector()->set_service("orders");
  filtered.mutable_selector()->add_zones("z");
  {
    auto stream = registry_->Subscribe(filtered, NewListener());
    ServiceInstance gone = MakeInstance("gone");
    gone.set_zone("z");
    fake_->subscriptions().back()->Push(SnapshotEvent(1, {gone}));
  }
  Know({MakeInstance("gone"), MakeInstance("a")});
  auto stream = Subscribe(NewListener());
  fake_->subscriptions().back()->Push(SnapshotEvent(7, {MakeInstance("a")}));
  Lose();
  EXPECT_EQ(List("orders")->records_size(), 1) << "followed";
  stream.reset();
  EXPECT_EQ(List("orders")->records_size(), 1) << "kept";
}

TEST_F(LastKnownTest, OwnIntentsCountOverWhatWasKnown) {
  Start();
  Register("a", 1);
  Know({MakeInstance("a", 1), MakeInstance("b", 1)});
  Lose();
  Register("c", 3);
  Unregister("a");
  const auto listed = List("orders");
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> ids;
  for (const auto& record : listed->records()) ids.push_back(record.instance().key().instance_id());
  EXPECT_THAT(ids, ElementsAre("b", "c"));
}

TEST_F(LastKnownTest, AListingFromMemoryHasPagesThatEveryClientReads) {
  Start();
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < 900; ++i) {
    instances.push_back(MakeInstance(absl::StrCat("i", i)));
    (*instances.back().mutable_metadata())["text"] = std::string(8000, 'x');
  }
  Know(instances);
  Lose();
  int records = 0, pages = 0;
  std::string token;
  do {
    const auto page = List("orders", token);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LT(page->ByteSizeLong(), 3 << 20);
    records += page->records_size();
    token = page->next_page_token();
    ++pages;
  } while (!token.empty() && pages < 20);
  EXPECT_EQ(records, 900);
  EXPECT_GE(pages, 4);
}

// --- Positions.

TEST_F(LastKnownTest, APositionThatIsTheSetsIsConfirmed) {
  Start();
  auto stream = Subscribe(NewListener());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  const Listener listener = NewListener();
  auto resumed = SubscribeFrom(listener, 1, 5);
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_TRUE(listener->events()[0]->has_delta());
  EXPECT_EQ(listener->events()[0]->delta().base_revision(), 5);
  fake_->subscriptions()[0]->Push(DeltaEvent(5, 6, {MakeInstance("b")}));
  EXPECT_EQ(listener->events().size(), 2);
}

TEST_F(LastKnownTest, AFuturePositionOfAReachableRegistryGetsASnapshot) {
  Start();
  auto stream = Subscribe(NewListener());
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  for (const auto& [epoch, revision] : {std::pair<int, int>{1, 12}, {7, 3}, {1, 4}}) {
    const Listener listener = NewListener();
    auto resumed = SubscribeFrom(listener, epoch, revision);
    ASSERT_EQ(listener->events().size(), 1);
    EXPECT_TRUE(listener->events()[0]->has_snapshot());
    EXPECT_EQ(listener->events()[0]->revision(), 5);
  }
}

// Killed before the newest set was on disk, the agent knows less than its subscriber has seen.
TEST_F(LastKnownTest, AnOlderSetIsNotToldToASubscriberThatMayHaveANewerOne) {
  for (const auto& [epoch, revision] : {std::pair<int, int>{1, 12}, {7, 3}}) {
    Persist();
    if (registry_ == nullptr) Start();
    Back("session");
    Advance(absl::Seconds(2));
    Know({MakeInstance("a")});
    RestartWithoutRegistry();
    const Listener listener = NewListener();
    auto resumed = SubscribeFrom(listener, epoch, revision);
    ASSERT_EQ(listener->events().size(), 1);
    EXPECT_EQ(listener->events()[0]->event_case(), SubscribeResponse::EVENT_NOT_SET);
    EXPECT_TRUE(listener->events()[0]->stale());
    EXPECT_EQ(listener->events()[0]->epoch(), epoch);
    EXPECT_EQ(listener->events()[0]->revision(), revision);
    // Neither by another subscriber, who gets it.
    const Listener other = NewListener();
    auto stream = Subscribe(other);
    ASSERT_EQ(other->events().size(), 1);
    EXPECT_EQ(listener->events().size(), 1);
    Back("session");
    Advance(absl::Seconds(2));
    fake_->subscriptions().back()->Push(SnapshotEvent(13, {MakeInstance("n")}, 7));
    ASSERT_EQ(listener->events().size(), 2) << "a snapshot as soon as the registry is reached";
    EXPECT_TRUE(listener->events()[1]->has_snapshot());
    EXPECT_FALSE(listener->events()[1]->stale());
    fake_->subscriptions().back()->Push(DeltaEvent(13, 14, {MakeInstance("b")}, {}, 7));
    EXPECT_EQ(listener->events().size(), 3) << "and then as everyone";
    EXPECT_EQ(other->events().size(), 3);
    Lose();
  }
}

TEST_F(LastKnownTest, AnOlderPositionOfTheSameEpochGetsTheSet) {
  Persist();
  Start();
  Know({MakeInstance("a")});
  RestartWithoutRegistry();
  const Listener listener = NewListener();
  auto resumed = SubscribeFrom(listener, 1, 3);
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_TRUE(listener->events()[0]->has_snapshot());
  EXPECT_TRUE(listener->events()[0]->stale());
  EXPECT_EQ(listener->events()[0]->revision(), 5);
}

TEST_F(LastKnownTest, OneThatResumesWhereNothingIsKnownIsToldThatItIsStale) {
  GoAway();
  Start();
  const Listener listener = NewListener();
  auto resumed = SubscribeFrom(listener, 3, 9);
  EXPECT_THAT(listener->events(), IsEmpty());
  Advance(absl::Seconds(2));
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_TRUE(listener->events()[0]->stale());
  EXPECT_EQ(listener->events()[0]->epoch(), 3);
  Advance(absl::Minutes(1));
  EXPECT_EQ(listener->events().size(), 1);
  Back("session");
  Advance(absl::Seconds(2));
  fake_->subscriptions().back()->Push(SnapshotEvent(2, {MakeInstance("a")}, 3));
  ASSERT_EQ(listener->events().size(), 2);
  EXPECT_TRUE(listener->events()[1]->has_snapshot());
}

TEST_F(LastKnownTest, AMessageTooLargeToReceiveIsNotAskedForAgain) {
  Start();
  const Listener listener = NewListener();
  auto stream = Subscribe(listener);
  fake_->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("a")}));
  fake_->subscriptions()[0]->End(
      absl::ResourceExhaustedError("Received message larger than max (20000000 vs. 4194304)"));
  Advance(absl::Seconds(2));
  ASSERT_EQ(fake_->subscriptions().size(), 2);
  EXPECT_EQ(fake_->subscriptions()[1]->request().epoch(), 0) << "a snapshot comes in parts";
  EXPECT_EQ(fake_->subscriptions()[1]->request().revision(), 0);
  EXPECT_FALSE(listener->end().has_value());
  fake_->subscriptions()[1]->Push(SnapshotEvent(9, {MakeInstance("b")}));
  const auto last = listener->events().back();
  EXPECT_EQ(last->revision(), 9);
  EXPECT_FALSE(last->stale());
  EXPECT_THAT(registry_->Pending(), IsEmpty());
}

}  // namespace
}  // namespace failback
