#include "registry/model/instance_query.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/fleet_query.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using admin::v1::ListInstancesRequest;
using admin::v1::ListServicesRequest;
using admin::v1::ServiceSummary;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

InstanceRecord Instance(const std::string& id, int port, const std::string& zone = "",
                        registry::v1::HealthStatus status = registry::v1::HEALTH_STATUS_HEALTHY) {
  InstanceRecord record;
  ServiceInstance& instance = *record.mutable_instance();
  instance = MakeInstance("orders", id, static_cast<uint32_t>(port));
  instance.set_address("10.0.0.7");
  instance.set_zone(zone);
  instance.set_status(status);
  record.set_client_name("agent@" + id);
  return record;
}

// Four instances, not in order.
std::vector<InstanceRecord> Four() {
  std::vector<InstanceRecord> records = {
      Instance("c", 80, "west", registry::v1::HEALTH_STATUS_DRAINING),
      Instance("a", 8080, "east"),
      Instance("d", 9, "west", registry::v1::HEALTH_STATUS_UNHEALTHY),
      Instance("b", 70, "east"),
  };
  (*records[1].mutable_instance()->mutable_metadata())["version"] = "1.2.3";
  (*records[3].mutable_instance()->mutable_metadata())["version"] = "1.3.0";
  (*records[3].mutable_instance()->mutable_metadata())["team"] = "Checkout";
  records[0].mutable_instance()->set_persistent(true);
  records[3].mutable_instance()->mutable_offline()->set_reason("disk");
  return records;
}

std::vector<std::string> Ids(const absl::StatusOr<admin::v1::ListInstancesResponse>& response) {
  if (!response.ok()) return {response.status().ToString()};
  std::vector<std::string> ids;
  for (const auto& row : response->instances()) {
    ids.push_back(row.record().instance().key().instance_id());
  }
  return ids;
}

std::vector<std::string> Found(const std::string& query) {
  ListInstancesRequest request;
  request.set_query(query);
  return Ids(QueryInstances(request, Four()));
}

TEST(InstanceQueryTest, WordsAndMetadataFilter) {
  EXPECT_THAT(Found(""), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Found("WEST"), ElementsAre("c", "d"));
  EXPECT_THAT(Found("10.0.0.7:80"), ElementsAre("a", "c"));
  EXPECT_THAT(Found("agent@b"), ElementsAre("b"));
  EXPECT_THAT(Found("checkout"), ElementsAre("b"));
  EXPECT_THAT(Found("version=1.2.3"), ElementsAre("a"));
  EXPECT_THAT(Found("version=1.*"), ElementsAre("a", "b"));
  EXPECT_THAT(Found("version=1.* team=checkout"), ElementsAre("b"));
  EXPECT_THAT(Found("version=1.2"), IsEmpty());
  EXPECT_THAT(Found("west east"), IsEmpty());
}

TEST(InstanceQueryTest, StatesFilterAndAnOperatorsMarkWins) {
  ListInstancesRequest request;
  request.add_states(admin::v1::INSTANCE_STATE_OFFLINE);
  request.add_states(admin::v1::INSTANCE_STATE_DRAINING);
  const auto response = QueryInstances(request, Four());
  EXPECT_THAT(Ids(response), ElementsAre("b", "c"));
  EXPECT_EQ(response->total_instances(), 2);
  EXPECT_EQ(response->counts().total(), 4);
  EXPECT_EQ(response->counts().healthy(), 1);
  EXPECT_EQ(response->counts().unhealthy(), 1);
  EXPECT_EQ(response->counts().draining(), 1);
  EXPECT_EQ(response->counts().offline(), 1);
  EXPECT_EQ(response->counts().persistent(), 1);
  request.set_persistent(false);
  EXPECT_THAT(Ids(QueryInstances(request, Four())), ElementsAre("b"));
}

TEST(InstanceQueryTest, WhatIsHeldIsFoundAlsoWhereItIsMarked) {
  std::vector<InstanceRecord> records = Four();
  records[1].set_held(true);
  records[3].set_held(true);
  ListInstancesRequest request;
  request.add_states(admin::v1::INSTANCE_STATE_HELD);
  EXPECT_THAT(Ids(QueryInstances(request, records)), ElementsAre("a", "b"));
  request.set_states(0, admin::v1::INSTANCE_STATE_OFFLINE);
  EXPECT_THAT(Ids(QueryInstances(request, records)), ElementsAre("b"));
}

