// What RegistryServer does by itself: counting, conflating, ending sessions, shutting down.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "failback/agent/v1/agent.grpc.pb.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "registry/model/errors.h"
#include "registry/model/event_order.h"
#include "registry/server/registry_server.h"
#include "tests/registry/message_listener.h"
#include "tests/registry/server/server_fixture.h"
#include "tests/registry/server/wire_fixture.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using testing::HasSubstr;

TEST_F(ServerTest, CallsAreCountedByHowTheyEnd) {
  StartServer(ListenOn(Transport::kTcp));
  const auto client = NewClient();
  fake_.registers.Answer(absl::PermissionDeniedError("no"));
  EXPECT_FALSE(CallAndWait(*client, &Registry::Register, RegisterRequest()).ok());
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, RegisterRequest()).ok());
  EXPECT_TRUE(CallAndWait(*client, &Registry::Register, RegisterRequest()).ok());
  EXPECT_EQ(Ended(CallStats::Method::kRegister, absl::StatusCode::kOk), 2);
  EXPECT_EQ(Ended(CallStats::Method::kRegister, absl::StatusCode::kPermissionDenied), 1);
  EXPECT_EQ(Ended(CallStats::Method::kUnregister, absl::StatusCode::kOk), 0);
  EXPECT_EQ(server_->Stats()
                .calls.methods[static_cast<size_t>(CallStats::Method::kRegister)]
                .duration_nanos.count(),
            3);

  const auto listener = std::make_shared<RecordingListener>();
  const auto stream = client->Subscribe(SubscribeRequest(), listener);
  const auto source = fake_.WaitForSubscription(0);
  ASSERT_NE(source, nullptr);
  SubscribeResponse event;
  event.set_epoch(1);
  event.set_revision(1);
  event.mutable_snapshot();
  source->Push(event);
  ASSERT_TRUE(listener->WaitForEvents(1));
  event.set_revision(2);
  event.mutable_delta()->set_base_revision(1);
  source->Push(event);
  ASSERT_TRUE(listener->WaitForEvents(2));
  EXPECT_EQ(server_->Stats().subscriptions, 1);
  EXPECT_EQ(server_->Stats().calls.snapshots_sent, 1);
  EXPECT_EQ(server_->Stats().calls.deltas_sent, 1);
  EXPECT_EQ(server_->Stats().calls.conflated, 0);
  source->End(absl::AbortedError("over"));
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(Ended(CallStats::Method::kSubscribe, absl::StatusCode::kAborted), 1);
}

// Throws from, or forgets, every call but Unregister.
class BadRegistry : public FakeRegistry {
 public:
  void Write(Batch batch, Callback<BatchResult> done) override {
    if (batch.kind() == Batch::Kind::kRegister) throw std::runtime_error("no such table");
    FakeRegistry::Write(std::move(batch), std::move(done));
  }
  void List(const ListRequest&, Callback<ListResponse>) override {}
  void KeepAlive(const KeepAliveRequest&, Callback<KeepAliveResponse>) override { throw 42; }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest&,
                                             std::shared_ptr<NotifyListener>) override {
    throw std::runtime_error("no memory");
  }
};

