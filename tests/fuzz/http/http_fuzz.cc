// HTTP from anybody: bytes on a connection of a real server, which answers each request once, serves
// the next client, and keeps nothing of the last; and what its handlers read, as functions: paths,
// queries, positions, durations, and bodies in JSON.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.pb.h"
#include "gateway/http/message_json.h"
#include "gateway/http/problem.h"
#include "gateway/http/server.h"
#include "gateway/json/parameters.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/util/http_client.h"
#include "tests/util/timers.h"

namespace failback::http {
namespace {

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// A path that is made of segments has them.
void CheckPath(const std::string& text) {
  const auto segments = ParsePath(text);
  if (!segments.ok()) {
    Check(segments.status().message().size() < 1000, "an error repeats what was sent");
    return;
  }
  std::string encoded;
  for (const std::string& segment : *segments) {
    encoded += '/';
    for (const char c : segment) {
      absl::StrAppend(&encoded, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  // A segment that is empty at the end is the slash that means nothing.
  if (encoded.empty() || encoded.back() == '/') return;
  Check(ParsePath(encoded).value() == *segments, "a path changes on its way");
}

void CheckQuery(const std::string& text) {
  Request request;
  if (auto query = ParseQuery(text); query.ok()) request.query = *std::move(query);
  const std::pair<std::string, std::string> header("Last-Event-ID", text);
  request.headers.emplace_back(header.first, header.second);
  if (const auto position = ReadPosition(request, /*header=*/true); position.ok()) {
    Check(text.empty() || position->has_value(), "a position is overlooked");
  }
  const auto wait =
      ReadDuration(request, "wait", absl::Seconds(1), absl::ZeroDuration(), absl::Minutes(10));
  Check(!wait.ok() || (*wait >= absl::ZeroDuration() && *wait <= absl::Minutes(10)),
        "a duration is out of its bounds");
  ReadWaitFor(request).IgnoreError();
  CheckParameters(request, {"wait"}).IgnoreError();
}

void CheckBody(const std::string& text) {
  registry::v1::ServiceInstance instance;
  const absl::Status status = ParseJson(text, &instance);
  if (!status.ok()) {
    Check(!Problem(status).body.empty(), "an error has no document");
    return;
  }
  const auto json = MessageJson(instance);
  if (!json.ok()) return;
  registry::v1::ServiceInstance again;
  Check(ParseJson(*json, &again).ok(), "what is written is not read");
}

class Echo {
 public:
  Echo() {
    Server::Options options;
    options.timer = timer_.get();
    options.listen = "127.0.0.1:0";
    options.max_header_bytes = 1024;
    options.max_body_bytes = 512;
    options.error = [](int status, const absl::Status& error) { return Problem(status, error); };
    server_ = Server::Bind(std::move(options)).value();
    const auto echo = [](const Request& request, Responder responder) {
      Check(request.body.size() <= 512, "a body is larger than allowed");
      responder.Send(Response::Text(std::string(request.body)));
    };
    server_->Handle("GET", "/{any}", echo);
    server_->Handle("POST", "/{any}", echo);
    server_->Handle("GET", "/well", echo, Server::Turn::kProbe);
    server_->Start();
  }

  void Send(const std::string& bytes) {
    {
      HttpConnection client(server_->address());
      client.Send(bytes);
      client.ShutdownSend();
      Check(client.WaitForClose(), "a connection stays");
    }
    HttpConnection next(server_->address());
    next.Send("GET /well HTTP/1.1\r\nHost: h\r\n\r\n");
    Check(next.Read().status == 200, "the next client is not served");
  }

 private:
  SimulatedClock clock_;
  const std::unique_ptr<HashedWheelTimer> timer_ = NewTimer(&clock_);
  std::unique_ptr<Server> server_;
};

// A request that may well be one.
std::string MakeRequest(FuzzInput* input) {
  static const char* const kLines[] = {"Host: h\r\n",
                                       "Content-Length: 5\r\n",
                                       "Content-Length: 9999\r\n",
                                       "Transfer-Encoding: chunked\r\n",
                                       "Connection: close\r\n",
                                       "Expect: 100-continue\r\n",
                                       "Content-Encoding: gzip\r\n",
                                       "If-None-Match: \"x\"\r\n"};
  std::string text = absl::StrCat(input->Byte() % 2 == 0 ? "GET" : "POST", " /", input->Text(8),
                                  " HTTP/1.", input->Byte() % 2, "\r\n");
  for (int lines = input->Byte() % 5; lines > 0; --lines) text += kLines[input->Byte() % 8];
  return absl::StrCat(text, "\r\n", input->Text(20));
}

}  // namespace
}  // namespace failback::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace failback::http;
  static auto* const echo = new Echo;
  failback::FuzzInput input(data, size);
  const int what = input.Byte() % 4;
  if (what == 0) {
    std::string bytes;
    for (int requests = 1 + input.Byte() % 4; requests > 0; --requests) {
      bytes += MakeRequest(&input);
    }
    echo->Send(bytes);
    return 0;
  }
  const std::string text = input.Rest();
  if (what == 1) echo->Send(text);
  CheckPath(text);
  CheckPath("/" + text);
  CheckQuery(text);
  CheckBody(text);
  return 0;
}
