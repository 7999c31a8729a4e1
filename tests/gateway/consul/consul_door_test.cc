// Consul's API at the door: calls, headers, waits and refusals, without a connection.

#include "gateway/consul/consul_door.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gateway/catalog/index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/gateway/door/fake_instance_writer.h"
#include "tests/gateway/http/fake_exchange.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::consul {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConsulDoorTest : public ::testing::Test {
 protected:
  ConsulDoorTest() {
    catalog::Catalog::Options catalog;
    catalog.timer = timer_.get();
    catalog.now = [this] { return now_; };
    catalog_ = std::make_shared<catalog::Catalog>(&registry_, catalog);
    AgentServices::Options services;
    services.timer = timer_.get();
    services.writer = &writer_;
    services_ = AgentServices::Create(services);
    Open(services_);
  }
  ~ConsulDoorTest() override {
    services_->Stop();
    catalog_->Stop();
  }
  void Open(std::shared_ptr<AgentServices> services) {
    ConsulDoor::Options options;
    options.catalog = catalog_;
    options.services = std::move(services);
    options.node = "node-1";
    options.address = "127.0.0.1:8500";
    options.now = [this] { return now_; };
    options.random = [] { return 0.5; };
    door_ = std::make_shared<ConsulDoor>(std::move(options));
    router_ = http::Router();
    door_->AddRoutes([this](const char* method, const char* pattern, http::Handler handler) {
      router_.Add(method, pattern, std::move(handler));
    });
  }

  // Sends a request whose answer is in the exchange.
  void Send(http::FakeExchange* exchange, const std::string& method, const std::string& target,
            const std::string& body = "") {
    const std::vector<std::string> parts = absl::StrSplit(target, absl::MaxSplits('?', 1));
    http::Request request;
    request.method = method;
    request.segments = *http::ParsePath(parts[0]);
    if (parts.size() > 1) request.query = *http::ParseQuery(parts[1]);
    request.body = body;
    const http::Router::Match match = router_.Find(method, request.segments);
    ASSERT_NE(match.handler, nullptr) << target;
    request.parameters = match.parameters;
    (*match.handler)(request, exchange->NewResponder());
  }
  http::Response Call(const std::string& method, const std::string& target,
                      const std::string& body = "") {
    http::FakeExchange exchange;
    Send(&exchange, method, target, body);
    EXPECT_TRUE(exchange.response().has_value()) << target;
    return exchange.response().value_or(http::Response());
  }
  static std::string Header(const http::Response& response, const std::string& name) {
    for (const auto& [header, value] : response.headers) {
      if (header == name) return value;
    }
    return "";
  }
  void PushOrders(uint64_t revision, const std::vector<ServiceInstance>& instances) {
    for (const auto& subscription : registry_.subscriptions()) {
      if (subscription->request().selector().service() != "orders") continue;
      SubscribeResponse event;
      event.set_epoch(1);
      event.set_revision(revision);
      event.mutable_snapshot();
      for (const auto& instance : instances) *event.mutable_snapshot()->add_instances() = instance;
      subscription->Push(event);
    }
  }
  void PushNames() {
    SubscribeResponse event;
    event.set_epoch(1);
    event.set_revision(1);
    ServiceInstance* const entry = event.mutable_snapshot()->add_instances();
    entry->mutable_key()->set_namespace_("default");
    entry->mutable_key()->set_service("orders");
    entry->set_instance_count(1);
    for (const auto& subscription : registry_.subscriptions()) {
      if (subscription->request().selector().service().empty()) subscription->Push(event);
    }
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_, absl::Milliseconds(10));
  FakeRegistry registry_;
  FakeInstanceWriter writer_;
  std::shared_ptr<catalog::Catalog> catalog_;
  std::shared_ptr<AgentServices> services_;
  std::shared_ptr<ConsulDoor> door_;
  http::Router router_;
};

