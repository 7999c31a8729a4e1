// Subscribers: one change to many of them, and what each takes.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/registry/calls.h"
#include "tests/bench/registry/workload_groups.h"
#include "tests/bench/subject.h"

namespace failback {
namespace {

void FanOut(const std::string& name, int64_t subscribers, int connections, int changes,
            const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  uint64_t generation = 1;
  CallOnce(channel, kRegisterMethod, EncodedChange(session, generation));

  int64_t reached = 0;
  const grpc::ByteBuffer subscribe =
      EncodedSubscribe(NumberedInstance("fanout", 0).key().service());
  Streams streams(server.address(), kSubscribeMethod, static_cast<int>(subscribers), connections,
                  &subscribe, [&](int, const grpc::ByteBuffer&) { ++reached; });
  const auto everyone = [&] { return reached >= subscribers; };
  if (!streams.RunUntil(everyone, kLongest)) Die("not every subscriber has its snapshot");
  std::vector<double> last_ms;
  const double cpu = server.CpuSeconds();
  for (int i = 0; i < changes; ++i) {
    reached = 0;
    const double began = NowSeconds();
    CallOnce(channel, kRegisterMethod, EncodedChange(session, ++generation));
    if (!streams.RunUntil(everyone, kLongest)) Die("not every subscriber was told");
    last_ms.push_back((NowSeconds() - began) * 1e3);
    streams.RunFor(absl::Milliseconds(5));
    if (reached != subscribers) Die("a subscriber was told twice");
  }
  report->Add(name, subject, "last_reached_p50_ms", Percentile(last_ms, 0.5), "ms");
  report->Add(name, subject, "last_reached_p99_ms", Percentile(last_ms, 0.99), "ms");
  report->Add(name, subject, "server_cpu_us_per_message",
              (server.CpuSeconds() - cpu) / changes / static_cast<double>(subscribers) * 1e6, "us");
}

void FanOutSmall(const Scale& scale, const std::string& subject, Report* report) {
  FanOut("fanout-1000", scale.fanout_small, scale.fanout_connections, scale.changes_small, subject,
         report);
}

void FanOutLarge(const Scale& scale, const std::string& subject, Report* report) {
  FanOut("fanout-10000", scale.fanout_large, scale.fanout_connections, scale.changes_large, subject,
         report);
}

void MemoryPerSubscriber(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  CallOnce(channel, kRegisterMethod, EncodedChange(OpenSession(channel, "bench"), 1));
  int64_t reached = 0;
  const grpc::ByteBuffer subscribe =
      EncodedSubscribe(NumberedInstance("fanout", 0).key().service());
  const auto count = static_cast<int>(scale.idle_subscribers);
  // A first stream on each connection, so that only streams are counted after.
  Streams first(server.address(), kSubscribeMethod, scale.fanout_connections,
                scale.fanout_connections, &subscribe,
                [&](int, const grpc::ByteBuffer&) { ++reached; });
  first.RunUntil([&] { return reached == scale.fanout_connections; }, kLongest);
  const int64_t before = server.AnonymousBytes();
  reached = 0;
  Streams streams(server.address(), kSubscribeMethod, count, scale.fanout_connections, &subscribe,
                  [&](int, const grpc::ByteBuffer&) { ++reached; });
  if (!streams.RunUntil([&] { return reached == count; }, kLongest)) Die("a snapshot is missing");
  report->Add("memory-per-subscriber", subject, "bytes",
              static_cast<double>(server.AnonymousBytes() - before) / count, "B");
}

}  // namespace

std::vector<Workload> SubscriberWorkloads() {
  return {
      {"fanout-1000",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       FanOutSmall,
       {"last_reached_p50_ms", "last_reached_p99_ms", "server_cpu_us_per_message"}},
      {"fanout-10000",
       {kBareGrpc, kFailbackMemory},
       FanOutLarge,
       {"last_reached_p50_ms", "last_reached_p99_ms", "server_cpu_us_per_message"}},
      {"memory-per-subscriber", {kBareGrpc, kFailbackMemory}, MemoryPerSubscriber, {"bytes"}, 3},
  };
}

}  // namespace failback