TEST_F(ServerTest, ARegistryThatThrowsOrForgetsFailsThatCallOnly) {
  BadRegistry bad;
  RegistryServer::Options options;
  options.listen = {"127.0.0.1:0"};
  const auto server = RegistryServer::Start(&bad, options);
  ASSERT_TRUE(server.ok()) << server.status();
  address_ = (*server)->addresses()[0];
  const auto client = NewClient();
  for (int i = 0; i < 2; ++i) {
    const absl::Status thrown =
        CallAndWait(*client, &Registry::Register, RegisterRequest()).status();
    EXPECT_EQ(thrown.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(thrown.message()), HasSubstr("no such table"));
    EXPECT_EQ(List(*client).status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(CallAndWait(*client, &Registry::KeepAlive, RenewalOf("a")).status().code(),
              absl::StatusCode::kInternal);
    auto listener = std::make_shared<RecordingListener>();
    const auto stream = client->Subscribe({}, listener);
    ASSERT_TRUE(listener->WaitForEnd());
    EXPECT_EQ(listener->end()->code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(CallAndWait(*client, &Registry::Unregister, UnregisterRequest()).ok());
  }
}

// A client that does not read: gRPC's windows fill up, the server merges what follows.
TEST_F(ServerTest, ASlowSubscriberIsConflatedAndSlowsNobody) {
  constexpr int kChanges = 1000;
  StartServer(ListenOn(Transport::kTcp));
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const auto stub = RegistryService::NewStub(channel);
  grpc::ClientContext context;
  const auto slow = stub->Subscribe(&context, SubscribeRequest());
  const auto slow_source = fake_.WaitForSubscription(0);
  const auto client = NewClient();
  auto fast = std::make_shared<RecordingListener>();
  const auto stream = client->Subscribe({}, fast);
  const auto fast_source = fake_.WaitForSubscription(1);
  ASSERT_TRUE(slow_source != nullptr && fast_source != nullptr);

  const auto push = [&](const SubscribeResponse& message) {
    EXPECT_TRUE(slow_source->Push(message));
    EXPECT_TRUE(fast_source->Push(message));
  };
  push(Snapshot(1));
  for (int i = 1; i <= kChanges; ++i) {
    SubscribeResponse delta;
    delta.set_epoch(1);
    delta.set_revision(i + 1);
    delta.mutable_delta()->set_base_revision(i);
    auto* instance = delta.mutable_delta()->add_upserts();
    instance->mutable_key()->set_service("orders");
    instance->mutable_key()->set_instance_id(absl::StrCat("i", i % 10));
    instance->set_port(i);
    (*instance->mutable_metadata())["padding"] = std::string(16000, 'x');
    push(delta);
    // The fast one keeps up: nothing of the slow one's is in its way.
    if (i % 100 == 0) {
      const absl::Time deadline = absl::Now() + kProcessTimeout;
      while (fast->events().empty() ||
             fast->events().back()->revision() != static_cast<uint64_t>(i) + 1) {
        ASSERT_LT(absl::Now(), deadline);
        std::this_thread::yield();
      }
    }
  }

  EventOrder order;
  std::map<std::string, uint32_t> ports;
  int messages = 0;
  SubscribeResponse message;
  while (order.revision() != kChanges + 1 && slow->Read(&message)) {
    ++messages;
    ASSERT_TRUE(CheckOrder(&order, message).ok());
    for (const auto& instance : message.delta().upserts()) {
      ports[instance.key().instance_id()] = instance.port();
    }
  }
  EXPECT_EQ(order.revision(), static_cast<uint64_t>(kChanges + 1));
  EXPECT_LT(messages, kChanges / 2);
  RecordProperty("messages_to_the_slow_one", messages);
  EXPECT_GT(server_->Stats().calls.conflated, kChanges / 2);
  ASSERT_EQ(ports.size(), 10u);
  for (int i = kChanges - 9; i <= kChanges; ++i) {
    EXPECT_EQ(ports[absl::StrCat("i", i % 10)], static_cast<uint32_t>(i));
  }
  context.TryCancel();
}

class SessionTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(ListenOn(Transport::kUnix)); }

  // Opens a session and renews it once.
  std::string OpenAndRenew(Registry& client, const std::string& incarnation,
                           bool ends_with_stream) {
    OpenSessionRequest open;
    open.set_incarnation(incarnation);
    open.set_ends_with_stream(ends_with_stream);
    const auto session = CallAndWait(client, &Registry::OpenSession, open);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE(CallAndWait(client, &Registry::KeepAlive, RenewalOf(session->session_id())).ok());
    return session->session_id();
  }
};

TEST_F(SessionTest, WhereCallersHaveNoNamesNoneTakesOne) {
  OpenSessionRequest open;
  open.set_incarnation("mine");
  open.set_owner("somebody-else");
  ASSERT_TRUE(CallAndWait(*NewClient(), &Registry::OpenSession, open).ok());
  EXPECT_EQ(fake_.opens.last_request().incarnation(), "mine");
  EXPECT_EQ(fake_.opens.last_request().owner(), "");
}

TEST_F(SessionTest, ABrokenStreamEndsTheSessionsThatAskForIt) {
  auto client = NewClient();
  OpenAndRenew(*client, "plain", false);
  const std::string session = OpenAndRenew(*client, "bound", true);
  client.reset();
  ASSERT_TRUE(fake_.closes.WaitForRequests(1));
  EXPECT_EQ(fake_.closes.last_request().session_id(), session);
  server_->Shutdown(absl::Seconds(5));
  EXPECT_EQ(fake_.closes.request_count(), 1u) << "the plain session lives on";
}

TEST_F(SessionTest, ASessionThatHasMovedToAnotherStreamLivesOn) {
  auto first = NewClient();
  const std::string moved = OpenAndRenew(*first, "moved", true);
  OpenAndRenew(*first, "left", true);
  const auto second = NewClient();
  ASSERT_TRUE(CallAndWait(*second, &Registry::KeepAlive, RenewalOf(moved)).ok());
  first.reset();
  ASSERT_TRUE(fake_.closes.WaitForRequests(1));
  EXPECT_EQ(fake_.closes.last_request().session_id(), "session-of-left");
  EXPECT_EQ(fake_.closes.request_count(), 1u);
}