TEST_F(ConsulDoorTest, TheFirstQuestionWaitsForTheRegistry_AndTheNextIsAnsweredAtOnce) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/health/service/orders?passing=1");
  EXPECT_FALSE(first.response().has_value());
  PushOrders(1, {MakeInstance("o1")});
  ASSERT_TRUE(first.response().has_value());
  EXPECT_EQ(first.response()->status, 200);
  EXPECT_THAT(std::string(first.response()->content()), HasSubstr("\"ID\":\"o1\""));
  EXPECT_EQ(Header(*first.response(), "X-Consul-Index"), absl::StrCat(catalog::FirstIndex(now_)));
  EXPECT_EQ(Header(*first.response(), "X-Consul-KnownLeader"), "true");
  EXPECT_EQ(Call("GET", "/v1/health/service/orders?passing=1").shared_body,
            first.response()->shared_body)
      << "the same bytes";
  EXPECT_EQ(Call("GET", "/v1/catalog/service/orders").status, 200);
  EXPECT_EQ(Call("GET", "/v1/health/checks/orders").status, 200);
}

TEST_F(ConsulDoorTest, ABlockingQuery_IsAnsweredByTheNextChange_OrAfterItsWait) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/health/service/orders?index=0");
  PushOrders(1, {MakeInstance("o1")});
  const std::string index = Header(*first.response(), "X-Consul-Index");
  const std::string target = absl::StrCat("/v1/health/service/orders?wait=16s&index=", index);
  http::FakeExchange blocked, patient, gone;
  Send(&blocked, "GET", target);
  Send(&patient, "GET", target);
  Send(&gone, "GET", target);
  EXPECT_FALSE(blocked.response().has_value());
  EXPECT_EQ(blocked.wait(), absl::Milliseconds(16500));
  patient.WaitIsOver();
  ASSERT_TRUE(patient.response().has_value());
  EXPECT_EQ(Header(*patient.response(), "X-Consul-Index"), index) << "nothing has changed";
  gone.Leave();
  PushOrders(2, {MakeInstance("o1"), MakeInstance("o2")});
  ASSERT_TRUE(blocked.response().has_value());
  EXPECT_NE(Header(*blocked.response(), "X-Consul-Index"), index);
  EXPECT_FALSE(gone.response().has_value());
  EXPECT_EQ(catalog_->Stats().waiting, 0);
  const http::Response ahead = Call("GET", "/v1/health/service/orders?index=9007199254740991");
  EXPECT_EQ(Header(ahead, "X-Consul-Index"), Header(*blocked.response(), "X-Consul-Index"))
      << "a client that is ahead starts over";
}

TEST_F(ConsulDoorTest, AnOutage_IsSaidInTheHeaders) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/health/service/orders");
  PushOrders(1, {MakeInstance("o1")});
  registry_.subscriptions()[0]->End(absl::UnavailableError("away"));
  now_ += absl::Seconds(7);
  const http::Response stale = Call("GET", "/v1/health/service/orders");
  EXPECT_EQ(stale.status, 200);
  EXPECT_EQ(Header(stale, "X-Consul-KnownLeader"), "false");
  EXPECT_EQ(Header(stale, "X-Consul-LastContact"), "7000");
}

// Else one reader could make others read an empty service.
TEST_F(ConsulDoorTest, ATagWithALineBreak_IsNoTwoTags) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/health/service/orders");
  ServiceInstance instance = MakeInstance("o1");
  (*instance.mutable_metadata())["tags"] = "a,b";
  PushOrders(1, {instance});
  EXPECT_EQ(Call("GET", "/v1/health/service/orders?tag=a%0Ab").content(), "[]");
  EXPECT_EQ(Call("GET", "/v1/health/service/orders?tag=a1%3Ab").content(), "[]");
  EXPECT_THAT(std::string(Call("GET", "/v1/health/service/orders?tag=a&tag=b").content()),
              HasSubstr("\"o1\""));
}

TEST_F(ConsulDoorTest, NothingIsKnown_Is503) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/health/service/orders");
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(first.response().has_value());
  EXPECT_EQ(first.response()->status, 503);
}

