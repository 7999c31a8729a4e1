// The HTTP server over real connections: requests that wait, streams, clients that leave, are slow,
// or send ahead. tests/daemon/admin/admin_server_test.cc has turns, places and refusals.

#include "gateway/http/server.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "retry/mutex.h"
#include "retry/simulated_clock.h"
#include "tests/util/eventually.h"
#include "tests/util/http_client.h"
#include "tests/util/timers.h"

namespace failback::http {
namespace {

// More than the kernel's buffers take.
constexpr size_t kMuch = 16 << 20;

class ServerTest : public ::testing::Test {
 protected:
  void Serve(Server::Options options = {}) {
    options.timer = timer_.get();
    options.listen = "127.0.0.1:0";
    auto server = Server::Bind(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Handle("GET", "/park", [this](const Request& request, Responder responder) {
      responder.WhenGone([this] {
        MutexLock lock(&mu_);
        ++gone_;
      });
      if (request.HasQuery("wait")) {
        responder.WaitAtMost(absl::Seconds(10), [] { return Response::Text("over"); });
      }
      MutexLock lock(&mu_);
      parked_.push_back(std::make_unique<Responder>(std::move(responder)));
    });
    server_->Handle("POST", "/echo", [](const Request& request, Responder responder) {
      responder.Send(Response::Text(absl::StrCat(request.segments.size(), ":", request.body.size(),
                                                 ":", std::string(request.body.substr(0, 20)))));
    });
    server_->Handle("GET", "/stream", [this](const Request&, Responder responder) {
      Response head;
      head.content_type = "text/event-stream";
      head.body = "hello\n";
      MutexLock lock(&mu_);
      stream_ = responder.Begin(std::move(head));
      stream_->WhenGone([this] {
        MutexLock lock(&mu_);
        ++gone_;
      });
    });
    server_->Start();
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
  }

  std::string Get(const std::string& target) const {
    return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", server_->address(), "\r\n\r\n");
  }
  std::string Post(const std::string& body) const {
    return absl::StrCat("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(),
                        "\r\n\r\n", body);
  }
  bool ParkedAre(size_t count) {
    return Eventually([&] {
      MutexLock lock(&mu_);
      return parked_.size() == count;
    });
  }
  void SendAll(const std::string& text) {
    std::vector<std::unique_ptr<Responder>> parked;
    {
      MutexLock lock(&mu_);
      parked.swap(parked_);
    }
    for (const auto& responder : parked) responder->Send(Response::Text(text));
  }
  bool GoneAre(int count) {
    return Eventually([&] {
      MutexLock lock(&mu_);
      return gone_ == count;
    });
  }
  bool HasStream() {
    return Eventually([&] {
      MutexLock lock(&mu_);
      return stream_ != nullptr;
    });
  }
  // One whose stream is being written, and stands still until it reads.
  std::unique_ptr<HttpConnection> ReaderOfMuch() {
    Server::Options options;
    options.max_unread_bytes = kMuch;
    Serve(options);
    auto reader = std::make_unique<HttpConnection>(server_->address());
    const auto chunk = std::make_shared<const std::string>(std::string(kMuch, 'x'));
    const bool written = reader->Send(Get("/stream")) && HasStream() && stream()->Write(chunk);
    return written ? std::move(reader) : nullptr;
  }
  BodyStream* stream() {
    MutexLock lock(&mu_);
    return stream_.get();
  }

  SimulatedClock clock_;
  const std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  Mutex mu_;
  std::vector<std::unique_ptr<Responder>> parked_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<BodyStream> stream_ ABSL_GUARDED_BY(mu_);
  int gone_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ParkedRequestsAreAnsweredFromAnotherThread) {
  Serve();
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(server_->address()));
    ASSERT_TRUE(clients.back()->Send(Get("/park")));
  }
  ASSERT_TRUE(ParkedAre(20));
  EXPECT_EQ(server_->Stats().parked, 20);
  SendAll("now");
  for (const auto& client : clients) EXPECT_EQ(client->Read().body, "now");
  EXPECT_TRUE(Eventually([&] { return server_->Stats().parked == 0; }));
  EXPECT_TRUE(GoneAre(0));
}

TEST_F(ServerTest, AWaitEndsOnTheWheelAndTheConnectionGoesOn) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Get("/park?wait")));
  ASSERT_TRUE(ParkedAre(1));
  // The timeout of the request itself, long over, does not end the wait.
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(client.Read().body, "over");
  SendAll("too late");
  ASSERT_TRUE(client.Send(Post("x")));
  EXPECT_EQ(client.Read().body, "1:1:x");
}

