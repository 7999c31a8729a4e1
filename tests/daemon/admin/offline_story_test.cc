// An instance is taken out of rotation and put back, by real processes: a registry, an agent, a
// subscriber, and an operator at the HTTP endpoints of both.

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "daemon/admin/admin.h"
#include "daemon/admin_config.h"
#include "failback/admin/v1/admin.pb.h"
#include "gateway/http/server.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/ports.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using admin::v1::InstanceDescription;
using ::testing::HasSubstr;

template <typename Message>
Message ParseJson(const std::string& json) {
  Message message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &message).ok()) << json;
  return message;
}

TEST(NameOperator, WhatIsKnownOfACallerIsNeverCutForWhatItSays) {
  EXPECT_EQ(NameOperator("", "fleet"), "fleet");
  EXPECT_EQ(NameOperator("alice", "fleet"), "'alice' by fleet");
  EXPECT_EQ(NameOperator(std::string(200, 'a'), "fleet"),
            "'" + std::string(117, 'a') + "' by fleet");
  EXPECT_EQ(NameOperator(std::string(200, '\''), "fleet").size(), 127) << "no half of an escape";
  EXPECT_EQ(NameOperator("alice", std::string(200, 'k')), std::string(128, 'k'));
}

TEST(NameOperator, WhatACallerSaysIsNotTakenForWhatIsKnown) {
  EXPECT_EQ(NameOperator("eve by token admin", "token eve"), "'eve by token admin' by token eve");
  EXPECT_EQ(NameOperator("eve' by token admin", "token eve"),
            "'eve\\' by token admin' by token eve");
  EXPECT_EQ(NameOperator("eve\\' by token admin", "token eve"),
            "'eve\\\\\\' by token admin' by token eve");
  EXPECT_EQ(NameOperator("", "token eve"), "token eve");
}

class OfflineStoryTest : public ::testing::Test {
 protected:
  OfflineStoryTest() { std::ofstream(dir_.File("token")) << "sesame\n"; }

  Daemon StartRegistry(const std::string& listen) const {
    return Daemon::Registry({"--store", "sqlite://" + dir_.File("registry.db"), "--listen", listen,
                             "--admin", "127.0.0.1:0", "--admin-token-file", dir_.File("token")});
  }

  static HttpAnswer SetOffline(const std::string& admin, bool offline) {
    return Http(admin, "POST", "/services/default/orders/orders-1/offline",
                {{"Authorization", "Bearer sesame"}, {"Content-Type", "application/json"}},
                offline ? "{\"offline\":true,\"reason\":\"disk\"}" : "{\"offline\":false}");
  }

  static InstanceDescription Describe(const std::string& admin) {
    const HttpAnswer answer = Http(admin, "GET", "/services/default/orders/orders-1");
    if (answer.status != 200) return InstanceDescription();
    return ParseJson<InstanceDescription>(answer.body);
  }

  const TempDir dir_;
};

TEST_F(OfflineStoryTest, OutOfRotationAndBackWithItsMetadata) {
  Daemon registry = StartRegistry(ReservedAddress());
  Daemon agent = Daemon::Agent(
      registry.address(), {"--admin", "127.0.0.1:0", "--admin-token-file", dir_.File("token")});
  ASSERT_NE(registry.admin(), "");
  ASSERT_NE(agent.admin(), "");
  const RunResult registered =
      Ctl(agent.address(), {"register", "orders", "--id", "orders-1", "--address", "10.0.0.7",
                            "--port", "8080", "--meta", "version=1.2.3", "--wait", "acknowledged"});
  ASSERT_EQ(registered.status, 0) << registered.err;
  const auto subscriber = Process::Start(
      {CtlBinary(), "--target", agent.address(), "-o", "json", "subscribe", "orders"});
  const auto told = [&](bool offline) {
    return subscriber->WaitForOutput([&](const std::string& out) {
      const auto events = ParseEvents(out);
      if (events.empty()) return false;
      const auto& last = events.back();
      const auto& instances =
          last.has_snapshot() ? last.snapshot().instances() : last.delta().upserts();
      return instances.size() == 1 && instances[0].has_offline() == offline &&
             instances[0].metadata().at("version") == "1.2.3";
    });
  };
  ASSERT_TRUE(told(false)) << subscriber->Describe();

  // At the agent, which asks its registry.
  const HttpAnswer marked = SetOffline(agent.admin(), true);
  ASSERT_EQ(marked.status, 200) << marked.body;
  EXPECT_THAT(marked.body, HasSubstr("\"reason\":\"disk\""));
  EXPECT_TRUE(told(true)) << subscriber->Describe();
  InstanceDescription description = Describe(registry.admin());
  EXPECT_EQ(description.instance().state(), admin::v1::INSTANCE_STATE_OFFLINE);
  EXPECT_EQ(description.history(0).kind(), admin::v1::CHANGE_KIND_OFFLINE);
  EXPECT_EQ(description.history(0).by(), "admin endpoint");
  EXPECT_EQ(Describe(agent.admin()).instance().state(), admin::v1::INSTANCE_STATE_OFFLINE);
  EXPECT_THAT(Ctl(agent.address(), {"list", "orders", "--healthy", "-o", "json"}).out,
              ::testing::Not(HasSubstr("orders-1")));

  // The registry dies; its agent states everything again.
  const std::string address = registry.address();
  registry.Kill();
  registry = StartRegistry(address);
  ASSERT_TRUE(Eventually([&] {
    return Http(registry.admin(), "GET", "/overview").body.find("\"subscribers\":1") !=
           std::string::npos;
  })) << agent.process().Describe();
  ASSERT_EQ(Ctl(agent.address(), {"wait-ready"}).status, 0);
  description = Describe(registry.admin());
  EXPECT_EQ(description.instance().state(), admin::v1::INSTANCE_STATE_OFFLINE);
  EXPECT_EQ(description.instance().record().instance().offline().reason(), "disk");

  const HttpAnswer back = SetOffline(registry.admin(), false);
  ASSERT_EQ(back.status, 200) << back.body;
  EXPECT_TRUE(told(false)) << subscriber->Describe();
  EXPECT_EQ(Describe(registry.admin()).instance().state(), admin::v1::INSTANCE_STATE_HEALTHY);

  // A name that would be cut, and one that is not the server's word.
  const auto by = [&](const std::string& path, const std::string& name) {
    return Http(registry.admin(), "POST", path,
                {{"Authorization", "Bearer sesame"}, {"Content-Type", "application/json"}},
                "{\"offline\":true,\"by\":\"" + name + "\"}");
  };
  const std::string offline = "/services/default/orders/orders-1/offline";
  const HttpAnswer long_name = by(offline, std::string(129, 'a'));
  EXPECT_EQ(long_name.status, 400);
  EXPECT_THAT(long_name.body, HasSubstr("by: has 129 bytes; at most 128 are allowed"));
  EXPECT_EQ(by(offline, "token admin").status, 200);
  EXPECT_EQ(Describe(registry.admin()).history(0).by(), "'token admin' by admin endpoint");

  // What is not there, and a token that is wrong.
  EXPECT_EQ(Http(registry.admin(), "POST", "/services/default/orders/orders-2/offline",
                 {{"Authorization", "Bearer sesame"}, {"Content-Type", "application/json"}},
                 "{\"offline\":true}")
                .status,
            404);
  EXPECT_EQ(Http(agent.admin(), "POST", "/drain", {{"Authorization", "Bearer no"}}).status, 401);
}