TEST_F(ConsulDoorTest, TheListOfServices_IsNotWokenByHealth) {
  http::FakeExchange first;
  Send(&first, "GET", "/v1/catalog/services");
  PushNames();
  ServiceInstance instance = MakeInstance("o1");
  (*instance.mutable_metadata())["tags"] = "a";
  PushOrders(1, {instance});
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(first.response().has_value());
  EXPECT_EQ(first.response()->content(), R"({"orders":["a"]})");
  http::FakeExchange blocked;
  Send(&blocked, "GET",
       absl::StrCat("/v1/catalog/services?index=", Header(*first.response(), "X-Consul-Index")));
  instance.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  PushOrders(2, {instance});
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(blocked.response().has_value());
  (*instance.mutable_metadata())["tags"] = "a,b";
  PushOrders(3, {instance});
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(blocked.response().has_value());
  EXPECT_EQ(blocked.response()->content(), R"({"orders":["a","b"]})");
  for (const char* target :
       {"/v1/catalog/nodes", "/v1/catalog/node/10.0.0.1", "/v1/health/node/10.0.0.1",
        "/v1/health/state/any", "/v1/health/state/critical"}) {
    const http::Response response = Call("GET", target);
    EXPECT_EQ(response.status, 200) << target;
    EXPECT_THAT(std::string(response.content()), HasSubstr("10.0.0.1")) << target;
    EXPECT_NE(Header(response, "X-Consul-Index"), "") << target;
  }
  EXPECT_EQ(Call("GET", "/v1/health/state/passing").content(), "[]");
}

TEST_F(ConsulDoorTest, AServiceIsRegistered_Reported_AndGone) {
  EXPECT_EQ(Call("PUT", "/v1/agent/service/register?replace-existing-checks=true",
                 R"({"Name":"orders","ID":"service/o%1","Address":"a","Port":80,
                     "Check":{"TTL":"10s"}})")
                .status,
            200);
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/services").content()), HasSubstr("service/o%1"));
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/checks").content()),
              HasSubstr("\"Status\":\"critical\""));
  EXPECT_EQ(Call("PUT", "/v1/agent/check/pass/service%3Aservice%2Fo%251?note=fine").status, 200);
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/checks").content()), HasSubstr("fine"));
  EXPECT_EQ(Call("GET", "/v1/agent/check/warn/service%3Aservice%2Fo%251").status, 200)
      << "old clients change by GET";
  EXPECT_EQ(
      Call("PUT", "/v1/agent/check/update/service%3Aservice%2Fo%251", R"({"Status":"passing"})")
          .status,
      200);
  EXPECT_EQ(
      Call("PUT", "/v1/agent/service/maintenance/service%2Fo%251?enable=1&reason=disk").status,
      200);
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/checks").content()),
              AllOf(HasSubstr("_service_maintenance:service/o%1"), HasSubstr("disk")));
  EXPECT_EQ(Call("PUT", "/v1/agent/service/maintenance/service%2Fo%251?enable=F").status, 200);
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/checks").content()),
              Not(HasSubstr("_service_maintenance")));
  EXPECT_EQ(Call("PUT", "/v1/agent/service/deregister/service%2Fo%251").status, 200);
  EXPECT_EQ(Call("GET", "/v1/agent/services").content(), "{}");
}