TEST_F(ServerTest, AClientThatLeavesIsNoticedWhileItsRequestIsParked) {
  Serve();
  {
    HttpConnection client(server_->address());
    ASSERT_TRUE(client.Send(Get("/park")));
    ASSERT_TRUE(ParkedAre(1));
  }
  EXPECT_TRUE(GoneAre(1));
  SendAll("to nobody");
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(ServerTest, StopAnswersThoseWhoWait_EndsStreams_AndNotifiesTheirHandlers) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Get("/park?wait")));
  ASSERT_TRUE(ParkedAre(1));
  HttpConnection reader(server_->address());
  ASSERT_TRUE(reader.Send(Get("/stream")));
  reader.ReadUntil("hello\n\r\n");
  ASSERT_TRUE(HasStream());
  HttpConnection idle(server_->address());
  ASSERT_TRUE(idle.Send(Post("x")));
  EXPECT_EQ(idle.Read().status, 200);
  server_->Stop();
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body, "the server is stopping\n");
  EXPECT_TRUE(client.WaitForClose());
  EXPECT_EQ(reader.ReadUntil("0\r\n\r\n"), "0\r\n\r\n") << "the end of the stream, and no break";
  EXPECT_TRUE(reader.WaitForClose());
  EXPECT_TRUE(idle.WaitForClose());
  EXPECT_TRUE(GoneAre(2));
  SendAll("too late");
}

TEST_F(ServerTest, StopEndsAStreamBehindWhatIsBeingWritten) {
  const std::unique_ptr<HttpConnection> reader = ReaderOfMuch();
  ASSERT_NE(reader, nullptr);
  std::thread stopping([this] { server_->Stop(); });
  const std::string rest = reader->ReadUntil("\r\n0\r\n\r\n");
  EXPECT_GT(rest.size(), kMuch);
  EXPECT_EQ(rest.substr(rest.size() - 7), "\r\n0\r\n\r\n");
  EXPECT_TRUE(reader->WaitForClose());
  stopping.join();
}

TEST_F(ServerTest, StopDoesNotWaitForAClientThatReadsNothing) {
  const std::unique_ptr<HttpConnection> reader = ReaderOfMuch();
  ASSERT_NE(reader, nullptr);
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    server_->Stop();
    stopped = true;
  });
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(100));
    return stopped.load();
  }));
  stopping.join();
}

TEST_F(ServerTest, AnswersAreCountedByTheirClass_AndTimed) {
  Serve();
  EXPECT_EQ(Http(server_->address(), "POST", "/echo", {}, "x").status, 200);
  EXPECT_EQ(Http(server_->address(), "GET", "/nothing").status, 404);
  HttpConnection bad(server_->address());
  ASSERT_TRUE(bad.Send("nonsense\r\n\r\n"));
  EXPECT_EQ(bad.Read().status, 400);
  HttpConnection waits(server_->address());
  ASSERT_TRUE(waits.Send(Get("/park?wait")));
  ASSERT_TRUE(ParkedAre(1));
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(waits.Read().body, "over");
  const Server::Statistics stats = server_->Stats();
  EXPECT_EQ(stats.responses[1], 2);
  EXPECT_EQ(stats.responses[3], 2);
  EXPECT_EQ(stats.duration_nanos.count(), 3) << "of what was no request there is no time";
  EXPECT_GE(stats.duration_nanos.sum(), absl::ToInt64Nanoseconds(absl::Seconds(10)));
}

TEST_F(ServerTest, RequestsSentAheadAreAnsweredInTheirOrder) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(absl::StrCat(Get("/park"), Post("second"), Post("third"))));
  ASSERT_TRUE(ParkedAre(1));
  EXPECT_EQ(server_->Stats().requests, 1) << "the next begins after the answer";
  SendAll("first");
  EXPECT_EQ(client.Read().body, "first");
  EXPECT_EQ(client.Read().body, "1:6:second");
  EXPECT_EQ(client.Read().body, "1:5:third");
}

TEST_F(ServerTest, WhatIsSentAheadOfAParkedRequestIsBounded) {
  Server::Options options;
  options.max_header_bytes = 4096;
  Serve(options);
  HttpConnection client(server_->address());
  std::string ahead;
  for (int i = 0; i < 1000; ++i) ahead += Post(absl::StrCat(i));
  ASSERT_TRUE(client.Send(Get("/park")));
  ASSERT_TRUE(ParkedAre(1));
  ASSERT_TRUE(client.Send(ahead));  // what the server does not read the kernel keeps
  SendAll("first");
  EXPECT_EQ(client.Read().body, "first");
  for (int i = 0; i < 1000; ++i) {
    const std::string text = absl::StrCat(i);
    ASSERT_EQ(client.Read().body, absl::StrCat("1:", text.size(), ":", text));
  }
}

