// `./dev bench recovery`: the registry is killed and comes back empty. How long until everything
// is registered again, and what does that cost?
//
// recovery-100k: one agent with 100,000 registrations, against as many bare unary calls with 100
// in flight, in the same run. recovery-fleet: 1,000 agents with 100 registrations each, a longer
// outage, subscribers that must never be told an empty set, and a bystander whose calls go on.
//
// The agent is the library in this process; the registry is the real failback-registry, killed with
// SIGKILL and started again on the same address.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "registry/client/grpc_registry.h"
#include "registry/failback/failback_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/recovery/watched_upstream.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/registry/message_listener.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::InstanceRecord;

constexpr char kFailback[] = "failback";
constexpr char kBareUnary[] = "bare-grpc-unary";
constexpr double kLongestSeconds = 120;

struct Scale {
  int64_t registrations = 100000;
  absl::Duration outage = absl::Seconds(1);
  int in_flight = 100;
  int agents = 1000;
  int64_t per_agent = 100;
  int subscribers = 10;
  absl::Duration fleet_outage = absl::Seconds(30);
  absl::Duration idle = absl::Seconds(3);
  bool yielding = true;
};

// Polls, a hundredth of a second at a time at most; dies when it takes too long.
void WaitUntil(const char* what, const std::function<bool()>& condition,
               absl::Duration step = absl::Milliseconds(1)) {
  const double deadline = NowSeconds() + kLongestSeconds;
  while (!condition()) {
    if (NowSeconds() > deadline) Die(absl::StrCat("in vain waited until ", what));
    absl::SleepFor(step);
  }
}

// A registry that can be killed and started again, empty, where it was.
class MortalRegistry {
 public:
  MortalRegistry() { Start(); }

  void Kill() { subject_->process().Kill(); }
  void Start() {
    subject_ = std::make_unique<Subject>(kFailbackMemory, options_);
    options_.listen = subject_->address();
  }
  Subject& subject() { return *subject_; }
  const std::string& address() const { return options_.listen; }

 private:
  Subject::Options options_;
  std::unique_ptr<Subject> subject_;
};

std::unique_ptr<FailbackRegistry> NewAgent(const std::string& address, HashedWheelTimer* timer,
                                           Traffic* traffic, std::atomic<int64_t>* own) {
  FailbackRegistry::Options options;
  options.upstream_name = absl::StrCat("grpc://", address);
  options.timer = timer;
  auto upstream = std::make_unique<WatchedUpstream>(
      std::make_unique<GrpcRegistry>(std::vector<std::string>{address}, GrpcRegistryOptions()),
      traffic, own);
  return FailbackRegistry::Create(std::move(upstream), options).value();
}

void StateIntents(FailbackRegistry* agent, const std::string& prefix, int64_t count) {
  constexpr int64_t kBatch = 500;
  for (int64_t begin = 0; begin < count; begin += kBatch) {
    RegisterRequest request;
    for (int64_t i = begin; i < std::min(count, begin + kBatch); ++i) {
      *request.add_registrations()->mutable_instance() = NumberedInstance(prefix, i);
    }
    agent->Register(request, [](const absl::StatusOr<RegisterResponse>& accepted) {
      if (!accepted.ok()) Die(accepted.status().ToString());
    });
  }
}

struct Listing {
  int64_t records = 0;
  int64_t distinct = 0;
};

