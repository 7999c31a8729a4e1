// `./dev bench watch`: many subscriptions on few streams, against a bare gRPC server that writes the
// same bytes to as many numbers on as many streams.
//
//   watch-10000      one change to 10,000 subscriptions on 8 streams, until the last has it
//   watch-100000     to 100,000 on 100
//   watch-relays     to 100,000 on 100 of ten agents that follow one registry; beside the same at
//                    the registry itself
//   watch-memory     what an idle subscription takes at the server, 1,000 on a stream; with a name
//                    in a session, as agents have it, too
//   watch-agent      an agent that follows 1,000 services of 10 instances: until it has all, and
//                    what that takes at the registry. Of bare gRPC one stream with as many
//   watch-reconnect  1,000 agents with 100 subscriptions each, when the registry was away for 30 s:
//                    from its start until the last subscription goes on
//
// The agents are the library in this process; each server is a process of its own.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "registry/client/grpc_registry.h"
#include "registry/failback/failback_registry.h"
#include "registry/model/wire_reader.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::WatchItem;

constexpr char kFailback[] = "failback";
constexpr char kRelays[] = "failback-relays";
constexpr char kWatchMethod[] = "/failback.registry.v1.RegistryService/Watch";
constexpr absl::Duration kLongest = absl::Seconds(120);

struct Scale {
  int64_t small = 10000;
  int small_streams = 8;
  int small_changes = 30;
  int64_t large = 100000;
  int large_streams = 100;
  int large_changes = 8;
  int relays = 10;
  int64_t on_a_stream = 1000;
  int idle_streams = 20;
  int64_t services = 1000;
  int instances = 10;
  int agents = 1000;
  int64_t of_an_agent = 100;
  absl::Duration outage = absl::Seconds(30);
};

Scale QuickScale() {
  Scale scale;
  scale.small = 80;
  scale.small_changes = 2;
  scale.large = 200;
  scale.large_streams = 10;
  scale.large_changes = 2;
  scale.relays = 2;
  scale.on_a_stream = 20;
  scale.idle_streams = 3;
  scale.services = 20;
  scale.agents = 10;
  scale.of_an_agent = 5;
  scale.outage = absl::Seconds(4);  // longer than the grace before a set is stale
  return scale;
}

std::string KindOf(const std::string& subject) {
  return subject == kFailback ? kFailbackMemory : subject;
}

std::string OpenSession(const std::shared_ptr<grpc::Channel>& channel) {
  OpenSessionRequest request;
  request.set_incarnation("bench");
  request.mutable_ttl()->set_seconds(600);
  OpenSessionResponse response;
  if (!Decode(CallOnce(channel, kOpenSessionMethod, Encode(request)), &response)) {
    Die("OpenSession: garbled");
  }
  return response.session_id();
}

// Registers instance `number` of a service, a new payload with each generation.
void RegisterOne(const std::shared_ptr<grpc::Channel>& channel, const std::string& session,
                 const std::string& service, int number, uint64_t generation) {
  RegisterRequest request;
  request.set_session_id(session);
  auto& registration = *request.add_registrations();
  *registration.mutable_instance() = NumberedInstance("watch", number);
  registration.mutable_instance()->mutable_key()->set_service(service);
  (*registration.mutable_instance()->mutable_metadata())["build"] =
      absl::StrCat(100000000000 + generation);
  registration.set_generation(generation);
  CallOnce(channel, kRegisterMethod, Encode(request));
}

std::string ServiceName(int64_t number) { return absl::StrCat("followed-", 100000 + number); }

void RegisterServices(const std::shared_ptr<grpc::Channel>& channel, const std::string& session,
                      int64_t services, int instances) {
  for (int64_t first = 0; first < services; first += 20) {
    RegisterRequest request;
    request.set_session_id(session);
    for (int64_t service = first; service < std::min(first + 20, services); ++service) {
      for (int i = 0; i < instances; ++i) {
        auto& registration = *request.add_registrations();
        *registration.mutable_instance() = NumberedInstance("watch", i);
        registration.mutable_instance()->mutable_key()->set_service(ServiceName(service));
        registration.set_generation(1);
      }
    }
    CallOnce(channel, kRegisterMethod, Encode(request));
  }
}

