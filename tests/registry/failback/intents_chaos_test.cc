// What an agent with a journal does with intents, over its own deaths, an operator's cancels,
// rivals, lapses and journals that are put back: random stories on simulated time, against the real
// store.
//
//   chaos     intents, cancels, retries, crashes, lost sessions, lapses and a rival, over a bad
//             link; in the end every intent that was not cancelled is true
//   lives     the process dies again and again: what was cancelled is left as it is, and nothing
//             else changes
//   put back  the journal goes back to an earlier moment: what the registry holds stays, with its
//             newer payload, what was unregistered or has gone with its session does not come back,
//             and what is stated afterwards is true; what is in doubt is shown until someone has
//             decided, whatever sessions end and whenever the registry answers
//
// FAILBACK_SEED=n runs one seed and prints its steps; seeds.h has the other variables.

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/store/store_registry.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/registry/failback/seeds.h"

namespace failback {
namespace {

constexpr int kKeys = 6;
constexpr int kSteps = 40;
constexpr char kRival[] = "rival";
constexpr uint32_t kRivalsPort = 999;

// A folder in memory where there is one: the journal's file is written at every step.
class StateFolder {
 public:
  StateFolder() {
    for (std::string name : {"/dev/shm/failback-XXXXXX", "/tmp/failback-XXXXXX"}) {
      if (mkdtemp(name.data()) == nullptr) continue;
      path_ = name;
      return;
    }
    ADD_FAILURE() << "no folder for the journal";
  }
  ~StateFolder() { std::filesystem::remove_all(path_); }
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;
  std::string live() const { return path_ + "/live"; }
  std::string saved() const { return path_ + "/saved"; }

 private:
  std::string path_;
};

// Ports by id.
using Ports = std::map<std::string, uint32_t>;

struct Want {
  std::optional<uint32_t> port;
  // By an operator, and nothing was stated since.
  bool cancelled = false;
};

class Story {
 public:
  explicit Story(uint32_t seed) : random_(seed) {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(timer).value();
    StoreRegistry::Options store;
    store.timer = timer_.get();
    store.guard = false;
    store.commit_inline = true;
    store_ = StoreRegistry::Open(store).value();
    world_.target = [this] { return store_.get(); };
    world_.timer = timer_.get();
    world_.random = &random_;
    if (traced_) world_.trace = [this](const std::string& line) { Tell(line); };
    options_.upstream_name = "registry";
    options_.timer = timer_.get();
    options_.random = [this] { return static_cast<double>(Pick(1000)) / 1000; };
    options_.max_batch = 1 + Pick(4);
    options_.max_calls_in_flight = 1 + Pick(4);
    world_.max_calls_in_flight = options_.max_calls_in_flight;
    options_.session_ttl = absl::Seconds(10);
    options_.anti_entropy_interval = absl::Seconds(10);
    options_.superseded_period = absl::Seconds(2);
    options_.state_dir = folder_.live();
    options_.manual_journal = true;
    if (Pick(4) == 0) options_.retry.retry_times = Pick(3);
    Start();
  }

  void Run() {
    Chaos();
    Lives();
    for (int round = 0; round < 3 && !testing::Test::HasFailure(); ++round) PutBack();
    registry_.reset();
    EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % n); }
  static std::string Id(int key) { return absl::StrCat("i", key); }
  void Tell(const std::string& line) {
    if (!traced_) return;
    std::cerr << absl::FormatDuration(absl::Nanoseconds(clock_.NowNanos())) << " " << line << "\n";
  }

  void Start() {
    auto created = FailbackRegistry::Create(std::make_unique<FaultyLink>(&world_), options_);
    ASSERT_TRUE(created.ok()) << created.status();
    registry_ = *std::move(created);
  }
  void Crash() {
    registry_.reset();
    Tell("a crash");
  }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    EXPECT_EQ(FailbackRegistryPeer::CheckInvariants(*registry_), "");
    EXPECT_EQ(world_.violation, "");
  }

  // What the registry holds; of an incarnation, or of all.
  Ports Held(const std::string& incarnation = "") {
    Ports held;
    ListRequest request;
    request.set_incarnation(incarnation);
    store_->List(request, [&](const absl::StatusOr<ListResponse>& response) {
      ASSERT_TRUE(response.ok()) << response.status();
      for (const InstanceRecord& record : response->records()) {
        held[record.instance().key().instance_id()] = record.instance().port();
      }
    });
    return held;
  }

