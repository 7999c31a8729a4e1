// Stock gRPC channels that follow a service: a real registry, real servers, real calls.

#include "agent/discovery_channel.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServiceInstance Instance(const std::string& id, const std::string& address, int port) {
  ServiceInstance instance = MakeInstance("orders", id, port);
  instance.set_address(address);
  return instance;
}

ServiceInstance With(ServiceInstance instance, registry::v1::HealthStatus status,
                     const std::string& zone = "") {
  instance.set_status(status);
  instance.set_zone(zone);
  return instance;
}

// The arguments that are given for each key, in their order.
std::map<std::string, std::vector<std::string>> Arguments(
    const DiscoveryChannel::Options& options) {
  const grpc::ChannelArguments arguments = DiscoveryChannel::ArgumentsOf(options);
  const grpc_channel_args args = arguments.c_channel_args();
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < args.num_args; ++i) {
    const grpc_arg& arg = args.args[i];
    values[arg.key].push_back(arg.type == GRPC_ARG_STRING ? arg.value.string
                                                          : absl::StrCat(arg.value.integer));
  }
  return values;
}

// gRPC's own wait grows to two minutes: an instance that is back would get no call in that time.
TEST(DiscoveryChannelArguments, AnInstanceIsTriedAgainSoon) {
  const auto values = Arguments({});
  EXPECT_THAT(values.at(GRPC_ARG_LB_POLICY_NAME), ElementsAre("round_robin"));
  EXPECT_THAT(values.at(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS), ElementsAre("100"));
  EXPECT_THAT(values.at(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS), ElementsAre("2000"));
  EXPECT_THAT(values.at(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS), ElementsAre("2000"));
}

TEST(DiscoveryChannelArguments, WhatIsGivenCounts) {
  DiscoveryChannel::Options options;
  options.arguments.SetLoadBalancingPolicyName("pick_first");
  options.arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 60000);
  const auto values = Arguments(options);
  EXPECT_THAT(values.at(GRPC_ARG_LB_POLICY_NAME), ElementsAre("pick_first"));
  EXPECT_THAT(values.at(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS), ElementsAre("60000"));
  EXPECT_EQ(values.count(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS), 0u);
}

TEST(InstancesToCallTest, TheBestStatusThenTheZone) {
  const auto healthy = registry::v1::HEALTH_STATUS_HEALTHY;
  const auto unhealthy = registry::v1::HEALTH_STATUS_UNHEALTHY;
  ServiceSnapshot snapshot;
  EXPECT_TRUE(InstancesToCall(snapshot, "").empty());
  snapshot.instances = {With(Instance("a", "10.0.0.1", 80), healthy, "z1"),
                        Instance("b", "10.0.0.2", 80),
                        With(Instance("c", "10.0.0.3", 80), unhealthy, "z2")};
  EXPECT_EQ(TargetOf(InstancesToCall(snapshot, "")), "ipv4:10.0.0.1:80,10.0.0.2:80");
  EXPECT_EQ(TargetOf(InstancesToCall(snapshot, "z1")), "ipv4:10.0.0.1:80");
  EXPECT_EQ(TargetOf(InstancesToCall(snapshot, "z2")), "ipv4:10.0.0.1:80,10.0.0.2:80");
  snapshot.instances[1].mutable_offline();
  EXPECT_EQ(TargetOf(InstancesToCall(snapshot, "")), "ipv4:10.0.0.1:80");
  snapshot.instances[1].clear_offline();
  snapshot.instances[0].set_weight(0);
  snapshot.instances[1].set_weight(0);
  EXPECT_EQ(TargetOf(InstancesToCall(snapshot, "")), "ipv4:10.0.0.3:80");
}

TEST(TargetOfTest, OneFamilyAndNames) {
  EXPECT_EQ(TargetOf({}), "");
  EXPECT_EQ(TargetOf({Instance("a", "orders.local", 80), Instance("b", "10.0.0.1", 81)}),
            "ipv4:10.0.0.1:81");
  EXPECT_EQ(TargetOf({Instance("a", "10.0.0.1", 80), Instance("b", "fd00::1", 81)}),
            "ipv6:[fd00::1]:81,[::ffff:10.0.0.1]:80");
  EXPECT_EQ(TargetOf({Instance("a", "orders.local", 80)}), "dns:///orders.local:80");
}

TEST(RepeatedByWeightTest, SharesInTheSmallestNumbers) {
  const auto target = [](const std::vector<int>& weights) {
    std::vector<ServiceInstance> instances;
    for (size_t i = 0; i < weights.size(); ++i) {
      instances.push_back(Instance("i", "10.0.0.1", static_cast<int>(i) + 1));
      if (weights[i] >= 0) instances.back().set_weight(weights[i]);
    }
    std::string ports;
    for (const auto& instance : RepeatedByWeight(instances)) {
      absl::StrAppend(&ports, instance.port());
    }
    return ports;
  };
  EXPECT_EQ(target({}), "");
  EXPECT_EQ(target({7}), "1");
  EXPECT_EQ(target({-1, 100, 100}), "123");
  EXPECT_EQ(target({50, 100}), "122");
  EXPECT_EQ(target({300, 100, 200}), "123131");
  // Next to nothing is a little.
  EXPECT_EQ(target({1, 65535}), "1" + std::string(16, '2'));
  // Many instances: no more addresses than a target should have.
  std::vector<ServiceInstance> many(300, Instance("i", "10.0.0.1", 1));
  many[0].set_weight(1);
  EXPECT_EQ(RepeatedByWeight(many).size(), 300u);
}

