// Probes against real sockets, servers and programs.

#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/health/io_thread.h"
#include "agent/health/new_probe.h"
#include "boost/asio.hpp"
#include "boost/asio/ssl.hpp"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"
#include "tests/registry/security/test_authority.h"
#include "tests/util/ports.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using agent::v1::HealthCheck;
using boost::asio::ip::tcp;
using ::testing::HasSubstr;

// Reads the head of each request and answers with what the test has set; "" closes at once,
// "silence" keeps the connection open.
class RawServer {
 public:
  RawServer() : thread_([this] { Serve(); }) {}
  ~RawServer() {
    stop_ = true;
    boost::asio::io_context context;
    tcp::socket socket(context);
    boost::system::error_code ignored;
    socket.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", acceptor_.local_endpoint().port());
  }
  void Answer(const std::string& answer) {
    MutexLock lock(&mu_);
    answer_ = answer;
  }
  std::string request() {
    MutexLock lock(&mu_);
    return request_;
  }

 private:
  void Serve() {
    std::vector<tcp::socket> open;
    while (true) {
      tcp::socket socket(context_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      if (stop_) return;
      std::string head;
      boost::asio::read_until(socket, boost::asio::dynamic_buffer(head), "\r\n\r\n", error);
      std::string answer;
      {
        MutexLock lock(&mu_);
        request_ = head;
        answer = answer_;
      }
      if (answer == "silence") {
        open.push_back(std::move(socket));
      } else {
        boost::asio::write(socket, boost::asio::buffer(answer), error);
      }
    }
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, tcp::endpoint(tcp::v4(), 0)};
  std::atomic<bool> stop_ = false;
  Mutex mu_;
  std::string answer_ ABSL_GUARDED_BY(mu_) = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
  std::string request_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// Answers one request a connection with 200 over TLS, and remembers the name that was asked for.
class TlsServer {
 public:
  explicit TlsServer(const TestAuthority::Pair& pair) {
    context_.use_certificate_chain(boost::asio::buffer(pair.cert));
    context_.use_private_key(boost::asio::buffer(pair.key), boost::asio::ssl::context::pem);
    thread_ = std::thread([this] { Serve(); });
  }
  ~TlsServer() {
    stop_ = true;
    boost::asio::io_context context;
    tcp::socket socket(context);
    boost::system::error_code ignored;
    socket.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  std::string port() const { return absl::StrCat(":", acceptor_.local_endpoint().port()); }
  // Whether the last client has asked for `name`; waits for a handshake that is under way.
  bool WasAskedFor(const std::string& name) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mu_);
    while (asked_for_ != name && absl::Now() < deadline) asked_.WaitFor(&mu_, absl::Seconds(1));
    return asked_for_ == name;
  }

 private:
  void Serve() {
    while (true) {
      boost::asio::ssl::stream<tcp::socket> stream(io_, context_);
      boost::system::error_code error;
      acceptor_.accept(stream.next_layer(), error);
      if (stop_) return;
      stream.handshake(boost::asio::ssl::stream_base::server, error);
      const char* const name =
          SSL_get_servername(stream.native_handle(), TLSEXT_NAMETYPE_host_name);
      {
        MutexLock lock(&mu_);
        asked_for_ = name == nullptr ? "" : name;
        asked_.SignalAll();
      }
      if (error) continue;
      std::string head;
      boost::asio::read_until(stream, boost::asio::dynamic_buffer(head), "\r\n\r\n", error);
      boost::asio::write(
          stream, boost::asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")),
          error);
    }
  }

  boost::asio::io_context io_;
  boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
  tcp::acceptor acceptor_{io_, tcp::endpoint(tcp::v4(), 0)};
  std::atomic<bool> stop_ = false;
  Mutex mu_;
  CondVar asked_;
  std::string asked_for_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

class ProbesTest : public ::testing::Test {
 protected:
  static std::future<absl::Status> Start(Probe* probe) {
    auto result = std::make_shared<std::promise<absl::Status>>();
    probe->Run([result](absl::Status status) { result->set_value(std::move(status)); });
    return result->get_future();
  }

  static absl::Status Get(std::future<absl::Status> result) {
    if (result.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      return absl::DeadlineExceededError("the test's deadline");
    }
    return result.get();
  }

  absl::Status Ask(const HealthCheck& check) {
    const auto probe = NewProbe(&io_, check);
    return Get(Start(probe.get()));
  }

  static HealthCheck Http(const std::string& address) {
    HealthCheck check;
    check.mutable_http()->set_address(address);
    return check;
  }
  static HealthCheck Tcp(const std::string& address) {
    HealthCheck check;
    check.mutable_tcp()->set_address(address);
    return check;
  }
  static HealthCheck Command(const std::string& script) {
    HealthCheck check;
    for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
      check.mutable_command()->add_argv(word);
    }
    return check;
  }

  const TempDir dir_;
  IoThread io_;
};

TEST_F(ProbesTest, HttpsPassesWithACertificateThatIsTrustedAndNamesTheServer) {
  const TestAuthority ca("ca");
  const TestAuthority other("other");
  TlsServer server(ca.Issue({.dns = {"localhost"}, .ips = {"127.0.0.1"}}));
  const std::string trusted = dir_.Write("ca.crt", ca.cert());
  const auto https = [&](const std::string& host) {
    HealthCheck check = Http(host + server.port());
    check.mutable_http()->mutable_tls()->set_ca(trusted);
    return check;
  };
  EXPECT_EQ(Ask(https("localhost")), absl::OkStatus());
  EXPECT_TRUE(server.WasAskedFor("localhost"));
  EXPECT_EQ(Ask(https("127.0.0.1")), absl::OkStatus());
  EXPECT_TRUE(server.WasAskedFor(""));  // an IP address is not asked for

  HealthCheck named = https("127.0.0.1");
  named.mutable_http()->mutable_tls()->set_server_name("orders.example");
  EXPECT_THAT(std::string(Ask(named).message()),
              HasSubstr("certificate refused for orders.example: hostname mismatch"));
  EXPECT_TRUE(server.WasAskedFor("orders.example"));

  HealthCheck distrusted = https("localhost");
  distrusted.mutable_http()->mutable_tls()->set_ca(dir_.Write("other.crt", other.cert()));
  EXPECT_THAT(std::string(Ask(distrusted).message()),
              HasSubstr("certificate refused for localhost: unable to get local issuer"));
  // The machine's authorities do not know the test's.
  distrusted.mutable_http()->mutable_tls()->clear_ca();
  EXPECT_THAT(std::string(Ask(distrusted).message()), HasSubstr("certificate refused"));
  distrusted.mutable_http()->mutable_tls()->set_skip_verify(true);
  EXPECT_EQ(Ask(distrusted), absl::OkStatus());

  HealthCheck without = https("localhost");
  without.mutable_http()->mutable_tls()->set_ca(dir_.File("none.crt"));
  EXPECT_THAT(std::string(Ask(without).message()),
              HasSubstr("none.crt: no certificates can be read"));
}

TEST_F(ProbesTest, HttpsReadsItsAuthoritiesAgainWhenTheyChange) {
  const TestAuthority ca("ca");
  TlsServer server(ca.Issue({.dns = {"localhost"}}));
  HealthCheck check = Http("localhost" + server.port());
  check.mutable_http()->mutable_tls()->set_ca(dir_.Write("ca.crt", TestAuthority("old").cert()));
  const auto probe = NewProbe(&io_, check);
  EXPECT_FALSE(Get(Start(probe.get())).ok());
  dir_.Write("ca.crt", ca.cert());
  EXPECT_EQ(Get(Start(probe.get())), absl::OkStatus());
}

TEST_F(ProbesTest, HttpsFailsWhereNobodySpeaksTls) {
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(tcp::v4(), 0));
  std::thread plain([&] {
    tcp::socket socket(context);
    acceptor.accept(socket);
    boost::asio::write(socket, boost::asio::buffer(std::string("HTTP/1.1 400 What?\r\n\r\n")));
  });
  HealthCheck check = Http(absl::StrCat("127.0.0.1:", acceptor.local_endpoint().port()));
  check.mutable_http()->mutable_tls();
  EXPECT_THAT(std::string(Ask(check).message()), HasSubstr(": TLS: "));
  plain.join();
  TlsServer expired(TestAuthority("ca").Issue({.dns = {"localhost"}, .ends = -absl::Minutes(1)}));
  check.mutable_http()->set_address("localhost" + expired.port());
  EXPECT_FALSE(Ask(check).ok());
  // Over plain HTTP a TLS server answers nothing that is HTTP.
  EXPECT_FALSE(Ask(Http("localhost" + expired.port())).ok());
}