// The messages that begin `count` subscriptions; `service` and, if it is not empty, a name in
// `session` for each.
std::vector<grpc::ByteBuffer> Subscribes(int64_t count, const std::string& session,
                                         const std::string& prefix,
                                         const std::function<std::string(int64_t)>& service) {
  std::vector<grpc::ByteBuffer> messages;
  for (int64_t first = 0; first < count; first += 100) {
    WatchRequest request;
    for (int64_t i = first; i < std::min(first + 100, count); ++i) {
      auto& command = *request.add_commands();
      command.set_watch_id(static_cast<uint64_t>(i) + 1);
      command.mutable_subscribe()->mutable_selector()->set_service(service(i));
      if (session.empty()) continue;
      command.mutable_subscribe()->set_session_id(session);
      command.mutable_subscribe()->set_subscription_id(absl::StrCat(prefix, i));
      command.mutable_subscribe()->set_generation(1);
    }
    messages.push_back(Encode(request));
  }
  return messages;
}

// Events in a message of a Watch stream. Dies of an end.
int64_t Events(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  if (!message.TrySingleSlice(&slice).ok() && !message.DumpToSingleSlice(&slice).ok()) {
    Die("a message that cannot be read");
  }
  wire::Reader items({reinterpret_cast<const char*>(slice.begin()), slice.size()});
  int64_t events = 0;
  for (wire::Field item; items.Next(&item);) {
    wire::Reader fields(item.bytes);
    for (wire::Field field; fields.Next(&field);) {
      if (field.Is(WatchItem::kEventFieldNumber, wire::kBytes)) ++events;
      if (field.Is(WatchItem::kEndFieldNumber, wire::kBytes)) Die("a subscription has ended");
    }
  }
  return events;
}

// Streams with as many subscriptions each, counted together.
class Watches {
 public:
  Watches(const std::string& address, int streams)
      : streams_(address, kWatchMethod, streams, streams, nullptr,
                 [this](int, const grpc::ByteBuffer& message) { reached_ += Events(message); }) {}

  void Send(int stream, const std::vector<grpc::ByteBuffer>& messages) {
    for (const grpc::ByteBuffer& message : messages) streams_.Send(stream, message);
  }
  void Reset() { reached_ = 0; }
  void WaitFor(int64_t events, const char* what) {
    if (!streams_.RunUntil([&] { return reached_ >= events; }, kLongest)) Die(what);
  }
  void RunFor(absl::Duration duration) { streams_.RunFor(duration); }
  int64_t reached() const { return reached_; }

 private:
  int64_t reached_ = 0;
  Streams streams_;
};

// To subscriptions at `where`, which may be behind `server`.
void FanOutAt(const std::string& where, Subject& server, const std::string& name,
              const std::string& subject, int64_t subscriptions, int streams, int changes,
              Report* report) {
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel);
  const std::string service = ServiceName(0);
  uint64_t generation = 1;
  RegisterOne(channel, session, service, 0, generation);
  Watches watches(where, streams);
  const auto subscribes =
      Subscribes(subscriptions / streams, "", "", [&](int64_t) { return service; });
  for (int i = 0; i < streams; ++i) watches.Send(i, subscribes);
  watches.WaitFor(subscriptions, "not every subscription has its snapshot");
  std::vector<double> last_ms;
  const double cpu = server.CpuSeconds();
  for (int i = 0; i < changes; ++i) {
    watches.Reset();
    const double began = NowSeconds();
    RegisterOne(channel, session, service, 0, ++generation);
    watches.WaitFor(subscriptions, "not every subscription has the change");
    last_ms.push_back((NowSeconds() - began) * 1e3);
    watches.RunFor(absl::Milliseconds(5));
    if (watches.reached() != subscriptions) Die("a subscription has the change twice");
  }
  report->Add(name, subject, "last_p50", Percentile(last_ms, 0.5), "ms");
  report->Add(name, subject, "last_p99", Percentile(last_ms, 0.99), "ms");
  report->Add(name, subject, "server_cpu_us_per_event",
              (server.CpuSeconds() - cpu) / changes / static_cast<double>(subscriptions) * 1e6,
              "us");
}

