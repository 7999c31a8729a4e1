// The HTTP server as the admin endpoint has it, over real HTTP on loopback.

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/admin/admin_guard.h"
#include "gateway/http/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/process.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using ::testing::HasSubstr;

class AdminServerTest : public ::testing::Test {
 protected:
  // Serves a few paths; the options have a free port.
  void Serve(http::Server::Options options = {}) {
    options.timer = timer_.get();
    options.listen = "127.0.0.1:0";
    GuardAdmin(hosts_, token_file_, &options);
    auto server = http::Server::Bind(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Handle("GET", "/echo/{name}/{other}",
                    [](const http::Request& request, http::Responder respond) {
                      std::move(respond)(http::Response::Text(
                          absl::StrCat(request.parameters[0], "|", request.parameters[1], "|",
                                       request.Query("q"), "|", request.query.size())));
                    });
    server_->Handle("GET", "/tagged", [](const http::Request&, http::Responder respond) {
      http::Response response = http::Response::Json("{}");
      response.etag = "v7";
      std::move(respond)(std::move(response));
    });
    server_->Handle("POST", "/change",
                    [this](const http::Request& request, http::Responder respond) {
                      ++changes_;
                      std::move(respond)(http::Response::Text(std::string(request.body)));
                    });
    server_->Handle("GET", "/work", [this](const http::Request&, http::Responder respond) {
      if (++served_ == hold_at_) {
        while (!go_on_) std::this_thread::yield();
      }
      std::move(respond)(http::Response::Text("done"));
    });
    server_->Handle(
        "GET", "/probe",
        [this](const http::Request&, http::Responder respond) {
          served_at_probe_ = served_.load();
          std::move(respond)(http::Response::Text("well"));
        },
        http::Server::Turn::kProbe);
    server_->Handle("GET", "/dropped", [](const http::Request&, http::Responder) {});
    server_->Handle("GET", "/kept", [this](const http::Request&, http::Responder respond) {
      kept_ = std::make_unique<http::Responder>(std::move(respond));
    });
    server_->Handle("GET", "/later", [this](const http::Request&, http::Responder respond) {
      other_thread_ = std::thread([respond = std::move(respond)]() mutable {
        std::move(respond)(http::Response::Text("here it is"));
      });
    });
    server_->Start();
  }
  // Serves them with limits that are easily reached; the token is `t`.
  void ServeLittle() {
    http::Server::Options options;
    token_file_ = WriteToken("t");
    options.max_body_bytes = 1000;
    options.max_header_bytes = 2000;
    Serve(options);
  }
  void TearDown() override {
    if (other_thread_.joinable()) other_thread_.join();
  }

  const std::string& address() const { return server_->address(); }
  HttpAnswer Get(const std::string& target, const HttpHeaders& headers = {}) const {
    return Http(address(), "GET", target, headers);
  }
  HttpAnswer Change(HttpHeaders headers, const std::string& body = "{}") const {
    headers.emplace("Content-Type", "application/json");
    return Http(address(), "POST", "/change", headers, body);
  }

  std::string WriteToken(const std::string& token) const {
    std::ofstream(dir_.File("token")) << token << "\n";
    return dir_.File("token");
  }

  const TempDir dir_;
  std::vector<std::string> hosts_;
  std::string token_file_;
  SimulatedClock clock_;
  const std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  int changes_ = 0;
  std::atomic<int> served_{0};
  std::atomic<int> hold_at_{-1};
  std::atomic<int> served_at_probe_{0};
  std::atomic<bool> go_on_{false};
  std::unique_ptr<http::Responder> kept_;
  std::thread other_thread_;
  std::unique_ptr<http::Server> server_;
};

TEST_F(AdminServerTest, PathsAndQueriesAreDecoded) {
  Serve();
  const HttpAnswer answer = Get("/echo/a%2Fb/c+d?q=x+y%26z&n=1&empty");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "a/b|c+d|x y&z|3");
  EXPECT_EQ(answer.headers.at("content-type"), "text/plain; charset=utf-8");
  EXPECT_EQ(Get("/echo/a/b/").body, "a|b||0");  // a slash at the end means nothing
  EXPECT_EQ(Get("/echo/%zz/b").status, 400);
  EXPECT_EQ(Get("/echo/a/b?q=%4").status, 400);
}

