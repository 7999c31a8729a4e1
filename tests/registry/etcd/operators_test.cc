// What operators see of registries over etcd: real daemons, a real etcd.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using admin::v1::ChangeKind;

class OperatorsTest : public testing::Test {
 protected:
  OperatorsTest() : etcd_(EtcdCluster::Options{}), judge_(etcd_, "/operators") {
    for (int i = 0; i < 2; ++i) {
      servers_.push_back(
          Daemon::Registry({"--store", etcd_.Uri("/operators"), "--admin", "127.0.0.1:0"}));
      admins_.push_back(admin::v1::AdminService::NewStub(
          grpc::CreateChannel(servers_.back().address(), grpc::InsecureChannelCredentials())));
    }
  }

  template <typename Request, typename Response>
  Response Ask(int server,
               grpc::Status (admin::v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
               const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    Response response;
    const grpc::Status status =
        (admins_[static_cast<size_t>(server)].get()->*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  std::vector<ChangeKind> History(int server, const std::string& id) {
    admin::v1::DescribeInstanceRequest request;
    *request.mutable_key() = MakeInstance("s", id).key();
    std::vector<ChangeKind> kinds;
    const auto description = Ask(server, &admin::v1::AdminService::Stub::DescribeInstance, request);
    for (const auto& change : description.history()) kinds.push_back(change.kind());
    return kinds;
  }

  EtcdCluster etcd_;
  EtcdHarness judge_;
  std::vector<Daemon> servers_;
  std::vector<std::unique_ptr<admin::v1::AdminService::Stub>> admins_;
};

TEST_F(OperatorsTest, SessionsAreThoseOfAllServersInPages) {
  std::vector<std::string> sessions;
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(judge_.Session(absl::StrCat("client", i), absl::Seconds(60)));
  }
  ASSERT_TRUE(judge_.Register(sessions[1], MakeInstance("s", "1"), 1).ok());
  ServiceInstance kept = MakeInstance("s", "2");
  kept.set_persistent(true);
  ASSERT_TRUE(judge_.Register(sessions[1], kept, 2).ok());
  for (int server = 0; server < 2; ++server) {
    admin::v1::ListSessionsRequest request;
    request.set_page_size(2);
    std::vector<admin::v1::SessionSummary> listed;
    do {
      const auto page = Ask(server, &admin::v1::AdminService::Stub::ListSessions, request);
      EXPECT_EQ(page.total_sessions(), 5);
      EXPECT_LE(page.sessions_size(), 2);
      listed.insert(listed.end(), page.sessions().begin(), page.sessions().end());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty() && listed.size() <= 5);
    ASSERT_EQ(listed.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(listed[i].incarnation(), absl::StrCat("client", i));
      EXPECT_EQ(FromProto(listed[i].ttl()), absl::Seconds(60));
      EXPECT_GT(listed[i].rank(), 0u);
      EXPECT_GT(FromProto(listed[i].expire_time()), absl::Now());
      EXPECT_EQ(listed[i].instances(), i == 1 ? 2 : 0);
    }
    request.Clear();
    request.set_query("CLIENT3");
    EXPECT_EQ(Ask(server, &admin::v1::AdminService::Stub::ListSessions, request).sessions_size(),
              1);
  }
  EXPECT_TRUE(absl::StrContains(Ctl(servers_[0].address(), {"sessions"}).out, "client4"));
}

TEST_F(OperatorsTest, ServicesAndListingsAreOfAllNamespaces) {
  const std::string session = judge_.Session("a", absl::Seconds(60));
  ServiceInstance elsewhere = MakeInstance("billing/eu", "9");
  elsewhere.mutable_key()->set_namespace_("team-b");
  elsewhere.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  ASSERT_TRUE(judge_.Register(session, MakeInstance("s", "1"), 1).ok());
  ASSERT_TRUE(judge_.Register(session, elsewhere, 2).ok());
  const auto services =
      Ask(0, &admin::v1::AdminService::Stub::ListServices, admin::v1::ListServicesRequest());
  ASSERT_EQ(services.services_size(), 2) << services.ShortDebugString();
  EXPECT_EQ(services.namespaces_size(), 2);
  EXPECT_EQ(services.services(0).name(), "s");
  EXPECT_EQ(services.services(1).namespace_(), "team-b");
  EXPECT_EQ(services.services(1).name(), "billing/eu");
  EXPECT_EQ(services.services(1).instances().draining(), 1);
  const RunResult all = Ctl(servers_[1].address(), {"list", "-A"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_TRUE(absl::StrContains(all.out, "team-b")) << all.out;
  EXPECT_TRUE(absl::StrContains(all.out, "default")) << all.out;
  const auto overview =
      Ask(0, &admin::v1::AdminService::Stub::GetOverview, admin::v1::GetOverviewRequest());
  EXPECT_EQ(overview.registry().sessions(), 1);
  EXPECT_EQ(overview.registry().epoch(), judge_->Stats().epoch);
}

// Etcd remembers, so it is the same at a server that took no part.
TEST_F(OperatorsTest, TheHistoryOfAnInstanceIsEtcds) {
  const std::string first = judge_.Session("first", absl::Seconds(60));
  const std::string second = judge_.Session("second", absl::Seconds(60));
  ServiceInstance instance = MakeInstance("s", "1", 80);
  ASSERT_TRUE(judge_.Register(first, instance, 1).ok());
  instance.set_port(81);
  ASSERT_TRUE(judge_.Register(first, instance, 2).ok());
  instance.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  ASSERT_TRUE(judge_.Register(first, instance, 3).ok());
  ASSERT_TRUE(judge_.Register(second, instance, 1).ok());
  const std::vector<ChangeKind> expected = {
      admin::v1::CHANGE_KIND_REPLACED, admin::v1::CHANGE_KIND_HEALTH,
      admin::v1::CHANGE_KIND_UPDATED, admin::v1::CHANGE_KIND_REGISTERED};
  EXPECT_EQ(History(0, "1"), expected);
  EXPECT_EQ(History(1, "1"), expected);

  admin::v1::DescribeInstanceRequest request;
  *request.mutable_key() = instance.key();
  const auto description = Ask(0, &admin::v1::AdminService::Stub::DescribeInstance, request);
  EXPECT_EQ(description.session().incarnation(), "second");
  EXPECT_EQ(description.session().instances(), 1);
  EXPECT_EQ(description.history(0).by(), "client of second");
  EXPECT_EQ(description.history(1).detail(), "healthy → unhealthy");

  // What is compacted is forgotten; what is there is reported all the same.
  ASSERT_EQ(etcd_.Ctl({"compact", absl::StrCat(judge_.List("s")[0].modify_revision())}).status, 0);
  EXPECT_EQ(History(1, "1"), std::vector<ChangeKind>{admin::v1::CHANGE_KIND_UPDATED});

  ASSERT_TRUE(judge_.Unregister(second, instance.key(), 2).ok());
  EXPECT_EQ(History(1, "1").front(), admin::v1::CHANGE_KIND_UNREGISTERED);
  const RunResult unknown = Ctl(servers_[0].address(), {"describe", "s", "--id", "never"});
  EXPECT_NE(unknown.status, 0);
  EXPECT_TRUE(absl::StrContains(unknown.err, "NOT_FOUND")) << unknown.err;
}

TEST_F(OperatorsTest, AgentsAreThoseThatRenewAtThisServerAndTheGuardIsEtcds) {
  Daemon agent = Daemon::Agent(servers_[0].address(), {"--session-ttl", "3s"});
  ASSERT_EQ(Ctl(agent.address(), {"register", "s", "--id", "1", "--address", "127.0.0.1", "--port",
                                  "1", "--wait", "acknowledged"})
                .status,
            0);
  const admin::v1::ListAgentsRequest all;
  EXPECT_TRUE(Eventually([&] {
    const auto agents = Ask(0, &admin::v1::AdminService::Stub::ListAgents, all);
    return agents.agents_size() == 1 && agents.agents(0).report().intents() == 1 &&
           agents.agents(0).troubles().empty();
  }));
  EXPECT_EQ(Ask(1, &admin::v1::AdminService::Stub::ListAgents, all).agents_size(), 0);
  agent.Kill();
  EXPECT_TRUE(Eventually(
      [&] { return Ask(0, &admin::v1::AdminService::Stub::ListAgents, all).agents_size() == 0; }));

  const RunResult guard = Ctl(servers_[0].address(), {"guard", "off"});
  EXPECT_NE(guard.status, 0);
  EXPECT_TRUE(absl::StrContains(guard.err, "no eviction guard over etcd")) << guard.err;
}

}  // namespace
}  // namespace failback