Listing ListAll(const std::string& address) {
  const auto channel = NewChannel(address);
  Listing listing;
  std::set<std::string> keys;
  ListRequest request;
  do {
    ListResponse page;
    if (!Decode(CallOnce(channel, kListMethod, Encode(request)), &page)) Die("List: garbled");
    for (const InstanceRecord& record : page.records()) {
      ++listing.records;
      keys.insert(absl::StrCat(record.instance().key().service(), " ",
                               record.instance().key().instance_id()));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  listing.distinct = static_cast<int64_t>(keys.size());
  return listing;
}

void RecoverOne(const Scale& scale, Report* report) {
  const char* const name = "recovery-100k";
  MortalRegistry registry;
  const auto timer = NewTimer(absl::Milliseconds(10));
  Traffic traffic;
  const auto agent = NewAgent(registry.address(), timer.get(), &traffic, nullptr);
  StateIntents(agent.get(), "orders", scale.registrations);
  const auto all_back = [&] { return traffic.acknowledged >= scale.registrations; };
  WaitUntil("all is registered", all_back);

  registry.Kill();
  absl::SleepFor(scale.outage);
  traffic.Reset();
  const double agent_cpu = CpuSecondsOf(getpid());
  registry.Start();
  const double serving = NowSeconds();
  WaitUntil("all is registered again", all_back);
  const double end = NowSeconds();
  const double seconds = end - traffic.connected_at;
  const auto count = static_cast<double>(scale.registrations);
  report->Add(name, kFailback, "seconds", seconds, "s");
  report->Add(name, kFailback, "seconds_after_serving", end - serving, "s");
  report->Add(name, kFailback, "calls_per_s", static_cast<double>(traffic.registers) / seconds,
              "1/s");
  report->Add(name, kFailback, "registrations_per_s", count / seconds, "1/s");
  report->Add(name, kFailback, "peak_calls_in_flight", static_cast<double>(traffic.peak_in_flight),
              "calls");
  report->Add(name, kFailback, "client_cpu_s", CpuSecondsOf(getpid()) - agent_cpu, "s");
  report->Add(name, kFailback, "server_cpu_s", registry.subject().CpuSeconds(), "s");
  const Listing listing = ListAll(registry.address());
  if (listing.records != scale.registrations || listing.distinct != scale.registrations) {
    Die(absl::StrCat("the registry holds ", listing.records, " instances, ", listing.distinct,
                     " of them distinct, and not ", scale.registrations));
  }
}

void BareUnary(const Scale& scale, Report* report) {
  const char* const name = "recovery-100k";
  Subject server(kBareGrpc, {});
  const auto requests = EncodedRegisters(std::string(32, 's'), "orders", scale.registrations, 1);
  const auto channel = NewChannel(server.address());
  CallOnce(channel, kRegisterMethod, requests[0]);
  const double client_cpu = CpuSecondsOf(getpid());
  const double server_cpu = server.CpuSeconds();
  const LoadResult load =
      RunUnary(channel, kRegisterMethod, requests, scale.in_flight,
               [](const grpc::ByteBuffer& answer) { return answer.Length() > 0; });
  const auto count = static_cast<double>(scale.registrations);
  report->Add(name, kBareUnary, "seconds", load.seconds, "s");
  report->Add(name, kBareUnary, "calls_per_s", count / load.seconds, "1/s");
  report->Add(name, kBareUnary, "registrations_per_s", count / load.seconds, "1/s");
  report->Add(name, kBareUnary, "peak_calls_in_flight", scale.in_flight, "calls");
  report->Add(name, kBareUnary, "client_cpu_s", CpuSecondsOf(getpid()) - client_cpu, "s");
  report->Add(name, kBareUnary, "server_cpu_s", server.CpuSeconds() - server_cpu, "s");
}

// Registers an instance of its own again and again, and remembers how long each call took. In a
// process of its own (this program with --bystander), as a neighbour of the fleet would be: it
// shares the registry and the machine with it, and nothing else.
class Bystander {
 public:
  explicit Bystander(const std::string& address)
      : process_(Process::Start(
            {std::filesystem::read_symlink("/proc/self/exe").string(), "--bystander", address})) {}

  std::vector<double> Stop() {
    if (!process_->WaitForLine("begun").has_value()) Die("the bystander cannot register");
    process_->Signal(SIGTERM);
    if (!process_->WaitForExit().has_value()) Die("the bystander does not end");
    std::vector<double> latencies_us;
    for (const absl::string_view line : absl::StrSplit(process_->out(), '\n')) {
      double us;
      if (absl::SimpleAtod(line, &us)) latencies_us.push_back(us);
    }
    if (latencies_us.empty()) Die("the bystander has not registered");
    return latencies_us;
  }

 private:
  const std::unique_ptr<Process> process_;
};

// What a bystander's process does, until SIGTERM.
int BeBystander(const std::string& address) {
  constexpr absl::Duration kPause = absl::Milliseconds(2);
  static std::atomic<bool> stop{false};
  std::signal(SIGTERM, [](int) { stop = true; });
  RegisterRequest request;
  *request.add_registrations()->mutable_instance() = NumberedInstance("bystand", 0);
  const grpc::ByteBuffer bytes = Encode(request);
  // It is there before the registry is, and does not wait longer than it must.
  auto channel = NewChannel(address);
  while (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(20)))) {
    channel = NewChannel(address);
  }
  std::printf("begun\n");
  std::fflush(stdout);
  std::vector<double> latencies_us;
  while (!stop) {
    latencies_us.push_back(
        RunUnary(channel, kRegisterMethod, {bytes}, 1, [](const grpc::ByteBuffer& answer) {
          return answer.Length() > 0;
        }).latencies_us[0]);
    absl::SleepFor(kPause);
  }
  for (const double us : latencies_us) std::printf("%.1f\n", us);
  std::fflush(stdout);
  _exit(0);
}

