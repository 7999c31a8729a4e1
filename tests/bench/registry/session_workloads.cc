// Sessions: opened, renewed, and run out.

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
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
using registry::v1::KeepAliveResponse;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::SubscribeResponse;

// Each of another incarnation, as a fleet comes back.
void OpenSessions(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const std::vector<grpc::ByteBuffer> requests = EncodedOpens("agent-", 0, scale.unary_calls, 600);
  MeasureUnary(
      "open-session", subject, server, NewChannel(server.address()), kOpenSessionMethod, requests,
      scale.unary_in_flight,
      [](const grpc::ByteBuffer& bytes) {
        return !Parsed<OpenSessionResponse>(bytes).session_id().empty();
      },
      report);
}

// First at the pace of a TTL of 10 s, then as fast as it goes.
void Renew(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::vector<grpc::ByteBuffer> opens =
      EncodedOpens("3f6b2c1e-8a47-4c55-9d10-", 100000000000, scale.sessions, 600);
  std::vector<grpc::ByteBuffer> renewals;
  RunUnary(channel, kOpenSessionMethod, opens, scale.unary_in_flight,
           [&renewals](const grpc::ByteBuffer& bytes) {
             KeepAliveRequest request;
             request.set_session_id(Parsed<OpenSessionResponse>(bytes).session_id());
             renewals.push_back(Encode(request));
             return true;
           });

  const std::string name = "renew";
  const RenewalPace paced = PacedRenewals(scale.renewal_streams, scale.renewal_connections,
                                          scale.renewal_time, server, renewals);
  report->Add(name, subject, "paced_renewals_per_s", paced.renewals_per_s, "1/s");
  report->Add(name, subject, "server_cores", paced.server_cores, "cores");

  int64_t answered = 0;
  int64_t sent = 0;
  bool endless = true;
  Streams* all = nullptr;
  const auto send = [&](int stream) {
    all->Send(stream, renewals[sent++ % static_cast<int64_t>(renewals.size())]);
  };
  Streams streams(server.address(), kKeepAliveMethod, scale.renewal_streams,
                  scale.renewal_connections, nullptr,
                  [&](int stream, const grpc::ByteBuffer& bytes) {
                    if (++answered % 100 == 1 && Parsed<KeepAliveResponse>(bytes).has_status()) {
                      Die("a renewal was refused");
                    }
                    if (endless) send(stream);
                  });
  all = &streams;
  const double free_cpu = server.CpuSeconds();
  const double free_began = NowSeconds();
  constexpr int kWindow = 4;
  for (int i = 0; i < kWindow * scale.renewal_streams; ++i) send(i % scale.renewal_streams);
  streams.RunFor(scale.renewal_time);
  const double took = NowSeconds() - free_began;
  endless = false;
  report->Add(name, subject, "renewals_per_s", static_cast<double>(answered) / took, "1/s");
  report->Add(name, subject, "server_cpu_us_per_renewal",
              (server.CpuSeconds() - free_cpu) / static_cast<double>(answered) * 1e6, "us");
  // What is under way.
  streams.RunFor(absl::Milliseconds(100));
}

