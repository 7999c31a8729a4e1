// Health checks of every kind, against real programs, seen at the registry.

#include <fcntl.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "boost/asio.hpp"
#include "tests/agent/sidecar/sidecar_fixture.h"
#include "tests/util/ports.h"

namespace failback {
namespace {

using boost::asio::ip::tcp;
using ::testing::HasSubstr;

std::unique_ptr<tcp::acceptor> Listen(boost::asio::io_context* context,
                                      const tcp::endpoint& endpoint) {
  auto acceptor = std::make_unique<tcp::acceptor>(*context, endpoint);
  // Or the daemons would inherit the socket.
  EXPECT_EQ(fcntl(acceptor->native_handle(), F_SETFD, FD_CLOEXEC), 0);
  return acceptor;
}

TEST_F(SidecarTest, TcpAndCommandFollowTheProgram) {
  boost::asio::io_context context;
  const tcp::endpoint endpoint(boost::asio::ip::address_v4::loopback(), ReservedPort());
  const std::string port = std::to_string(endpoint.port());
  auto program = Listen(&context, endpoint);
  const std::string flag = dir_.Write("well", "");
  const std::string here = "address: 127.0.0.1, port: " + port;
  const std::string tcp = "{tcp: {}, interval: 200ms, timeout: 200ms, fall: 2}";
  Daemon agent = StartAgent(dir_.Write("agent.yaml",
                                       "services:\n"
                                       "- {name: orders, id: o1, " +
                                           here + ", checks: [" + tcp +
                                           ", {command: {argv: [test, -e, " + flag +
                                           "]}, interval: 200ms, timeout: 200ms, fall: 2}]}\n"
                                           "- {name: payments, id: p1, " +
                                           here +
                                           ", deregister_critical_after: 1s, "
                                           "checks: [" +
                                           tcp + "]}\n"));
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " HEALTHY"}));
  EXPECT_TRUE(BecomesListed("payments", {"p1 127.0.0.1:" + port + " HEALTHY"}));
  program.reset();
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " UNHEALTHY"}));
  // A command that this machine was too busy for fails once, and passes again.
  std::string status;
  EXPECT_TRUE(Eventually([&] {
    status = Ctl(socket(), {"status"}).out;
    return absl::StrContains(status, "service       default/orders/o1: critical since ") &&
           absl::StrContains(status, "127.0.0.1:" + port + ": connect: Connection refused") &&
           absl::StrContains(status, "  check       command: passing, ");
  })) << status;
  EXPECT_TRUE(absl::StrContains(status, "\nlocal clients 0 sessions\n")) << status;
  EXPECT_TRUE(BecomesListed("payments", {}));  // critical for too long
  program = Listen(&context, endpoint);
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " HEALTHY"}));
  EXPECT_TRUE(BecomesListed("payments", {"p1 127.0.0.1:" + port + " HEALTHY"}));
  ASSERT_EQ(RunProcess({"/bin/rm", flag}).status, 0);
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " UNHEALTHY"}));
  EXPECT_EQ(agent.Stop(), 0);
  EXPECT_THAT(Listed("orders"), ::testing::IsEmpty());
}

TEST_F(SidecarTest, GrpcAndTheGate) {
  // The program is a registry here: a gRPC server with health.
  Daemon program = Daemon::Registry({"--store", "memory:"});
  const std::string address = program.address();
  program.Kill();
  Daemon agent = StartAgent(dir_.Write(
      "agent.yaml",
      "services:\n"
      "- {name: orders, id: o1, address: 127.0.0.1, port: 1, register_when_healthy: true,\n"
      "   checks: [{grpc: {address: '" +
          address +
          "'}, interval: 200ms, timeout: 200ms, "
          "fall: 1}]}\n"));
  ASSERT_TRUE(Eventually([&] {
    const auto status = AgentStatus();
    return status.static_services_size() == 1 &&
           status.static_services(0).state() == agent::v1::CHECK_STATE_CRITICAL;
  }));
  EXPECT_THAT(Listed("orders"), ::testing::IsEmpty());
  EXPECT_THAT(Ctl(socket(), {"status"}).out, HasSubstr(", not registered\n"));
  Daemon again = Daemon::Registry({"--store", "memory:", "--listen", address});
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:1 HEALTHY"}));
}

TEST_F(SidecarTest, TheProgramReportsItself) {
  Daemon agent = StartAgent(dir_.Write("agent.yaml",
                                       "services:\n"
                                       "- {name: orders, id: o1, address: h, port: 1, "
                                       "checks: [{ttl: {ttl: 1s}}]}\n"));
  EXPECT_TRUE(BecomesListed("orders", {"o1 h:1 UNHEALTHY"}));  // no report came
  RunResult report = Ctl(socket(), {"report-health", "orders"});
  EXPECT_EQ(report.out, "orders is passing\n") << report.err;
  EXPECT_TRUE(BecomesListed("orders", {"o1 h:1 UNHEALTHY"}));  // and then it fell silent
  report = Ctl(socket(), {"report-health", "orders", "--critical", "--note", "no database"});
  EXPECT_EQ(report.out, "orders is critical\n") << report.err;
  EXPECT_THAT(Ctl(socket(), {"status"}).out, HasSubstr("no database"));
  report = Ctl(socket(), {"report-health", "payments"});
  EXPECT_EQ(report.status, 1);
  EXPECT_THAT(report.err, HasSubstr("NOT_FOUND: service: no static service 'payments'"));
}

}  // namespace
}  // namespace failback
