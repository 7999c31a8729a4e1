// Rule 14: several upstreams at once, each with its own records, retries and result.

#include "registry/failback/failback_group.h"

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/failback/status_policy.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/subscriber_model.h"
#include "tests/registry/message_listener.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ModelListener final : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    model.Hear(*event);
    ++events;
  }
  void OnEnd(const absl::Status& status) override { end = status; }
  SubscriberModel model;
  int events = 0;
  std::optional<absl::Status> end;
};

class FailbackGroupTest : public testing::Test {
 protected:
  FailbackGroupTest() {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(std::move(timer)).value();
    options_.timer = timer_.get();
    options_.random = [] { return 0.5; };
    options_.anti_entropy_interval = absl::ZeroDuration();
    options_.manual_journal = true;
    options_.on_event = [this](const IntentEvent& event) {
      events_.push_back(
          absl::StrCat(event.upstream, " ", event.id, " ", event.status.ok() ? "done" : "failed"));
    };
  }
  ~FailbackGroupTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  // A new life of the agent with these upstreams, as after kill -9.
  absl::Status Start(const std::vector<std::string>& names) {
    group_.reset();
    fakes_.clear();
    std::vector<FailbackGroup::Upstream> upstreams;
    for (const std::string& name : names) {
      auto fake = std::make_unique<FakeRegistry>();
      fakes_[name] = fake.get();
      upstreams.push_back({name, absl::StrCat("grpc://", name), std::move(fake)});
    }
    for (const std::string& name : away_) {
      if (fakes_.count(name) > 0) GoAway(name);
    }
    auto group = FailbackGroup::Create(std::move(upstreams), options_);
    if (!group.ok()) return group.status();
    group_ = *std::move(group);
    return absl::OkStatus();
  }
  void GoAway(const std::string& name) {
    FakeRegistry& fake = *fakes_.at(name);
    fake.opens.AnswerWith([](const auto&) { return Away(); });
    fake.keep_alives.AnswerWith([](const auto&) { return Away(); });
    fake.registers.AnswerWith([](const auto&) { return Away(); });
    fake.unregisters.AnswerWith([](const auto&) { return Away(); });
    fake.EndSubscriptionsWith(Away());
  }

  Answer<RegisterResponse> Register(const std::string& id, uint32_t port = 1,
                                    bool acknowledged = false, const std::string& session = "") {
    RegisterRequest request = MakeRegister({MakeInstance(id, port)});
    if (acknowledged) request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    request.set_session_id(session);
    Answer<RegisterResponse> answer;
    group_->Register(request, answer.Catch());
    return answer;
  }
  Answer<UnregisterResponse> Unregister(const std::string& id) {
    Answer<UnregisterResponse> answer;
    group_->Unregister(MakeUnregister(id), answer.Catch());
    return answer;
  }
  Answer<OpenSessionResponse> Open(const std::string& incarnation) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    request.mutable_ttl()->set_seconds(10);
    Answer<OpenSessionResponse> answer;
    group_->OpenSession(request, answer.Catch());
    return answer;
  }
  Answer<KeepAliveResponse> KeepAlive(const std::string& session) {
    KeepAliveRequest request;
    request.set_session_id(session);
    Answer<KeepAliveResponse> answer;
    group_->KeepAlive(request, answer.Catch());
    return answer;
  }
  std::unique_ptr<SubscribeStream> Subscribe(std::shared_ptr<NotifyListener> listener,
                                             const std::string& upstream = "",
                                             const std::string& session = "") {
    SubscribeRequest request;
    request.mutable_selector()->set_service("orders");
    request.set_upstream(upstream);
    request.set_session_id(session);
    if (!session.empty()) request.set_subscription_id("s");
    return group_->Subscribe(request, std::move(listener));
  }

  // Ids that the upstream was last told to register, and to unregister, over all calls.
  std::vector<std::string> Registered(const std::string& name) {
    std::vector<std::string> ids;
    for (const auto& request : fakes_.at(name)->registers.requests()) {
      for (const auto& item : request.registrations()) {
        ids.push_back(item.instance().key().instance_id());
      }
    }
    return ids;
  }
  std::vector<std::string> Unregistered(const std::string& name) {
    std::vector<std::string> ids;
    for (const auto& request : fakes_.at(name)->unregisters.requests()) {
      for (const auto& item : request.deregistrations()) ids.push_back(item.key().instance_id());
    }
    return ids;
  }
  std::vector<std::string> PendingRows() {
    std::vector<std::string> rows;
    for (const auto& row : group_->Pending()) {
      rows.push_back(absl::StrCat(row.upstream(), " ", row.id()));
    }
    return rows;
  }

  const TempDir dir_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FailbackRegistry::Options options_;
  std::vector<std::string> events_;
  std::vector<std::string> away_;
  std::map<std::string, FakeRegistry*> fakes_;
  std::unique_ptr<FailbackGroup> group_;
};

