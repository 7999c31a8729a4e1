// The service over real gRPC, with a client that can do wrong.

#include "gateway/xds/ads_service.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/security/access_control.h"
#include "registry/server/registry_server.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/daemons.h"
#include "tests/util/instances.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback::xds {
namespace {

using envoy::config::endpoint::v3::ClusterLoadAssignment;
using envoy::service::discovery::v3::AggregatedDiscoveryService;
using envoy::service::discovery::v3::DiscoveryRequest;
using envoy::service::discovery::v3::DiscoveryResponse;
using ::testing::HasSubstr;

ServiceInstance Instance(int i, const std::string& service = "orders") {
  ServiceInstance instance = MakeInstance(service, absl::StrCat("i", i));
  instance.set_address(absl::StrCat("10.0.", i / 256, ".", i % 256));
  return instance;
}

SubscribeResponse Snapshot(int instances) {
  SubscribeResponse event;
  event.mutable_snapshot();
  for (int i = 0; i < instances; ++i) *event.mutable_snapshot()->add_instances() = Instance(i);
  return event;
}

SubscribeResponse Upsert(int i) {
  SubscribeResponse event;
  *event.mutable_delta()->add_upserts() = Instance(i);
  return event;
}

// A client of the discovery service that says what the test tells it to.
class RawClient {
 public:
  explicit RawClient(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "")
      : stub_(AggregatedDiscoveryService::NewStub(channel)) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    stream_ = stub_->StreamAggregatedResources(&context_);
  }

  void Subscribe(ResourceType type, const std::vector<std::string>& names,
                 const std::string& refusal = "") {
    DiscoveryRequest request;
    request.set_type_url(TypeUrl(type));
    *request.mutable_resource_names() = {names.begin(), names.end()};
    request.set_response_nonce(last_.type_url() == TypeUrl(type) ? last_.nonce() : "");
    request.set_version_info(refusal.empty() ? last_.version_info() : "");
    if (!refusal.empty()) request.mutable_error_detail()->set_message(refusal);
    request.mutable_node()->set_id("raw");
    Send(request);
  }
  void Send(const DiscoveryRequest& request) { stream_->Write(request); }

  // The next response; false at the end of the stream.
  bool Read() {
    last_.Clear();
    return stream_->Read(&last_);
  }

  // How many endpoints the first resource of the next response has.
  int ReadEndpoints() {
    if (!Read() || last_.resources_size() == 0) return -1;
    ClusterLoadAssignment assignment;
    if (!last_.resources(0).UnpackTo(&assignment)) return -2;
    int endpoints = 0;
    for (const auto& locality : assignment.endpoints()) endpoints += locality.lb_endpoints_size();
    return endpoints;
  }

  const DiscoveryResponse& last() const { return last_; }
  grpc::Status Finish() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<AggregatedDiscoveryService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<DiscoveryRequest, DiscoveryResponse>> stream_;
  DiscoveryResponse last_;
};

class AdsServiceTest : public ::testing::Test {
 protected:
  void Start(size_t max_streams = 100, size_t max_services = 10000) {
    timer_ = NewTimer();
    AdsService::Options options;
    options.cache.timer = timer_.get();
    options.cache.linger = absl::ZeroDuration();
    options.max_streams = max_streams;
    options.cache.max_services = max_services;
    options.access = access_;
    ads_ = std::make_unique<AdsService>(&registry_, options);
    RegistryServer::Options server_options;
    server_options.listen = {listen_.empty() ? absl::StrCat("unix:", dir_.File("ads.sock"))
                                             : listen_};
    server_options.extra_services = {{ads_.get(), AdsService::kName}};
    server_ = RegistryServer::Start(&registry_, server_options).value();
    channel_ = grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials());
  }

  void TearDown() override {
    if (ads_ == nullptr) return;
    ads_->Stop();
    server_->Shutdown(absl::Seconds(1));
  }

  const TempDir dir_;
  std::string listen_;
  std::shared_ptr<AccessControl> access_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FakeRegistry registry_;
  std::unique_ptr<AdsService> ads_;
  std::unique_ptr<RegistryServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(AdsServiceTest, FewStreamsOnAConnectionSayNothing) {
  constexpr size_t kMost = 64;
  listen_ = "127.0.0.1:0";  // connections of a Unix socket cannot be told apart
  Start(/*max_streams=*/1000);
  std::vector<std::unique_ptr<RawClient>> silent;
  while (silent.size() < kMost) silent.push_back(std::make_unique<RawClient>(channel_));
  ASSERT_TRUE(Eventually([&] { return ads_->Stats().streams == kMost; }));
  RawClient refused(channel_);
  EXPECT_FALSE(refused.Read());
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("on one connection at once, at most 64 are allowed"));
  // One that is of use is not counted.
  silent[0]->Subscribe(ResourceType::kEndpoints, {"orders"});
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  subscription->Push(Snapshot(2));
  EXPECT_EQ(silent[0]->ReadEndpoints(), 2);
  RawClient let_in(channel_);
  let_in.Subscribe(ResourceType::kEndpoints, {"orders"});
  EXPECT_EQ(let_in.ReadEndpoints(), 2);
  for (const auto& client : silent) client->Cancel();
  let_in.Cancel();
}