// Sessions of one instance each, renewed for the last time as fast as it goes; a few subscribers
// see the instances go. False when setting that up took most of the sessions' TTL.
bool TryExpire(const Scale& scale, const std::string& subject, Report* report) {
  constexpr int kSubscribers = 10;
  Subject::Options options;
  options.eviction_guard = false;
  Subject server(subject, options);
  const auto channel = NewChannel(server.address());

  // Long enough to register everything before the last renewal.
  const std::vector<grpc::ByteBuffer> opens =
      EncodedOpens("expiring-", 0, scale.expiring, scale.expiry_ttl_seconds);
  std::vector<std::string> sessions;
  const double opened = NowSeconds();
  RunUnary(channel, kOpenSessionMethod, opens, scale.unary_in_flight,
           [&](const grpc::ByteBuffer& bytes) {
             sessions.push_back(Parsed<OpenSessionResponse>(bytes).session_id());
             return true;
           });
  std::vector<grpc::ByteBuffer> registers;
  std::vector<grpc::ByteBuffer> renewals;
  std::unordered_map<std::string, size_t> by_instance;
  for (size_t i = 0; i < sessions.size(); ++i) {
    RegisterRequest request;
    request.set_session_id(sessions[i]);
    registry::v1::Registration& registration = *request.add_registrations();
    *registration.mutable_instance() = NumberedInstance("mortal", static_cast<int64_t>(i), true);
    registration.set_generation(1);
    by_instance[registration.instance().key().instance_id()] = i;
    registers.push_back(Encode(request));
    KeepAliveRequest renewal;
    renewal.set_session_id(sessions[i]);
    renewals.push_back(Encode(renewal));
  }
  RunUnary(channel, kRegisterMethod, registers, scale.unary_in_flight, Acknowledged(1));

  // What each subscriber still holds, and when it saw the others go: removed, or not in a snapshot.
  struct Watched {
    std::unordered_set<std::string> held;
    std::unordered_set<std::string> snapshot;
    std::unordered_map<std::string, double> gone;
  };
  std::vector<Watched> watched(kSubscribers);
  const grpc::ByteBuffer subscribe =
      EncodedSubscribe(NumberedInstance("mortal", 0, true).key().service());
  Streams watch(server.address(), kSubscribeMethod, kSubscribers, 1, &subscribe,
                [&](int stream, const grpc::ByteBuffer& bytes) {
                  const auto event = Parsed<SubscribeResponse>(bytes);
                  const double now = NowSeconds();
                  Watched& seen = watched[stream];
                  for (const auto& instance : event.snapshot().instances()) {
                    seen.snapshot.insert(instance.key().instance_id());
                  }
                  if (event.has_snapshot() && !event.snapshot().more()) {
                    seen.held.swap(seen.snapshot);
                    for (const std::string& id : std::exchange(seen.snapshot, {})) {
                      if (seen.held.count(id) == 0) seen.gone[id] = now;
                    }
                  }
                  for (const auto& instance : event.delta().upserts()) {
                    seen.held.insert(instance.key().instance_id());
                  }
                  for (const registry::v1::InstanceKey& key : event.delta().removals()) {
                    seen.held.erase(key.instance_id());
                    seen.gone[key.instance_id()] = now;
                  }
                });
  const auto all_hold = [&](int64_t count) {
    return std::all_of(watched.begin(), watched.end(), [&](const Watched& seen) {
      return static_cast<int64_t>(seen.held.size()) == count;
    });
  };
  const auto ttl = static_cast<double>(scale.expiry_ttl_seconds);
  if (!watch.RunUntil([&] { return all_hold(scale.expiring); }, absl::Seconds(ttl)) ||
      NowSeconds() - opened > ttl * 0.8) {
    return false;
  }

  std::vector<double> sent(sessions.size());
  std::vector<double> answered(sessions.size());
  size_t next = 0;
  size_t done = 0;
  Streams* stream = nullptr;
  const auto renew = [&] {
    if (next == renewals.size()) return;
    sent[next] = NowSeconds();
    stream->Send(0, renewals[next++]);
  };
  {
    Streams keep_alive(server.address(), kKeepAliveMethod, 1, 1, nullptr,
                       [&](int, const grpc::ByteBuffer& bytes) {
                         if (Parsed<KeepAliveResponse>(bytes).has_status()) {
                           Die("a session was lost before its time");
                         }
                         answered[done++] = NowSeconds();
                         renew();
                       });
    stream = &keep_alive;
    for (int i = 0; i < 64; ++i) renew();
    if (!keep_alive.RunUntil([&] { return done == renewals.size(); }, kLongest)) {
      Die("renewals got lost");
    }
    const double cpu = server.CpuSeconds();
    if (!watch.RunUntil([&] { return all_hold(0); }, kLongest))
      Die("instances have outlived their sessions");
    report->Add("expire-10k", subject, "server_cpu_us_per_session",
                (server.CpuSeconds() - cpu) / static_cast<double>(sessions.size()) * 1e6, "us");
  }
  std::vector<double> late_ms;
  double earliest_ms = 1e9;
  double last_heard = 0;
  const double last_due = answered.back() + ttl;
  for (const Watched& seen : watched) {
    for (const auto& [id, when] : seen.gone) {
      const size_t i = by_instance.at(id);
      late_ms.push_back((when - answered[i] - ttl) * 1e3);
      earliest_ms = std::min(earliest_ms, (when - sent[i] - ttl) * 1e3);
      last_heard = std::max(last_heard, when);
    }
  }
  if (earliest_ms < 0) Die(absl::StrCat("a session ended ", -earliest_ms, " ms early"));
  report->Add("expire-10k", subject, "late_p50_ms", Percentile(late_ms, 0.5), "ms");
  report->Add("expire-10k", subject, "late_p99_ms", Percentile(late_ms, 0.99), "ms");
  report->Add("expire-10k", subject, "drained_s", last_heard - last_due, "s");
  return true;
}

