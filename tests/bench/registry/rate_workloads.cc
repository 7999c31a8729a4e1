// How many queries a second, and how soon a change is visible while the registry is busy.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
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
using registry::v1::RegisterRequest;
using registry::v1::SubscribeResponse;

// --- Queries: ten instances of a service, of 10,000 in 100 services.

void MeasureList(const std::string& name, bool healthy_only, const Scale& scale,
                 const std::string& subject, Report* report) {
  constexpr int64_t kInstances = 10000;
  constexpr int kPage = 10;
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  RegisterAll(channel, OpenSession(channel, "bench"), "orders", kInstances);
  std::vector<grpc::ByteBuffer> requests;
  for (int64_t i = 0; i < scale.unary_calls; ++i) {
    ListRequest request;
    request.mutable_selector()->set_service(
        NumberedInstance("orders", i * 7919 % kInstances).key().service());
    if (healthy_only) request.mutable_selector()->add_statuses(registry::v1::HEALTH_STATUS_HEALTHY);
    request.set_page_size(kPage);
    requests.push_back(Encode(request));
  }
  int64_t answers = 0;
  MeasureUnary(
      name, subject, server, channel, kListMethod, requests, scale.unary_in_flight,
      [&answers](const grpc::ByteBuffer& bytes) {
        // Reading each would measure the client.
        return answers++ % 100 != 0 || Parsed<ListResponse>(bytes).records_size() == kPage;
      },
      report);
}

void List(const Scale& scale, const std::string& subject, Report* report) {
  MeasureList("list", false, scale, subject, report);
}

void ListHealthy(const Scale& scale, const std::string& subject, Report* report) {
  MeasureList("list-healthy", true, scale, subject, report);
}

// --- From the moment when a change is due to be sent until a subscriber has it.

constexpr char kNumber[] = "number";

grpc::ByteBuffer EncodedRegister(const std::string& session_id,
                                 const registry::v1::ServiceInstance& instance,
                                 uint64_t generation) {
  RegisterRequest request;
  request.set_session_id(session_id);
  *request.add_registrations()->mutable_instance() = instance;
  request.mutable_registrations(0)->set_generation(generation);
  return Encode(request);
}

// Follows the service of `probe` on a thread of its own, and notes when each number was seen.
class Follower {
 public:
  Follower(const std::string& address, const registry::v1::ServiceInstance& probe, size_t numbers)
      : seen_(numbers), thread_([this, address, probe] { Run(address, probe); }) {
    while (!ready_) std::this_thread::yield();
  }
  ~Follower() { Join(); }

  // Waits until it has seen the last number.
  const std::vector<double>& Join() {
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  void Run(const std::string& address, const registry::v1::ServiceInstance& probe) {
    const grpc::ByteBuffer subscribe = EncodedSubscribe(probe.key().service());
    size_t next = 0;
    Streams stream(
        address, kSubscribeMethod, 1, 1, &subscribe, [&](int, const grpc::ByteBuffer& bytes) {
          const double now = NowSeconds();
          ready_ = true;
          const auto event = Parsed<SubscribeResponse>(bytes);
          for (const auto& instance : event.delta().upserts()) {
            size_t number = 0;
            const auto found = instance.metadata().find(kNumber);
            if (found == instance.metadata().end() || !absl::SimpleAtoi(found->second, &number)) {
              continue;  // the bare server sends all changes
            }
            // A conflated event shows the numbers before it too.
            while (next <= number && next < seen_.size()) seen_[next++] = now;
          }
        });
    if (!stream.RunUntil([&] { return next == seen_.size(); }, kLongest)) {
      Die("a change was never seen");
    }
  }

  std::vector<double> seen_;
  std::atomic<bool> ready_{false};
  std::thread thread_;
};

// Unary registrations of other services at a share of the subject's own best rate; every fiftieth
// is of the service that is followed.
void Visible(const Scale& scale, const std::string& subject, Report* report) {
  constexpr int64_t kInstances = 10000;
  constexpr size_t kProbeEvery = 50;
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  registry::v1::ServiceInstance probe = NumberedInstance("probe", 0);
  CallOnce(channel, kRegisterMethod, EncodedRegister(session, probe, 1));
  uint64_t generation = 1;

  std::vector<grpc::ByteBuffer> requests;
  for (int64_t i = 0; i < scale.unary_calls; ++i) {
    requests.push_back(
        EncodedRegister(session, NumberedInstance("orders", i % kInstances), ++generation));
  }
  const LoadResult best =
      RunUnary(channel, kRegisterMethod, requests, scale.unary_in_flight, Acknowledged(1));
  const double best_rate = static_cast<double>(requests.size()) / best.seconds;
  report->Add("visible", subject, "best_rate", best_rate, "1/s");

  for (const int percent : {10, 50, 90}) {
    const double rate = best_rate * percent / 100;
    const size_t calls =
        std::max<size_t>(2 * kProbeEvery, absl::ToDoubleSeconds(scale.paced_time) * rate);
    const size_t probes = calls / kProbeEvery;
    requests.clear();
    for (size_t i = 0; i < probes * kProbeEvery; ++i) {
      if (i % kProbeEvery == 0) {
        (*probe.mutable_metadata())[kNumber] = absl::StrCat(i / kProbeEvery);
        requests.push_back(EncodedRegister(session, probe, ++generation));
      } else {
        requests.push_back(EncodedRegister(
            session, NumberedInstance("orders", static_cast<int64_t>(i) % kInstances),
            ++generation));
      }
    }
    Follower follower(server.address(), probe, probes);
    const double cpu = server.CpuSeconds();
    const double began = NowSeconds();
    const LoadResult load = RunPaced(channel, kRegisterMethod, requests, rate, nullptr);
    const double cores = (server.CpuSeconds() - cpu) / load.seconds;
    std::vector<double> visible_ms;
    const std::vector<double>& seen = follower.Join();
    for (size_t n = 0; n < probes; ++n) {
      visible_ms.push_back((seen[n] - began - static_cast<double>(n * kProbeEvery) / rate) * 1e3);
    }
    const std::string at = absl::StrCat("_at_", percent);
    report->Add("visible", subject, "visible_p50_ms" + at, Percentile(visible_ms, 0.5), "ms");
    report->Add("visible", subject, "visible_p99_ms" + at, Percentile(visible_ms, 0.99), "ms");
    report->Add("visible", subject, "server_cores" + at, cores, "cores");
  }
}

}  // namespace

std::vector<Workload> RateWorkloads() {
  return {
      {"list",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       List,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"list-healthy",
       {kBareGrpc, kFailbackMemory},
       ListHealthy,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"visible",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       Visible,
       {"visible_p50_ms_at_10", "visible_p99_ms_at_10", "visible_p50_ms_at_50",
        "visible_p99_ms_at_50", "visible_p50_ms_at_90", "visible_p99_ms_at_90"}},
  };
}

}  // namespace failback