TEST(InstanceQueryTest, OrdersByFieldAndNumbersAsNumbers) {
  ListInstancesRequest request;
  request.set_order_by("address");
  EXPECT_THAT(Ids(QueryInstances(request, Four())), ElementsAre("d", "b", "c", "a"));
  request.set_order_by("address desc");
  EXPECT_THAT(Ids(QueryInstances(request, Four())), ElementsAre("a", "c", "b", "d"));
  request.set_order_by("zone");
  EXPECT_THAT(Ids(QueryInstances(request, Four())), ElementsAre("a", "b", "c", "d"));
  request.set_order_by("colour");
  EXPECT_EQ(QueryInstances(request, Four()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(InstanceQueryTest, PagesFollowEachOtherInEveryOrder) {
  for (const char* order : {"", "zone", "address desc", "state", "modify_time desc"}) {
    ListInstancesRequest request;
    request.set_order_by(order);
    const std::vector<std::string> all = Ids(QueryInstances(request, Four()));
    request.set_page_size(1);
    std::vector<std::string> paged;
    do {
      const auto response = QueryInstances(request, Four());
      ASSERT_TRUE(response.ok()) << response.status();
      ASSERT_EQ(response->instances_size(), 1);
      EXPECT_EQ(response->total_instances(), 4);
      paged.push_back(Ids(response)[0]);
      request.set_page_token(response->next_page_token());
    } while (!request.page_token().empty() && paged.size() < 10);
    EXPECT_EQ(paged, all) << order;
  }
}

TEST(InstanceQueryTest, BadPagesAreRefused) {
  ListInstancesRequest request;
  request.set_page_size(-1);
  EXPECT_EQ(QueryInstances(request, {}).status().code(), absl::StatusCode::kInvalidArgument);
  request.set_page_size(0);
  request.set_page_token("!");
  EXPECT_EQ(QueryInstances(request, {}).status().code(), absl::StatusCode::kInvalidArgument);
  request.clear_page_token();
  request.set_query(std::string(2000, 'x'));
  EXPECT_EQ(QueryInstances(request, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

std::vector<ServiceSummary> Services() {
  std::vector<ServiceSummary> services;
  for (const auto& [name_space, name] : {std::pair("default", "billing"),
                                         {"default", "orders"},
                                         {"prod", "orders"},
                                         {"prod", "payments"}}) {
    ServiceSummary& service = services.emplace_back();
    service.set_namespace_(name_space);
    service.set_name(name);
  }
  return services;
}

std::vector<std::string> Names(const admin::v1::ListServicesResponse& response) {
  std::vector<std::string> names;
  for (const auto& service : response.services()) {
    names.push_back(absl::StrCat(service.namespace_(), "/", service.name()));
  }
  return names;
}

TEST(ServiceQueryTest, FiltersAndPages) {
  ListServicesRequest request;
  request.set_query("ORD prod");
  EXPECT_THAT(Names(*QueryServices(request, Services())), ElementsAre("prod/orders"));
  request.set_query("");
  request.set_namespace_("default");
  const auto one = QueryServices(request, Services());
  EXPECT_THAT(Names(*one), ElementsAre("default/billing", "default/orders"));
  EXPECT_THAT(one->namespaces(), ElementsAre("default", "prod"));
  request.set_namespace_("");
  request.set_page_size(3);
  const auto first = QueryServices(request, Services());
  EXPECT_THAT(Names(*first), ElementsAre("default/billing", "default/orders", "prod/orders"));
  EXPECT_EQ(first->total_services(), 4);
  request.set_page_token(first->next_page_token());
  const auto second = QueryServices(request, Services());
  EXPECT_THAT(Names(*second), ElementsAre("prod/payments"));
  EXPECT_EQ(second->next_page_token(), "");
}

TEST(FleetQueryTest, ATokenThatIsNoPlaceIsRefused) {
  std::vector<admin::v1::SessionSummary> sessions(2);
  std::vector<admin::v1::AgentSummary> agents(2);
  for (int i = 0; i < 2; ++i) {
    sessions[i].set_incarnation(absl::StrCat("inc-", i));
    *agents[i].mutable_session() = sessions[i];
  }
  admin::v1::ListSessionsRequest of_sessions;
  admin::v1::ListAgentsRequest of_agents;
  of_sessions.set_page_size(1);
  of_agents.set_page_size(1);
  const auto first = QuerySessions(of_sessions, sessions);
  ASSERT_TRUE(first.ok()) << first.status();
  of_sessions.set_page_token(first->next_page_token());
  EXPECT_EQ(QuerySessions(of_sessions, sessions)->sessions(0).incarnation(), "inc-1");
  const auto first_agents = QueryAgents(of_agents, agents, absl::UnixEpoch());
  ASSERT_TRUE(first_agents.ok()) << first_agents.status();
  of_agents.set_page_token(first_agents->next_page_token());
  EXPECT_EQ(QueryAgents(of_agents, agents, absl::UnixEpoch())->agents(0).session().incarnation(),
            "inc-1");

  for (const std::string& token : {std::string("zz"), first_agents->next_page_token()}) {
    of_sessions.set_page_token(token);
    EXPECT_EQ(QuerySessions(of_sessions, sessions).status().message(),
              "page_token: is not a token of an earlier page")
        << token;
  }
  for (const std::string& token : {std::string("zz"), first->next_page_token()}) {
    of_agents.set_page_token(token);
    EXPECT_EQ(QueryAgents(of_agents, agents, absl::UnixEpoch()).status().message(),
              "page_token: is not a token of an earlier page")
        << token;
  }
}

}  // namespace
}  // namespace failback
