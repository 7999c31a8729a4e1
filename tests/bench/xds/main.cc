// `./dev bench xds`: what a program sees that discovers through the agent's xDS server.
//
// xds-register: from the call of Register at the agent to the first answer of the new instance,
// with a client that calls all the time; beside a client that is given the address and connects.
// xds-rolling: all instances of a service are replaced one by one, under load; calls that are lost.
// In order: register the new, DRAINING for the old, a pause, unregister, SIGTERM. Beside it the
// same with SIGKILL and nothing said before. xds-change: from a change's Register to the message at
// a discovery client that reads, and the CPU time of the agent for it, by the number of services
// followed and their size. xds-40000: as many streams on 40 connections (many_streams.h).
//
// The client is gRPC's own (or, in xds-change, a bare discovery stream), in this process; registry,
// agent and backends are the real daemons.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "failback/xds/discovery.grpc.pb.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/bench/xds/fleet.h"
#include "tests/bench/xds/many_streams.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using envoy::service::discovery::v3::AggregatedDiscoveryService;
using envoy::service::discovery::v3::DiscoveryRequest;
using envoy::service::discovery::v3::DiscoveryResponse;
using registry::v1::ServiceInstance;

constexpr char kOrders[] = "xds:///orders";
constexpr char kEndpointsUrl[] =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
constexpr double kLongestSeconds = 60;

struct Scale {
  int instances = 10;
  int registers = 20;
  absl::Duration pause = absl::Milliseconds(500);
  int services = 1000;
  int large = 10000;
  int changes = 50;
};

void WaitForAnswerOf(Caller* caller, const std::string& id) {
  const double deadline = NowSeconds() + kLongestSeconds;
  while (caller->Call() != id) {
    if (NowSeconds() > deadline) Die(absl::StrCat("in vain waited for an answer of ", id));
  }
}

void RunRegister(const Scale& scale, Fleet* fleet_of_all, Report* report) {
  const char* const name = "xds-register";
  Fleet& fleet = *fleet_of_all;
  Caller caller(kOrders);
  for (const char* id : {"a", "b", "c"}) {
    const ServiceInstance instance = fleet.StartBackend(id);
    fleet.Register({instance});
    WaitForAnswerOf(&caller, id);
  }
  std::vector<double> discovered;
  std::vector<double> connected;
  for (int i = 0; i < scale.registers; ++i) {
    const std::string id = absl::StrCat("new-", i);
    const ServiceInstance instance = fleet.StartBackend(id);
    // The client that is given the address.
    double start = NowSeconds();
    Caller told(absl::StrCat("127.0.0.1:", instance.port()));
    if (told.Call() != id) Die("somebody else answered");
    connected.push_back(NowSeconds() - start);
    // The client that discovers, and has other things to do meanwhile.
    start = NowSeconds();
    std::thread registers([&] { fleet.Register({instance}); });
    WaitForAnswerOf(&caller, id);
    discovered.push_back(NowSeconds() - start);
    registers.join();
    fleet.Unregister(instance.key());
    fleet.StopBackend(id);
  }
  report->Add(name, "failback-xds", "first_answer_ms", Median(discovered) * 1e3, "ms");
  report->Add(name, "failback-xds", "first_answer_p90_ms", Percentile(discovered, 0.9) * 1e3, "ms");
  report->Add(name, "told-the-address", "first_answer_ms", Median(connected) * 1e3, "ms");
  for (const char* id : {"a", "b", "c"}) {
    registry::v1::InstanceKey key;
    key.set_service("orders");
    key.set_instance_id(id);
    fleet.Unregister(key);
    fleet.StopBackend(id);
  }
}

// Replaces all instances one by one. `in_order`: no server is stopped that may still be called.
void RunRolling(const Scale& scale, bool in_order, Fleet* fleet, Report* report) {
  const char* const name = "xds-rolling";
  const char* const subject = in_order ? "drained" : "killed";
  Caller caller(kOrders);
  std::vector<ServiceInstance> old;
  for (int i = 0; i < scale.instances; ++i) {
    old.push_back(fleet->StartBackend(absl::StrCat(subject, "-old-", i)));
    fleet->Register({old.back()});
    WaitForAnswerOf(&caller, old.back().key().instance_id());
  }
  Load load(&caller, 4);
  const double start = NowSeconds();
  for (int i = 0; i < scale.instances; ++i) {
    const ServiceInstance fresh = fleet->StartBackend(absl::StrCat(subject, "-new-", i));
    fleet->Register({fresh});
    const std::string& id = old[i].key().instance_id();
    if (in_order) {
      old[i].set_status(registry::v1::HEALTH_STATUS_DRAINING);
      fleet->Register({old[i]});
      absl::SleepFor(scale.pause);
      fleet->Unregister(old[i].key());
      fleet->StopBackend(id);
    } else {
      fleet->KillBackend(id);
      absl::SleepFor(scale.pause);
      fleet->Unregister(old[i].key());
    }
    old[i] = fresh;
  }
  const double seconds = NowSeconds() - start;
  load.Stop();
  if (load.answered() == 0) Die("no call was answered");
  report->Add(name, subject, "calls_per_s", static_cast<double>(load.answered()) / seconds, "1/s");
  report->Add(name, subject, "lost", static_cast<double>(load.failed()), "calls");
  report->Add(name, subject, "lost_per_s", static_cast<double>(load.failed()) / seconds, "1/s");
  for (const ServiceInstance& instance : old) {
    fleet->Unregister(instance.key());
    fleet->StopBackend(instance.key().instance_id());
  }
}