TEST_F(FailbackGroupTest, BadUpstreamsAreRefusedByName) {
  EXPECT_EQ(Start({}).message(), "upstreams: names none");
  EXPECT_EQ(Start({"a", "b", "a"}).message(), "upstream 'a': is there twice");
  EXPECT_THAT(std::string(Start({"a b"}).message()), HasSubstr("upstream 'a b': has a space"));
  EXPECT_THAT(std::string(Start({"1", "2", "3", "4", "5", "6"}).message()),
              HasSubstr("6 are more than the 5"));
  EXPECT_EQ(Start({"1", "2", "3", "4", "5"}), absl::OkStatus());
  options_.max_batch = 0;
  EXPECT_THAT(std::string(Start({"a", "b"}).message()), HasSubstr("max_batch"));
}

TEST_F(FailbackGroupTest, Rule14_AnIntentGoesToEachWithAResultPerTarget) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  const auto answer = Register("a", 1, /*acknowledged=*/true);
  ASSERT_TRUE(answer.done());
  const auto& result = answer.get()->results(0);
  EXPECT_EQ(result.state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  ASSERT_EQ(result.targets_size(), 2);
  EXPECT_EQ(result.targets(0).upstream(), "old");
  EXPECT_EQ(result.targets(1).upstream(), "new");
  EXPECT_EQ(result.targets(1).state(), registry::v1::INTENT_STATE_ACKNOWLEDGED);
  EXPECT_THAT(Registered("old"), ElementsAre("a"));
  EXPECT_THAT(Registered("new"), ElementsAre("a"));
  EXPECT_THAT(events_, ElementsAre("old register default/orders/a done",
                                   "new register default/orders/a done"));
}

TEST_F(FailbackGroupTest, Rule14_OneThatIsAwayHoldsNobodyUp) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  EXPECT_EQ(Register("a").get()->results(0).state(), registry::v1::INTENT_STATE_ACCEPTED);
  EXPECT_THAT(Registered("old"), ElementsAre("a"));
  EXPECT_THAT(PendingRows(), ElementsAre("new register default/orders/a"));
  const auto statuses = group_->UpstreamStatuses();
  ASSERT_EQ(statuses.size(), 2);
  EXPECT_EQ(statuses[0].name(), "old");
  EXPECT_EQ(statuses[0].uri(), "grpc://old");
  EXPECT_EQ(statuses[0].acknowledged(), 1);
  EXPECT_EQ(statuses[1].state(), agent::v1::UPSTREAM_STATE_CONNECTING);
  EXPECT_EQ(statuses[1].acknowledged(), 0);
  const auto acknowledged = Register("b", 1, /*acknowledged=*/true);
  EXPECT_FALSE(acknowledged.done()) << "to wait is to wait for all";
}

TEST_F(FailbackGroupTest, Rule14_ARefusalAtOneIsTheItemsStatusAndNamesIt) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  fakes_["new"]->registers.Answer(absl::PermissionDeniedError("not you"));
  RegisterRequest request = MakeRegister({MakeInstance("a")});
  request.set_check(true);
  Answer<RegisterResponse> answer;
  group_->Register(request, answer.Catch());
  EXPECT_EQ(answer.item(), absl::PermissionDeniedError("new: not you"));
  EXPECT_EQ(answer.get()->results(0).targets(0).status().code(), 0);
  EXPECT_EQ(answer.get()->results(0).targets(1).status().message(), "not you");
  EXPECT_EQ(answer.get()->results(0).state(), registry::v1::INTENT_STATE_UNSPECIFIED)
      << "the least that all have reached";
  EXPECT_EQ(group_->UpstreamStatuses()[0].desired(), 1) << "stays where it passed";
  EXPECT_EQ(group_->UpstreamStatuses()[1].desired(), 0);
}

