#include "tests/bench/registry/workloads.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bare.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/subject.h"
#include "tests/bench/synced_file.h"

namespace failback {
namespace {

using registry::v1::KeepAliveRequest;
using registry::v1::KeepAliveResponse;
using registry::v1::ListRequest;
using registry::v1::ListResponse;
using registry::v1::OpenSessionRequest;
using registry::v1::OpenSessionResponse;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::RegisterStreamResponse;
using registry::v1::ServiceInstance;
using registry::v1::SubscribeRequest;
using registry::v1::SubscribeResponse;

constexpr absl::Duration kLongest = absl::Seconds(120);

template <typename Response>
Response Parsed(const grpc::ByteBuffer& bytes) {
  Response response;
  if (!Decode(bytes, &response)) Die("an answer that cannot be parsed");
  return response;
}

std::string OpenSession(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& incarnation, int64_t ttl_seconds = 600) {
  OpenSessionRequest request;
  request.set_incarnation(incarnation);
  request.mutable_ttl()->set_seconds(ttl_seconds);
  return Parsed<OpenSessionResponse>(CallOnce(channel, kOpenSessionMethod, Encode(request)))
      .session_id();
}

template <typename Response>
bool NoneRefused(const Response& response) {
  for (const registry::v1::IntentResult& result : response.results()) {
    if (result.has_status() && result.status().code() != 0) return false;
    if (result.state() != registry::v1::INTENT_STATE_ACKNOWLEDGED) return false;
  }
  return true;
}

bool AllAcknowledged(const RegisterResponse& response, int batch) {
  return response.results_size() > 0 && response.results_size() <= batch && NoneRefused(response);
}

// Whether all items of a streamed Register have been: results may be left out.
bool StreamAcknowledged(const grpc::ByteBuffer& bytes) {
  const auto response = Parsed<RegisterStreamResponse>(bytes);
  return !response.has_status() && response.revision() > 0 && NoneRefused(response);
}

// Whether all items of a Register have been acknowledged. The first answer is read. Those of later
// calls begin with the same results; one that does not is read as well.
AnswerCheck Acknowledged(int batch) {
  return [batch, results = std::string()](const grpc::ByteBuffer& bytes) mutable {
    grpc::Slice answer;
    if (!bytes.TrySingleSlice(&answer).ok() && !bytes.DumpToSingleSlice(&answer).ok()) return false;
    if (!results.empty() && answer.size() >= results.size() &&
        std::memcmp(answer.begin(), results.data(), results.size()) == 0) {
      return true;
    }
    RegisterResponse response;
    if (!Decode(bytes, &response) || !AllAcknowledged(response, batch)) return false;
    if (response.results_size() == batch) {
      response.clear_epoch();
      response.clear_revision();
      results = response.SerializeAsString();
    }
    return true;
  };
}

bool NotEmpty(const grpc::ByteBuffer& bytes) { return bytes.Length() > 0; }

void RegisterAll(const std::shared_ptr<grpc::Channel>& channel, const std::string& session_id,
                 const std::string& prefix, int64_t count) {
  constexpr int kBatch = 250;
  constexpr int kInFlight = 8;
  RunUnary(channel, kRegisterMethod, EncodedRegisters(session_id, prefix, count, kBatch), kInFlight,
           Acknowledged(kBatch));
}

// Unary calls as fast as they go.
void MeasureUnary(const std::string& name, const std::string& subject, Subject& server,
                  const std::shared_ptr<grpc::Channel>& channel, const char* method,
                  const std::vector<grpc::ByteBuffer>& requests, int in_flight,
                  const std::function<bool(const grpc::ByteBuffer&)>& accept, Report* report) {
  const double cpu = server.CpuSeconds();
  const LoadResult load = RunUnary(channel, method, requests, in_flight, accept);
  report->Add(name, subject, "calls_per_s", requests.size() / load.seconds, "1/s");
  report->Add(name, subject, "p50_us", Percentile(load.latencies_us, 0.5), "us");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  report->Add(name, subject, "server_cpu_us_per_call",
              (server.CpuSeconds() - cpu) / requests.size() * 1e6, "us");
}

void RegisterUnary(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  MeasureUnary("register-unary", subject, server, channel, kRegisterMethod,
               EncodedRegisters(session, "orders", scale.unary_calls, 1), scale.unary_in_flight,
               Acknowledged(1), report);
}

// Each of another incarnation, as a fleet comes back.
void OpenSessions(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  std::vector<grpc::ByteBuffer> requests;
  for (int64_t i = 0; i < scale.unary_calls; ++i) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat("agent-", i));
    request.mutable_ttl()->set_seconds(600);
    requests.push_back(Encode(request));
  }
  MeasureUnary(
      "open-session", subject, server, NewChannel(server.address()), kOpenSessionMethod, requests,
      scale.unary_in_flight,
      [](const grpc::ByteBuffer& bytes) {
        return !Parsed<OpenSessionResponse>(bytes).session_id().empty();
      },
      report);
}