TEST_F(SessionTest, TheServersOwnEndIsNotTheClients) {
  const auto client = NewClient();
  OpenAndRenew(*client, "bound", true);
  server_->Shutdown(absl::Seconds(5));
  server_.reset();
  EXPECT_EQ(fake_.closes.request_count(), 0u);
}

TEST_F(ServerTest, ShutdownEndsStreamsAndTellsWhy) {
  StartServer(ListenOn(Transport::kTcp));
  const auto client = NewClient();
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client->Subscribe({}, listener);
  const auto subscription = fake_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  fake_.keep_alives.Hold();
  const auto renewal = CallAsync(*client, &Registry::KeepAlive, RenewalOf("a"));
  ASSERT_TRUE(fake_.keep_alives.WaitForRequests(1));
  server_->Shutdown(absl::Seconds(5));
  ASSERT_TRUE(listener->WaitForEnd());
  EXPECT_EQ(ReasonOf(*listener->end()), registry::v1::ERROR_REASON_SHUTTING_DOWN);
  EXPECT_EQ(ReasonOf(renewal.Get().status()), registry::v1::ERROR_REASON_SHUTTING_DOWN);
  EXPECT_TRUE(subscription->cancelled()) << "the registry is not called after Shutdown";
}

TEST_F(ServerTest, ShutdownLetsCallsFinishWithinTheGrace) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  const auto client = NewClient();
  const auto call = CallAsync(*client, &Registry::Register, RegisterRequest());
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  std::thread shutdown([&] { server_->Shutdown(kProcessTimeout); });
  while (Health("") == 1) std::this_thread::yield();
  EXPECT_TRUE(fake_.registers.Complete(RegisterResponse()));
  EXPECT_TRUE(call.Get().ok()) << call.Get().status();
  shutdown.join();
}

TEST_F(ServerTest, ShutdownDoesNotWaitForARegistryThatDoesNotAnswer) {
  StartServer(ListenOn(Transport::kTcp));
  fake_.registers.Hold();
  const auto client = NewClient();
  const auto call = CallAsync(*client, &Registry::Register, RegisterRequest());
  ASSERT_TRUE(fake_.registers.WaitForRequests(1));
  fake_.opens.Hold();
  const auto open = CallAsync(*client, &Registry::OpenSession, OpenSessionRequest());
  ASSERT_TRUE(fake_.opens.WaitForRequests(1));
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_FALSE(call.Get().ok());
  EXPECT_FALSE(open.Get().ok());
  server_.reset();
  // The late answers have no caller any more.
  EXPECT_TRUE(fake_.registers.Complete(RegisterResponse()));
  EXPECT_TRUE(fake_.opens.Complete(OpenSessionResponse()));
}

TEST_F(ServerTest, HealthIsToldForEachService) {
  agent::v1::AgentService::Service agent;
  RegistryServer::Options options;
  options.extra_services = {{&agent, agent::v1::AgentService::service_full_name()}};
  StartServer(ListenOn(Transport::kTcp), options);
  const std::vector<std::string> names = {"", "failback.registry.v1.RegistryService",
                                          "failback.agent.v1.AgentService"};
  for (const std::string& name : names) EXPECT_EQ(Health(name), 1) << name;
  EXPECT_EQ(Health("no.such.Service"), -1);
  server_->SetServing(false);
  for (const std::string& name : names) EXPECT_EQ(Health(name), 2) << name;
  server_.reset();
}

TEST_F(ServerTest, AnAddressInUseIsRefused) {
  for (const Transport transport : {Transport::kTcp, Transport::kUnix}) {
    StartServer(ListenOn(transport));
    RegistryServer::Options options;
    options.listen = {"127.0.0.1:0", address_};
    const absl::Status status = RegistryServer::Start(&fake_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(address_ + " is in use"));
    EXPECT_TRUE(List(*NewClient()).ok()) << "the first is not disturbed";
  }
}

TEST_F(ServerTest, SeveralAddressesAreServedAndTold) {
  RegistryServer::Options options;
  options.listen = {"127.0.0.1:0", ListenOn(Transport::kUnix), "127.0.0.1:0"};
  const auto server = RegistryServer::Start(&fake_, options);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_EQ((*server)->addresses().size(), 3u);
  for (const std::string& address : (*server)->addresses()) {
    address_ = address;
    EXPECT_TRUE(List(*NewClient()).ok()) << address;
  }
}

TEST_F(ServerTest, NothingToListenOn) {
  EXPECT_EQ(RegistryServer::Start(&fake_, RegistryServer::Options()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace failback