  void State(int key, std::optional<uint32_t> port) {
    wants_[key] = {port, false};
    ++waiting_;
    Tell(absl::StrCat("state ", Id(key), " ", port.value_or(0)));
    const auto done = [this](const auto& response) {
      --waiting_;
      if (!response.ok() && !absl::IsCancelled(response.status())) {
        ADD_FAILURE() << response.status();
      }
      if (!response.ok()) return;
      const absl::Status item = StatusFromProto(response->results(0).status());
      EXPECT_TRUE(item.ok()) << "not accepted: " << item;
    };
    if (port.has_value()) {
      registry_->Register(MakeRegister({MakeInstance(Id(key), *port)}), done);
    } else {
      registry_->Unregister(MakeUnregister(Id(key)), done);
    }
  }

  void Cancel() {
    const auto rows = registry_->Pending();
    if (rows.empty()) return;
    const auto& row = rows[Pick(static_cast<int>(rows.size()))];
    Tell(absl::StrCat("cancel ", row.id()));
    EXPECT_EQ(registry_->Cancel({row.id()}).value_or(-1), 1);
    absl::Status durable = absl::UnknownError("no answer");
    registry_->WhenDurable([&](const absl::Status& status) { durable = status; });
    EXPECT_TRUE(durable.ok()) << durable;
    for (int key = 0; key < kKeys; ++key) {
      if (row.key().instance_id() == Id(key)) wants_[key].cancelled = true;
    }
  }

  // At the registry, before the agent knows.
  void EndSession() {
    Tell("the session ends");
    OpenSessionRequest open;
    open.set_incarnation(registry_->incarnation());
    open.mutable_ttl()->set_seconds(10);
    CloseSessionRequest close;
    store_->OpenSession(open, [&](const absl::StatusOr<OpenSessionResponse>& response) {
      if (response.ok()) close.set_session_id(response->session_id());
    });
    store_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  }

  std::string RivalsSession() {
    OpenSessionRequest open;
    open.set_incarnation(kRival);
    open.mutable_ttl()->set_seconds(60);
    std::string session;
    store_->OpenSession(open, [&](const absl::StatusOr<OpenSessionResponse>& response) {
      if (response.ok()) session = response->session_id();
    });
    return session;
  }
  void Rival(int key) {
    RegisterRequest request = MakeRegister({MakeInstance(Id(key), kRivalsPort)});
    request.set_session_id(RivalsSession());
    request.mutable_registrations(0)->set_generation(++rivals_generation_);
    store_->Register(request, [](const absl::StatusOr<RegisterResponse>&) {});
  }
  void EndRival() {
    CloseSessionRequest close;
    close.set_session_id(RivalsSession());
    store_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
  }

  void Operate() {
    const int key = Pick(kKeys);
    switch (Pick(12)) {
      case 0:
      case 1:
      case 2:
        return State(key, 1 + Pick(3));
      case 3:
      case 4:
        return State(key, std::nullopt);
      case 5:
      case 6:
        return Cancel();
      case 7:
        registry_->Retry({}).IgnoreError();
        return;
      case 8:
        Crash();
        return Start();
      case 9:
        world_.down = !world_.down;
        Tell(world_.down ? "down" : "up");
        return;
      case 10:  // for longer than the session lives
        if (Pick(3) == 0) Advance(absl::Seconds(15));
        return;
      case 11:
        return Rival(key);
    }
  }