TEST_F(AdsServiceTest, TellsEndpointsAndTheirChanges) {
  Start();
  RawClient client(channel_);
  client.Subscribe(ResourceType::kEndpoints, {"orders"});
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  subscription->Push(Snapshot(2));
  EXPECT_EQ(client.ReadEndpoints(), 2);
  EXPECT_EQ(client.last().type_url(),
            "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
  client.Subscribe(ResourceType::kEndpoints, {"orders"});
  EXPECT_TRUE(Eventually([&] { return ads_->Stats().acks == 1; }));
  subscription->Push(Upsert(7));
  EXPECT_EQ(client.ReadEndpoints(), 3);
  EXPECT_EQ(ads_->Stats().responses, 2);
}

TEST_F(AdsServiceTest, LargeResourcesAreSharedByStreams) {
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<RawClient>(channel_));
    clients.back()->Subscribe(ResourceType::kEndpoints, {"orders"});
  }
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  ASSERT_TRUE(Eventually([&] { return ads_->Stats().streams == 5; }));
  subscription->Push(Snapshot(5000));
  for (const auto& client : clients) EXPECT_EQ(client->ReadEndpoints(), 5000);
  EXPECT_EQ(ads_->Stats().cache.builds, 1);
  EXPECT_EQ(registry_.subscriptions().size(), 1u);
}

// Over all its streams; what it leaves is there for others.
TEST_F(AdsServiceTest, OneClientDoesNotTakeEveryName) {
  Start(/*max_streams=*/100, /*max_services=*/10);
  RawClient some(channel_);
  some.Subscribe(ResourceType::kListener, {"a", "b", "c"});
  ASSERT_TRUE(some.Read());
  RawClient more(channel_);
  more.Subscribe(ResourceType::kListener, {"c", "d", "e"});
  while (more.Read()) {
  }
  const grpc::Status refused = more.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("5 services over xDS"));
  ASSERT_TRUE(Eventually([&] { return ads_->Stats().streams == 1; }));
  RawClient fewer(channel_);
  fewer.Subscribe(ResourceType::kListener, {"c", "d"});
  EXPECT_TRUE(fewer.Read()) << fewer.Finish().error_message();
}

TEST_F(AdsServiceTest, ASlowReaderGetsTheNewestState) {
  Start();
  RawClient client(channel_);
  client.Subscribe(ResourceType::kEndpoints, {"orders"});
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  // 2,000 endpoints are more than a stream's window; the client does not read.
  subscription->Push(Snapshot(2000));
  for (int i = 2000; i < 2500; ++i) subscription->Push(Upsert(i));
  int responses = 0;
  int endpoints = 0;
  while (endpoints != 2500 && responses <= 500) {
    endpoints = client.ReadEndpoints();
    ++responses;
  }
  EXPECT_EQ(endpoints, 2500);
  EXPECT_LT(responses, 100) << "500 changes of 50 KB each do not wait in memory";
}

TEST_F(AdsServiceTest, ARefusalIsCountedAndShown) {
  Start();
  RawClient client(channel_);
  client.Subscribe(ResourceType::kListener, {"orders"});
  ASSERT_TRUE(client.Read());
  client.Subscribe(ResourceType::kListener, {"orders"}, "no such thing");
  ASSERT_TRUE(Eventually([&] { return ads_->Stats().nacks == 1; }));
  const auto nack = ads_->Stats().last_nack;
  ASSERT_TRUE(nack.has_value());
  EXPECT_EQ(nack->node_id, "raw");
  EXPECT_EQ(nack->reason, "no such thing");
  EXPECT_EQ(nack->type, ResourceType::kListener);
  EXPECT_EQ(ads_->Stats().acks, 0);
}