TEST_F(ProbesTest, TcpPassesWhenAConnectionIsAccepted) {
  RawServer server;
  EXPECT_EQ(Ask(Tcp(server.address())), absl::OkStatus());
  const std::string port = server.address().substr(server.address().find(':'));
  EXPECT_EQ(Ask(Tcp("localhost" + port)), absl::OkStatus());
}

TEST_F(ProbesTest, TcpTellsWhyNot) {
  const std::string nobody = ReservedAddress();
  EXPECT_EQ(Ask(Tcp(nobody)).message(), nobody + ": connect: Connection refused");
  EXPECT_THAT(std::string(Ask(Tcp("no-such-host.invalid:80")).message()),
              HasSubstr("no-such-host.invalid:80: resolve: "));
  EXPECT_EQ(Ask(Tcp("unix:" + dir_.File("none.sock"))).message(),
            "unix:" + dir_.File("none.sock") + ": connect: No such file or directory");
}

TEST_F(ProbesTest, TcpReachesAUnixSocket) {
  boost::asio::io_context context;
  boost::asio::local::stream_protocol::acceptor acceptor(
      context, boost::asio::local::stream_protocol::endpoint(dir_.File("s.sock")));
  EXPECT_EQ(Ask(Tcp("unix:" + dir_.File("s.sock"))), absl::OkStatus());
}

