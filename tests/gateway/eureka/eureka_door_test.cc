// Eureka's API at the door: calls, forms, deltas and refusals, without a connection.

#include "gateway/eureka/eureka_door.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/simulated_clock.h"
#include "tests/gateway/door/fake_instance_writer.h"
#include "tests/gateway/http/fake_exchange.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback::eureka {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OfflineRegistry final : public FakeRegistry {
 public:
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override {
    last = request;
    std::move(done)(SetOfflineResponse());
  }
  SetOfflineRequest last;
};

class EurekaDoorTest : public ::testing::Test {
 protected:
  EurekaDoorTest() {
    catalog::Catalog::Options catalog;
    catalog.timer = timer_.get();
    catalog_ = std::make_shared<catalog::Catalog>(&registry_, catalog);
    EurekaDoor::Options options;
    options.catalog = catalog_;
    options.writer = &writer_;
    options.registry = &registry_;
    options.now = [this] { return now_; };
    std::make_shared<EurekaDoor>(std::move(options))
        ->AddRoutes(
            [this](const std::string& method, const std::string& pattern, http::Handler handler) {
              router_.Add(method, pattern, std::move(handler));
            });
  }
  ~EurekaDoorTest() override { catalog_->Stop(); }

  void Send(http::FakeExchange* exchange, const std::string& method, const std::string& target,
            const std::string& body = "", const std::string& accept = "application/json") {
    const std::vector<std::string> parts = absl::StrSplit(target, absl::MaxSplits('?', 1));
    http::Request request;
    request.method = method;
    request.segments = *http::ParsePath(parts[0]);
    if (parts.size() > 1) request.query = *http::ParseQuery(parts[1]);
    request.body = body;
    request.headers.emplace_back("Accept", accept);
    const http::Router::Match match = router_.Find(method, request.segments);
    ASSERT_NE(match.handler, nullptr) << target;
    request.parameters = match.parameters;
    (*match.handler)(request, exchange->NewResponder());
  }
  http::Response Call(const std::string& method, const std::string& target,
                      const std::string& body = "",
                      const std::string& accept = "application/json") {
    http::FakeExchange exchange;
    Send(&exchange, method, target, body, accept);
    EXPECT_TRUE(exchange.response().has_value()) << target;
    return exchange.response().value_or(http::Response());
  }
  std::string Read(const std::string& target, const std::string& accept = "application/json") {
    return std::string(Call("GET", target, "", accept).content());
  }
  void Push(uint64_t revision, const std::vector<ServiceInstance>& instances) {
    SubscribeResponse names, orders;
    for (SubscribeResponse* event : {&names, &orders}) {
      event->set_epoch(1);
      event->set_revision(revision);
      event->mutable_snapshot();
    }
    ServiceInstance* const entry = names.mutable_snapshot()->add_instances();
    entry->mutable_key()->set_namespace_("default");
    entry->mutable_key()->set_service("orders");
    entry->set_instance_count(1);
    for (const auto& instance : instances) *orders.mutable_snapshot()->add_instances() = instance;
    for (const char* service : {"", "orders"}) {
      for (const auto& subscription : registry_.subscriptions()) {
        if (subscription->request().selector().service() != service) continue;
        subscription->Push(*service == '\0' ? names : orders);
      }
    }
    clock_.Advance(absl::Seconds(1));
  }
  void Know(const std::vector<ServiceInstance>& instances) {
    http::FakeExchange first;
    Send(&first, "GET", "/eureka/apps");
    EXPECT_FALSE(first.response().has_value());
    Push(1, instances);
    ASSERT_TRUE(first.response().has_value());
    EXPECT_EQ(first.response()->status, 200);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_, absl::Milliseconds(10));
  OfflineRegistry registry_;
  FakeInstanceWriter writer_;
  std::shared_ptr<catalog::Catalog> catalog_;
  http::Router router_;
};

constexpr char kOrders[] =
    R"({"instance":{"instanceId":"o1","hostName":"h","app":"ORDERS","ipAddr":"10.0.0.1",
        "port":{"$":80,"@enabled":"true"},"leaseInfo":{"durationInSecs":15}}})";

TEST_F(EurekaDoorTest, AnInstanceRegisters_Renews_AndGoes) {
  EXPECT_EQ(Call("PUT", "/eureka/apps/ORDERS/o1").status, 404) << "so clients register";
  EXPECT_EQ(Call("POST", "/eureka/v2/apps/ORDERS", kOrders).status, 204);
  ASSERT_EQ(writer_.put.count("default/orders/o1"), 1u);
  EXPECT_EQ(writer_.put["default/orders/o1"].ttl, absl::Seconds(15));
  EXPECT_EQ(Call("PUT", "/eureka/apps/ORDERS/o1?status=UP&lastDirtyTimestamp=1").status, 200);
  EXPECT_EQ(writer_.renewals, 1);
  EXPECT_EQ(Call("DELETE", "/eureka/apps/ORDERS/o1").status, 200);
  EXPECT_TRUE(writer_.put.empty());
}

