// The registry itself, through gRPC: what a client sees of it is what the protocol page says.

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/server/subscribe_client.h"
#include "tests/registry/server/wire_fixture.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_GENERATION_REUSED;
using registry::v1::ERROR_REASON_INVALID_FIELD;
using registry::v1::ERROR_REASON_REPLACED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using registry::v1::ERROR_REASON_SUPERSEDED;

class StoreOverWireTest : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    timer_ = NewTimer();
    StoreRegistry::Options options;
    options.timer = timer_.get();
    auto store = StoreRegistry::Open(std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    RegistryServer::Options server_options;
    server_options.listen = {GetParam() == Transport::kTcp ? "127.0.0.1:0"
                                                           : "unix:" + folder_.File("s")};
    auto server = RegistryServer::Start(store_.get(), server_options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<GrpcRegistry>(std::vector<std::string>{server_->addresses()[0]},
                                             Patient());
    OpenSessionRequest open;
    open.set_incarnation("test");
    const auto session = CallAndWait(*client_, &Registry::OpenSession, open);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *session;
  }

  // The status of registering `id` at `port`.
  absl::Status Register(const std::string& id, uint64_t generation, uint32_t port) {
    RegisterRequest request;
    request.set_session_id(session_.session_id());
    auto* registration = request.add_registrations();
    registration->set_generation(generation);
    auto* instance = registration->mutable_instance();
    *instance->mutable_key() = Key(id);
    instance->set_address("10.0.0.7");
    instance->set_port(port);
    const auto response = CallAndWait(*client_, &Registry::Register, request);
    if (!response.ok()) return response.status();
    return StatusFromProto(response->results(0).status());
  }

  absl::Status Unregister(const std::string& id, uint64_t generation) {
    UnregisterRequest request;
    request.set_session_id(session_.session_id());
    *request.add_deregistrations()->mutable_key() = Key(id);
    request.mutable_deregistrations(0)->set_generation(generation);
    const auto response = CallAndWait(*client_, &Registry::Unregister, request);
    if (!response.ok()) return response.status();
    return StatusFromProto(response->results(0).status());
  }

  static InstanceKey Key(const std::string& id) {
    InstanceKey key;
    key.set_namespace_("default");
    key.set_service("orders");
    key.set_instance_id(id);
    return key;
  }

  SubscribeRequest Subscription(const std::string& id) const {
    SubscribeRequest request;
    request.set_session_id(session_.session_id());
    request.set_subscription_id(id);
    request.mutable_selector()->set_service("orders");
    return request;
  }

  void FollowResumeAndEnd(WayIn way, WayIn other) {
    const std::string name = WayInName(way);
    ASSERT_TRUE(Register(name + "a", 1, 8080).ok());
    auto first = std::make_shared<RecordingListener>();
    auto stream = SubscribeBy(way, *client_, server_->addresses()[0], Subscription(name), first);
    ASSERT_TRUE(first->WaitForEvents(1));
    EXPECT_GE(first->events()[0]->snapshot().instances_size(), 1);
    ASSERT_TRUE(Register(name + "b", 1, 8080).ok());
    ASSERT_TRUE(first->WaitForEvents(2));
    EXPECT_EQ(first->events()[1]->delta().upserts_size(), 1);
    const uint64_t seen = first->events()[1]->revision();

    stream.reset();
    ASSERT_TRUE(Unregister(name + "a", 2).ok());
    SubscribeRequest resume = Subscription(name);
    resume.set_epoch(session_.epoch());
    resume.set_revision(seen);
    auto second = std::make_shared<RecordingListener>();
    const auto resumed = SubscribeBy(way, *client_, server_->addresses()[0], resume, second);
    ASSERT_TRUE(second->WaitForEvents(1));
    ASSERT_TRUE(second->events()[0]->has_delta()) << second->events()[0]->DebugString();
    EXPECT_EQ(second->events()[0]->delta().base_revision(), seen);
    EXPECT_EQ(second->events()[0]->delta().removals_size(), 1);

    auto third = std::make_shared<RecordingListener>();
    const auto replacing =
        SubscribeBy(other, *client_, server_->addresses()[0], Subscription(name), third);
    ASSERT_TRUE(second->WaitForEnd());
    EXPECT_EQ(ReasonOf(*second->end()), ERROR_REASON_REPLACED);
    ASSERT_TRUE(third->WaitForEvents(1));
    UnsubscribeRequest unsubscribe;
    unsubscribe.set_session_id(session_.session_id());
    unsubscribe.set_subscription_id(name);
    unsubscribe.set_generation(1);
    ASSERT_TRUE(CallAndWait(*client_, &Registry::Unsubscribe, unsubscribe).ok());
    ASSERT_TRUE(third->WaitForEnd());
    EXPECT_TRUE(third->end()->ok());
  }

  TempDir folder_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<GrpcRegistry> client_;
  OpenSessionResponse session_;
};

INSTANTIATE_TEST_SUITE_P(Transports, StoreOverWireTest,
                         testing::Values(Transport::kTcp, Transport::kUnix), TransportName);

TEST_P(StoreOverWireTest, FencingAndRefusals) {
  EXPECT_TRUE(Register("a", 1, 8080).ok());
  EXPECT_TRUE(Register("a", 1, 8080).ok()) << "the same again";
  const absl::Status reused = Register("a", 1, 8081);
  EXPECT_EQ(ReasonOf(reused), ERROR_REASON_GENERATION_REUSED) << reused;
  EXPECT_TRUE(Unregister("a", 2).ok());
  const absl::Status late = Register("a", 1, 8080);
  EXPECT_EQ(ReasonOf(late), ERROR_REASON_SUPERSEDED) << late;
  EXPECT_EQ(ReasonMetadata(late, "generation"), "2");
  EXPECT_EQ(ReasonOf(Register("b", 1, 70000)), ERROR_REASON_INVALID_FIELD);
  session_.set_session_id("nobody");
  EXPECT_EQ(ReasonOf(Register("a", 3, 8080)), ERROR_REASON_SESSION_UNKNOWN);
}

