// Every call through GrpcRegistry, real gRPC and RegistryServer to a FakeRegistry and back.

#include "google/protobuf/util/message_differencer.h"
#include "registry/base/trace_context.h"
#include "registry/model/errors.h"
#include "tests/registry/server/subscribe_client.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using google::protobuf::util::MessageDifferencer;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using registry::v1::ERROR_REASON_SUPERSEDED;

class RoundTripTest : public WireTest, public testing::WithParamInterface<Transport> {
 protected:
  void SetUp() override {
    StartServer(ListenOn(GetParam()));
    client_ = NewClient();
  }

  std::unique_ptr<GrpcRegistry> client_;
};

INSTANTIATE_TEST_SUITE_P(Transports, RoundTripTest,
                         testing::Values(Transport::kTcp, Transport::kUnix), TransportName);

// Sends `request`, expects the fake to have got the same, and `response` to come back.
template <typename Request, typename Response>
void ExpectCarried(Registry& client, void (Registry::*method)(const Request&, Callback<Response>),
                   FakeMethod<Request, Response>& fake, const Request& request,
                   const Response& response) {
  fake.Answer(response);
  const absl::StatusOr<Response> received = CallAndWait(client, method, request);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*received, response)) << received->DebugString();
  EXPECT_TRUE(MessageDifferencer::Equals(fake.last_request(), request))
      << fake.last_request().DebugString();
}

ServiceInstance Instance(const std::string& id) {
  ServiceInstance instance = MakeInstance("orders", id, 8080);
  instance.mutable_key()->set_namespace_("ns");
  instance.set_weight(0);
  instance.set_zone("a");
  (*instance.mutable_metadata())["version"] = "1.10";
  return instance;
}

TEST_P(RoundTripTest, OpenSession) {
  OpenSessionRequest request;
  request.set_incarnation("inc");
  request.mutable_ttl()->set_seconds(3);
  request.set_rank(7);
  request.set_store_id("store");
  OpenSessionResponse response;
  response.set_session_id("s");
  response.mutable_ttl()->set_seconds(4);
  response.set_resumed(true);
  response.mutable_limits()->set_max_batch(500);
  ExpectCarried(*client_, &Registry::OpenSession, fake_.opens, request, response);
}

TEST_P(RoundTripTest, KeepAlive) {
  KeepAliveRequest request;
  request.set_session_id("s");
  KeepAliveResponse response;
  response.set_session_id("s");
  response.mutable_ttl()->set_seconds(4);
  response.set_epoch(2);
  response.set_revision(1u << 31);
  ExpectCarried(*client_, &Registry::KeepAlive, fake_.keep_alives, request, response);
}

TEST_P(RoundTripTest, CloseSession) {
  CloseSessionRequest request;
  request.set_session_id("s");
  CloseSessionResponse response;
  response.set_revision(9);
  ExpectCarried(*client_, &Registry::CloseSession, fake_.closes, request, response);
}

TEST_P(RoundTripTest, RegisterWithAStatusForEachItem) {
  RegisterRequest request;
  request.set_session_id("s");
  request.set_check(true);
  request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  for (const char* id : {"a", "b"}) {
    auto* registration = request.add_registrations();
    *registration->mutable_instance() = Instance(id);
    registration->set_generation(3);
  }
  const absl::Status superseded = Refusal(ERROR_REASON_SUPERSEDED, "a newer one holds ns/orders/b",
                                          {{"rank", "2"}, {"generation", "8"}});
  RegisterResponse response;
  response.set_epoch(1);
  response.set_revision(5);
  response.add_results()->set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  *response.add_results()->mutable_status() = StatusToProto(superseded);
  ExpectCarried(*client_, &Registry::Register, fake_.registers, request, response);
}

TEST_P(RoundTripTest, Unregister) {
  UnregisterRequest request;
  *request.add_deregistrations()->mutable_key() = Instance("a").key();
  request.mutable_deregistrations(0)->set_generation(4);
  UnregisterResponse response;
  response.add_results()->set_generation(4);
  response.set_revision(6);
  ExpectCarried(*client_, &Registry::Unregister, fake_.unregisters, request, response);
}

TEST_P(RoundTripTest, Unsubscribe) {
  UnsubscribeRequest request;
  request.set_session_id("s");
  request.set_subscription_id("sub");
  request.set_generation(2);
  ExpectCarried(*client_, &Registry::Unsubscribe, fake_.unsubscribes, request,
                UnsubscribeResponse());
}

TEST_P(RoundTripTest, List) {
  ListRequest request;
  request.mutable_selector()->set_service("orders");
  request.set_page_size(10);
  request.set_page_token("t");
  ListResponse response;
  *response.add_records()->mutable_instance() = Instance("a");
  response.set_next_page_token("u");
  response.set_stale(true);
  ExpectCarried(*client_, &Registry::List, fake_.lists, request, response);
}