TEST_F(AdminServerTest, AnUnknownPathListsThePathsAndAWrongMethodTheMethods) {
  Serve();
  const HttpAnswer unknown = Get("/nowhere");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.headers.at("content-type"), "application/json");
  EXPECT_THAT(unknown.body, HasSubstr("\"code\":\"NOT_FOUND\""));
  EXPECT_THAT(unknown.body, HasSubstr("GET /echo/{name}/{other}"));
  EXPECT_EQ(Get("/echo//b").status, 404);  // a parameter is not empty

  const HttpAnswer wrong = Get("/change");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(Http(address(), "DELETE", "/tagged").status, 405);
}

TEST_F(AdminServerTest, HeadIsGetWithoutTheBodyAndAConnectionIsKept) {
  Serve();
  HttpConnection connection(address());
  const std::string rest = absl::StrCat(" HTTP/1.1\r\nHost: ", address(), "\r\n\r\n");
  ASSERT_TRUE(connection.Send(absl::StrCat("HEAD /echo/a/b", rest)));
  const HttpAnswer head = connection.Read("HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "6");
  ASSERT_TRUE(connection.Send(absl::StrCat("GET /echo/a/b", rest)));
  EXPECT_EQ(connection.Read().body, "a|b||0");
}

TEST_F(AdminServerTest, WhatTheClientHasIsNotSentAgain) {
  Serve();
  const HttpAnswer first = Get("/tagged");
  EXPECT_EQ(first.headers.at("etag"), "\"v7\"");
  const HttpAnswer same = Get("/tagged", {{"If-None-Match", "\"v7\""}});
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.body, "");
  EXPECT_EQ(Get("/tagged", {{"If-None-Match", "\"v6\""}}).status, 200);
}

TEST_F(AdminServerTest, EveryResponseKeepsBrowsersFromMischief) {
  Serve();
  for (const char* target : {"/tagged", "/nowhere"}) {
    const HttpAnswer answer = Get(target);
    EXPECT_THAT(answer.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("x-frame-options"), "DENY");
    EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0u);
  }
}

TEST_F(AdminServerTest, OnlyItsOwnNamesAreTakenAsHost) {
  hosts_ = {"registry.internal"};
  Serve();
  for (const char* host : {"localhost", "LOCALHOST:7071", "127.0.0.1:80", "[::1]:7071", "[::1]",
                           "10.1.2.3:7071", "registry.internal:7071"}) {
    EXPECT_EQ(Get("/tagged", {{"Host", host}}).status, 200) << host;
  }
  for (const char* host : {"attacker.example", "attacker.example:7071",
                           "127.0.0.1.attacker.example", "[::1", "localhost.attacker.example"}) {
    const HttpAnswer answer = Get("/tagged", {{"Host", host}});
    EXPECT_EQ(answer.status, 403) << host;
    EXPECT_THAT(answer.body, HasSubstr("admin.hosts"));
  }
  HttpConnection connection(address());
  connection.Send("GET /tagged HTTP/1.1\r\n\r\n");
  EXPECT_EQ(connection.Read().status, 403);
}

TEST_F(AdminServerTest, WithoutATokenFileNothingChanges) {
  Serve();
  const HttpAnswer answer = Change({{"Authorization", "Bearer anything"}});
  EXPECT_EQ(answer.status, 403);
  EXPECT_THAT(answer.body, HasSubstr("token_file: /etc/failback/admin.token"));
  EXPECT_EQ(changes_, 0);
}

TEST_F(AdminServerTest, AChangeNeedsTheTokenWhichIsReadAnew) {
  token_file_ = WriteToken("first");
  Serve();
  const HttpAnswer missing = Change({});
  EXPECT_EQ(missing.status, 401);
  EXPECT_EQ(missing.headers.at("www-authenticate"), "Bearer");
  for (const char* wrong :
       {"Bearer second", "Bearer firs", "Bearer firstt", "Bearer ", "Basic first"}) {
    EXPECT_EQ(Change({{"Authorization", wrong}}).status, 401) << wrong;
  }
  EXPECT_EQ(changes_, 0);
  const HttpAnswer right = Change({{"Authorization", "Bearer first"}}, "{\"a\":1}");
  EXPECT_EQ(right.status, 200);
  EXPECT_EQ(right.body, "{\"a\":1}");
  EXPECT_EQ(changes_, 1);

  WriteToken("second");
  EXPECT_EQ(Change({{"Authorization", "Bearer first"}}).status, 401);
  EXPECT_EQ(Change({{"Authorization", "bearer second"}}).status, 200);
  WriteToken("");
  EXPECT_EQ(Change({{"Authorization", "Bearer "}}).status, 403);
  EXPECT_EQ(changes_, 2);
}