void FanOut(const std::string& name, int64_t subscriptions, int streams, int changes,
            const std::string& subject, Report* report) {
  Subject server(KindOf(subject), {});
  FanOutAt(server.address(), server, name, subject, subscriptions, streams, changes, report);
}

void FanOutSmall(const Scale& scale, const std::string& subject, Report* report) {
  FanOut("watch-10000", scale.small, scale.small_streams, scale.small_changes, subject, report);
}

void FanOutLarge(const Scale& scale, const std::string& subject, Report* report) {
  FanOut("watch-100000", scale.large, scale.large_streams, scale.large_changes, subject, report);
}

void FanOutByRelays(const Scale& scale, const std::string& subject, Report* report) {
  Subject server(kFailbackMemory, {});
  std::vector<Daemon> relays;
  std::vector<std::string> addresses = {server.address()};
  if (subject == kRelays) {
    addresses.clear();
    for (int i = 0; i < scale.relays; ++i) {
      relays.push_back(
          Daemon::Agent(server.address(), {"--listen", "127.0.0.1:0", "--log-level", "error"}));
      addresses.push_back(relays.back().address());
    }
  }
  FanOutAt(absl::StrJoin(addresses, ","), server, "watch-relays", subject, scale.large,
           scale.large_streams, scale.large_changes, report);
}

// Bytes of an idle subscription; `session` as of Subscribes.
double IdleBytes(Subject& server, const Scale& scale, const std::string& session) {
  Watches watches(server.address(), scale.idle_streams);
  // A first one on each stream, so that only subscriptions are counted after.
  const auto service = [](int64_t) { return ServiceName(0); };
  std::vector<std::vector<grpc::ByteBuffer>> subscribes;
  for (int i = 0; i < scale.idle_streams; ++i) {
    subscribes.push_back(
        Subscribes(scale.on_a_stream + 1, session, absl::StrCat("stream-", i, "-"), service));
    WatchRequest first;
    if (!Decode(subscribes[i][0], &first)) Die("garbled");
    WatchRequest rest = first;
    first.mutable_commands()->DeleteSubrange(1, first.commands_size() - 1);
    rest.mutable_commands()->DeleteSubrange(0, 1);
    watches.Send(i, {Encode(first)});
    subscribes[i][0] = Encode(rest);
  }
  watches.WaitFor(scale.idle_streams, "a first snapshot is missing");
  watches.RunFor(absl::Milliseconds(100));
  const int64_t before = server.AnonymousBytes();
  watches.Reset();
  for (int i = 0; i < scale.idle_streams; ++i) watches.Send(i, subscribes[i]);
  const int64_t count = scale.on_a_stream * scale.idle_streams;
  watches.WaitFor(count, "a snapshot is missing");
  watches.RunFor(absl::Milliseconds(200));
  return static_cast<double>(server.AnonymousBytes() - before) / static_cast<double>(count);
}

void Memory(const Scale& scale, const std::string& subject, Report* report) {
  const char* const name = "watch-memory";
  {
    Subject server(KindOf(subject), {});
    const auto channel = NewChannel(server.address());
    const std::string session = OpenSession(channel);
    for (int i = 0; i < scale.instances; ++i) {
      RegisterOne(channel, session, ServiceName(0), i, 1);
    }
    report->Add(name, subject, "bytes", IdleBytes(server, scale, ""), "B");
  }
  if (subject == kBareGrpc) return;  // it knows no names
  Subject::Options options;
  options.more_args = {"--limits-max-subscriptions-per-session",
                       absl::StrCat((scale.on_a_stream + 1) * scale.idle_streams)};
  Subject server(KindOf(subject), options);
  const auto channel = NewChannel(server.address());
  const std::string session = OpenSession(channel);
  for (int i = 0; i < scale.instances; ++i) RegisterOne(channel, session, ServiceName(0), i, 1);
  report->Add(name, subject, "bytes_named", IdleBytes(server, scale, session), "B");
}