// A registry and an agent in this process, and servers that tell their names.
class DiscoveryChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    timer_ = NewTimer(absl::Milliseconds(10));
    StoreRegistry::Options store;
    store.timer = timer_.get();
    store_ = StoreRegistry::Open(store).value();
    RegistryServer::Options server;
    server.listen = {"127.0.0.1:0"};
    registry_ = RegistryServer::Start(store_.get(), server).value();
    Agent::Options options;
    options.registry = "grpc://" + registry_->addresses()[0];
    agent_ = Agent::Create(options).value();
  }

  // The port of a server of its own; its health tells which of the names are served.
  int StartServer() {
    RegistryServer::Options options;
    options.listen = {"127.0.0.1:0"};
    servers_.push_back(RegistryServer::Start(store_.get(), options).value());
    const std::string address = servers_.back()->addresses()[0];
    return std::stoi(address.substr(address.find(':') + 1));
  }

  // Calls through the channel; the peer that answered, or the error.
  static std::string Call(const DiscoveryChannel& orders) {
    const auto channel = orders.channel();
    if (!channel.ok()) return channel.status().ToString();
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    ListResponse response;
    const grpc::Status status =
        registry::v1::RegistryService::NewStub(*channel)->List(&context, ListRequest(), &response);
    return status.ok() ? context.peer() : status.error_message();
  }

  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryServer> registry_;
  std::vector<std::unique_ptr<RegistryServer>> servers_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(DiscoveryChannelTest, CallsFollowTheInstances) {
  auto orders = DiscoveryChannel::Create(agent_.get(), "orders", {});
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_EQ((*orders)->channel().status().ToString(),
            "UNAVAILABLE: no instance of 'orders' that takes calls is known");
  const int first = StartServer();
  auto a = agent_->Register(Instance("a", "127.0.0.1", first));
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE((*orders)->WaitForChannel(absl::Now() + absl::Seconds(30)).ok());
  EXPECT_EQ(Call(**orders), absl::StrCat("ipv4:127.0.0.1:", first));

  // Another one comes: both are called.
  const int second = StartServer();
  auto b = agent_->Register(Instance("b", "127.0.0.1", second));
  ASSERT_TRUE(
      Eventually([&] { return Call(**orders) == absl::StrCat("ipv4:127.0.0.1:", second); }));
  ASSERT_TRUE(Eventually([&] { return Call(**orders) == absl::StrCat("ipv4:127.0.0.1:", first); }));

  // The first goes: no call reaches it any more, once that is known.
  a->Unregister();
  ASSERT_TRUE(
      Eventually([&] { return (*orders)->target() == absl::StrCat("ipv4:127.0.0.1:", second); }));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Call(**orders), absl::StrCat("ipv4:127.0.0.1:", second));

  b->Unregister();
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable((*orders)->channel().status()); }));
}

TEST_F(DiscoveryChannelTest, CallsFollowTheWeights) {
  const int first = StartServer();
  const int second = StartServer();
  ServiceInstance heavy = Instance("a", "127.0.0.1", first);
  heavy.set_weight(300);
  auto a = agent_->Register(heavy);
  auto b = agent_->Register(Instance("b", "127.0.0.1", second));
  auto orders = DiscoveryChannel::Create(agent_.get(), "orders", {});
  ASSERT_TRUE(orders.ok()) << orders.status();
  // Once both are connected.
  EXPECT_TRUE(Eventually([&] {
    std::map<std::string, int> calls;
    for (int i = 0; i < 8; ++i) ++calls[Call(**orders)];
    return calls[absl::StrCat("ipv4:127.0.0.1:", first)] == 6 &&
           calls[absl::StrCat("ipv4:127.0.0.1:", second)] == 2;
  })) << (*orders)->target();
}

TEST_F(DiscoveryChannelTest, AnUpdateOfTheWeightLeavesNoGap) {
  const int port = StartServer();
  auto a = agent_->Register(Instance("a", "127.0.0.1", port));
  auto seen = agent_->Discover("orders");
  ASSERT_TRUE(seen.ok()) << seen.status();
  ASSERT_TRUE(Eventually([&] { return seen->Current().instances.size() == 1; }));
  ServiceInstance heavier = a->instance();
  heavier.set_weight(7);
  heavier.set_zone("z1");
  ASSERT_TRUE(a->Update(heavier).ok());
  ASSERT_TRUE(Eventually([&] {
    const auto now = seen->Current().instances;
    EXPECT_EQ(now.size(), 1u);
    return !now.empty() && now[0].weight() == 7 && now[0].zone() == "z1";
  }));
}

TEST_F(DiscoveryChannelTest, ABadNameIsRefusedAndTheChannelMayOutliveItsService) {
  EXPECT_THAT(std::string(DiscoveryChannel::Create(agent_.get(), "a b", {}).status().message()),
              HasSubstr("service"));
  const int port = StartServer();
  auto a = agent_->Register(Instance("a", "127.0.0.1", port));
  auto orders = DiscoveryChannel::Create(agent_.get(), "orders", {});
  auto channel = (*orders)->WaitForChannel(absl::Now() + absl::Seconds(30));
  ASSERT_TRUE(channel.ok());
  orders->reset();
  grpc::ClientContext context;
  ListResponse response;
  EXPECT_TRUE(registry::v1::RegistryService::NewStub(*channel)
                  ->List(&context, ListRequest(), &response)
                  .ok());
}

}  // namespace
}  // namespace failback