TEST_F(AdminServerTest, AChangeComesFromNoOtherSite) {
  token_file_ = WriteToken("t");
  Serve();
  const std::string bearer = "Bearer t";
  EXPECT_EQ(Change({{"Authorization", bearer}, {"Origin", "http://attacker.example"}}).status, 403);
  EXPECT_EQ(Change({{"Authorization", bearer}, {"Origin", "null"}}).status, 403);
  EXPECT_EQ(Change({{"Authorization", bearer}, {"Sec-Fetch-Site", "cross-site"}}).status, 403);
  EXPECT_EQ(Change({{"Authorization", bearer}, {"Content-Type", "text/plain"}}).status, 415);
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(Change({{"Authorization", bearer},
                    {"Origin", "http://" + address()},
                    {"Sec-Fetch-Site", "same-origin"}})
                .status,
            200);
  EXPECT_EQ(changes_, 1);
}

TEST_F(AdminServerTest, LargeBodiesAndHeadersAndJunkAreRefused) {
  ServeLittle();
  const HttpHeaders bearer = {{"Authorization", "Bearer t"}};
  EXPECT_EQ(Change(bearer, std::string(1000, 'x')).status, 200);
  EXPECT_EQ(Change(bearer, std::string(1001, 'x')).status, 413);
  EXPECT_EQ(Get("/tagged", {{"X-Long", std::string(3000, 'x')}}).status, 431);
  HttpConnection junk(address());
  junk.Send("\x16\x03\x01 what is this\r\n\r\n");
  EXPECT_EQ(junk.Read().status, 400);
  EXPECT_TRUE(junk.WaitForClose());
  EXPECT_EQ(changes_, 1);
}

TEST_F(AdminServerTest, ARefusalHasItsReason) {
  ServeLittle();
  const HttpHeaders bearer = {{"Authorization", "Bearer t"}};
  const auto reason = [](const HttpAnswer& answer) {
    constexpr char kBegin[] = "\"reason\":\"";
    const size_t at = answer.body.find(kBegin);
    if (at == std::string::npos) return absl::StrCat(answer.status);
    const size_t begin = at + sizeof(kBegin) - 1;
    return absl::StrCat(answer.status, " ",
                        answer.body.substr(begin, answer.body.find('"', begin) - begin));
  };
  EXPECT_EQ(reason(Get("/echo/%zz/b")), "400 INVALID_FIELD");
  EXPECT_EQ(reason(Get("/echo/a/b?q=%4")), "400 INVALID_FIELD");
  EXPECT_EQ(reason(Change({})), "401 CREDENTIALS_NEEDED");
  EXPECT_EQ(reason(Change({{"Authorization", "Bearer no"}})), "401 CREDENTIALS_NEEDED");
  EXPECT_EQ(reason(Get("/tagged", {{"Host", "attacker.example"}})), "403 ACCESS_DENIED");
  EXPECT_EQ(reason(Change({{"Authorization", "Bearer t"}, {"Origin", "null"}})),
            "403 ACCESS_DENIED");
  EXPECT_EQ(reason(Get("/nowhere")), "404 NOT_FOUND");
  EXPECT_EQ(reason(Get("/change")), "405 UNSUPPORTED");
  const HttpAnswer large = Change(bearer, std::string(1001, 'x'));
  EXPECT_EQ(reason(large), "413 TOO_LARGE");
  EXPECT_THAT(large.body, HasSubstr("\"limit\":\"1000\""));
  EXPECT_EQ(reason(Change({{"Authorization", "Bearer t"}, {"Content-Type", "text/plain"}})),
            "415 INVALID_FIELD");
  EXPECT_EQ(reason(Get("/tagged", {{"X-Long", std::string(3000, 'x')}})), "431 TOO_LARGE");
  HttpConnection junk(address());
  junk.Send("\x16\x03\x01 what is this\r\n\r\n");
  EXPECT_EQ(reason(junk.Read()), "400") << "no empty reason";
  WriteToken("");
  EXPECT_EQ(reason(Change(bearer)), "403 ACCESS_DENIED");
}