TEST_F(FailbackGroupTest, Rule14_OfTwoRefusalsTheFirstIsTheItemsStatus) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  fakes_["old"]->registers.Answer(absl::InvalidArgumentError("not that"));
  fakes_["new"]->registers.Answer(absl::PermissionDeniedError("not you"));
  const auto answer = Register("a", 1, /*acknowledged=*/true);
  EXPECT_EQ(answer.item(), absl::InvalidArgumentError("old: not that"));
  EXPECT_EQ(answer.get()->results(0).targets(1).status().message(), "not you");
}

TEST_F(FailbackGroupTest, Rule14_RetriesAreTheUpstreamsOwn) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  fakes_["old"]->registers.AnswerWith([](const auto&) { return absl::InternalError("broken"); });
  Register("a");
  clock_.Advance(absl::Seconds(20));
  std::map<std::string, int> times;
  for (const auto& row : group_->Pending()) times[row.upstream()] = row.times();
  EXPECT_GT(times["old"], 2);
  EXPECT_GT(times["new"], 2);
  EXPECT_GT(fakes_["old"]->registers.request_count(), 2);
  EXPECT_EQ(fakes_["new"]->registers.request_count(), 0) << "no session there";
  agent::v1::PendingSelector selector;
  selector.add_ids("register default/orders/a");
  EXPECT_EQ(*group_->Retry(selector), 2);
  selector.set_upstream("old");
  EXPECT_EQ(*group_->Cancel(selector), 1);
  EXPECT_THAT(PendingRows(), ElementsAre("new register default/orders/a"));
  EXPECT_EQ(group_->Cancel(selector).status().code(), absl::StatusCode::kNotFound);
  selector.set_upstream("none");
  EXPECT_EQ(
      group_->Retry(selector).status(),
      InvalidField("selector.upstream", "\"none\" is not an upstream of this agent, as old, new"));
}

TEST_F(FailbackGroupTest, Rule14_OneSessionAtAll) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  const std::string session = Open("app").get()->session_id();
  EXPECT_LE(session.size(), 128);
  EXPECT_EQ(KeepAlive(session).get()->epoch(), Open("app").get()->epoch());
  EXPECT_EQ(Open("app").get()->session_id(), session);
  EXPECT_TRUE(Open("app").get()->resumed());
  EXPECT_EQ(Register("a", 1, false, session).item(), absl::OkStatus());
  EXPECT_EQ(KeepAlive("another").get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Register("b", 1, false, "another").get().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(group_->local_sessions(), 1);
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(group_->local_sessions(), 0);
  EXPECT_EQ(ReasonOf(KeepAlive(session).get().status()),
            registry::v1::ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_THAT(Unregistered("old"), ElementsAre("a"));
  EXPECT_THAT(Unregistered("new"), ElementsAre("a"));
}

TEST_F(FailbackGroupTest, Rule14_ASubscriptionMergesAllByKey) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  auto listener = std::make_shared<ModelListener>();
  auto stream = Subscribe(listener);
  fakes_["old"]->subscriptions()[0]->Push(SnapshotEvent(1, {MakeInstance("a", 1)}));
  EXPECT_EQ(listener->events, 0);
  fakes_["new"]->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("b", 2)}));
  EXPECT_EQ(listener->events, 1);
  EXPECT_EQ(listener->model.state().size(), 2);
  EXPECT_FALSE(listener->model.stale());
  fakes_["new"]->subscriptions()[0]->End(Away());
  GoAway("new");
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(listener->model.stale());
  EXPECT_EQ(listener->model.state().size(), 2);
  stream.reset();
  EXPECT_TRUE(fakes_["old"]->subscriptions()[0]->cancelled());
}

TEST_F(FailbackGroupTest, Rule14_AMergedSubscriptionDoesNotWaitForOneThatIsAway) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  auto listener = std::make_shared<ModelListener>();
  auto stream = Subscribe(listener);
  fakes_["old"]->subscriptions()[0]->Push(SnapshotEvent(1, {MakeInstance("a", 1)}));
  EXPECT_EQ(listener->events, 0);
  clock_.Advance(options_.stale_grace);
  EXPECT_EQ(listener->events, 1);
  EXPECT_TRUE(listener->model.stale());
}