// Counts the times that a set which was not empty was told to be.
class EmptyPushes final : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    MutexLock lock(&mu_);
    const bool was_empty = held_.empty();
    if (event->has_snapshot()) held_.clear();
    for (const ServiceInstance& instance : event->snapshot().instances()) Hold(instance);
    for (const ServiceInstance& instance : event->delta().upserts()) Hold(instance);
    for (const InstanceKey& key : event->delta().removals()) held_.erase(key.instance_id());
    if (held_.empty() && !was_empty && !event->snapshot().more()) ++empty_;
  }
  void OnEnd(const absl::Status& status) override {}

  size_t held() const {
    MutexLock lock(&mu_);
    return held_.size();
  }
  int empty() const {
    MutexLock lock(&mu_);
    return empty_;
  }

 private:
  void Hold(const ServiceInstance& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    held_.insert(instance.key().instance_id());
  }

  mutable Mutex mu_;
  std::set<std::string> held_ ABSL_GUARDED_BY(mu_);
  int empty_ ABSL_GUARDED_BY(mu_) = 0;
};

// The fleet stands for machines of its own. Here it shares those of the registry and the bystander,
// and gets what they leave: all threads but this one, which starts processes, have lowest priority.
void YieldToOthers() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    int tid;
    if (!absl::SimpleAtoi(task.path().filename().string(), &tid) || tid == getpid()) continue;
    setpriority(PRIO_PROCESS, static_cast<id_t>(tid), 19);
  }
}

struct Member {
  std::atomic<int64_t> acknowledged{0};
  std::unique_ptr<FailbackRegistry> agent;
};

void RecoverFleet(const Scale& scale, Report* report) {
  const char* const name = "recovery-fleet";
  MortalRegistry registry;
  const auto timer = NewTimer(absl::Milliseconds(10));
  Traffic traffic;
  std::vector<std::unique_ptr<Member>> fleet;
  const int64_t total = scale.agents * scale.per_agent;
  // Five digits name a member, so that its services are its own.
  const auto prefix = [](int member) { return absl::StrCat("m", 10000 + member); };
  for (int i = 0; i < scale.agents; ++i) {
    fleet.push_back(std::make_unique<Member>());
    Member& member = *fleet.back();
    member.agent = NewAgent(registry.address(), timer.get(), &traffic, &member.acknowledged);
    StateIntents(member.agent.get(), prefix(i), scale.per_agent);
  }
  const auto all_back = [&] { return traffic.acknowledged >= total; };
  WaitUntil("all is registered", all_back);
  if (scale.yielding) YieldToOthers();

  std::vector<std::shared_ptr<EmptyPushes>> listeners;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  for (int i = 0; i < std::min(scale.subscribers, scale.agents); ++i) {
    SubscribeRequest request;
    // Another member's instances.
    request.mutable_selector()->set_service(
        NumberedInstance(prefix((i + 1) % scale.agents), 0).key().service());
    listeners.push_back(std::make_shared<EmptyPushes>());
    streams.push_back(fleet[i]->agent->Subscribe(request, listeners.back()));
  }
  const size_t per_service = static_cast<size_t>(std::min<int64_t>(scale.per_agent, 100));
  const auto all_see = [&] {
    return std::all_of(listeners.begin(), listeners.end(),
                       [&](const auto& listener) { return listener->held() == per_service; });
  };
  WaitUntil("every subscriber sees the set", all_see);

  Bystander before(registry.address());
  absl::SleepFor(scale.idle);
  const std::vector<double> idle_us = before.Stop();

  registry.Kill();
  const int64_t attempts_before = traffic.attempts;
  const double away = NowSeconds();
  const double away_cpu = CpuSecondsOf(getpid());
  absl::SleepFor(scale.fleet_outage);
  Bystander during(registry.address());
  absl::SleepFor(absl::Milliseconds(200));  // to be there
  const int64_t attempts = traffic.attempts - attempts_before;
  const double away_seconds = NowSeconds() - away;
  const double back_cpu = CpuSecondsOf(getpid());
  traffic.Reset();
  for (const auto& member : fleet) member->acknowledged = 0;
  registry.Start();
  const double serving = NowSeconds();
  double first = 0;
  std::vector<double> back(fleet.size(), 0);
  size_t back_count = 0;
  WaitUntil("the whole fleet is back", [&] {
    const double now = NowSeconds();
    for (size_t i = 0; i < fleet.size(); ++i) {
      if (back[i] == 0 && fleet[i]->acknowledged >= scale.per_agent) {
        back[i] = now - serving;
        ++back_count;
        if (first == 0) first = back[i];
      }
    }
    return back_count == fleet.size();
  });
  const std::vector<double> busy_us = during.Stop();

  const double fleet_cpu = CpuSecondsOf(getpid()) - back_cpu;
  const double last = *std::max_element(back.begin(), back.end());
  report->Add(name, kFailback, "first_back_ms", first * 1e3, "ms");
  report->Add(name, kFailback, "half_back_ms", Percentile(back, 0.5) * 1e3, "ms");
  report->Add(name, kFailback, "last_back_ms", last * 1e3, "ms");
  report->Add(name, kFailback, "attempts_per_agent_and_second",
              static_cast<double>(attempts) / scale.agents / away_seconds, "1/s");
  report->Add(name, kFailback, "peak_calls_in_flight", static_cast<double>(traffic.peak_in_flight),
              "calls");
  const double idle = Percentile(idle_us, 0.99);
  report->Add(name, kFailback, "bystander_idle_p99_us", idle, "us");
  report->Add(name, kFailback, "bystander_recovery_p99_us", Percentile(busy_us, 0.99), "us");
  report->Add(name, kFailback, "bystander_p99_ratio", Percentile(busy_us, 0.99) / idle,
              "x of idle");
  report->Add(name, kFailback, "server_cpu_s", registry.subject().CpuSeconds(), "s");
  report->Add(name, kFailback, "fleet_cpu_s", fleet_cpu, "s");
  report->Add(name, kFailback, "fleet_cores_while_away", (back_cpu - away_cpu) / away_seconds,
              "cores");

  WaitUntil("every subscriber sees the set again", all_see);
  int empty = 0;
  for (const auto& listener : listeners) empty += listener->empty();
  report->Add(name, kFailback, "empty_pushes", empty, "pushes");
  // The bystander's own instance is one more. A fleet that gets hardly any processor time loses
  // sessions again after it was back; then it takes longer until exactly everything is there.
  Listing listing = ListAll(registry.address());
  report->Add(name, kFailback, "present_at_once", static_cast<double>(listing.distinct - 1),
              "instances");
  WaitUntil(
      "exactly the fleet's instances are present",
      [&] {
        if (listing.distinct == total + 1) return true;
        listing = ListAll(registry.address());
        return false;
      },
      absl::Milliseconds(100));
  report->Add(name, kFailback, "present", static_cast<double>(listing.distinct - 1), "instances");
  report->Add(name, kFailback, "present_twice",
              static_cast<double>(listing.records - listing.distinct), "instances");
  report->Add(name, kFailback, "settled_s", NowSeconds() - serving, "s");
  report->Add(name, kFailback, "sessions_per_agent",
              static_cast<double>(traffic.sessions) / scale.agents, "sessions");
}

