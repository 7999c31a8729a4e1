// One registry with everything of a large fleet in it.

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

using registry::v1::KeepAliveRequest;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;

constexpr char kName[] = "capacity-1m";

// The instances of one agent.
grpc::ByteBuffer EncodedFleetRegister(const std::string& session_id, int64_t agent, int each) {
  RegisterRequest request;
  request.set_session_id(session_id);
  for (int i = 0; i < each; ++i) {
    registry::v1::Registration& registration = *request.add_registrations();
    // Agents of a service have neighbouring instances.
    *registration.mutable_instance() = NumberedInstance("fleet", agent * each + i);
    registration.set_generation(1);
  }
  return Encode(request);
}

// Sessions with their instances, slice by slice: the requests of all take more than the registry.
std::vector<grpc::ByteBuffer> Load(const Scale& scale,
                                   const std::shared_ptr<grpc::Channel>& channel) {
  constexpr int64_t kSlice = 10000;
  std::vector<grpc::ByteBuffer> renewals;
  for (int64_t first = 0; first < scale.capacity_sessions; first += kSlice) {
    const int64_t count = std::min(kSlice, scale.capacity_sessions - first);
    std::vector<grpc::ByteBuffer> registers;
    RunUnary(channel, kOpenSessionMethod, EncodedOpens("agent-", first, count, 3600),
             scale.unary_in_flight, [&](const grpc::ByteBuffer& bytes) {
               const std::string id = Parsed<OpenSessionResponse>(bytes).session_id();
               const auto agent = first + static_cast<int64_t>(registers.size());
               registers.push_back(EncodedFleetRegister(id, agent, scale.capacity_instances_each));
               KeepAliveRequest renewal;
               renewal.set_session_id(id);
               renewals.push_back(Encode(renewal));
               return true;
             });
    RunUnary(channel, kRegisterMethod, registers, scale.batches_in_flight,
             Acknowledged(scale.capacity_instances_each));
  }
  return renewals;
}

// What an agent's connection takes, with the stream of its renewals.
double BytesPerConnection(int count, const Subject& server,
                          const std::vector<grpc::ByteBuffer>& renewals) {
  const int64_t before = server.AnonymousBytes();
  int answered = 0;
  Streams streams(server.address(), kKeepAliveMethod, count, count, nullptr,
                  [&](int, const grpc::ByteBuffer&) { ++answered; });
  for (int i = 0; i < count; ++i) {
    streams.Send(i, renewals[static_cast<size_t>(i) % renewals.size()]);
  }
  if (!streams.RunUntil([&] { return answered == count; }, kLongest)) Die("renewals got lost");
  return static_cast<double>(server.AnonymousBytes() - before) / count;
}

void Capacity(const Scale& scale, const std::string& subject, Report* report) {
  const TempDir dir;
  Subject::Options options;
  options.store_dir = dir.path();
  const auto instances =
      static_cast<double>(scale.capacity_sessions) * scale.capacity_instances_each;
  {
    Subject server(subject, options);
    const auto channel = NewChannel(server.address());
    const int64_t before = server.AnonymousBytes();
    const double cpu = server.CpuSeconds();
    const double began = NowSeconds();
    const std::vector<grpc::ByteBuffer> renewals = Load(scale, channel);
    report->Add(kName, subject, "loaded_s", NowSeconds() - began, "s");
    report->Add(kName, subject, "load_cpu_s", server.CpuSeconds() - cpu, "s");
    const auto bytes = static_cast<double>(server.AnonymousBytes() - before);
    report->Add(kName, subject, "memory", bytes / 1e6, "MB");
    report->Add(kName, subject, "bytes_per_instance", bytes / instances, "B");
    report->Add(kName, subject, "renewal_cores",
                PacedRenewals(scale.renewal_streams, scale.renewal_connections, scale.renewal_time,
                              server, renewals)
                    .server_cores,
                "cores");
    report->Add(kName, subject, "bytes_per_connection",
                BytesPerConnection(scale.capacity_connections, server, renewals), "B");
    server.process().Kill();
  }
  if (subject != kFailbackNormal) return;
  ListRequest request;
  request.mutable_selector()->set_service(NumberedInstance("fleet", 0).key().service());
  const double began = NowSeconds();
  Subject server(subject, options);
  report->Add(kName, subject, "restart_to_serving", NowSeconds() - began, "s");
  const auto answer =
      Parsed<ListResponse>(CallOnce(NewChannel(server.address()), kListMethod, Encode(request)));
  report->Add(kName, subject, "restart_to_first_list", NowSeconds() - began, "s");
  if (answer.records_size() == 0) Die("instances were lost by the restart");
  report->Add(kName, subject, "memory_after_restart",
              static_cast<double>(server.AnonymousBytes()) / 1e6, "MB");
}

}  // namespace

std::vector<Workload> CapacityWorkloads() {
  return {{kName, {kBareGrpc, kFailbackMemory, kFailbackNormal}, Capacity, {"memory"}, 1}};
}

}  // namespace failback
