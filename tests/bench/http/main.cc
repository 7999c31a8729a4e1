// `./dev bench http`: what the front door over HTTP and JSON costs.
//
// http-fanout: 10,000 long polls on one service, each on a connection of its own; from a change until
// the last of them has its answer. Beside it as many subscriptions over gRPC (ten connections), in
// the same process, and a server of Boost.Beast alone that answers as many parked requests.
//
// http-memory: what the server holds for each of them while it waits.
//
// http-register: instances put over 16 connections, one request under way on each, into memory; the
// bare server parses the same JSON and keeps nothing.
//
// All on loopback, each server a process of its own.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "tests/bench/http/http_load.h"
#include "tests/bench/registry/calls.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr char kHttp[] = "failback-http";
constexpr char kGrpc[] = "failback-grpc";
constexpr char kBare[] = "bare-beast";

struct Scale {
  int waiting = 10000;
  int grpc_connections = 10;
  int changes = 20;
  int puts = 100000;
  int putters = 16;
};

// The value of a field in an answer's JSON.
std::string Field(const std::string& json, const std::string& name) {
  const std::string mark = absl::StrCat("\"", name, "\":\"");
  const size_t at = json.find(mark);
  if (at == std::string::npos) Die(absl::StrCat("no ", name, " in ", json));
  const size_t begin = at + mark.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

std::string ServicePath() {
  return absl::StrCat("/v1/services/", NumberedInstance("fanout", 0).key().service());
}

std::string PollOf(const std::string& state) {
  return GetRequest(absl::StrCat(ServicePath(), "?epoch=", Field(state, "epoch"),
                                 "&revision=", Field(state, "revision"), "&wait=10m"));
}

// The registry, over both doors.
class Registry {
 public:
  Registry() : server_(kFailbackMemory, WithHttp()), channel_(NewChannel(server_.address())) {
    const std::string said = server_.process().out();
    const size_t at = said.find(", http ");
    if (at == std::string::npos) Die("the registry serves no HTTP: " + said);
    http_ = said.substr(at + 7, said.find('\n', at) - at - 7);
    session_ = OpenSession(channel_, "bench");
    Change();
  }

  void Change() { CallOnce(channel_, kRegisterMethod, EncodedChange(session_, ++generation_)); }
  const std::string& http() const { return http_; }
  Subject& server() { return server_; }

 private:
  static Subject::Options WithHttp() {
    Subject::Options options;
    options.more_args = {"--http", "127.0.0.1:0"};
    return options;
  }

  Subject server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string http_;
  std::string session_;
  uint64_t generation_ = 0;
};

class Bare {
 public:
  Bare() : process_(Process::Start({RunfilePath("tests/bench/http/bare_http")})) {
    const auto line = process_->WaitForLine("listening on ");
    if (!line.has_value()) Die(process_->Describe());
    address_ = absl::StrCat("127.0.0.1:", line->substr(line->rfind(' ') + 1));
  }
  const std::string& address() const { return address_; }
  pid_t pid() const { return process_->pid(); }

 private:
  std::unique_ptr<Process> process_;
  std::string address_;
};

void ReportFanOut(const char* subject, const std::vector<double>& last_ms, Report* report) {
  report->Add("http-fanout", subject, "last_reached_p50_ms", Percentile(last_ms, 0.5), "ms");
  report->Add("http-fanout", subject, "last_reached_p99_ms", Percentile(last_ms, 0.99), "ms");
}

void ReportMemory(const char* subject, int64_t bytes, int count, Report* report) {
  report->Add("http-memory", subject, "bytes", static_cast<double>(bytes) / count, "B");
}

void OverHttp(const Scale& scale, Report* report) {
  Registry registry;
  std::string state;
  int64_t answered = 0;
  HttpLoad load(registry.http(), scale.waiting, [&](int, const std::string& body) {
    if (++answered == 1) state = body;
  });
  const auto all = [&] { return answered >= scale.waiting; };
  // A first answer on each, so that the connections themselves are there; none is parked.
  for (int i = 0; i < scale.waiting; ++i) load.Send(i, GetRequest(ServicePath()));
  load.RunUntil(all);
  std::vector<double> last_ms;
  for (int change = 0; change < scale.changes; ++change) {
    const std::string poll = PollOf(state);
    answered = 0;
    for (int i = 0; i < scale.waiting; ++i) load.Send(i, poll);
    // Another poll, answered at once, comes behind them: all are parked then.
    bool marked = false;
    HttpLoad marker(registry.http(), 1, [&](int, const std::string&) { marked = true; });
    marker.Send(0, GetRequest(ServicePath()));
    marker.RunUntil([&] { return marked; });
    const double began = NowSeconds();
    registry.Change();
    load.RunUntil(all);
    last_ms.push_back((NowSeconds() - began) * 1e3);
  }
  ReportFanOut(kHttp, last_ms, report);
}

void OverGrpc(const Scale& scale, Report* report) {
  Registry registry;
  int64_t reached = 0;
  const grpc::ByteBuffer subscribe =
      EncodedSubscribe(NumberedInstance("fanout", 0).key().service());
  Streams streams(registry.server().address(), kSubscribeMethod, scale.waiting,
                  scale.grpc_connections, &subscribe,
                  [&](int, const grpc::ByteBuffer&) { ++reached; });
  const auto all = [&] { return reached >= scale.waiting; };
  if (!streams.RunUntil(all, kLongest)) Die("not every subscriber has its snapshot");
  std::vector<double> last_ms;
  for (int change = 0; change < scale.changes; ++change) {
    reached = 0;
    const double began = NowSeconds();
    registry.Change();
    if (!streams.RunUntil(all, kLongest)) Die("not every subscriber was reached");
    last_ms.push_back((NowSeconds() - began) * 1e3);
  }
  ReportFanOut(kGrpc, last_ms, report);
}

void OverBare(const Scale& scale, Report* report) {
  Bare bare;
  int64_t answered = 0;
  HttpLoad load(bare.address(), scale.waiting, [&](int, const std::string&) { ++answered; });
  HttpLoad other(bare.address(), 1, [&](int, const std::string&) { ++answered; });
  const auto all = [&] { return answered >= scale.waiting; };
  std::vector<double> last_ms;
  const std::string state(400, 'x');
  for (int change = 0; change < scale.changes; ++change) {
    for (int i = 0; i < scale.waiting; ++i) load.Send(i, GetRequest(ServicePath()));
    bool marked = false;
    HttpLoad marker(bare.address(), 1, [&](int, const std::string&) { marked = true; });
    marker.Send(0, PutRequest("/", "{}"));
    marker.RunUntil([&] { return marked; });
    answered = 0;
    const double began = NowSeconds();
    other.Send(0, absl::StrCat("POST /release HTTP/1.1\r\nHost: h\r\nContent-Length: ",
                               state.size(), "\r\n\r\n", state));
    load.RunUntil(all);
    last_ms.push_back((NowSeconds() - began) * 1e3);
    other.RunUntil([&] { return answered > scale.waiting; });
  }
  ReportFanOut(kBare, last_ms, report);
}

// Of requests that wait, and of streams over gRPC; the first on each connection of gRPC's not
// counted.
void RunMemory(const Scale& scale, Report* report) {
  {
    Registry registry;
    std::string state;
    HttpLoad one(registry.http(), 1, [&](int, const std::string& body) { state = body; });
    one.Send(0, GetRequest(ServicePath()));
    one.RunUntil([&] { return !state.empty(); });
    const int64_t before = registry.server().AnonymousBytes();
    HttpLoad load(registry.http(), scale.waiting, [](int, const std::string&) {});
    for (int i = 0; i < scale.waiting; ++i) load.Send(i, PollOf(state));
    bool marked = false;
    HttpLoad marker(registry.http(), 1, [&](int, const std::string&) { marked = true; });
    marker.Send(0, GetRequest(ServicePath()));
    marker.RunUntil([&] { return marked; });
    ReportMemory(kHttp, registry.server().AnonymousBytes() - before, scale.waiting, report);
  }
  {
    Bare bare;
    bool marked = false;
    HttpLoad marker(bare.address(), 1, [&](int, const std::string&) { marked = true; });
    marker.Send(0, PutRequest("/", "{}"));
    marker.RunUntil([&] { return marked; });
    const int64_t before = AnonymousBytesOf(bare.pid());
    HttpLoad load(bare.address(), scale.waiting, [](int, const std::string&) {});
    for (int i = 0; i < scale.waiting; ++i) {
      load.Send(i, GetRequest(ServicePath() + "?epoch=1&revision=1&wait=10m"));
    }
    marked = false;
    marker.Send(0, PutRequest("/", "{}"));
    marker.RunUntil([&] { return marked; });
    ReportMemory(kBare, AnonymousBytesOf(bare.pid()) - before, scale.waiting, report);
  }
  Registry registry;
  int64_t reached = 0;
  const grpc::ByteBuffer subscribe =
      EncodedSubscribe(NumberedInstance("fanout", 0).key().service());
  const auto count = [&](int, const grpc::ByteBuffer&) { ++reached; };
  Streams first(registry.server().address(), kSubscribeMethod, scale.grpc_connections,
                scale.grpc_connections, &subscribe, count);
  first.RunUntil([&] { return reached == scale.grpc_connections; }, kLongest);
  const int64_t before = registry.server().AnonymousBytes();
  reached = 0;
  Streams streams(registry.server().address(), kSubscribeMethod, scale.waiting,
                  scale.grpc_connections, &subscribe, count);
  if (!streams.RunUntil([&] { return reached == scale.waiting; }, kLongest)) {
    Die("a snapshot is missing");
  }
  ReportMemory(kGrpc, registry.server().AnonymousBytes() - before, scale.waiting, report);
}

double PutsPerSecond(const std::string& address, const Scale& scale) {
  int sent = 0;
  int answered = 0;
  const std::string body =
      "{\"address\": \"10.0.0.7\", \"port\": 8080, \"zone\": \"eu-west-1a\", \"metadata\": "
      "{\"version\": \"1.2.3\", \"commit\": \"0123456789abcdef\"}}";
  HttpLoad* load = nullptr;
  const auto send = [&](int client) {
    if (sent == scale.puts) return;
    const int number = sent++;
    load->Send(
        client,
        PutRequest(absl::StrCat("/v1/services/put-", number / 100, "/instances/", number), body));
  };
  HttpLoad clients(address, scale.putters, [&](int client, const std::string&) {
    ++answered;
    send(client);
  });
  load = &clients;
  const double began = NowSeconds();
  for (int i = 0; i < scale.putters; ++i) send(i);
  clients.RunUntil([&] { return answered == scale.puts; });
  return scale.puts / (NowSeconds() - began);
}

void RunRegister(const Scale& scale, Report* report) {
  Registry registry;
  report->Add("http-register", kHttp, "puts_per_s", PutsPerSecond(registry.http(), scale), "1/s");
  Bare bare;
  report->Add("http-register", kBare, "puts_per_s", PutsPerSecond(bare.address(), scale), "1/s");
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "http";
  Scale scale;
  int rounds = 5;
  bool quick = false;
  std::string only;
  CLI::App app("Measures what the front door over HTTP and JSON costs.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--workload", only, "only this one")
      ->check(CLI::IsMember({"http-fanout", "http-memory", "http-register"}));
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    rounds = 1;
    scale = {/*waiting=*/50, /*grpc_connections=*/2, /*changes=*/3, /*puts=*/100, /*putters=*/4};
  }
  RaiseFileLimit();
  Report report(options);
  const auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  for (int round = 0; round < rounds; ++round) {
    if (wanted("http-fanout")) {
      OverHttp(scale, &report);
      OverGrpc(scale, &report);
      OverBare(scale, &report);
    }
    if (wanted("http-memory")) RunMemory(scale, &report);
    if (wanted("http-register")) RunRegister(scale, &report);
  }
  for (const char* base : {kGrpc, kBare}) {
    report.Ratio("http-fanout", "last_reached_p50_ms", kHttp, base);
    report.Ratio("http-memory", "bytes", kHttp, base);
  }
  report.Ratio("http-register", "puts_per_s", kHttp, kBare);
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