TEST_F(AdminServerTest, ClientsThatDripDoNotKeepTheirPlaces) {
  http::Server::Options options;
  options.max_connections = 2;
  options.request_timeout = absl::Seconds(1);
  Serve(options);
  // Both places are taken by clients that go on sending, and never end.
  HttpConnection slow(address()), slower(address());
  const std::string drip = "GET /tagged HTTP/1.1\r\nX-Header: ";
  ASSERT_TRUE(slow.Send(drip));
  ASSERT_TRUE(slower.Send(drip));
  std::thread dripping([&] {
    while (slow.Send("x") && slower.Send("x")) std::this_thread::yield();
  });
  EXPECT_EQ(Get("/tagged").status, 200);
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(slow.WaitForClose());
  EXPECT_TRUE(slower.WaitForClose());
  dripping.join();
}

TEST_F(AdminServerTest, SlowClientsHoweverManyDoNotKeepOutAProbe) {
  constexpr size_t kPlaces = 10;
  http::Server::Options options;
  options.max_connections = kPlaces;
  options.request_timeout = absl::Hours(1);
  Serve(options);
  // One is served for long, and older than all of them.
  HttpConnection served(address());
  served.Send(absl::StrCat("GET /kept HTTP/1.1\r\nHost: ", address(), "\r\n\r\n"));
  while (Get("/tagged").status == 200 && kept_ == nullptr) {
  }
  std::vector<std::unique_ptr<HttpConnection>> slow;
  for (size_t i = 0; i < 3 * kPlaces; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(address()));
    slow.back()->Send("GET /tagged HTTP/1.1\r\nX-Header: ");
  }
  for (size_t i = 0; i < 2 * kPlaces; ++i) EXPECT_EQ(Get("/tagged").status, 200) << i;
  EXPECT_TRUE(slow.front()->WaitForClose());
  std::move (*kept_)(http::Response::Text("as asked"));
  EXPECT_EQ(served.Read().body, "as asked");
}

// The oldest of all, and the only one of its address.
TEST_F(AdminServerTest, AnAddressThatHasManyPlacesGivesOneUpFirst) {
  http::Server::Options options;
  options.max_connections = 4;
  options.request_timeout = absl::Hours(1);
  Serve(options);
  const std::string begun = "GET /tagged HTTP/1.1\r\nX-Header: ";
  HttpConnection other(address(), "127.0.0.2");
  ASSERT_TRUE(other.Send(begun));
  std::vector<std::unique_ptr<HttpConnection>> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(address()));
    slow.back()->Send(begun);
  }
  EXPECT_EQ(Get("/tagged").status, 200);
  EXPECT_TRUE(slow.front()->WaitForClose());
  ASSERT_TRUE(other.Send(absl::StrCat("x\r\nHost: ", address(), "\r\n\r\n")));
  EXPECT_EQ(other.Read().status, 200);
}

// Turns are counted, not seconds: each is one request of a client.
TEST_F(AdminServerTest, ClientsThatSendRequestsAheadDoNotHoldUpAProbe) {
  constexpr int kClients = 60;
  http::Server::Options options;
  options.max_connections = kClients;  // the probe needs one of their places too
  Serve(options);
  const std::string get = absl::StrCat("GET /work HTTP/1.1\r\nHost: ", address(), "\r\n\r\n");
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(address()));
    ASSERT_TRUE(clients.back()->Send(get));
    ASSERT_EQ(clients.back()->Read().status, 200);
  }
  std::string ahead;
  for (int i = 0; i < 50; ++i) ahead += get;
  // The server is held within the first of them until all have come, and the probe.
  const int before = served_ + 1;
  hold_at_ = before;
  for (const auto& client : clients) ASSERT_TRUE(client->Send(ahead));
  ASSERT_TRUE(Eventually([&] { return served_ == before; }));
  HttpConnection probe(address());
  ASSERT_TRUE(probe.Send(absl::StrCat("GET /probe HTTP/1.1\r\nHost: ", address(), "\r\n\r\n")));
  go_on_ = true;
  EXPECT_EQ(probe.Read().status, 200);
  EXPECT_LE(served_at_probe_ - before, 10);
}