// What a durable call is set against, where the stores are.
constexpr std::pair<const char*, SyncedFile::Sync> kSyncs[] = {
    {"fdatasync", SyncedFile::Sync::kInPlace},
    {"fdatasync-append", SyncedFile::Sync::kAppend},
    {"fsync-append", SyncedFile::Sync::kFsync},
};

double SyncMedianMicroseconds(int64_t count, SyncedFile::Sync sync) {
  const TempDir dir;
  SyncedFile file(dir.File("synced"), sync);
  std::vector<double> times;
  for (int64_t i = 0; i < count; ++i) {
    const double began = NowSeconds();
    if (!file.Write()) Die("cannot write and sync a file in the temporary folder");
    times.push_back((NowSeconds() - began) * 1e6);
  }
  return Median(times);
}

void RegisterSerial(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  const auto requests = EncodedRegisters(session, "orders", scale.serial_calls, 1);
  const LoadResult load = RunUnary(channel, kRegisterMethod, requests, 1, Acknowledged(1));
  const std::string name = "register-serial";
  report->Add(name, subject, "p50_us", Percentile(load.latencies_us, 0.5), "us");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  if (subject == kFailbackFull) {
    for (const auto& [reference, sync] : kSyncs) {
      report->Add(name, reference, "p50_us", SyncMedianMicroseconds(scale.serial_calls, sync),
                  "us");
    }
  }
}

constexpr char kBareUnary[] = "bare-grpc-unary";

// The same instances as opaque items.
std::vector<grpc::ByteBuffer> EncodedCarries(int64_t count, int batch) {
  std::vector<grpc::ByteBuffer> requests;
  for (int64_t begin = 0; begin < count; begin += batch) {
    bench::CarryRequest request;
    for (int64_t i = begin; i < std::min(count, begin + batch); ++i) {
      const ServiceInstance instance = MakeInstance("orders", i);
      bench::Item& item = *request.add_items();
      item.set_key(
          absl::StrCat("default/", instance.key().service(), "/", instance.key().instance_id()));
      item.set_value(instance.SerializeAsString());
    }
    requests.push_back(Encode(request));
  }
  return requests;
}

// Whether the registry gets its batches in calls or on a stream.
enum class Way { kCalls, kStream };

// bare-grpc is one stream of opaque items into a map; bare-grpc-unary the very calls of the
// registry, parsed and put in a map.
void RegisterInBatches(const std::string& name, Way way, int64_t instances, int batch,
                       const Scale& scale, const std::string& subject, Report* report) {
  const bool bare_stream = subject == kBareGrpc;
  Subject server(subject == kBareUnary ? kBareGrpc : subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  const std::vector<grpc::ByteBuffer> requests =
      bare_stream ? EncodedCarries(instances, batch)
                  : EncodedRegisters(session, "orders", instances, batch);
  const double cpu = server.CpuSeconds();
  const int window = scale.batches_in_flight;
  const LoadResult load =
      bare_stream ? RunStreams(channel, kCarryMethod, requests, 1, window, NotEmpty)
      : way == Way::kStream
          ? RunStreams(channel, kRegisterStreamMethod, requests, 1, window, StreamAcknowledged)
          : RunUnary(channel, kRegisterMethod, requests, window, Acknowledged(batch));
  const auto count = static_cast<double>(instances);
  report->Add(name, subject, "instances_per_s", count / load.seconds, "1/s");
  report->Add(name, subject, "p99_us", Percentile(load.latencies_us, 0.99), "us");
  report->Add(name, subject, "server_cpu_us_per_instance",
              (server.CpuSeconds() - cpu) / count * 1e6, "us");
}

void RegisterBatch(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch", Way::kCalls, scale.batch_instances, scale.batch, scale,
                    subject, report);
}