TEST_P(RoundTripTest, ErrorsKeepReasonMetadataAndDelay) {
  const absl::Status sent =
      WithRetryDelay(Refusal(ERROR_REASON_SUPERSEDED, "lost", {{"rank", "2"}, {"generation", "8"}}),
                     absl::Milliseconds(1500));
  fake_.registers.Answer(sent);
  const absl::Status received =
      CallAndWait(*client_, &Registry::Register, RegisterRequest()).status();
  EXPECT_EQ(received, sent) << received;
  EXPECT_EQ(ReasonOf(received), ERROR_REASON_SUPERSEDED);
  EXPECT_EQ(ReasonMetadata(received, "generation"), "8");
  EXPECT_EQ(RetryDelayOf(received), absl::Milliseconds(1500));
}

TEST_P(RoundTripTest, ALostSessionIsAnErrorOfTheRenewal) {
  fake_.keep_alives.Answer(Refusal(ERROR_REASON_SESSION_UNKNOWN, "no session s"));
  KeepAliveRequest request;
  request.set_session_id("s");
  const absl::Status status = CallAndWait(*client_, &Registry::KeepAlive, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_TRUE(CallAndWait(*client_, &Registry::KeepAlive, request).ok()) << "on the same stream";
}

// Over both ways in: the client's Watch stream, and a Subscribe stream for each subscription.
class WayInTest : public WireTest, public testing::WithParamInterface<WayIn> {
 protected:
  void SetUp() override {
    StartServer(ListenOn(Transport::kTcp));
    client_ = NewClient();
  }

  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) {
    return SubscribeBy(GetParam(), *client_, address_, request, std::move(listener));
  }

  std::unique_ptr<GrpcRegistry> client_;
};

INSTANTIATE_TEST_SUITE_P(WaysIn, WayInTest, testing::Values(WayIn::kWatch, WayIn::kSubscribe),
                         [](const auto& info) { return WayInName(info.param); });

TEST_P(WayInTest, SubscribeTellsSnapshotDeltasAndEnd) {
  SubscribeRequest request;
  request.set_session_id("s");
  request.set_subscription_id("sub");
  request.mutable_selector()->set_service("orders");
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe(request, listener);
  auto subscription = fake_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  EXPECT_TRUE(MessageDifferencer::Equals(subscription->request(), request));

  SubscribeResponse snapshot;
  snapshot.set_epoch(1);
  snapshot.set_revision(7);
  *snapshot.mutable_snapshot()->add_instances() = Instance("a");
  subscription->Push(snapshot);
  ASSERT_TRUE(listener->WaitForEvents(1));
  SubscribeResponse delta;
  delta.set_epoch(1);
  delta.set_revision(9);
  delta.mutable_delta()->set_base_revision(7);
  *delta.mutable_delta()->add_removals() = Instance("a").key();
  subscription->Push(delta);
  ASSERT_TRUE(listener->WaitForEvents(2));
  EXPECT_TRUE(MessageDifferencer::Equals(*listener->events()[0], snapshot));
  EXPECT_TRUE(MessageDifferencer::Equals(*listener->events()[1], delta));
  EXPECT_FALSE(listener->end().has_value());

  subscription->End(absl::OkStatus());
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_TRUE(listener->end()->ok());
  EXPECT_TRUE(subscription->WaitForCancel()) << "the server lets go of a stream that has ended";
}

TEST_P(WayInTest, ARefusedSubscribeKeepsItsReason) {
  fake_.EndSubscriptionsWith(InvalidField("selector.service", "is empty"));
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe({}, listener);
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(*listener->end(), InvalidField("selector.service", "is empty"));
}

TEST_P(WayInTest, DestroyingTheStreamEndsItAtTheServer) {
  auto listener = std::make_shared<RecordingListener>();
  auto stream = Subscribe({}, listener);
  auto subscription = fake_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  stream.reset();
  EXPECT_TRUE(subscription->WaitForCancel());
  EXPECT_FALSE(listener->end().has_value());
}

TEST_P(RoundTripTest, ManyCallsAtOnce) {
  constexpr int kCalls = 500;
  std::vector<Answered<ListResponse>> answers;
  for (int i = 0; i < kCalls; ++i) {
    answers.push_back(CallAsync(*client_, &Registry::List, ListRequest()));
  }
  for (const auto& answer : answers) EXPECT_TRUE(answer.Get().ok());
  EXPECT_EQ(fake_.lists.request_count(), kCalls);
}

TEST_P(RoundTripTest, ATraceIsCarried) {
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  std::vector<std::string> traces;
  // Small ones are carried out at once, large ones on threads of their own.
  fake_.registers.AnswerWith([&](const RegisterRequest&) {
    traces.push_back(CurrentTrace());
    return RegisterResponse();
  });
  RegisterRequest request;
  *request.add_registrations()->mutable_instance() = Instance("a");
  RegisterRequest large = request;
  for (int i = 0; i < 200; ++i) *large.add_registrations() = request.registrations(0);
  for (const RegisterRequest& each : {request, large}) {
    const ScopedTrace scope(trace);
    EXPECT_TRUE(CallAndWait(*client_, &Registry::Register, each).ok());
  }
  EXPECT_TRUE(CallAndWait(*client_, &Registry::Register, request).ok());
  EXPECT_EQ(traces, (std::vector<std::string>{trace, trace, ""}));
}

}  // namespace
}  // namespace failback