TEST_F(AdsServiceTest, TheEndOfTheLastStreamEndsTheSubscription) {
  Start();
  auto first = std::make_unique<RawClient>(channel_);
  RawClient second(channel_);
  first->Subscribe(ResourceType::kListener, {"orders"});
  second.Subscribe(ResourceType::kListener, {"orders"});
  ASSERT_TRUE(first->Read());
  ASSERT_TRUE(second.Read());
  const auto subscription = registry_.WaitForSubscription(0);
  ASSERT_NE(subscription, nullptr);
  first->Cancel();
  first->Finish();
  ASSERT_TRUE(Eventually([&] { return ads_->Stats().streams == 1; }));
  EXPECT_FALSE(subscription->cancelled());
  second.Subscribe(ResourceType::kListener, {});
  EXPECT_TRUE(subscription->WaitForCancel(kProcessTimeout));
  EXPECT_EQ(ads_->Stats().streams, 1);
}

TEST_F(AdsServiceTest, BadRequestsEndTheStream) {
  Start();
  RawClient client(channel_);
  client.Send(DiscoveryRequest());
  EXPECT_FALSE(client.Read());
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("type_url"));
  EXPECT_TRUE(Eventually([&] { return ads_->Stats().streams == 0; }));
}

TEST_F(AdsServiceTest, OneCallerDoesNotTakeAllStreams) {
  config::v1::Tokens known;
  for (const std::string name : {"a", "b"}) {
    auto* const token = known.add_tokens();
    token->set_name(name);
    token->set_sha256(absl::BytesToHexString(Sha256(name)));
  }
  access_ = std::make_shared<AccessControl>(AccessRules::Make(nullptr, &known).value());
  Start(/*max_streams=*/4);
  const auto open = [&](const std::string& token) {
    auto client = std::make_unique<RawClient>(channel_, token);
    client->Subscribe(ResourceType::kListener, {"orders"});
    return client;
  };
  const auto one = open("a"), two = open("a");
  ASSERT_TRUE(one->Read());
  ASSERT_TRUE(two->Read());
  const auto refused = open("a");
  EXPECT_FALSE(refused->Read());
  const grpc::Status status = refused->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("of one caller at once, at most 2 are allowed"));
  const auto other = open("b");
  EXPECT_TRUE(other->Read());
}

TEST_F(AdsServiceTest, StreamsAreBounded) {
  Start(/*max_streams=*/1);
  RawClient first(channel_);
  first.Subscribe(ResourceType::kListener, {"orders"});
  ASSERT_TRUE(first.Read());
  RawClient second(channel_);
  EXPECT_FALSE(second.Read());
  EXPECT_EQ(second.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(AdsServiceTest, StopEndsStreamsAndRefusesNewOnes) {
  Start();
  RawClient client(channel_);
  client.Subscribe(ResourceType::kListener, {"orders"});
  ASSERT_TRUE(client.Read());
  ads_->Stop();
  EXPECT_FALSE(client.Read());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  RawClient late(channel_);
  EXPECT_FALSE(late.Read());
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AdsServiceTest, AThousandServicesOnOneStream) {
  Start();
  RawClient client(channel_);
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat("service-", i));
  client.Subscribe(ResourceType::kEndpoints, names);
  ASSERT_NE(registry_.WaitForSubscription(999), nullptr);
  for (const auto& subscription : registry_.subscriptions()) subscription->Push(Snapshot(1));
  int told = 0;
  while (told < 1000) {
    ASSERT_TRUE(client.Read());
    told += client.last().resources_size();
  }
  // A change of one is that one.
  registry_.subscriptions()[500]->Push(Upsert(5));
  EXPECT_EQ(client.ReadEndpoints(), 2);
  EXPECT_EQ(client.last().resources_size(), 1);
}

// Streams come and go, subscribe and unsubscribe, while services change: what is left is what is
// true, and nothing is left behind.
TEST_F(AdsServiceTest, ManyStreamsAtOnce) {
  Start();
  registry_.EndSubscriptionsWith(std::nullopt);
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    for (int i = 0; !stop; ++i) {
      for (const auto& subscription : registry_.subscriptions()) {
        if (!subscription->cancelled()) subscription->Push(Snapshot(1 + i % 7));
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        RawClient client(channel_);
        const std::string name = absl::StrCat("service-", (round + t) % 3);
        client.Subscribe(ResourceType::kEndpoints, {name});
        EXPECT_TRUE(client.Read());
        client.Subscribe(ResourceType::kEndpoints, {"other", name});
        EXPECT_TRUE(client.Read());
        if (round % 2 == 0) client.Subscribe(ResourceType::kEndpoints, {});
        client.Cancel();
        client.Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] {
    const AdsService::Statistics statistics = ads_->Stats();
    return statistics.streams == 0 && statistics.cache.services == 0;
  }));
  stop = true;
  changes.join();
}

}  // namespace
}  // namespace failback::xds