// As many to a call as an agent sends.
void RegisterBatch250(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch-250", Way::kCalls, scale.batch_instances, scale.agent_batch,
                    scale, subject, report);
}

void RegisterStream(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-stream", Way::kStream, scale.batch_instances, scale.batch, scale,
                    subject, report);
}

// The two for seconds instead of a third of one: more of what is registered is out of the caches,
// and less of the time is the start's.
void RegisterBatchLong(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-batch-1m", Way::kCalls, scale.many_instances, scale.batch, scale,
                    subject, report);
}

void RegisterStreamLong(const Scale& scale, const std::string& subject, Report* report) {
  RegisterInBatches("register-stream-1m", Way::kStream, scale.many_instances, scale.batch, scale,
                    subject, report);
}

// First at the pace of a TTL of 10 s, then as fast as it goes.
void Renew(const Scale& scale, const std::string& subject, Report* report) {
  constexpr double kRenewalsPerSessionAndSecond = 0.3;
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  std::vector<grpc::ByteBuffer> opens;
  for (int64_t i = 0; i < scale.sessions; ++i) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat("3f6b2c1e-8a47-4c55-9d10-", 100000000000 + i));
    request.mutable_ttl()->set_seconds(600);
    opens.push_back(Encode(request));
  }
  std::vector<grpc::ByteBuffer> renewals;
  RunUnary(channel, kOpenSessionMethod, opens, scale.unary_in_flight,
           [&renewals](const grpc::ByteBuffer& bytes) {
             KeepAliveRequest request;
             request.set_session_id(Parsed<OpenSessionResponse>(bytes).session_id());
             renewals.push_back(Encode(request));
             return true;
           });

  int64_t answered = 0;
  bool endless = false;
  int64_t sent = 0;
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

  const double seconds = absl::ToDoubleSeconds(scale.renewal_time);
  const double rate = static_cast<double>(scale.sessions) * kRenewalsPerSessionAndSecond;
  const double cpu = server.CpuSeconds();
  const double began = NowSeconds();
  while (NowSeconds() - began < seconds) {
    const auto due = static_cast<int64_t>((NowSeconds() - began) * rate);
    while (sent < due) send(static_cast<int>(sent % scale.renewal_streams));
    streams.RunFor(absl::Milliseconds(2));
  }
  if (!streams.RunUntil([&] { return answered == sent; }, kLongest)) Die("renewals got lost");
  const double paced = NowSeconds() - began;
  const std::string name = "renew";
  report->Add(name, subject, "paced_renewals_per_s", static_cast<double>(answered) / paced, "1/s");
  report->Add(name, subject, "server_cores", (server.CpuSeconds() - cpu) / paced, "cores");

  answered = 0;
  endless = true;
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

grpc::ByteBuffer EncodedSubscribe(const std::string& service) {
  SubscribeRequest request;
  request.mutable_selector()->set_service(service);
  return Encode(request);
}

grpc::ByteBuffer EncodedChange(const std::string& session_id, uint64_t generation) {
  RegisterRequest request;
  request.set_session_id(session_id);
  registry::v1::Registration& registration = *request.add_registrations();
  *registration.mutable_instance() = MakeInstance("fanout", 0);
  (*registration.mutable_instance()->mutable_metadata())["build"] =
      absl::StrCat(100000000000 + generation);
  registration.set_generation(generation);
  return Encode(request);
}

void FanOut(const std::string& name, int64_t subscribers, int connections, int changes,
            const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel, "bench");
  uint64_t generation = 1;
  CallOnce(channel, kRegisterMethod, EncodedChange(session, generation));

  int64_t reached = 0;
  const grpc::ByteBuffer subscribe = EncodedSubscribe(MakeInstance("fanout", 0).key().service());
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