// Over both ways in. Names in a session are the same for both, so one takes over from the other.
TEST_P(StoreOverWireTest, SubscriptionsFollowResumeAndEnd) {
  for (const auto& [way, other] :
       {std::pair(WayIn::kWatch, WayIn::kSubscribe), std::pair(WayIn::kSubscribe, WayIn::kWatch)}) {
    SCOPED_TRACE(WayInName(way));
    FollowResumeAndEnd(way, other);
  }
}

TEST_P(StoreOverWireTest, RenewalAndTheEndOfASession) {
  ASSERT_TRUE(Register("a", 1, 8080).ok());
  KeepAliveRequest renewal;
  renewal.set_session_id(session_.session_id());
  const auto renewed = CallAndWait(*client_, &Registry::KeepAlive, renewal);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->epoch(), session_.epoch());
  CloseSessionRequest close;
  close.set_session_id(session_.session_id());
  ASSERT_TRUE(CallAndWait(*client_, &Registry::CloseSession, close).ok());
  EXPECT_EQ(ReasonOf(CallAndWait(*client_, &Registry::KeepAlive, renewal).status()),
            ERROR_REASON_SESSION_UNKNOWN);
  const auto list = CallAndWait(*client_, &Registry::List, ListRequest());
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->records_size(), 0);
}

TEST_P(StoreOverWireTest, ManyInstancesInBatches) {
  constexpr int kCalls = 20;
  constexpr int kBatch = 250;
  std::vector<Answered<RegisterResponse>> calls;
  for (int i = 0; i < kCalls; ++i) {
    RegisterRequest request;
    request.set_session_id(session_.session_id());
    for (int j = 0; j < kBatch; ++j) {
      auto* registration = request.add_registrations();
      registration->set_generation(1);
      *registration->mutable_instance()->mutable_key() = Key(absl::StrCat("i", i, "-", j));
      registration->mutable_instance()->set_address("10.0.0.7");
      registration->mutable_instance()->set_port(8080);
    }
    calls.push_back(CallAsync(*client_, &Registry::Register, request));
  }
  for (const auto& call : calls) {
    const auto response = call.Get();
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->results_size(), kBatch);
  }
  auto listener = std::make_shared<RecordingListener>();
  const auto stream = client_->Subscribe(Subscription("s"), listener);
  int instances = 0;
  for (size_t parts = 1; instances < kCalls * kBatch; ++parts) {
    ASSERT_TRUE(listener->WaitForEvents(parts));
    const auto event = listener->events()[parts - 1];
    ASSERT_TRUE(event->has_snapshot());
    instances += event->snapshot().instances_size();
  }
  EXPECT_EQ(instances, kCalls * kBatch);
}

// A client as gRPC makes it takes no message above 4 MiB. What it has missed is 20 MB.
TEST_P(StoreOverWireTest, AStockClientResumesAfterMuchHasChanged) {
  if (!kReadsLargeMessages) GTEST_SKIP() << "20 MB";
  constexpr int kInstances = 2000;
  constexpr int kBatch = 100;
  const auto register_all = [&](uint64_t generation, const std::string& version) {
    for (int i = 0; i < kInstances; i += kBatch) {
      RegisterRequest request;
      request.set_session_id(session_.session_id());
      for (int j = i; j < i + kBatch; ++j) {
        auto* registration = request.add_registrations();
        registration->set_generation(generation);
        auto* instance = registration->mutable_instance();
        *instance->mutable_key() = Key(absl::StrCat(j));
        instance->set_address("10.0.0.7");
        instance->set_port(8080);
        for (int k = 0; k < 10; ++k) {
          (*instance->mutable_metadata())[absl::StrCat("key", k)] =
              absl::StrCat(version, std::string(1000, 'x'));
        }
      }
      const auto response = CallAndWait(*client_, &Registry::Register, request);
      ASSERT_TRUE(response.ok()) << response.status();
    }
  };
  const auto stub = registry::v1::RegistryService::NewStub(
      grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  SubscribeRequest request;
  request.mutable_selector()->set_service("orders");
  // Follows until a snapshot is whole or a delta has come; the instances of this version.
  const auto follow = [&](const std::string& version) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    const auto reader = stub->Subscribe(&context, request);
    int instances = 0;
    SubscribeResponse event;
    bool whole = false;
    while (!whole && reader->Read(&event)) {
      const auto& told =
          event.has_snapshot() ? event.snapshot().instances() : event.delta().upserts();
      for (const ServiceInstance& instance : told) {
        if (absl::StartsWith(instance.metadata().at("key0"), version)) ++instances;
      }
      whole = !event.snapshot().more();
    }
    EXPECT_TRUE(whole) << "the stream has ended";
    request.set_epoch(event.epoch());
    request.set_revision(event.revision());
    context.TryCancel();
    SubscribeResponse rest;
    while (reader->Read(&rest)) {
    }
    reader->Finish();
    return instances;
  };
  register_all(1, "before");
  EXPECT_EQ(follow("before"), kInstances);
  register_all(2, "after");
  EXPECT_EQ(follow("after"), kInstances);
}

}  // namespace
}  // namespace failback