TEST_F(EurekaDoorTest, AppsAreRead_InBothForms) {
  Know({MakeInstance("o1")});
  EXPECT_THAT(Read("/eureka/apps"), HasSubstr("\"apps__hashcode\":\"UP_1_\""));
  EXPECT_THAT(Read("/eureka/apps/", ""), HasSubstr("<apps__hashcode>UP_1_</apps__hashcode>"));
  EXPECT_EQ(Call("GET", "/eureka/apps", "", "").content_type, "application/xml");
  EXPECT_THAT(Read("/eureka/apps/orders"), HasSubstr("{\"application\":{\"name\":\"ORDERS\""));
  EXPECT_THAT(Read("/eureka/apps/ORDERS/o1"), HasSubstr("\"instanceId\":\"o1\""));
  EXPECT_THAT(Read("/eureka/instances/o1"), HasSubstr("{\"instance\":{"));
  EXPECT_THAT(Read("/eureka/vips/orders"), HasSubstr("\"instanceId\":\"o1\""));
  for (const char* absent : {"/eureka/apps/NONE", "/eureka/apps/ORDERS/x", "/eureka/instances/x",
                             "/eureka/vips/x", "/eureka/svips/orders"}) {
    EXPECT_EQ(Call("GET", absent).status, 404) << absent;
  }
}

TEST_F(EurekaDoorTest, ADelta_HasWhatChanged_AndTheHashOfAll) {
  Know({MakeInstance("o1"), MakeInstance("o2")});
  EXPECT_THAT(Read("/eureka/apps/delta"), HasSubstr("ADDED"));
  now_ += absl::Minutes(4);
  Push(2, {MakeInstance("o1"), MakeInstance("o3")});
  const std::string delta = Read("/eureka/apps/delta");
  EXPECT_THAT(delta, HasSubstr("\"apps__hashcode\":\"UP_2_\""));
  EXPECT_THAT(delta, HasSubstr("\"actionType\":\"DELETED\""));
  EXPECT_THAT(delta, HasSubstr("\"actionType\":\"ADDED\""));
  EXPECT_THAT(delta, Not(HasSubstr("\"instanceId\":\"o1\"")));
  EXPECT_EQ(Read("/eureka/apps/delta"), delta);
}

TEST_F(EurekaDoorTest, AStatusOverride_IsAnOperatorsMark) {
  EXPECT_EQ(Call("PUT", "/eureka/apps/ORDERS/o1/status?value=OUT_OF_SERVICE").status, 200);
  EXPECT_TRUE(registry_.last.offline());
  EXPECT_EQ(registry_.last.key().service(), "orders");
  EXPECT_EQ(Call("DELETE", "/eureka/apps/ORDERS/o1/status?value=UP").status, 200);
  EXPECT_FALSE(registry_.last.offline());
  EXPECT_EQ(Call("PUT", "/eureka/apps/ORDERS/o1/status?value=DOWN").status, 400);
}

TEST_F(EurekaDoorTest, Refusals_NameWhatIsWrong) {
  const auto refused = [&](const std::string& words, const std::string& body) {
    const http::Response response = Call("POST", "/eureka/apps/ORDERS", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_THAT(std::string(response.content()), HasSubstr(words)) << body;
  };
  refused("body: is empty", "");
  refused("body: is no valid JSON", "{");
  refused("line 1", "<instance>");
  refused("document type", "<!DOCTYPE instance [<!ENTITY a \"b\">]><instance>&a;</instance>");
  refused("instance: is required", "{}");
  EXPECT_EQ(Call("GET", "/eureka/apps?regions=us").status, 400);
}

// A client whose key another one has taken, and one whose agent drains.
TEST_F(EurekaDoorTest, WhatTheWriterRefuses_HasTheStatusOfItsReason) {
  const std::string body = kOrders;
  writer_.answer = Refusal(registry::v1::ERROR_REASON_SUPERSEDED, "another has it");
  EXPECT_EQ(Call("POST", "/eureka/apps/ORDERS", body).status, 409);
  EXPECT_EQ(Call("PUT", "/eureka/apps/ORDERS/o1").status, 409);
  EXPECT_EQ(Call("DELETE", "/eureka/apps/ORDERS/o1").status, 200) << "none of its own is there";
  writer_.answer = Refusal(registry::v1::ERROR_REASON_DRAINING, "drains");
  EXPECT_EQ(Call("POST", "/eureka/apps/ORDERS", body).status, 503);
  EXPECT_EQ(Call("DELETE", "/eureka/apps/ORDERS/o1").status, 503);
}

TEST_F(EurekaDoorTest, NothingIsKnown_Is503) {
  http::FakeExchange first;
  Send(&first, "GET", "/eureka/apps");
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(first.response().has_value());
  EXPECT_EQ(first.response()->status, 503);
}

}  // namespace
}  // namespace failback::eureka