// Sessions of one instance each, renewed for the last time as fast as it goes; a few subscribers
// see the instances go. False when setting that up took most of the sessions' TTL.
bool TryExpire(const Scale& scale, const std::string& subject, Report* report) {
  constexpr int kSubscribers = 10;
  Subject::Options options;
  options.eviction_guard = false;
  Subject server(subject, options);
  const auto channel = NewChannel(server.address());

  std::vector<grpc::ByteBuffer> opens;
  for (int64_t i = 0; i < scale.expiring; ++i) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat("expiring-", i));
    // Long enough to register everything before the last renewal.
    request.mutable_ttl()->set_seconds(scale.expiry_ttl_seconds);
    opens.push_back(Encode(request));
  }
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
    *registration.mutable_instance() = MakeInstance("mortal", static_cast<int64_t>(i), true);
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
      EncodedSubscribe(MakeInstance("mortal", 0, true).key().service());
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
    std::vector<grpc::ByteBuffer> opens;
    for (int64_t i = 0; i < scale.expiring_at_once; ++i) {
      OpenSessionRequest request;
      request.set_incarnation(absl::StrCat("expiring-", i));
      request.mutable_ttl()->set_seconds(scale.at_once_ttl_seconds);
      opens.push_back(Encode(request));
    }
    std::vector<grpc::ByteBuffer> registers;
    RunUnary(channel, kOpenSessionMethod, opens, scale.unary_in_flight,
             [&](const grpc::ByteBuffer& bytes) {
               const auto number = static_cast<int64_t>(registers.size());
               RegisterRequest request;
               request.set_session_id(Parsed<OpenSessionResponse>(bytes).session_id());
               registry::v1::Registration& registration = *request.add_registrations();
               *registration.mutable_instance() = MakeInstance("mortal", number);
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
    const std::string service = MakeInstance("mortal", i).key().service();
    if (services > 0 && service == MakeInstance("mortal", i - 1).key().service()) continue;
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
      MakeInstance("orders", scale.restarted - 1).key().service());
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

void MemoryPerSubscriber(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(subject, {});
  const auto channel = NewChannel(server.address());
  CallOnce(channel, kRegisterMethod, EncodedChange(OpenSession(channel, "bench"), 1));
  int64_t reached = 0;
  const grpc::ByteBuffer subscribe = EncodedSubscribe(MakeInstance("fanout", 0).key().service());
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

const std::vector<Workload>& Workloads() {
  static const auto* const kAll = new std::vector<Workload>{
      {"register-unary",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterUnary,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"open-session",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       OpenSessions,
       {"calls_per_s", "p99_us", "server_cpu_us_per_call"}},
      {"register-batch",
       {kBareGrpc, kBareUnary, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterBatch,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-batch-250",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterBatch250,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-stream",
       {kBareGrpc, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterStream,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-batch-1m",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       RegisterBatchLong,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-stream-1m",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       RegisterStreamLong,
       {"instances_per_s", "server_cpu_us_per_instance"}},
      {"register-serial",
       {kBareGrpc, kBareGrpcSynced, kFailbackMemory, kFailbackNormal, kFailbackFull},
       RegisterSerial,
       {"p50_us"}},
      {"renew",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       Renew,
       {"renewals_per_s", "server_cores", "server_cpu_us_per_renewal"}},
      {"fanout-1000",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       FanOutSmall,
       {"last_reached_p50_ms", "last_reached_p99_ms", "server_cpu_us_per_message"}},
      {"fanout-10000",
       {kBareGrpc, kFailbackMemory},
       FanOutLarge,
       {"last_reached_p50_ms", "last_reached_p99_ms", "server_cpu_us_per_message"}},
      {"restart-100k",
       {kBareGrpc, kFailbackNormal, kFailbackFull},
       Restart,
       {"seconds_to_first_list"}},
      {"expire-10k", {kFailbackMemory, kFailbackNormal, kFailbackFull}, Expire, {}},
      {"expire-100k", {kFailbackNormal}, ExpireAtOnce, {}, 3},
      {"memory-per-instance",
       {kBareGrpc, kFailbackMemory, kFailbackNormal},
       MemoryPerInstance,
       {"bytes"},
       3},
      {"memory-per-subscriber", {kBareGrpc, kFailbackMemory}, MemoryPerSubscriber, {"bytes"}, 3},
      {"growth", {kFailbackMemory, kFailbackNormal}, Growth, {}, 1},
  };
  return *kAll;
}

}  // namespace failback
