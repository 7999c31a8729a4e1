// `./dev bench dns`: what an answer costs.
//
// dns-query: queries by UDP about a service of ten instances, A and SRV, with 64 of them under way
// (udp_load.h): the registry itself, a bare UDP responder that sends the same bytes (bare_udp.cc),
// and dnsmasq, which has the same records in its configuration and nothing to forward. CPU of the
// server for each query, queries a second, and how busy the server was meanwhile.
//
// dns-tcp: one query by TCP about a service of a thousand instances, SRV with all addresses.
//
// dns-change: from the answer to Register until the next query has the instance: how many answers
// did not have it.
//
// dns-memory: what the server holds for each instance, beyond the set that it shares with the
// registry.
//
// All on loopback, each server a process of its own.

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gateway/dns/message.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/dns/udp_load.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/gateway/dns/dns_client.h"
#include "tests/gateway/dns/dns_messages.h"
#include "tests/util/daemons.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/ports.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using dns::Message;
using dns::QueryBytes;
using dns::QueryShape;
using dns::ReadMessage;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::RegistryService;
using registry::v1::ServiceInstance;

constexpr char kTen[] = "ten.service.failback";
constexpr char kThousand[] = "thousand.service.failback";
constexpr int kWindow = 64;

struct Scale {
  int queries = 400000;
  int tcp_queries = 200;
  int changes = 200;
  int large = 10000;
};

std::vector<ServiceInstance> Instances(const std::string& service, int count) {
  std::vector<ServiceInstance> instances;
  for (int i = 0; i < count; ++i) {
    instances.push_back(MakeInstance(service, absl::StrCat(100000 + i), 8000 + i % 1000));
    instances.back().set_address(absl::StrCat("10.", i / 62500, ".", i / 250 % 250, ".", i % 250));
  }
  return instances;
}

// The registry that is measured.
class DnsRegistry {
 public:
  DnsRegistry() {
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(daemon_.address(), grpc::InsecureChannelCredentials()));
    const std::string place = daemon_.process().out();
    const size_t at = place.find(", dns ");
    if (at == std::string::npos) Fatal("the registry serves no DNS: " + place);
    dns_ = place.substr(at + 6, place.find('\n', at) - at - 6);
  }

  const std::string& dns() const { return dns_; }
  pid_t pid() { return daemon_.process().pid(); }

  void Register(const std::vector<ServiceInstance>& instances) {
    for (size_t at = 0; at < instances.size(); at += 500) {
      RegisterRequest request;
      for (size_t i = at; i < std::min(at + 500, instances.size()); ++i) {
        *request.add_registrations()->mutable_instance() = instances[i];
      }
      grpc::ClientContext context;
      RegisterResponse response;
      const grpc::Status status = stub_->Register(&context, request, &response);
      if (!status.ok()) Fatal("Register: " + status.error_message());
    }
  }

 private:
  Daemon daemon_ = Daemon::Registry({"--store", "memory:", "--dns", "127.0.0.1:0"});
  std::string dns_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

QueryShape Shape(uint16_t id) {
  QueryShape shape;
  shape.id = id;
  shape.udp_bytes = 1232;
  return shape;
}

// dnsmasq with the same records; it forwards nothing.
class Dnsmasq {
 public:
  explicit Dnsmasq(const std::vector<ServiceInstance>& instances) {
    std::ofstream config(dir_.File("dnsmasq.conf"));
    config << "port=" << port_ << "\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\n"
           << "no-hosts\nuser=root\nlocal-ttl=1\n";
    for (const ServiceInstance& instance : instances) {
      const std::vector<std::string> parts = absl::StrSplit(instance.address(), '.');
      const std::string target = absl::StrCat("t", parts[3], ".addr.failback");
      config << "host-record=" << target << "," << instance.address() << "\n"
             << "host-record=" << kTen << "," << instance.address() << "\n"
             << "srv-host=" << kTen << "," << target << "," << instance.port() << ",0,100\n";
    }
    config.close();
    process_ = Process::Start({"/usr/sbin/dnsmasq", "--keep-in-foreground", "--pid-file",
                               "--conf-file=" + dir_.File("dnsmasq.conf")});
    dns::UdpClient client(address());
    // It answers once it has begun to listen; until then the kernel refuses.
    const std::string query = QueryBytes(kTen, dns::type::kA);
    if (!Eventually([&] { return client.Answers(query, absl::Milliseconds(30)); })) {
      Fatal("dnsmasq does not answer: " + process_->Describe());
    }
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  pid_t pid() const { return process_->pid(); }

 private:
  const TempDir dir_;
  const int port_ = ReservedPort();
  std::unique_ptr<Process> process_;
};

// The bare responder with the bytes of this answer.
class Bare {
 public:
  explicit Bare(const std::string& answer) {
    std::ofstream(dir_.File("answer"), std::ios::binary) << answer;
    process_ = Process::Start({RunfilePath("tests/bench/dns/bare_udp"), dir_.File("answer")});
    const auto line = process_->WaitForLine("listening on ");
    if (!line.has_value()) Fatal(process_->Describe());
    address_ = absl::StrCat("127.0.0.1:", line->substr(line->rfind(' ') + 1));
  }

  const std::string& address() const { return address_; }
  pid_t pid() const { return process_->pid(); }