TEST_F(FailbackGroupTest, Rule14_ASubscriptionMayNameOne) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  auto listener = std::make_shared<ModelListener>();
  auto stream = Subscribe(listener, "new");
  EXPECT_EQ(fakes_["old"]->subscriptions().size(), 0);
  fakes_["new"]->subscriptions()[0]->Push(SnapshotEvent(5, {MakeInstance("b", 2)}));
  EXPECT_EQ(listener->events, 1);
  auto lost = std::make_shared<ModelListener>();
  Subscribe(lost, "none");
  ASSERT_TRUE(lost->end.has_value());
  EXPECT_EQ(*lost->end,
            InvalidField("upstream", "\"none\" is not an upstream of this agent, as old, new"));
}

TEST_F(FailbackGroupTest, ASubscriptionOfTheSameNameTakesOverWhereverTheOlderOneIs) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  const std::string session = Open("app").get()->session_id();
  auto merged = std::make_shared<ModelListener>();
  auto merged_stream = Subscribe(merged, "", session);
  auto at_old = std::make_shared<ModelListener>();
  auto old_stream = Subscribe(at_old, "old", session);
  EXPECT_TRUE(merged->end.has_value());
  auto at_new = std::make_shared<ModelListener>();
  auto new_stream = Subscribe(at_new, "new", session);
  EXPECT_TRUE(at_old->end.has_value());
  UnsubscribeRequest unsubscribe;
  unsubscribe.set_session_id(session);
  unsubscribe.set_subscription_id("s");
  Answer<UnsubscribeResponse> answer;
  group_->Unsubscribe(unsubscribe, answer.Catch());
  EXPECT_TRUE(answer.get().ok());
  ASSERT_TRUE(at_new->end.has_value());
  EXPECT_EQ(*at_new->end, absl::OkStatus());
}

TEST_F(FailbackGroupTest, Rule14_ListMergesOrNamesOne) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  const auto listing = [](uint32_t port, const std::vector<std::string>& ids) {
    return [port, ids](const ListRequest&) {
      ListResponse response;
      for (const auto& id : ids) {
        *response.add_records()->mutable_instance() = MakeInstance(id, port);
      }
      return response;
    };
  };
  fakes_["old"]->lists.AnswerWith(listing(1, {"a", "b"}));
  fakes_["new"]->lists.AnswerWith(listing(2, {"b", "c"}));
  const auto list = [this](const std::string& upstream) {
    ListRequest request;
    request.set_upstream(upstream);
    Answer<ListResponse> answer;
    group_->List(request, answer.Catch());
    std::vector<std::string> rows;
    if (!answer.get().ok()) return std::vector<std::string>{answer.get().status().ToString()};
    for (const auto& record : answer.get()->records()) {
      rows.push_back(
          absl::StrCat(record.instance().key().instance_id(), " ", record.instance().port()));
    }
    return rows;
  };
  EXPECT_THAT(list(""), ElementsAre("a 1", "b 1", "c 2"));
  EXPECT_THAT(list("new"), ElementsAre("b 2", "c 2"));
  EXPECT_THAT(list("none"), ElementsAre(HasSubstr("\"none\" is not an upstream")));
  EXPECT_THAT(list("\x1b[31mred\n"),
              ElementsAre(HasSubstr(R"("\x1b[31mred\n" is not an upstream)")))
      << "a terminal acts on none of it";
}

// One of them is unavailable, and nothing is known of it: the others' is the answer, marked stale.
TEST_F(FailbackGroupTest, Rule14_AMergedListHasWhatIsKnownAndSaysWhenThatIsNothing) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  fakes_["new"]->lists.AnswerWith([](const auto&) { return Away(); });
  fakes_["old"]->lists.AnswerWith([](const auto&) {
    ListResponse response;
    *response.add_records()->mutable_instance() = MakeInstance("a", 1);
    return response;
  });
  const auto list = [this] {
    ListRequest request;
    request.mutable_selector()->set_service("orders");
    Answer<ListResponse> answer;
    group_->List(request, answer.Catch());
    return answer.get();
  };
  const auto some = list();
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_TRUE(some->stale());
  EXPECT_EQ(some->records_size(), 1);
  fakes_["old"]->lists.AnswerWith([](const auto&) { return Away(); });
  const auto none = list();
  EXPECT_EQ(ReasonOf(none.status()), registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE)
      << none.status();
  fakes_["old"]->lists.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  EXPECT_TRUE(IsDeniedUpstream(list().status())) << list().status();
}