// Counts what has come to a follower at all, or since it was told to forget.
class Counter final : public NotifyListener {
 public:
  explicit Counter(std::atomic<int64_t>* reached) : reached_(reached) {}

  void OnEvent(const EventPtr& event) override {
    if (event->flags().stale) {
      fresh_ = false;
    } else if (!fresh_.exchange(true)) {
      ++*reached_;
    }
  }
  void OnEnd(const absl::Status& status) override { Die(status.ToString()); }

 private:
  std::atomic<int64_t>* const reached_;
  std::atomic<bool> fresh_{false};
};

// An agent, and what it follows.
struct Follower {
  Follower(const std::string& address, HashedWheelTimer* timer) {
    FailbackRegistry::Options options;
    options.upstream_name = absl::StrCat("grpc://", address);
    options.timer = timer;
    agent = FailbackRegistry::Create(std::make_unique<GrpcRegistry>(
                                         std::vector<std::string>{address}, GrpcRegistryOptions()),
                                     options)
                .value();
  }
  void Follow(int64_t services, int64_t first, int64_t step, std::atomic<int64_t>* reached) {
    for (int64_t i = 0; i < services; ++i) {
      SubscribeRequest request;
      request.mutable_selector()->set_service(ServiceName(first + i * step));
      streams.push_back(agent->Subscribe(request, std::make_shared<Counter>(reached)));
    }
  }

  std::unique_ptr<FailbackRegistry> agent;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
};

void WaitUntil(const char* what, const std::function<bool()>& condition) {
  const double deadline = NowSeconds() + absl::ToDoubleSeconds(kLongest);
  while (!condition()) {
    if (NowSeconds() > deadline) Die(absl::StrCat("in vain waited until ", what));
    absl::SleepFor(absl::Milliseconds(1));
  }
}

void FollowMany(const Scale& scale, const std::string& subject, Report* report) {
  const char* const name = "watch-agent";
  Subject server(KindOf(subject), {});
  const auto channel = NewChannel(server.address());
  RegisterServices(channel, OpenSession(channel), scale.services, scale.instances);
  double seconds;
  int64_t before;
  if (subject == kBareGrpc) {
    Watches watches(server.address(), 1);
    watches.RunFor(absl::Milliseconds(200));
    before = server.AnonymousBytes();
    const double began = NowSeconds();
    watches.Send(0, Subscribes(scale.services, "", "", ServiceName));
    watches.WaitFor(scale.services, "a snapshot is missing");
    seconds = NowSeconds() - began;
    report->Add(name, subject, "bytes", static_cast<double>(server.AnonymousBytes() - before), "B");
  } else {
    const auto timer = NewTimer(absl::Milliseconds(10));
    std::atomic<int64_t> reached{0};
    Follower follower(server.address(), timer.get());
    WaitUntil("the agent has a session", [&] { return follower.agent->Stats().up; });
    absl::SleepFor(absl::Milliseconds(200));
    before = server.AnonymousBytes();
    const double began = NowSeconds();
    follower.Follow(scale.services, 0, 1, &reached);
    WaitUntil("all snapshots are there", [&] { return reached == scale.services; });
    seconds = NowSeconds() - began;
    absl::SleepFor(absl::Milliseconds(200));
    report->Add(name, subject, "bytes", static_cast<double>(server.AnonymousBytes() - before), "B");
  }
  report->Add(name, subject, "seconds", seconds, "s");
}