TEST_F(ServerTest, AClientThatOnlySaysThatItHasSaidAllIsAnswered) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Post("last")));
  client.ShutdownSend();
  EXPECT_EQ(client.Read().body, "1:4:last");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(ServerTest, BodiesComeInChunksOrAfterAContinueButNotCompressed) {
  Serve();
  HttpConnection chunked(server_->address());
  ASSERT_TRUE(chunked.Send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"));
  ASSERT_TRUE(chunked.Send("3\r\nabc\r\n"));
  ASSERT_TRUE(chunked.Send("2;x=y\r\nde\r\n0\r\n\r\n"));
  EXPECT_EQ(chunked.Read().body, "1:5:abcde");

  HttpConnection expecting(server_->address());
  ASSERT_TRUE(expecting.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(expecting.Read().status, 100);
  ASSERT_TRUE(expecting.Send("abcde"));
  EXPECT_EQ(expecting.Read().body, "1:5:abcde");

  HttpConnection gzip(server_->address());
  ASSERT_TRUE(gzip.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc"));
  EXPECT_EQ(gzip.Read().status, 415);
  EXPECT_TRUE(gzip.WaitForClose());
}

TEST_F(ServerTest, ALongBodyIsRefusedBeforeItIsSentAndTheAnswerArrives) {
  Server::Options options;
  options.max_body_bytes = 1000;
  Serve(options);
  HttpConnection expecting(server_->address());
  ASSERT_TRUE(expecting.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(expecting.Read().status, 413);
  // One that sends it all the same reads its answer, and not a reset.
  HttpConnection eager(server_->address());
  eager.Send(Post(std::string(200000, 'x')));
  EXPECT_EQ(eager.Read().status, 413);
  // In chunks, whose sum nobody says.
  HttpConnection chunked(server_->address());
  ASSERT_TRUE(chunked.Send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"));
  chunked.Send(absl::StrCat("7d0\r\n", std::string(2000, 'x'), "\r\n0\r\n\r\n"));
  EXPECT_EQ(chunked.Read().status, 413);
}

TEST_F(ServerTest, AStreamGoesInChunksAndEnds) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Get("/stream")));
  ASSERT_TRUE(HasStream());
  EXPECT_TRUE(stream()->Write(std::make_shared<const std::string>("world\n")));
  const HttpAnswer head = client.Read();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("transfer-encoding"), "chunked");
  stream()->End();
  EXPECT_FALSE(stream()->Write(std::make_shared<const std::string>("more")));
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "6\r\nhello\n\r\n6\r\nworld\n\r\n0\r\n\r\n");
  ASSERT_TRUE(client.Send(Post("x")));
  EXPECT_EQ(client.Read().body, "1:1:x");
  EXPECT_TRUE(GoneAre(0));
}

TEST_F(ServerTest, AStreamWhoseClientLeavesTakesNothingMore) {
  Serve();
  {
    HttpConnection client(server_->address());
    ASSERT_TRUE(client.Send(Get("/stream")));
    ASSERT_TRUE(HasStream());
  }
  EXPECT_TRUE(GoneAre(1));
  EXPECT_FALSE(stream()->Write(std::make_shared<const std::string>("more")));
}

TEST_F(ServerTest, WhatAClientDoesNotReadIsBoundedAndThenItIsClosed) {
  Server::Options options;
  options.max_unread_bytes = 100000;
  Serve(options);
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Get("/stream")));
  ASSERT_TRUE(HasStream());
  const auto chunk = std::make_shared<const std::string>(std::string(50000, 'x'));
  // The kernel's buffers take a few megabytes; then nothing is taken any more.
  size_t taken = 0;
  EXPECT_TRUE(Eventually([&] {
    if (!stream()->Write(chunk)) return true;
    taken += chunk->size();
    return false;
  }));
  EXPECT_LT(taken, size_t{64} << 20);
  EXPECT_EQ(server_->Stats().slow_closed, 0);
  EXPECT_TRUE(Eventually([&] {
    // What was refused while the server's thread had no turn may have been sent since.
    stream()->Write(chunk);
    clock_.Advance(absl::Seconds(31));
    return server_->Stats().slow_closed == 1;
  }));
  EXPECT_TRUE(GoneAre(1));
}

TEST_F(ServerTest, WhereAllPlacesAreParkedTheOldestWaitMakesRoom) {
  Server::Options options;
  options.max_connections = 3;
  Serve(options);
  std::vector<std::unique_ptr<HttpConnection>> clients;
  for (size_t i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpConnection>(server_->address()));
    ASSERT_TRUE(clients.back()->Send(Get("/park?wait")));
    ASSERT_TRUE(ParkedAre(i + 1));
  }
  HttpConnection next(server_->address());
  ASSERT_TRUE(next.Send(Post("x")));
  EXPECT_EQ(next.Read().body, "1:1:x");
  const HttpAnswer ended = clients.front()->Read();
  EXPECT_EQ(ended.body, "over");
  EXPECT_EQ(ended.headers.at("connection"), "close");
  SendAll("now");
  EXPECT_EQ(clients.back()->Read().body, "now");
}

TEST_F(ServerTest, ADroppedResponderAnswers) {
  Serve();
  HttpConnection client(server_->address());
  ASSERT_TRUE(client.Send(Get("/park")));
  ASSERT_TRUE(ParkedAre(1));
  {
    MutexLock lock(&mu_);
    parked_.clear();
  }
  EXPECT_EQ(client.Read().status, 500);
}

TEST_F(ServerTest, AnIdleConnectionIsClosed) {
  Serve();
  HttpConnection idle(server_->address());
  ASSERT_TRUE(idle.Send(Post("x")));
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(absl::Seconds(31));
    return server_->Stats().connections == 0;
  }));
  EXPECT_TRUE(idle.WaitForClose());
}

}  // namespace
}  // namespace failback::http