 private:
  const TempDir dir_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

void RunQueries(const Scale& scale, DnsRegistry* subject, Dnsmasq* dnsmasq, Report* report) {
  const std::pair<const char*, uint16_t> kTypes[] = {{"a", dns::type::kA},
                                                     {"srv", dns::type::kSrv}};
  for (const auto& [name, type] : kTypes) {
    dns::UdpClient client(subject->dns());
    client.Send(QueryBytes(kTen, type, Shape(0)));
    const std::string answer = client.Receive();
    if (ReadMessage(answer).answer.size() != 10) Fatal("an answer without ten records");
    Bare bare(answer);
    const struct {
      const char* name;
      std::string address;
      pid_t pid;
    } kSubjects[] = {{"failback-dns", subject->dns(), subject->pid()},
                     {"bare-udp", bare.address(), bare.pid()},
                     {"dnsmasq", dnsmasq->address(), dnsmasq->pid()}};
    std::map<std::string, double> costs;
    for (const auto& server : kSubjects) {
      UdpLoad load(server.address, QueryBytes(kTen, type, Shape(0)), kWindow);
      load.Ask(scale.queries / 20);  // warm
      const double before = CpuSecondsOf(server.pid);
      const double seconds = load.Ask(scale.queries);
      const double cpu = CpuSecondsOf(server.pid) - before;
      costs[server.name] = cpu / scale.queries * 1e6;
      report->Add("dns-query", server.name, absl::StrCat("cpu_per_query_", name),
                  costs[server.name], "us");
      report->Add("dns-query", server.name, absl::StrCat("queries_per_s_", name),
                  scale.queries / seconds, "1/s");
      // 1: the server is what limits.
      report->Add("dns-query", server.name, absl::StrCat("busy_", name), cpu / seconds, "");
    }
    report->Add("dns-query", "failback-dns", absl::StrCat("cpu_over_bare_udp_", name),
                costs["failback-dns"] - costs["bare-udp"], "us");
  }
}

void RunTcp(const Scale& scale, DnsRegistry* subject, Report* report) {
  dns::TcpClient client(subject->dns());
  std::vector<double> seconds;
  for (int i = 0; i < scale.tcp_queries; ++i) {
    const absl::Time begin = absl::Now();
    client.Send(QueryBytes(kThousand, dns::type::kSrv));
    const std::string answer = client.Receive();
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    if (i == 0 && ReadMessage(answer).answer.size() != 1000) Fatal("not all 1,000");
  }
  report->Add("dns-tcp", "failback-dns", "srv_of_1000_ms", Median(seconds) * 1e3, "ms");
  report->Add("dns-tcp", "failback-dns", "srv_of_1000_p99_ms", Percentile(seconds, 0.99) * 1e3,
              "ms");
}

void RunChange(const Scale& scale, int round, DnsRegistry* subject, Report* report) {
  const std::string service = absl::StrCat("changing-", round);
  const std::string name = service + ".service.failback";
  dns::UdpClient client(subject->dns());
  int late = 0;
  for (int i = 1; i <= scale.changes; ++i) {
    ServiceInstance instance = MakeInstance(service, "one", 80);
    instance.set_address(absl::StrCat("10.9.", i / 250, ".", i % 250));
    subject->Register({instance});
    const Message message = client.Ask(name, dns::type::kA);
    late +=
        message.answer.size() == 1 && absl::StrContains(message.answer[0], " " + instance.address())
            ? 0
            : 1;
  }
  report->Add("dns-change", "failback-dns", "answers_without_the_change", late, "");
}

void RunMemory(const Scale& scale, int round, DnsRegistry* subject, Report* report) {
  const std::string service = absl::StrCat("large-", round);
  subject->Register(Instances(service, scale.large));
  const std::string name = service + ".service.failback";
  dns::TcpClient client(subject->dns());
  const int64_t before = AnonymousBytesOf(subject->pid());
  client.Ask(name, dns::type::kA);
  report->Add("dns-memory", "failback-dns", "bytes_per_instance",
              static_cast<double>(AnonymousBytesOf(subject->pid()) - before) / scale.large, "B");
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "dns";
  Scale scale;
  int rounds = 5;
  bool quick = false;
  std::string only;
  CLI::App app("Measures what an answer of the DNS server costs.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--workload", only, "only this one")
      ->check(CLI::IsMember({"dns-query", "dns-tcp", "dns-change", "dns-memory"}));
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    rounds = 1;
    scale = {/*queries=*/1000, /*tcp_queries=*/3, /*changes=*/3, /*large=*/1000};
  }

  Report report(options);
  DnsRegistry subject;
  const std::vector<ServiceInstance> ten = Instances("ten", 10);
  subject.Register(ten);
  subject.Register(Instances("thousand", 1000));
  Dnsmasq dnsmasq(ten);
  const auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  for (int round = 0; round < rounds; ++round) {
    if (wanted("dns-query")) RunQueries(scale, &subject, &dnsmasq, &report);
    if (wanted("dns-tcp")) RunTcp(scale, &subject, &report);
    if (wanted("dns-change")) RunChange(scale, round, &subject, &report);
    if (wanted("dns-memory")) RunMemory(scale, round, &subject, &report);
  }
  for (const std::string type : {"a", "srv"}) {
    report.Ratio("dns-query", "queries_per_s_" + type, "failback-dns", "dnsmasq");
    report.Ratio("dns-query", "cpu_per_query_" + type, "failback-dns", "bare-udp");
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