// A listing without what the agent may not read would look complete.
TEST_F(FailbackGroupTest, AMergedListThatOneOfThemDeniesIsNoListOfTheOthers) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  fakes_["old"]->lists.AnswerWith([](const auto&) { return absl::PermissionDeniedError("no"); });
  fakes_["new"]->lists.AnswerWith([](const auto&) { return ListResponse(); });
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  Answer<ListResponse> answer;
  group_->List(request, answer.Catch());
  EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(IsDeniedUpstream(answer.get().status())) << answer.get().status();
}

// A position of a merged stream is that of no upstream.
TEST_F(FailbackGroupTest, Rule14_AMergedSubscriptionThatResumesIsNotToldWhatMayBeOlder) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  for (const char* name : {"old", "new"}) {
    auto stream = Subscribe(std::make_shared<ModelListener>());
    for (const auto& [fake, instance] :
         {std::pair<const char*, const char*>{"old", "a"}, {"new", "b"}}) {
      fakes_[fake]->subscriptions().back()->Push(SnapshotEvent(1, {MakeInstance(instance, 1)}));
    }
    GoAway(name);
    for (const auto& subscription : fakes_[name]->subscriptions()) subscription->End(Away());
    clock_.Advance(absl::Seconds(5));
  }
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_epoch(77);
  request.set_revision(5);
  auto listener = std::make_shared<RecordingListener>();
  auto stream = group_->Subscribe(request, listener);
  clock_.Advance(options_.stale_grace);
  ASSERT_EQ(listener->events().size(), 1);
  EXPECT_EQ(listener->events()[0]->event_case(), SubscribeResponse::EVENT_NOT_SET);
  EXPECT_TRUE(listener->events()[0]->stale());
  EXPECT_EQ(listener->events()[0]->epoch(), 77);
  fakes_["old"]->opens.AnswerWith([](const auto&) {
    OpenSessionResponse opened;
    opened.set_session_id("session");
    return opened;
  });
  fakes_["old"]->EndSubscriptionsWith(std::nullopt);
  clock_.Advance(absl::Seconds(2));
  EXPECT_NE(fakes_["old"]->subscriptions().back()->request().epoch(), 77);
  fakes_["old"]->subscriptions().back()->Push(SnapshotEvent(2, {MakeInstance("a", 2)}));
  ASSERT_EQ(listener->events().size(), 2);
  EXPECT_EQ(listener->events()[1]->snapshot().instances_size(), 2);
  EXPECT_TRUE(listener->events()[1]->stale()) << "the other is still away";
}

TEST_F(FailbackGroupTest, DrainIsAtAllAndItsNumbersAreSums) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  Register("a");
  ServiceInstance stays = MakeInstance("stays");
  stays.set_persistent(true);
  Answer<RegisterResponse> registered;
  group_->Register(MakeRegister({stays}), registered.Catch());
  GoAway("new");
  fakes_["new"]->closes.AnswerWith([](const auto&) { return Away(); });
  Answer<agent::v1::DrainResponse> drained;
  group_->Drain(absl::Seconds(5), drained.Catch());
  EXPECT_FALSE(drained.done());
  EXPECT_TRUE(group_->draining());
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(drained.get()->unregistered(), 1);
  EXPECT_EQ(drained.get()->remaining(), 1);
  EXPECT_EQ(drained.get()->persistent(), 2);
}

TEST_F(FailbackGroupTest, Rule15_DestructionAnswersEveryCallAndEndsSubscriptions) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  const auto answer = Register("a", 1, /*acknowledged=*/true);
  auto listener = std::make_shared<ModelListener>();
  auto stream = Subscribe(listener);
  group_.reset();
  EXPECT_EQ(answer.item().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(listener->end.has_value());
  EXPECT_EQ(listener->end->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(timer_->pending(), 0) << "nothing is left on the wheel";
}

TEST_F(FailbackGroupTest, Rule15_ACallbackMayDestroyTheGroup) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  bool ran = false;
  group_->Register(MakeRegister({MakeInstance("a")}), [&](const auto&) {
    group_.reset();
    ran = true;
  });
  EXPECT_TRUE(ran);
}

// --- What happens when the configuration changes between two lives of the agent.

class FailbackGroupRestartTest : public FailbackGroupTest {
 protected:
  FailbackGroupRestartTest() {
    options_.state_dir = dir_.File("state");
    SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  }
};

