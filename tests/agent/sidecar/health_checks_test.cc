// Health checks of every kind, against real programs, seen at the registry.

#include <fcntl.h>

#include <memory>
#include <string>

#include "boost/asio.hpp"
#include "tests/agent/sidecar/sidecar_fixture.h"

namespace failback {
namespace {

using boost::asio::ip::tcp;
using ::testing::HasSubstr;

TEST_F(SidecarTest, TcpAndCommandFollowTheProgram) {
  boost::asio::io_context context;
  auto program = std::make_unique<tcp::acceptor>(context, tcp::endpoint(tcp::v4(), 0));
  // Or the daemons would inherit the socket.
  ASSERT_EQ(fcntl(program->native_handle(), F_SETFD, FD_CLOEXEC), 0);
  const tcp::endpoint endpoint = program->local_endpoint();
  const std::string port = std::to_string(endpoint.port());
  const std::string flag = dir_.Write("well", "");
  Daemon agent =
      StartAgent(dir_.Write("agent.yaml",
                            "services:\n"
                            "- name: orders\n"
                            "  id: o1\n"
                            "  address: 127.0.0.1\n"
                            "  port: " +
                                port +
                                "\n"
                                "  deregister_critical_after: 1s\n"
                                "  checks:\n"
                                "  - {tcp: {}, interval: 100ms, fall: 2}\n"
                                "  - {command: {argv: [test, -e, " +
                                flag + "]}, interval: 100ms, timeout: 100ms, fall: 2}\n"));
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " HEALTHY"}));
  program.reset();
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " UNHEALTHY"}));
  const RunResult status = Ctl(socket(), {"status"});
  EXPECT_THAT(status.out, HasSubstr("service       default/orders/o1: critical since "));
  EXPECT_THAT(status.out, HasSubstr("127.0.0.1:" + port + ": connect: Connection refused"));
  EXPECT_THAT(status.out, HasSubstr("  check       command: passing, "));
  EXPECT_TRUE(BecomesListed("orders", {}));  // critical for too long
  program = std::make_unique<tcp::acceptor>(context, endpoint);
  EXPECT_TRUE(BecomesListed("orders", {"o1 127.0.0.1:" + port + " HEALTHY"}));
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
  EXPECT_TRUE(BecomesListed("orders", {"o1 h:1 UNHEALTHY"}));  // nobody reported
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
