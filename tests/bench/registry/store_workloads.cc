// What is there already: after a restart, in memory, and as it grows.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/registry/calls.h"
#include "tests/bench/registry/workload_groups.h"
#include "tests/bench/subject.h"

namespace failback {
namespace {

using registry::v1::ListRequest;
using registry::v1::ListResponse;

// Killed and started again on the same store: from the start of the process to the first answer.
void Restart(const Scale& scale, const std::string& subject, Report* report) {
  const TempDir dir;
  Subject::Options options;
  options.store_dir = dir.path();
  {
    Subject server(subject, options);
    const auto channel = NewChannel(server.address());
    if (subject != kBareGrpc) {
      RegisterAll(channel, OpenSession(channel, "bench"), "orders", scale.restarted);
    }
    server.process().Kill();
  }
  ListRequest request;
  request.mutable_selector()->set_service(
      NumberedInstance("orders", scale.restarted - 1).key().service());
  const double began = NowSeconds();
  Subject server(subject, options);
  const double serving = NowSeconds();
  const auto answer =
      Parsed<ListResponse>(CallOnce(NewChannel(server.address()), kListMethod, Encode(request)));
  const double listed = NowSeconds();
  if (subject != kBareGrpc && answer.records_size() == 0) Die("instances were lost by the restart");
  report->Add("restart-100k", subject, "seconds_to_serving", serving - began, "s");
  report->Add("restart-100k", subject, "seconds_to_first_list", listed - began, "s");
  report->Add("restart-100k", subject, "server_cpu_s", server.CpuSeconds(), "s");
}

void MemoryPerInstance(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  RegisterAll(channel, session, "warmup", 1000);
  const int64_t before = server.AnonymousBytes();
  RegisterAll(channel, session, "orders", scale.remembered);
  report->Add(
      "memory-per-instance", subject, "bytes",
      static_cast<double>(server.AnonymousBytes() - before) / static_cast<double>(scale.remembered),
      "B");
}

// The cost of further registrations when so many are there already.
void Growth(const Scale& scale, const std::string& subject, Report* report) {
  constexpr int kBatch = 100;
  constexpr int64_t kMeasured = 20000;
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  int64_t present = 0;
  for (size_t step = 0; step < scale.growth.size(); ++step) {
    RegisterAll(channel, session, absl::StrCat("grow", step),
                std::max<int64_t>(0, scale.growth[step] - present));
    present = std::max(present, scale.growth[step]);
    const auto requests = EncodedRegisters(session, absl::StrCat("more", step), kMeasured, kBatch);
    const double cpu = server.CpuSeconds();
    const LoadResult load = RunUnary(channel, kRegisterMethod, requests, 8, Acknowledged(kBatch));
    present += kMeasured;
    const std::string at = absl::StrCat("_at_", scale.growth[step]);
    report->Add("growth", subject, "instances_per_s" + at, kMeasured / load.seconds, "1/s");
    report->Add("growth", subject, "server_cpu_us_per_instance" + at,
                (server.CpuSeconds() - cpu) / kMeasured * 1e6, "us");
  }
}

}  // namespace

std::vector<Workload> StoreWorkloads() {
  return {
      {"restart-100k",
       {kBareGrpc, kFailbackNormal, kFailbackFull},
       Restart,
       {"seconds_to_first_list"}},
      {"memory-per-instance",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       MemoryPerInstance,
       {"bytes"},
       3},
      {"growth", {kFailbackMemory, kFailbackNormal}, Growth, {}, 1},
  };
}

}  // namespace failback