  void Chaos() {
    world_.fault_percent = Pick(3) == 0 ? 0 : 5 + Pick(50);
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      Operate();
      Advance(absl::Milliseconds(Pick(4) == 0 ? Pick(5000) : Pick(200)));
    }
    Tell("faults stop");
    world_.fault_percent = 0;
    world_.down = false;
    EndRival();
    Settle();
    Ports wanted;
    const Ports held = Held();
    for (const auto& [key, want] : wants_) {
      const auto it = held.find(Id(key));
      if (want.cancelled) {
        // As it was, or as the call in flight has made it.
        if (it != held.end()) wanted.insert(*it);
      } else if (want.port.has_value()) {
        wanted[Id(key)] = *want.port;
      }
    }
    EXPECT_EQ(held, wanted);
    EXPECT_TRUE(registry_->Pending().empty()) << registry_->Pending()[0].ShortDebugString();
  }

  // Late calls land, fences are forgotten, comparisons are made.
  void Settle() {
    Advance(absl::Seconds(30));
    registry_->Retry({}).IgnoreError();
    Advance(absl::Seconds(110));
  }

  void Lives() {
    const Ports before = Held();
    for (int life = 0; life < 3; ++life) {
      Crash();
      Start();
      Advance(absl::Seconds(1 + Pick(60)));
      EXPECT_EQ(Held(), before) << "in life " << life;
    }
  }

  void Change(int times) {
    for (int i = 0; i < times; ++i) {
      const int key = Pick(kKeys);
      State(key, Pick(3) == 0 ? std::nullopt : std::optional<uint32_t>(1 + Pick(1000)));
      Advance(absl::Milliseconds(Pick(3000)));
    }
    Advance(absl::Seconds(20));
  }

  void PutBack() {
    if (testing::Test::HasFailure()) return;
    // Everything is stated, so that nothing is owed or cancelled in the journal that comes back.
    for (int key = 0; key < kKeys; ++key) {
      State(key, Pick(3) == 0 ? std::nullopt : std::optional<uint32_t>(1 + Pick(1000)));
    }
    Advance(absl::Seconds(20));
    EXPECT_TRUE(registry_->Pending().empty()) << registry_->Pending()[0].ShortDebugString();
    Crash();
    std::filesystem::remove_all(folder_.saved());
    std::filesystem::copy(folder_.live(), folder_.saved(),
                          std::filesystem::copy_options::recursive);
    const Ports saved = Held();
    Start();
    Change(1 + Pick(6));
    Crash();
    std::filesystem::remove_all(folder_.live());
    std::filesystem::copy(folder_.saved(), folder_.live(),
                          std::filesystem::copy_options::recursive);
    const bool ended = Pick(3) == 0;  // its session too
    if (ended) clock_.Advance(absl::Seconds(15));
    Ports held = Held();
    EXPECT_TRUE(!ended || held.empty());
    // What is in doubt: what one of the two does not know.
    std::set<std::string> expected;
    for (const auto& [id, port] : saved) {
      if (held.count(id) == 0) expected.insert(id);
    }
    for (const auto& [id, port] : held) {
      if (saved.count(id) == 0) expected.insert(id);
    }
    Tell(absl::StrCat("put back", ended ? ", without its session" : ""));
    world_.down = Pick(2) == 0 && ended;
    Start();
    for (int life = 0; life < 2; ++life) {
      Advance(absl::Seconds(2));
      world_.down = false;
      world_.lists_late = absl::ZeroDuration();
      Advance(absl::Seconds(1 + Pick(40)));
      if (Pick(3) == 0) {
        // What this agent has stated is sent again; what only the registry knew has gone.
        EndSession();
        for (const std::string& id : expected) held.erase(id);
        Advance(absl::Seconds(Pick(10)));
      }
      if (Pick(2) == 0) continue;
      Crash();
      world_.lists_late = absl::Milliseconds(Pick(2) * Pick(1500));
      Start();
      if (Pick(2) == 0) {
        // While the registry is asked, perhaps.
        Advance(absl::Milliseconds(Pick(100)));
        const int key = Pick(kKeys);
        State(key, std::nullopt);
        held.erase(Id(key));
        expected.erase(Id(key));
      }
    }
    world_.lists_late = absl::ZeroDuration();
    Advance(absl::Seconds(40));
    EXPECT_EQ(Held(), held) << "nothing goes, nothing comes back";
    std::set<std::string> doubted;
    for (const auto& row : registry_->Pending()) {
      EXPECT_EQ(row.state(), agent::v1::PENDING_STATE_PARKED) << row.ShortDebugString();
      doubted.insert(row.key().instance_id());
    }
    EXPECT_EQ(doubted, expected) << "what is in doubt is shown, and nothing else";
    // What is stated now is true, and settles the doubt.
    for (int key = 0; key < kKeys; ++key) {
      if (Pick(2) == 0) {
        State(key, Pick(3) == 0 ? std::nullopt : std::optional<uint32_t>(1 + Pick(1000)));
      } else {
        const auto it = held.find(Id(key));
        wants_[key] = {it == held.end() ? std::nullopt : std::optional<uint32_t>(it->second), true};
      }
    }
    Advance(absl::Seconds(40));
    Ports wanted;
    for (const auto& [key, want] : wants_) {
      if (want.port.has_value()) wanted[Id(key)] = *want.port;
    }
    EXPECT_EQ(Held(), wanted);
  }

  const StateFolder folder_;  // destroyed last
  const bool traced_ = std::getenv("FAILBACK_SEED") != nullptr;
  std::mt19937 random_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> store_;
  LinkWorld world_;
  FailbackRegistry::Options options_;
  std::map<int, Want> wants_;
  uint64_t rivals_generation_ = 0;
  int waiting_ = 0;
  std::unique_ptr<FailbackRegistry> registry_;
};

// In blocks, which Bazel spreads over its shards.
constexpr int kBlocks = 4;

class IntentsChaosTest : public testing::TestWithParam<int> {
 protected:
  // What the core has to say about all this is expected here.
  IntentsChaosTest() {
    SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  }
  ~IntentsChaosTest() override { SetLogSink(LogLevel::kWarning, nullptr); }
};

TEST_P(IntentsChaosTest, WhatWasAcceptedIsTrueAndWhatWasCancelledIsLeftAlone) {
  RunSeeds(200, {kBlocks, GetParam()}, [](uint32_t seed) { Story(seed).Run(); });
}

INSTANTIATE_TEST_SUITE_P(Seeds, IntentsChaosTest, testing::Range(0, kBlocks));

}  // namespace
}  // namespace failback
