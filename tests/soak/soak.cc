// The soak: real daemons under churn and faults for a long time, with a checker at every
// subscriber.
//
//   writers ── agent (state directory) ── FaultProxy ── registry (SQLite)
//                 │                                        │
//              viewers                                  viewers
//
// The run is cut into cycles. The first half of a cycle kills, stops and cuts off what it can; the
// second leaves the processes alive and breaks connections only. The last two fifths of the run are
// one such stretch, long enough to see memory grow. Each part ends with a rest, in which everybody
// must come to see exactly what was asked for. A violation, a rest that does not come to agree, or
// memory that grows (growth.h) ends the run with status 1.
//
//   soak --seconds 600 --seed 1

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/fault/fault_proxy.h"
#include "tests/registry/process/registry_client.h"
#include "tests/soak/growth.h"
#include "tests/soak/ledger.h"
#include "tests/soak/viewer.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr char kService[] = "soak";
constexpr int kWriters = 4;
constexpr int kKeysOfAWriter = 40;
constexpr absl::Duration kAgreement = absl::Seconds(90);

int64_t ResidentKib(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

class Soak {
 public:
  Soak(absl::Duration length, uint64_t seed) : start_(absl::Now()), length_(length), random_(seed) {
    StartRegistry();
    proxy_ = FaultProxy::Start(RegistryAddress(), "unix:" + dir_.File("p.sock"));
    StartAgent();
    for (int i = 0; i < 3; ++i) {
      viewers_.push_back(std::make_unique<Viewer>(absl::StrCat("viewer ", i, " at the registry"),
                                                  RegistryAddress(), kService, &ledger_));
      viewers_.push_back(std::make_unique<Viewer>(absl::StrCat("viewer ", i, " at the agent"),
                                                  AgentAddress(), kService, &ledger_));
    }
    for (int i = 0; i < kWriters; ++i) {
      writers_.emplace_back([this, i, writer_seed = random_()] { Write(i, writer_seed); });
    }
    keeper_ = std::thread([this] {
      while (!done_) {
        for (const auto& viewer : viewers_) viewer->EnsureOpen();
        absl::SleepFor(absl::Milliseconds(100));
      }
    });
  }

  ~Soak() {
    done_ = true;
    Pause(false);
    for (auto& writer : writers_) writer.join();
    keeper_.join();
  }

  // Whether all went well.
  bool Run() {
    const absl::Duration half = std::max(length_ / 10, std::min(length_ * 0.3, absl::Seconds(8)));
    while (absl::Now() - start_ < length_ * 0.6) {
      if (!Part("chaos", half, /*kills=*/true)) return false;
      if (!Part("steady", half, /*kills=*/false)) return false;
    }
    return Part("steady", length_ * 0.4, /*kills=*/false);
  }

 private:
  std::string RegistryAddress() const { return "unix:" + dir_.File("r.sock"); }
  std::string AgentAddress() const { return "unix:" + dir_.File("a.sock"); }

  void StartRegistry() {
    registry_ = std::make_unique<Daemon>(
        Daemon::Registry({"--store", "sqlite://" + dir_.File("r.db"), "--durability", "normal",
                          "--listen", RegistryAddress(), "--connections-stalled-timeout", "2s"}));
  }
  void StartAgent() {
    agent_ = std::make_unique<Daemon>(Daemon::Agent(
        proxy_->address(),
        {"--listen", AgentAddress(), "--state-dir", dir_.File("state"), "--session-ttl", "120s"}));
  }

  // One intent after the other, each until the agent has accepted it.
  void Write(int number, uint64_t seed) {
    std::mt19937_64 random(seed);
    GrpcRegistryOptions options;
    options.call_timeout = absl::Seconds(5);
    GrpcRegistry client({AgentAddress()}, options);
    while (!done_) {
      {
        MutexLock lock(&pause_mu_);
        ++idle_;
        idle_changed_.SignalAll();
        while (paused_ && !done_) idle_changed_.WaitFor(&pause_mu_, absl::Seconds(1));
        --idle_;
      }
      const std::string key = absl::StrCat("w", number, "-", random() % kKeysOfAWriter);
      const bool present = random() % 3 != 0;
      const size_t version = ledger_.Intend(key, present);
      ServiceInstance instance = MakeInstance(kService, key);
      (*instance.mutable_metadata())["version"] = absl::StrCat(version);
      RegisterRequest put;
      *put.add_registrations()->mutable_instance() = instance;
      UnregisterRequest remove;
      *remove.add_deregistrations()->mutable_key() = instance.key();
      while (!done_) {
        const absl::Status status =
            present ? CallAndWait(client, &Registry::Register, put).status()
                    : CallAndWait(client, &Registry::Unregister, remove).status();
        if (status.ok()) break;
        ++refused_;
        absl::SleepFor(absl::Milliseconds(20));
      }
      ++intents_;
      absl::SleepFor(absl::Milliseconds(random() % 8));
    }
  }

  // Returns, when pausing, when every writer stands still between two intents.
  void Pause(bool paused) {
    MutexLock lock(&pause_mu_);
    paused_ = paused;
    idle_changed_.SignalAll();
    while (paused_ && idle_ < kWriters) idle_changed_.Wait(&pause_mu_);
  }

  void BreakSomething(bool kills) {
    switch (random_() % (kills ? 8 : 4)) {
      case 0:
        ++faults_["connections reset"];
        return proxy_->ResetAll();
      case 1:
        ++faults_["black hole"];
        proxy_->BlackHole();
        absl::SleepFor(absl::Milliseconds(random_() % 800));
        return proxy_->Forward();
      case 2:
        ++faults_["refused"];
        proxy_->Refuse();
        absl::SleepFor(absl::Milliseconds(random_() % 800));
        return proxy_->Forward();
      case 3:
        ++faults_["late"];
        proxy_->Delay(absl::Milliseconds(random_() % 100), absl::Milliseconds(random_() % 100));
        absl::SleepFor(absl::Milliseconds(random_() % 800));
        return proxy_->Forward();
      case 4:
        ++faults_["registry killed"];
        registry_->Kill();
        absl::SleepFor(absl::Milliseconds(random_() % 300));
        return StartRegistry();
      case 5:
        ++faults_["registry stopped and started"];
        if (registry_->Stop() != 0) Fatal("the registry did not stop in good order");
        return StartRegistry();
      case 6:
        ++faults_["registry frozen"];
        registry_->process().Signal(SIGSTOP);
        absl::SleepFor(absl::Milliseconds(random_() % 800));
        return registry_->process().Signal(SIGCONT);
      default:
        ++faults_["agent killed"];
        agent_->Kill();
        return StartAgent();
    }
  }

  bool Part(const char* name, absl::Duration length, bool kills) {
    Pause(false);
    const absl::Time end = absl::Now() + length;
    std::vector<MemorySample> registry;
    std::vector<MemorySample> agent;
    while (absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(200 + random_() % 1000));
      BreakSomething(kills);
      registry.push_back(MemoryOf(*registry_));
      agent.push_back(MemoryOf(*agent_));
    }
    Pause(true);
    const bool agreed = Eventually([&] { return Disagreement().empty(); }, kAgreement);
    std::cout << absl::StrFormat("%5.0f s  %-6s  %d intents, registry %.0f KiB, agent %.0f KiB: %s",
                                 absl::ToDoubleSeconds(absl::Now() - start_), name, intents_.load(),
                                 registry.back().kib, agent.back().kib,
                                 agreed ? "all agree" : "NO AGREEMENT")
              << std::endl;
    if (!agreed) {
      std::cout << Disagreement() << std::endl;
      return false;
    }
    for (const auto& viewer : viewers_) {
      if (!viewer->violation().ok()) {
        std::cout << viewer->violation().message() << std::endl;
        return false;
      }
    }
    if (kills) return true;
    const bool flat = IsFlat("registry", registry);
    return IsFlat("agent", agent) && flat;
  }

  // What differs from what was asked for; empty when nothing does.
  std::string Disagreement() {
    const auto wanted = ledger_.Present();
    RegistryClient client(RegistryAddress(), absl::Seconds(5));
    const auto records = client.List(kService);
    if (!records.ok()) return absl::StrCat("the registry: ", records.status().ToString());
    std::map<std::string, size_t> listed;
    for (const auto& record : *records) {
      listed[record.instance().key().instance_id()] =
          std::strtoull(record.instance().metadata().at("version").c_str(), nullptr, 10);
    }
    for (const auto& [key, version] : wanted) {
      if (listed.count(key) == 0) return absl::StrCat(key, " is lost");
      if (listed[key] != version) return absl::StrCat(key, " is not at ", version);
    }
    if (listed.size() != wanted.size()) return "the registry lists more than was asked for";
    for (const auto& viewer : viewers_) {
      if (!viewer->Sees(wanted)) return "a viewer sees something else";
    }
    return "";
  }

  MemorySample MemoryOf(Daemon& daemon) const {
    return {absl::ToDoubleSeconds(absl::Now() - start_),
            static_cast<double>(ResidentKib(daemon.process().pid()))};
  }

  static bool IsFlat(const char* what, const std::vector<MemorySample>& samples) {
    const Growth growth = GrowthOf(samples);
    std::cout << absl::StrFormat(
                     "         %s: %+.1f KiB a second, %+.0f KiB (up to %.0f are noise)", what,
                     growth.kib_per_second, growth.kib, growth.allowed_kib)
              << (growth.too_much() ? ": IT GROWS" : "") << std::endl;
    return !growth.too_much();
  }

 public:
  void Report() const {
    int64_t messages = 0;
    int64_t streams = 0;
    for (const auto& viewer : viewers_) {
      messages += viewer->messages();
      streams += viewer->streams();
    }
    std::cout << intents_ << " intents, " << messages << " messages checked on " << streams
              << " streams of " << viewers_.size() << " viewers\nfaults:";
    for (const auto& [what, count] : faults_) std::cout << " " << what << " " << count << ",";
    std::cout << std::endl;
  }

 private:
  const absl::Time start_;
  const absl::Duration length_;
  std::mt19937_64 random_;
  const TempDir dir_;
  Ledger ledger_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<FaultProxy> proxy_;
  std::unique_ptr<Daemon> agent_;
  std::vector<std::unique_ptr<Viewer>> viewers_;
  std::map<std::string, int> faults_;

  std::atomic<bool> done_ = false;
  std::atomic<int64_t> intents_ = 0;
  std::atomic<int64_t> refused_ = 0;
  Mutex pause_mu_;
  CondVar idle_changed_;
  bool paused_ ABSL_GUARDED_BY(pause_mu_) = false;
  int idle_ ABSL_GUARDED_BY(pause_mu_) = 0;
  std::vector<std::thread> writers_;
  std::thread keeper_;
};

int Main(int argc, char** argv) {
  double seconds = 600;
  uint64_t seed = std::random_device()();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") {
      seconds = std::atof(argv[i + 1]);
    } else if (flag == "--seed") {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: soak [--seconds N] [--seed N]\n");
      return 2;
    }
  }
  std::cout << "soak of " << seconds << " s, --seed " << seed << std::endl;
  Soak soak(absl::Seconds(seconds), seed);
  const bool good = soak.Run();
  soak.Report();
  std::cout << (good ? "no violation" : "FAILED") << ", --seed " << seed << std::endl;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