int Main(int argc, char** argv) {
  // As the daemons.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Report::Options options;
  options.name = "recovery";
  Scale scale;
  int rounds = 5;
  int fleet_rounds = 1;
  double outage = absl::ToDoubleSeconds(scale.fleet_outage);
  bool quick = false;
  std::string only;
  std::string bystander;
  CLI::App app("Kills a registry and measures how its agents come back.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of recovery-100k; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--fleet-rounds", fleet_rounds, "of recovery-fleet")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--outage", outage, "of recovery-fleet, in seconds")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_option("--workload", only, "only this one")
      ->check(CLI::IsMember({"recovery-100k", "recovery-fleet"}));
  app.add_flag("!--equal-priority", scale.yielding,
               "the fleet competes with the registry and the bystander for the processors");
  app.add_option("--bystander", bystander, "used by this program itself");
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  if (!bystander.empty()) return BeBystander(bystander);
  scale.fleet_outage = absl::Seconds(outage);
  if (quick) {
    rounds = fleet_rounds = 1;
    scale.yielding = false;  // on a busy machine nothing would be left for the fleet
    scale.registrations = 1000;
    scale.agents = 10;
    scale.per_agent = 10;
    scale.subscribers = 2;
    scale.outage = scale.fleet_outage = absl::Milliseconds(500);
    scale.idle = absl::Milliseconds(200);
  }

  Report report(options);
  for (int round = 0; round < rounds && only != "recovery-fleet"; ++round) {
    RecoverOne(scale, &report);
    BareUnary(scale, &report);
  }
  for (const char* metric : {"seconds", "client_cpu_s", "server_cpu_s"}) {
    report.Ratio("recovery-100k", metric, kFailback, kBareUnary);
  }
  for (int round = 0; round < fleet_rounds && only != "recovery-100k"; ++round) {
    RecoverFleet(scale, &report);
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