void Reconnect(const Scale& scale, const std::string& subject, Report* report) {
  Subject::Options options;
  TempDir store;
  options.store_dir = store.path();
  auto server = std::make_unique<Subject>(kFailbackNormal, options);
  options.listen = server->address();
  {
    const auto channel = NewChannel(options.listen);
    RegisterServices(channel, OpenSession(channel), scale.services, scale.instances);
  }
  const auto timer = NewTimer(absl::Milliseconds(10));
  std::atomic<int64_t> reached{0};
  std::vector<std::unique_ptr<Follower>> fleet;
  const int64_t step = std::max<int64_t>(1, scale.services / scale.of_an_agent);
  for (int i = 0; i < scale.agents; ++i) {
    fleet.push_back(std::make_unique<Follower>(options.listen, timer.get()));
    fleet.back()->Follow(scale.of_an_agent, i % step, step, &reached);
  }
  const int64_t all = scale.agents * scale.of_an_agent;
  WaitUntil("all snapshots are there", [&] { return reached == all; });
  reached = 0;
  server->process().Kill();
  absl::SleepFor(scale.outage);
  const double cpu = CpuSecondsOf(getpid());
  server = std::make_unique<Subject>(kFailbackNormal, options);
  const double began = NowSeconds();
  WaitUntil("all go on", [&] { return reached == all; });
  report->Add("watch-reconnect", subject, "seconds", NowSeconds() - began, "s");
  report->Add("watch-reconnect", subject, "server_cpu", server->CpuSeconds(), "s");
  report->Add("watch-reconnect", subject, "agents_cpu", CpuSecondsOf(getpid()) - cpu, "s");
}

struct Workload {
  const char* name;
  std::vector<std::string> subjects;
  void (*run)(const Scale& scale, const std::string& subject, Report* report);
  std::vector<std::string> ratios;
};

const std::vector<Workload>& Workloads() {
  static const auto* const kAll = new std::vector<Workload>{
      {"watch-10000",
       {kBareGrpc, kFailback},
       FanOutSmall,
       {"last_p50", "last_p99", "server_cpu_us_per_event"}},
      {"watch-100000",
       {kBareGrpc, kFailback},
       FanOutLarge,
       {"last_p50", "last_p99", "server_cpu_us_per_event"}},
      {"watch-relays", {kFailback, kRelays}, FanOutByRelays, {}},
      {"watch-memory", {kBareGrpc, kFailback}, Memory, {"bytes"}},
      {"watch-agent", {kBareGrpc, kFailback}, FollowMany, {"bytes", "seconds"}},
      {"watch-reconnect", {kFailback}, Reconnect, {}},
  };
  return *kAll;
}

int Main(int argc, char** argv) {
  Report::Options options;
  options.name = "watch";
  int rounds = 5;
  bool quick = false;
  std::vector<std::string> only;
  CLI::App app("Measures Watch streams of failback-registry against bare gRPC.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--workload", only, "only these; several with commas")->delimiter(',');
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  Report report(options);
  const Scale scale = quick ? QuickScale() : Scale();
  for (const Workload& workload : Workloads()) {
    if (!only.empty() && std::find(only.begin(), only.end(), workload.name) == only.end()) continue;
    const double began = NowSeconds();
    for (int round = 0; round < (quick ? 1 : rounds); ++round) {
      // Each round in another order, so that none profits from its place.
      for (size_t i = 0; i < workload.subjects.size(); ++i) {
        workload.run(scale, workload.subjects[(i + round) % workload.subjects.size()], &report);
      }
    }
    if (workload.name == std::string_view("watch-relays")) {
      report.Ratio(workload.name, "last_p50", kRelays, kFailback);
      report.Ratio(workload.name, "server_cpu_us_per_event", kRelays, kFailback);
    }
    for (const std::string& metric : workload.ratios) {
      report.Ratio(workload.name, metric, kFailback, kBareGrpc);
    }
    std::fprintf(stderr, "%s: %.0f s\n", workload.name, NowSeconds() - began);
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