TEST_F(ConsulDoorTest, Refusals_HaveTheStatusThatClientsExpect) {
  const auto refused = [&](int status, const std::string& words, const std::string& method,
                           const std::string& target, const std::string& body = "") {
    const http::Response response = Call(method, target, body);
    EXPECT_EQ(response.status, status) << target;
    EXPECT_THAT(std::string(response.content()), HasSubstr(words)) << target;
  };
  refused(404, "Unknown check ID", "PUT", "/v1/agent/check/pass/service:x");
  refused(404, "Unknown service ID", "PUT", "/v1/agent/service/deregister/x");
  refused(400, "filter: is not supported here", "GET", "/v1/health/service/orders?filter=a");
  refused(400, "index: ", "GET", "/v1/catalog/services?index=x");
  refused(400, "body: is no valid JSON", "PUT", "/v1/agent/service/register", "{");
  refused(400, "ns", "PUT", "/v1/agent/service/register?ns=x", "{}");
  refused(400, "enable: ", "PUT", "/v1/agent/service/maintenance/x");
  refused(400, "enable: ", "PUT", "/v1/agent/service/maintenance/x?enable=yes");
  refused(400, "wan: ", "GET", "/v1/agent/self?wan=1");
  refused(400, "state: ", "GET", "/v1/health/state/great");
  refused(400, "only TTL checks", "PUT", "/v1/agent/service/register",
          R"({"Name":"a","Address":"a","Port":1,"Check":{"TCP":"a:1","Interval":"1s"}})");
  const std::string service = R"({"Name":"a","Address":"a","Port":1})";
  EXPECT_EQ(Call("PUT", "/v1/agent/service/register", service).status, 200);
  writer_.answer = absl::PermissionDeniedError("no");
  refused(403, "no", "PUT", "/v1/agent/service/register", service);
  refused(404, "Unknown service ID", "PUT", "/v1/agent/service/deregister/a");
  writer_.answer = Refusal(registry::v1::ERROR_REASON_DRAINING, "drains");
  refused(503, "drains", "PUT", "/v1/agent/service/register", service);
  refused(503, "drains", "PUT", "/v1/agent/service/deregister/a");
  writer_.answer = Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "another has it");
  refused(409, "another has it", "PUT", "/v1/agent/service/register", service);
  EXPECT_EQ(Call("PUT", "/v1/agent/service/deregister/a").status, 200)
      << "none of its own is there";
}

TEST_F(ConsulDoorTest, AtARegistry_ClientsOnlyRead) {
  Open(nullptr);
  const http::Response response = Call("PUT", "/v1/agent/service/register", "{}");
  EXPECT_EQ(response.status, 501);
  EXPECT_THAT(std::string(response.content()), HasSubstr("failback-agent"));
  EXPECT_EQ(Call("GET", "/v1/agent/services").content(), "{}");
  EXPECT_THAT(std::string(Call("GET", "/v1/agent/self").content()),
              HasSubstr("\"Datacenter\":\"default\""));
}

TEST_F(ConsulDoorTest, WhatIsNotHere_IsSaid) {
  http::Request request;
  request.segments = {"v1", "kv", "a", "b"};
  const auto refused = ConsulDoor::RefuseUnsupported(request);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 501);
  EXPECT_THAT(std::string(refused->content()), HasSubstr("/v1/kv is not part of this door"));
  for (const std::vector<std::string>& call :
       std::vector<std::vector<std::string>>{{"catalog", "register"},
                                             {"catalog", "deregister"},
                                             {"catalog", "connect", "web"},
                                             {"health", "connect", "web"},
                                             {"agent", "maintenance"},
                                             {"agent", "connect", "ca"},
                                             {"session", "create"},
                                             {"acl", "tokens"},
                                             {"txn"}}) {
    request.segments = {"v1"};
    request.segments.insert(request.segments.end(), call.begin(), call.end());
    const auto answer = ConsulDoor::RefuseUnsupported(request);
    ASSERT_TRUE(answer.has_value()) << call[0];
    EXPECT_EQ(answer->status, 501);
    EXPECT_THAT(std::string(answer->content()), HasSubstr("/v1/agent/service/register"));
  }
  for (const char* path : {"/v1/agent/self", "/v1/agent/service/register", "/v1/catalog/services",
                           "/v1/nothing", "/v1/catalog/nothing", "/kv"}) {
    request.segments = *http::ParsePath(path);
    EXPECT_FALSE(ConsulDoor::RefuseUnsupported(request).has_value()) << path;
  }
  EXPECT_EQ(Call("GET", "/v1/agent/members?wan=1").status, 200);
  EXPECT_EQ(Call("GET", "/v1/status/leader").content(), "\"127.0.0.1:8500\"");
  EXPECT_EQ(Call("GET", "/v1/catalog/datacenters").content(), "[\"default\"]");
}

}  // namespace
}  // namespace failback::consul