TEST_F(ProbesTest, HttpAsksAsItIsTold) {
  RawServer server;
  EXPECT_EQ(Ask(Http(server.address())), absl::OkStatus());
  EXPECT_THAT(server.request(), ::testing::StartsWith("GET / HTTP/1.1\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Host: " + server.address() + "\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Connection: close\r\n"));
  HealthCheck check = Http(server.address());
  check.mutable_http()->set_path("/healthz?full=1");
  check.mutable_http()->set_method("HEAD");
  check.mutable_http()->set_host("orders.local");
  (*check.mutable_http()->mutable_headers())["X-Probe"] = "yes";
  EXPECT_EQ(Ask(check), absl::OkStatus());
  EXPECT_THAT(server.request(), ::testing::StartsWith("HEAD /healthz?full=1 HTTP/1.1\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Host: orders.local\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("X-Probe: yes\r\n"));
}

TEST_F(ProbesTest, HttpJudgesTheStatus) {
  RawServer server;
  const auto answer = [&](int status) {
    server.Answer(absl::StrCat("HTTP/1.1 ", status, " x\r\n\r\n"));
    return Ask(Http(server.address()));
  };
  for (const int good : {200, 204, 302, 399}) EXPECT_EQ(answer(good), absl::OkStatus()) << good;
  for (const int bad : {100, 404, 500, 503}) {
    EXPECT_EQ(answer(bad).message(), absl::StrCat(server.address(), "/: status ", bad));
  }
  HealthCheck check = Http(server.address());
  check.mutable_http()->set_expect_status(418);
  EXPECT_EQ(Ask(check).message(), server.address() + "/: status 503, not 418");
  server.Answer("HTTP/1.1 418 x\r\n\r\n");
  EXPECT_EQ(Ask(check), absl::OkStatus());
}

TEST_F(ProbesTest, HttpTellsOfOtherAnswers) {
  RawServer server;
  server.Answer("");
  EXPECT_EQ(Ask(Http(server.address())).message(), server.address() + ": receive: end of stream");
  server.Answer("SSH-2.0-x\r\n");
  EXPECT_EQ(Ask(Http(server.address())).message(), server.address() + ": receive: bad version");
  server.Answer("HTTP/1.1 200 OK\r\nX: " + std::string(1 << 20, 'x') + "\r\n\r\n");
  EXPECT_EQ(Ask(Http(server.address())).message(),
            server.address() + ": receive: header limit exceeded");
}

TEST_F(ProbesTest, ATryCanBeEnded) {
  RawServer server;
  server.Answer("silence");
  const auto probe = NewProbe(&io_, Http(server.address()));
  auto result = Start(probe.get());
  probe->Cancel();
  EXPECT_TRUE(absl::IsCancelled(Get(std::move(result))));
  // And the next one goes as usual.
  server.Answer("HTTP/1.1 200 OK\r\n\r\n");
  EXPECT_EQ(Get(Start(probe.get())), absl::OkStatus());
}

TEST_F(ProbesTest, TheEndOfAProbeEndsItsTry) {
  RawServer server;
  server.Answer("silence");
  auto probe = NewProbe(&io_, Http(server.address()));
  auto result = Start(probe.get());
  probe.reset();
  EXPECT_TRUE(absl::IsCancelled(Get(std::move(result))));
}

TEST_F(ProbesTest, GrpcAsksTheHealthService) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  grpc::CallbackGenericService others;  // a server has to have a service
  builder.RegisterCallbackGenericService(&others);
  const std::string address = ReservedAddress();
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  const auto server = builder.BuildAndStart();
  HealthCheck check;
  check.mutable_grpc()->set_address(address);
  EXPECT_EQ(Ask(check), absl::OkStatus());
  server->GetHealthCheckService()->SetServingStatus("orders", false);
  check.mutable_grpc()->set_service("orders");
  EXPECT_EQ(Ask(check).message(), address + ": NOT_SERVING");
  server->GetHealthCheckService()->SetServingStatus("orders", true);
  EXPECT_EQ(Ask(check), absl::OkStatus());
  check.mutable_grpc()->set_service("nobody");
  EXPECT_THAT(std::string(Ask(check).message()), HasSubstr("NOT_FOUND"));
  server->Shutdown();
  EXPECT_THAT(std::string(Ask(check).message()), HasSubstr("UNAVAILABLE"));
}

TEST_F(ProbesTest, GrpcIsWellWithTheFirstTryAfterTheServerIsBack) {
  const std::string address = ReservedAddress();
  HealthCheck check;
  check.mutable_grpc()->set_address(address);
  const auto probe = NewProbe(&io_, check);
  EXPECT_FALSE(Get(Start(probe.get())).ok());
  EXPECT_FALSE(Get(Start(probe.get())).ok());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  grpc::CallbackGenericService others;  // a server has to have a service
  builder.RegisterCallbackGenericService(&others);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  const auto server = builder.BuildAndStart();
  EXPECT_EQ(Get(Start(probe.get())), absl::OkStatus());
}

TEST_F(ProbesTest, ACommandIsJudgedByItsExit) {
  EXPECT_EQ(Ask(Command("exit 0")), absl::OkStatus());
  EXPECT_EQ(Ask(Command("exit 3")).message(), "sh: exit status 3");
  EXPECT_EQ(Ask(Command("kill -9 $$")).message(), "sh: ended by signal 9");
  HealthCheck missing;
  missing.mutable_command()->add_argv("/no/such/program");
  EXPECT_EQ(Ask(missing).message(), "/no/such/program: No such file or directory");
}

TEST_F(ProbesTest, ACommandHasItsOwnSignalsAndNoDescriptorsOfOurs) {
  // As in the daemon, which blocks these and waits for them.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  const std::string out = dir_.File("out");
  EXPECT_EQ(Ask(Command("kill -TERM $$; sleep 60")).message(), "sh: ended by signal 15");
  // A descriptor that would be inherited.
  const int fd = open("/dev/null", O_RDONLY);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(Ask(Command(absl::StrCat("! test -e /proc/self/fd/", fd))), absl::OkStatus());
  close(fd);
}

TEST_F(ProbesTest, ACommandThatIsEndedTakesItsChildrenAlong) {
  const std::string pid_file = dir_.File("pid");
  const auto probe = NewProbe(&io_, Command("sleep 600 & echo $! > " + pid_file + ".part && mv " +
                                            pid_file + ".part " + pid_file + "; wait"));
  auto result = Start(probe.get());
  std::string pid;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (pid.empty() && absl::Now() < deadline) {
    const RunResult read = RunProcess({"/bin/cat", pid_file});
    if (read.status == 0) pid = read.out.substr(0, read.out.find('\n'));
  }
  ASSERT_NE(pid, "");
  probe->Cancel();
  EXPECT_TRUE(absl::IsCancelled(Get(std::move(result))));
  // Gone, or a zombie that its new parent has yet to take.
  std::string state = "?";
  while (absl::Now() < deadline && !state.empty() && state[0] != 'Z') {
    state = RunProcess(
                {"/bin/sh", "-c", absl::StrCat("cut -d' ' -f3 /proc/", pid, "/stat 2>/dev/null")})
                .out;
  }
  EXPECT_TRUE(state.empty() || state[0] == 'Z') << state;
}

}  // namespace
}  // namespace failback