ServiceInstance Endpoint(const std::string& service, int i) {
  ServiceInstance instance = MakeInstance(service, absl::StrCat("i", i));
  instance.set_address(absl::StrCat("10.", i / 65536, ".", i / 256 % 256, ".", i % 256));
  return instance;
}

// Follows `services` services of `size` instances, and changes instances of one, one after the
// other.
void RunChange(const std::string& subject, int services, int size, int changes, Report* report) {
  const char* const name = "xds-change";
  Fleet fleet(/*for_clients=*/false);
  std::vector<ServiceInstance> batch;
  DiscoveryRequest request;
  request.set_type_url(kEndpointsUrl);
  for (int s = 0; s < services; ++s) {
    request.add_resource_names(absl::StrCat("service-", s));
    for (int i = 0; i < size; ++i) {
      batch.push_back(Endpoint(request.resource_names(s), i));
      if (batch.size() < 500) continue;
      fleet.Register(batch);
      batch.clear();
    }
  }
  if (!batch.empty()) fleet.Register(batch);

  const auto stub = AggregatedDiscoveryService::NewStub(
      grpc::CreateChannel(fleet.agent_address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  const auto stream = stub->StreamAggregatedResources(&context);
  stream->Write(request);
  DiscoveryResponse response;
  const auto read = [&] {
    if (!stream->Read(&response)) Die(stream->Finish().error_message());
    request.set_response_nonce(response.nonce());
    request.set_version_info(response.version_info());
    stream->Write(request);
  };
  for (int known = 0; known < services; known += response.resources_size()) read();

  std::vector<double> latencies;
  const double cpu = CpuSecondsOf(fleet.agent_pid());
  for (int i = 0; i < changes; ++i) {
    // Far enough apart that none waits for the one before.
    absl::SleepFor(absl::Milliseconds(size / 50));
    ServiceInstance changed = Endpoint("service-0", i % size);
    changed.set_weight(1 + i / size % 2 + i % 2);
    const double start = NowSeconds();
    std::thread registers([&] { fleet.Register({changed}); });
    read();
    latencies.push_back(NowSeconds() - start);
    registers.join();
    if (response.resources_size() != 1) Die("more was sent than has changed");
  }
  report->Add(name, subject, "told_after_ms", Median(latencies) * 1e3, "ms");
  report->Add(name, subject, "agent_cpu_per_change",
              (CpuSecondsOf(fleet.agent_pid()) - cpu) / changes * 1e6, "us");
  report->Add(name, subject, "message_bytes", static_cast<double>(response.ByteSizeLong()), "B");
  context.TryCancel();
  stream->Finish();
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "xds";
  Scale scale;
  int rounds = 5;
  bool quick = false;
  std::string only;
  CLI::App app("Measures discovery through the agent's xDS server.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--workload", only, "only this one")
      ->check(CLI::IsMember({"xds-register", "xds-rolling", "xds-change", "xds-40000"}));
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  ManyStreams many;
  if (quick) {
    rounds = 1;
    many = {
        /*streams=*/60,  /*connections=*/2, /*services=*/40,      /*popular=*/4,
        /*instances=*/3, /*seconds=*/1,     /*changes_per_s=*/20, /*popular_per_s=*/60};
    scale = {/*instances=*/2,         /*registers=*/2,
             absl::Milliseconds(100), /*services=*/20,
             /*large=*/200,           /*changes=*/3};
  }

  Report report(options);
  std::optional<Fleet> fleet;
  if (only != "xds-40000") fleet.emplace(/*for_clients=*/true);
  double many_bytes = 0;
  const auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  for (int round = 0; round < rounds; ++round) {
    if (wanted("xds-register")) RunRegister(scale, &*fleet, &report);
    if (wanted("xds-rolling")) {
      RunRolling(scale, /*in_order=*/true, &*fleet, &report);
      RunRolling(scale, /*in_order=*/false, &*fleet, &report);
    }
    if (wanted("xds-change")) {
      RunChange("1-service-of-10", 1, 10, scale.changes, &report);
      RunChange(absl::StrCat(scale.services, "-services-of-10"), scale.services, 10, scale.changes,
                &report);
      RunChange(absl::StrCat("1-service-of-", scale.large), 1, scale.large, scale.changes, &report);
    }
    if (wanted("xds-40000")) {
      // The bare server's messages are as large as those were; after the first round in turn.
      if (round % 2 == 1) FollowBare(many, many_bytes, &report);
      many_bytes = FollowXds(many, &report);
      if (round % 2 == 0) FollowBare(many, many_bytes, &report);
    }
  }
  for (const char* metric : {"last_p50", "last_p99", "cpu_us_per_push", "bytes_per_stream"}) {
    report.Ratio("xds-40000", metric, "failback-xds", kBareGrpc);
  }
  report.Ratio("xds-register", "first_answer_ms", "failback-xds", "told-the-address");
  report.Ratio("xds-change", "agent_cpu_per_change",
               absl::StrCat(scale.services, "-services-of-10"), "1-service-of-10");
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