void Expire(const Scale& scale, const std::string& subject, Report* report) {
  constexpr int kAttempts = 5;
  for (int i = 0; i < kAttempts; ++i) {
    if (TryExpire(scale, subject, report)) return;
  }
  Die("the machine is too busy to set the sessions up within their TTL");
}

// Sessions that all end in the same instant, as a restart has given all of them a full TTL. Each
// service has its own subscriber; drained is from the first word that something has gone to the
// last.
void ExpireAtOnce(const Scale& scale, const std::string& subject, Report* report) {
  const TempDir dir;
  Subject::Options options;
  options.store_dir = dir.path();
  options.eviction_guard = false;
  int64_t services = 0;
  {
    Subject server(subject, options);
    const auto channel = NewChannel(server.address());
    const std::vector<grpc::ByteBuffer> opens =
        EncodedOpens("expiring-", 0, scale.expiring_at_once, scale.at_once_ttl_seconds);
    std::vector<grpc::ByteBuffer> registers;
    RunUnary(channel, kOpenSessionMethod, opens, scale.unary_in_flight,
             [&](const grpc::ByteBuffer& bytes) {
               const auto number = static_cast<int64_t>(registers.size());
               RegisterRequest request;
               request.set_session_id(Parsed<OpenSessionResponse>(bytes).session_id());
               registry::v1::Registration& registration = *request.add_registrations();
               *registration.mutable_instance() = NumberedInstance("mortal", number);
               registration.set_generation(1);
               registers.push_back(Encode(request));
               return true;
             });
    RunUnary(channel, kRegisterMethod, registers, scale.unary_in_flight, Acknowledged(1));
    server.process().Kill();
  }
  Subject server(subject, options);
  std::vector<grpc::ByteBuffer> subscribes;
  for (int64_t i = 0; i < scale.expiring_at_once; ++i) {
    const std::string service = NumberedInstance("mortal", i).key().service();
    if (services > 0 && service == NumberedInstance("mortal", i - 1).key().service()) continue;
    subscribes.push_back(EncodedSubscribe(service));
    ++services;
  }
  int64_t held = 0;
  double first_heard = 0;
  double last_heard = 0;
  Streams watch(server.address(), kSubscribeMethod, static_cast<int>(services),
                scale.fanout_connections, nullptr, [&](int, const grpc::ByteBuffer& bytes) {
                  const auto event = Parsed<SubscribeResponse>(bytes);
                  held += event.snapshot().instances_size() - event.delta().removals_size();
                  last_heard = NowSeconds();
                  if (first_heard == 0 && event.delta().removals_size() > 0) {
                    first_heard = last_heard;
                  }
                });
  for (int64_t i = 0; i < services; ++i) watch.Send(static_cast<int>(i), subscribes[i]);
  if (!watch.RunUntil([&] { return held == scale.expiring_at_once || first_heard > 0; },
                      kLongest) ||
      first_heard > 0) {
    Die("not every subscriber has its snapshot before the sessions end");
  }
  const double cpu = server.CpuSeconds();
  if (!watch.RunUntil([&] { return held == 0; }, kLongest)) {
    Die("instances have outlived their sessions");
  }
  report->Add("expire-100k", subject, "drained_s", last_heard - first_heard, "s");
  report->Add("expire-100k", subject, "server_cpu_us_per_session",
              (server.CpuSeconds() - cpu) / static_cast<double>(scale.expiring_at_once) * 1e6,
              "us");
}

}  // namespace

std::vector<Workload> SessionWorkloads() {
  return {
      {"open-session",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       OpenSessions,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"renew",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       Renew,
       {"renewals_per_s", "server_cores", "server_cpu_us_per_renewal"}},
      {"expire-10k", {kFailbackMemory, kFailbackNormal, kFailbackFull}, Expire, {}},
      {"expire-100k", {kFailbackNormal}, ExpireAtOnce, {}, 3},
  };
}

}  // namespace failback