// Where a proxy on the way may see another request, or two.
TEST_F(AdminServerTest, RequestsThatCanBeReadInTwoWaysAreRefused) {
  token_file_ = WriteToken("t");
  Serve();
  const std::string get = "GET /tagged HTTP/1.1\r\nHost: localhost\r\n";
  const std::string post =
      "POST /change HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n"
      "Content-Type: application/json\r\n";
  for (const std::string& request :
       {get + "Host: localhost\r\n\r\n", get + "Host: 127.0.0.1\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"}) {
    HttpConnection connection(address());
    ASSERT_TRUE(connection.Send(request));
    EXPECT_EQ(connection.Read().status, 400) << request;
    EXPECT_TRUE(connection.WaitForClose()) << request;
  }
  EXPECT_EQ(changes_, 0);
  HttpConnection connection(address());
  ASSERT_TRUE(connection.Send(post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"));
  EXPECT_EQ(connection.Read().status, 200);
  EXPECT_EQ(changes_, 1);
}

TEST_F(AdminServerTest, WithoutDescriptorsItPausesAndThenGoesOn) {
  if (!kRunsWithoutDescriptors) GTEST_SKIP() << "the sanitizer needs descriptors of its own";
  Serve();
  std::vector<int> held;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) held.push_back(fd);
  ASSERT_EQ(errno, EMFILE);
  close(held.back());
  held.pop_back();
  HttpConnection client(address());  // has the last one
  EXPECT_TRUE(Eventually([&] { return timer_->pending() == 1; }));
  for (const int fd : held) close(fd);
  clock_.Advance(absl::Milliseconds(100));
  ASSERT_TRUE(client.Send("GET /tagged HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(AdminServerTest, AHandlerAnswersLaterOrIsAnsweredFor) {
  Serve();
  EXPECT_EQ(Get("/later").body, "here it is");
  EXPECT_EQ(Get("/dropped").status, 500);
}

TEST_F(AdminServerTest, StopDoesNotWaitForAnAnswer) {
  Serve();
  HttpConnection connection(address());
  connection.Send(absl::StrCat("GET /kept HTTP/1.1\r\nHost: ", address(), "\r\n\r\n"));
  // Requests are taken in order, so once another one is answered this one waits in its handler.
  while (Get("/tagged").status == 200 && kept_ == nullptr) {
  }
  server_->Stop();
  EXPECT_TRUE(connection.WaitForClose());
  std::move (*kept_)(http::Response::Text("too late"));
}

TEST(AdminServerBindTest, AnAddressThatIsTakenOrFarIsRefused) {
  SimulatedClock clock;
  const auto timer = NewTimer(&clock);
  http::Server::Options options;
  options.listen = "127.0.0.1:0";
  EXPECT_EQ(http::Server::Bind(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.timer = timer.get();
  auto first = http::Server::Bind(options);
  ASSERT_TRUE(first.ok()) << first.status();
  options.listen = (*first)->address();
  const auto second = http::Server::Bind(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
  options.listen = "0.0.0.0:0";
  EXPECT_EQ(http::Server::Bind(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.allow_remote = true;
  EXPECT_TRUE(http::Server::Bind(options).ok());
  options.listen = "unix:/tmp/x.sock";
  EXPECT_EQ(http::Server::Bind(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AdminErrorTest, ErrorsHaveWhatAProgramNeeds) {
  const http::Response response = AdminError(WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY, "disk full"), absl::Milliseconds(1500)));
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("\"reason\":\"STORE_READ_ONLY\""));
  EXPECT_THAT(response.body, HasSubstr("\"retry_delay\":\"1.5s\""));
  EXPECT_THAT(response.headers,
              ::testing::Contains(std::pair<std::string, std::string>("Retry-After", "2")));
}

}  // namespace
}  // namespace failback