TEST_F(FailbackGroupRestartTest, Rule14_EachHasAJournalOfItsOwn) {
  away_ = {"new"};
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  Register("a");
  Unregister("b");
  away_.clear();
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  EXPECT_THAT(Unregistered("old"), IsEmpty()) << "was done";
  EXPECT_THAT(Unregistered("new"), ElementsAre("b")) << "was owed";
  EXPECT_THAT(Registered("new"), ElementsAre("a"));
}

TEST_F(FailbackGroupRestartTest, Rule14_ANewUpstreamGetsWhatTheOthersHold) {
  ASSERT_EQ(Start({"old"}), absl::OkStatus());
  Register("a");
  Register("b");
  Register("owned", 1, false, Open("app").get()->session_id());
  Unregister("b");
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  EXPECT_THAT(Registered("new"), UnorderedElementsAre("a", "owned"));
  EXPECT_THAT(Unregistered("new"), IsEmpty());
  EXPECT_TRUE(Open("app").get()->resumed()) << "its client finds it at both";
  // Then the old one is left out.
  ASSERT_EQ(Start({"new"}), absl::OkStatus());
  EXPECT_THAT(Registered("new"), UnorderedElementsAre("a", "owned"));
}

TEST_F(FailbackGroupRestartTest, Rule14_ANewUpstreamThatIsNamedFirstTakesNothingAway) {
  away_ = {"old"};
  ASSERT_EQ(Start({"old"}), absl::OkStatus());
  Register("a");
  Unregister("owed");
  away_.clear();
  ASSERT_EQ(Start({"new", "old"}), absl::OkStatus());
  EXPECT_THAT(Registered("new"), ElementsAre("a"));
  EXPECT_THAT(Unregistered("new"), IsEmpty()) << "it never had it";
  EXPECT_THAT(Registered("old"), ElementsAre("a"));
  EXPECT_THAT(Unregistered("old"), ElementsAre("owed"));
}

TEST_F(FailbackGroupRestartTest, Rule14_OneThatComesBackBringsNothingBack) {
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  Register("gone");
  Register("stays", 1);
  ASSERT_EQ(Start({"old"}), absl::OkStatus());
  Unregister("gone");
  Register("stays", 2);
  Register("later");
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  EXPECT_THAT(Registered("new"), UnorderedElementsAre("stays", "later"));
  EXPECT_THAT(Unregistered("new"), ElementsAre("gone"));
  for (const auto& request : fakes_["new"]->registers.requests()) {
    for (const auto& item : request.registrations()) {
      EXPECT_GT(item.generation(), 2) << "numbers go on";
      if (item.instance().key().instance_id() != "stays") continue;
      EXPECT_EQ(item.instance().port(), 2);
    }
  }
}

TEST_F(FailbackGroupRestartTest, Rule14_WhenAllAreNewTheyTakeOverWhatIsOwedToo) {
  away_ = {"grpc://one:1"};
  ASSERT_EQ(Start({"grpc://one:1"}), absl::OkStatus());
  Register("a");
  Unregister("b");
  away_.clear();
  ASSERT_EQ(Start({"grpc://one:1,two:1"}), absl::OkStatus());
  EXPECT_THAT(Registered("grpc://one:1,two:1"), ElementsAre("a"));
  EXPECT_THAT(Unregistered("grpc://one:1,two:1"), ElementsAre("b"));
}

TEST_F(FailbackGroupRestartTest, AnUpstreamThatIsLeftOutIsWarnedOf) {
  std::vector<std::string> warnings;
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    warnings.push_back(fields.front().second);
  });
  ASSERT_EQ(Start({"old", "new"}), absl::OkStatus());
  EXPECT_THAT(warnings, IsEmpty());
  ASSERT_EQ(Start({"new"}), absl::OkStatus());
  EXPECT_THAT(warnings, ElementsAre("old"));
}

TEST_F(FailbackGroupRestartTest, Rule11_TheFolderIsLocked) {
  ASSERT_EQ(Start({"old"}), absl::OkStatus());
  std::vector<FailbackGroup::Upstream> upstreams;
  upstreams.push_back({"another", "grpc://another", std::make_unique<FakeRegistry>()});
  const auto second = FailbackGroup::Create(std::move(upstreams), options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options_.state_dir));
}

}  // namespace
}  // namespace failback