TEST_F(OfflineStoryTest, AnAgentWithoutItsRegistrySaysSo) {
  Daemon registry = StartRegistry(ReservedAddress());
  Daemon agent = Daemon::Agent(
      registry.address(), {"--admin", "127.0.0.1:0", "--admin-token-file", dir_.File("token")});
  ASSERT_EQ(Ctl(agent.address(), {"register", "orders", "--id", "orders-1", "--address", "10.0.0.7",
                                  "--port", "8080", "--wait", "acknowledged"})
                .status,
            0);
  // The agent looks for itself, now and then, until it finds that it is ready.
  ASSERT_TRUE(Eventually([&] { return Http(agent.admin(), "GET", "/ready").status == 200; }));
  registry.Kill();
  const HttpAnswer refused = SetOffline(agent.admin(), true);
  EXPECT_EQ(refused.status, 503) << refused.body;
  ASSERT_EQ(Ctl(agent.address(), {"register", "orders", "--id", "orders-2", "--address", "10.0.0.7",
                                  "--port", "8081"})
                .status,
            0);
  ASSERT_TRUE(Eventually([&] {
    return Http(agent.admin(), "GET", "/pending").body.find("orders-2") != std::string::npos;
  }));
  EXPECT_EQ(Http(agent.admin(), "GET", "/ready").status, 200)
      << "an outage of the registry takes no agent out of service";
  const HttpAnswer text = Http(agent.admin(), "GET", "/pending", {{"Accept", "text/plain"}});
  EXPECT_THAT(text.body, HasSubstr("register default/orders/orders-2"));
  const HttpAnswer retried =
      Http(agent.admin(), "POST", "/pending/retry",
           {{"Authorization", "Bearer sesame"}, {"Content-Type", "application/json"}}, "{}");
  EXPECT_EQ(retried.status, 200) << retried.body;
}

TEST_F(OfflineStoryTest, APortThatIsTakenIsAnErrorOnlyWhereItIsNamed) {
  Daemon registry = StartRegistry(ReservedAddress());
  const RunResult named = RunProcess({RegistryBinary(), "--store", "memory:", "--listen",
                                      "127.0.0.1:0", "--admin", registry.admin()});
  EXPECT_EQ(named.status, 2);
  EXPECT_THAT(named.err, HasSubstr("--admin: " + registry.admin() + " is in use"));
  const RunResult remote = RunProcess(
      {RegistryBinary(), "--store", "memory:", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"});
  EXPECT_EQ(remote.status, 2);
  EXPECT_THAT(remote.err, HasSubstr("admin.allow_remote"));

  // The default address is taken: by this test, or by another user's daemon, which may let go
  // of it between two attempts.
  const auto timer = NewTimer();
  http::Server::Options options;
  options.timer = timer.get();
  options.listen = kRegistryAdminListen;
  std::unique_ptr<http::Server> holder;
  std::unique_ptr<Process> second;
  const bool without_admin = Eventually([&] {
    if (holder == nullptr) {
      auto bound = http::Server::Bind(options);
      if (bound.ok()) holder = *std::move(bound);
    }
    second = Process::Start({RegistryBinary(), "--store", "memory:", "--listen", "127.0.0.1:0"});
    return second->WaitForLine("listening on ").has_value() &&
           second->WaitForLine("no admin endpoint", absl::Seconds(2)).has_value();
  });
  EXPECT_TRUE(without_admin) << second->Describe();
  EXPECT_THAT(second->out(), ::testing::Not(HasSubstr("admin http")));
}

}  // namespace
}  // namespace failback
