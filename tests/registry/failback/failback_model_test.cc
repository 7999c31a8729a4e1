// The failback core under random operations and faults, against a model of what everyone was told
// to want: when the faults stop, the registry holds exactly the last intents, within a bounded
// time.
//
// Each seed is one story on simulated time. In some the agent has a journal, and is killed and
// started again; in some a rival incarnation wants the same keys, and may go in the end: then they
// are the agent's again. FAILBACK_SEED=n runs one seed;
// FAILBACK_SEEDS=n as many from FAILBACK_FIRST_SEED (default 1); `./dev model` does it for you.

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
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/store/store_registry.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/registry/failback/model_registry.h"
#include "tests/registry/failback/seeds.h"
#include "tests/registry/failback/subscriber_model.h"
#include "tests/registry/message_listener.h"

namespace failback {
namespace {

constexpr int kServices = 2;
constexpr int kKeysPerService = 3;
constexpr int kSteps = 50;
constexpr char kRival[] = "rival";

class Listener final : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    EXPECT_FALSE(ended) << "an event after the end";
    EXPECT_FALSE(gone) << "an event after the stream was destroyed";
    model.Hear(*event);
  }
  void OnEnd(const absl::Status& status) override {
    EXPECT_FALSE(ended) << "two ends";
    ended = true;
  }
  SubscriberModel model;
  bool ended = false;
  bool gone = false;
};

// The registry that the story plays against, and what else can happen to it.
class Target {
 public:
  virtual ~Target() = default;
  virtual Registry* registry() = 0;
  virtual void LoseSessions() = 0;
  virtual void Wipe() = 0;
  virtual void Backup() = 0;
  virtual void Restore() = 0;
  virtual void BreakStreams(const absl::Status& status) = 0;
  virtual void HandRemove(const InstanceKey& key) = 0;
  virtual void HandChange(const InstanceKey& key, uint32_t port) = 0;
  // Fences of keys without an instance have been kept for long enough.
  virtual void ForgetFences() = 0;
  // Ports by canonical key; of all, or of what one incarnation holds.
  virtual std::map<std::string, uint32_t> Ports(const std::string& incarnation = "") = 0;

  // Another incarnation registers the instance, or unregisters it (port 0). Whether it may is the
  // registry's to decide.
  void Rival(const ServiceInstance& instance, uint64_t generation) {
    const std::string session = RenewRival();
    if (instance.port() != 0) {
      RegisterRequest request = MakeRegister({instance});
      request.set_session_id(session);
      request.mutable_registrations(0)->set_generation(generation);
      registry()->Register(request, [](absl::StatusOr<RegisterResponse>) {});
    } else {
      UnregisterRequest request;
      request.set_session_id(session);
      *request.add_deregistrations()->mutable_key() = instance.key();
      request.mutable_deregistrations(0)->set_generation(generation);
      registry()->Unregister(request, [](absl::StatusOr<UnregisterResponse>) {});
    }
  }

  // Its session, opened or renewed.
  std::string RenewRival() {
    OpenSessionRequest open;
    open.set_incarnation(kRival);
    open.mutable_ttl()->set_seconds(60);
    std::string session;
    registry()->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> response) {
      if (response.ok()) session = response->session_id();
    });
    return session;
  }

  // It goes, with all that it holds.
  void EndRival() {
    CloseSessionRequest close;
    close.set_session_id(RenewRival());
    registry()->CloseSession(close, [](absl::StatusOr<CloseSessionResponse>) {});
  }
};

class ModelTarget final : public Target {
 public:
  Registry* registry() override { return &model_; }
  void LoseSessions() override { model_.LoseSessions(); }
  void Wipe() override { model_.Wipe(); }
  void Backup() override { model_.Backup(); }
  void Restore() override { model_.Restore(); }
  void BreakStreams(const absl::Status& status) override { model_.BreakStreams(status); }
  void ForgetFences() override { model_.ForgetFences(); }
  void HandRemove(const InstanceKey& key) override { model_.HandRemove(CanonicalKey(key)); }
  void HandChange(const InstanceKey& key, uint32_t port) override {
    model_.HandChange(CanonicalKey(key), port);
  }
  std::map<std::string, uint32_t> Ports(const std::string& incarnation) override {
    std::map<std::string, uint32_t> ports;
    for (const auto& [key, held] : model_.instances()) {
      if (!incarnation.empty() && held.incarnation != incarnation) continue;
      ServiceInstance instance;
      instance.ParseFromString(held.bytes);
      ports[key] = instance.port();
    }
    return ports;
  }

 private:
  ModelRegistry model_;
};

// The real store, in memory. Its streams break only with it, and it has no backups.
class StoreTarget final : public Target {
 public:
  explicit StoreTarget(HashedWheelTimer* timer) {
    options_.timer = timer;
    options_.guard = false;
    store_ = StoreRegistry::Open(options_).value();
  }

  Registry* registry() override { return store_.get(); }
  void LoseSessions() override {
    // A session of the same incarnation is the one that is there: ended by another hand.
    OpenSessionRequest open;
    open.set_incarnation("inc");
    std::string id;
    store_->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> response) {
      if (response.ok()) id = response->session_id();
    });
    CloseSessionRequest close;
    close.set_session_id(id);
    store_->CloseSession(close, [](absl::StatusOr<CloseSessionResponse>) {});
  }
  void Wipe() override {
    store_.reset();
    store_ = StoreRegistry::Open(options_).value();
  }
  void Backup() override {}
  void Restore() override {}
  void BreakStreams(const absl::Status&) override {}
  void ForgetFences() override {}  // does so in time
  void HandRemove(const InstanceKey& key) override {
    UnregisterRequest request;
    *request.add_deregistrations()->mutable_key() = key;
    store_->Unregister(request, [](absl::StatusOr<UnregisterResponse>) {});
  }
  void HandChange(const InstanceKey& key, uint32_t port) override {
    if (Ports("").count(CanonicalKey(key)) == 0) return;
    RegisterRequest request;
    auto* instance = request.add_registrations()->mutable_instance();
    *instance = MakeInstance(key.instance_id(), port, key.service());
    store_->Register(request, [](absl::StatusOr<RegisterResponse>) {});
  }
  std::map<std::string, uint32_t> Ports(const std::string& incarnation) override {
    std::map<std::string, uint32_t> ports;
    ListRequest request;
    request.set_incarnation(incarnation);
    store_->List(request, [&](absl::StatusOr<ListResponse> response) {
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(response->next_page_token(), "");
      for (const auto& record : response->records()) {
        ports[CanonicalKey(record.instance().key())] = record.instance().port();
      }
    });
    return ports;
  }

 private:
  StoreRegistry::Options options_;
  std::unique_ptr<StoreRegistry> store_;
};

// What the world was told to want of one key.
struct Want {
  std::optional<uint32_t> port;
  int owner = 0;  // local session by number; 0: none
  uint64_t version = 0;
  // While a checked intent is under way: what was wanted before it.
  bool checking = false;
  std::optional<uint32_t> before;
  int before_owner = 0;
};

struct Subscription {
  std::string service;
  std::shared_ptr<Listener> listener;
  std::unique_ptr<SubscribeStream> stream;
};

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
  std::string path() const { return path_ + "/state"; }

 private:
  std::string path_;
};

class Story {
 public:
  Story(uint32_t seed, bool real_store) : real_store_(real_store), random_(seed) {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(timer).value();
    if (real_store) {
      target_ = std::make_unique<StoreTarget>(timer_.get());
    } else {
      target_ = std::make_unique<ModelTarget>();
    }
    world_.target = [this] { return target_->registry(); };
    world_.timer = timer_.get();
    world_.random = &random_;
    world_.fault_percent = Pick(3) == 0 ? 0 : 5 + Pick(60);
    if (traced_) world_.trace = [this](const std::string& line) { Tell(line); };
    options_.upstream_name = "model";
    options_.incarnation = "inc";
    options_.max_local_ttl = absl::Hours(1);
    options_.timer = timer_.get();
    options_.random = [this] { return static_cast<double>(Pick(1000)) / 1000; };
    options_.max_calls_in_flight = 1 + Pick(4);
    world_.max_calls_in_flight = options_.max_calls_in_flight;
    options_.max_batch = 1 + Pick(5);
    options_.anti_entropy_interval = absl::Seconds(10);
    options_.empty_snapshot_hold = Pick(2) == 0 ? absl::ZeroDuration() : absl::Seconds(5);
    options_.stale_grace = absl::Milliseconds(Pick(2000));
    options_.session_ttl = absl::Seconds(10);
    if (Pick(3) == 0) options_.retry.retry_period = absl::Seconds(1);
    if (Pick(4) == 0) options_.retry.retry_times = Pick(3);
    if (Pick(4) == 0) {
      options_.retries_per_second = 5;
      options_.retry_burst = 2;
    }
    world_.down = Pick(4) == 0;
    rivals_ = Pick(4) == 0;
    if (rivals_ && Pick(2) == 0) options_.superseded_period = absl::Seconds(2);
    if (Pick(12) == 0) {
      options_.state_dir = dir_.emplace().path();
      options_.manual_journal = true;
    }
    options_.on_event = [this](const IntentEvent& event) {
      if (event.kind != IntentEvent::Kind::kSuperseded) return;
      Tell(absl::StrCat("  superseded: ", event.id));
      EXPECT_TRUE(rivals_) << event.id << " lost to nobody";
    };
    Start();
  }

  void Start() {
    auto registry = FailbackRegistry::Create(std::make_unique<FaultyLink>(&world_), options_);
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
  }

  void Run() {
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      Operate();
      clock_.Advance(absl::Milliseconds(Pick(4) == 0 ? Pick(5000) : Pick(200)));
      CheckInvariants();
    }
    Tell("faults stop");
    world_.fault_percent = 0;
    world_.down = false;
    rival_gone_ = rivals_ && Pick(2) == 0;
    if (rival_gone_) target_->EndRival();
    registry_->Retry({}).IgnoreError();
    // Late calls land for 20 s, a stream is retried after at most 30 s, the comparison comes every
    // 12.5 s at the latest; what parked while the faults still echoed is asked for once more.
    Settle(absl::Seconds(30));
    registry_->Retry({}).IgnoreError();
    target_->ForgetFences();
    // A rival's fence is there for a minute, and what it has refused is tried again within 35 s.
    Settle(absl::Seconds(rivals_ ? 110 : 70));
    CheckInvariants();
    CheckConverged();
    if (Pick(4) == 0) {
      Answer<agent::v1::DrainResponse> drained;
      registry_->Drain(absl::Seconds(10), drained.Catch());
      clock_.Advance(absl::Seconds(11));
      EXPECT_TRUE(drained.done());
      // What another hand has registered has no owner, and stays.
      if (!real_store_) {
        EXPECT_EQ(target_->Ports(), target_->Ports(kRival)) << "drained, and something is left";
      }
    }
    registry_.reset();
    EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % n); }

  void Settle(absl::Duration duration) {
    for (; duration > absl::ZeroDuration(); duration -= absl::Seconds(10)) {
      if (rivals_ && !rival_gone_) target_->RenewRival();
      clock_.Advance(absl::Seconds(10));
    }
  }

  void CheckInvariants() {
    const std::string wrong = FailbackRegistryPeer::CheckInvariants(*registry_);
    EXPECT_EQ(wrong, "");
    EXPECT_EQ(world_.violation, "");
  }

  static std::string Service(int index) { return absl::StrCat("s", index / kKeysPerService); }
  static ServiceInstance Instance(int index, uint32_t port) {
    return MakeInstance(absl::StrCat("i", index % kKeysPerService), port, Service(index));
  }

  // One line of the story, with FAILBACK_SEED.
  void Tell(const std::string& line) {
    if (!traced_) return;
    std::cerr << absl::FormatDuration(absl::Nanoseconds(clock_.NowNanos())) << " " << line << "\n";
  }

  void Operate() {
    const int key = Pick(kServices * kKeysPerService);
    const int operation = Pick(22);
    static const char* const kNames[] = {"register",       "register",
                                         "register",       "register",
                                         "register all",   "unregister",
                                         "unregister",     "unregister",
                                         "subscribe",      "end a subscription",
                                         "open a session", "close a session",
                                         "down or up",     "lose sessions",
                                         "wipe",           "backup or restore",
                                         "break streams",  "retry",
                                         "a hand removes", "a hand changes",
                                         "a rival",        "a crash"};
    Tell(absl::StrCat(kNames[operation], " ", Service(key), "/i", key % kKeysPerService));
    switch (operation) {
      case 0:
      case 1:
      case 2:
      case 3:
        return State({key}, 1 + Pick(3));
      case 4:
        return State({0, 1, 2, 3, 4, 5}, 1 + Pick(3));
      case 5:
      case 6:
      case 7:
        return State({key}, std::nullopt);
      case 8:
        return Subscribe(key);
      case 9:
        if (!subscriptions_.empty()) {
          auto& subscription = subscriptions_[Pick(static_cast<int>(subscriptions_.size()))];
          subscription.stream.reset();
          subscription.listener->gone = true;
        }
        return;
      case 10:
        return OpenSession();
      case 11:
        return CloseSession();
      case 12:
        world_.down = !world_.down;
        return;
      case 13:
        if (Pick(2) == 0) target_->LoseSessions();
        return;
      case 14:
        if (Pick(3) == 0) target_->Wipe();
        return;
      case 15:
        return Pick(2) == 0 ? target_->Backup() : target_->Restore();
      case 16:
        return target_->BreakStreams(Pick(2) == 0 ? absl::UnavailableError("reset")
                                                  : absl::InternalError("broken"));
      case 17:
        registry_->Retry({}).IgnoreError();
        return;
      case 18:
        return target_->HandRemove(Instance(key, 1).key());
      case 19:
        // A rival does not repair what is its own.
        if (target_->Ports(kRival).count(CanonicalKey(Instance(key, 1).key())) > 0) return;
        return target_->HandChange(Instance(key, 1).key(), 7);
      case 20:
        if (rivals_) target_->Rival(Instance(key, Pick(3) == 0 ? 0 : 9), ++rival_generation_);
        return;
      case 21:
        if (dir_.has_value()) Crash();
        return;
    }
  }

  // The process is gone and another takes its place: what it had accepted is in the journal.
  void Crash() {
    subscriptions_.clear();
    registry_.reset();
    for (auto& [key, want] : wants_) {
      if (!std::exchange(want.checking, false)) continue;
      want.port = want.before;  // a checked intent under way was never accepted
      want.owner = want.before_owner;
      want.version = ++last_version_;
    }
    Start();
    // Local clients come back with the same names.
    for (auto& [number, id] : sessions_) id = OpenSession(number);
  }

  // Registers with `port`, or unregisters.
  void State(const std::vector<int>& keys, std::optional<uint32_t> port) {
    int owner = 0;
    if (!sessions_.empty() && Pick(2) == 0) {
      owner = std::next(sessions_.begin(), Pick(static_cast<int>(sessions_.size())))->first;
    }
    // The answer to a batch tells too late when each of its items was decided.
    const bool check = keys.size() == 1 && Pick(6) == 0;
    const bool wait = check || Pick(4) == 0;
    std::vector<uint64_t> versions;
    for (const int key : keys) {
      Want& want = wants_[key];
      if (!check) {
        want.checking = false;
      } else if (!want.checking) {
        want.checking = true;
        want.before = want.port;
        want.before_owner = want.owner;
      }
      want.port = port;
      want.owner = owner;
      versions.push_back(want.version = ++last_version_);
      Tell(absl::StrCat("  ", Service(key), "/i", key % kKeysPerService, " port ", port.value_or(0),
                        " owner ", owner, check ? " checked" : ""));
    }
    ++waiting_;
    const auto done = [this, keys, versions, check](const absl::Status& call, const auto& results) {
      --waiting_;
      if (check) {
        Tell(absl::StrCat("  checked, ", call.ok() ? StatusFromProto(results[0].status()).ToString()
                                                   : call.ToString()));
      }
      if (!call.ok() && call.code() != absl::StatusCode::kCancelled) ADD_FAILURE() << call;
      if (!check || !call.ok()) return;
      for (size_t i = 0; i < keys.size(); ++i) {
        Want& want = wants_[keys[i]];
        if (want.version != versions[i] || !want.checking) continue;
        want.checking = false;
        const absl::Status status = StatusFromProto(results[i].status());
        // An unregister of what a rival holds is done.
        const bool gone = !want.port && ReasonOf(status) == registry::v1::ERROR_REASON_SUPERSEDED;
        if (status.ok() || gone) continue;
        const bool orphan = want.before_owner != 0 && sessions_.count(want.before_owner) == 0;
        want.port = orphan ? std::nullopt : want.before;
        want.owner = orphan ? 0 : want.before_owner;
      }
    };
    const std::string session = owner == 0 ? "" : sessions_[owner];
    const auto numbered = [&] { return owner != 0 && Pick(2) == 0 ? ++client_generation_ : 0; };
    const auto wait_for =
        wait ? registry::v1::INTENT_STATE_ACKNOWLEDGED : registry::v1::INTENT_STATE_UNSPECIFIED;
    if (port.has_value()) {
      RegisterRequest request;
      request.set_session_id(session);
      request.set_check(check);
      request.set_wait_for(wait_for);
      for (const int key : keys) {
        auto* registration = request.add_registrations();
        *registration->mutable_instance() = Instance(key, *port);
        registration->set_generation(numbered());
      }
      registry_->Register(request, [done](absl::StatusOr<RegisterResponse> response) {
        done(response.status(), response.ok() ? response->results() : RegisterResponse().results());
      });
    } else {
      UnregisterRequest request;
      request.set_session_id(session);
      request.set_check(check);
      request.set_wait_for(wait_for);
      for (const int key : keys) {
        auto* deregistration = request.add_deregistrations();
        *deregistration->mutable_key() = Instance(key, 1).key();
        deregistration->set_generation(numbered());
      }
      registry_->Unregister(request, [done](absl::StatusOr<UnregisterResponse> response) {
        done(response.status(),
             response.ok() ? response->results() : UnregisterResponse().results());
      });
    }
  }

  void Subscribe(int key) {
    SubscribeRequest request;
    request.mutable_selector()->set_service(Service(key));
    Subscription subscription;
    subscription.service = Service(key);
    subscription.listener = std::make_shared<Listener>();
    subscription.stream = registry_->Subscribe(request, subscription.listener);
    subscriptions_.push_back(std::move(subscription));
  }

  void OpenSession() {
    ++last_session_;
    sessions_[last_session_] = OpenSession(last_session_);
  }

  std::string OpenSession(int number) {
    OpenSessionRequest request;
    request.set_incarnation(absl::StrCat("client-", number));
    request.mutable_ttl()->set_seconds(3600);
    Answer<OpenSessionResponse> answer;
    registry_->OpenSession(request, answer.Catch());
    EXPECT_TRUE(answer.get().ok());
    return answer.get().ok() ? answer.get()->session_id() : "";
  }

  void CloseSession() {
    if (sessions_.empty()) return;
    const auto [number, id] =
        *std::next(sessions_.begin(), Pick(static_cast<int>(sessions_.size())));
    sessions_.erase(number);
    for (auto& [key, want] : wants_) {
      if (want.owner != number) continue;
      want.owner = 0;
      if (!want.port.has_value()) continue;
      want.port.reset();
      want.checking = false;
      want.version = ++last_version_;
    }
    CloseSessionRequest request;
    request.set_session_id(id);
    Answer<CloseSessionResponse> answer;
    registry_->CloseSession(request, answer.Catch());
    EXPECT_TRUE(answer.get().ok());
  }

  void CheckConverged() {
    std::map<std::string, uint32_t> wanted;
    for (const auto& [key, want] : wants_) {
      if (want.port.has_value()) wanted[CanonicalKey(Instance(key, 1).key())] = *want.port;
    }
    // What a rival holds is the rival's, and waited for by those of ours who lost it.
    const auto rivals = target_->Ports(kRival);
    if (rival_gone_) EXPECT_TRUE(rivals.empty());
    std::set<std::string> lost;
    for (const auto& [key, port] : rivals) {
      if (wanted.count(key) > 0) lost.insert(key);
      wanted[key] = port;
    }
    EXPECT_EQ(target_->Ports(), wanted);
    for (const auto& row : registry_->Pending()) {
      const bool superseded = row.state() == agent::v1::PENDING_STATE_SUPERSEDED &&
                              lost.erase(CanonicalKey(row.key())) > 0;
      EXPECT_TRUE(superseded) << "pending: " << row.ShortDebugString();
    }
    for (const auto& key : lost) ADD_FAILURE() << key << " is a rival's, and not waited for";
    EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
    for (const auto& subscription : subscriptions_) {
      if (subscription.stream == nullptr) continue;
      std::map<std::string, uint32_t> expected;
      for (const auto& [key, port] : wanted) {
        InstanceKey parsed;
        ParseCanonicalKey(key, &parsed);
        if (parsed.service() == subscription.service) expected[key] = port;
      }
      EXPECT_TRUE(subscription.listener->model.known());
      EXPECT_FALSE(subscription.listener->model.stale());
      EXPECT_FALSE(subscription.listener->ended);
      EXPECT_EQ(subscription.listener->model.state(), expected);
    }
  }

  std::optional<StateFolder> dir_;  // destroyed last
  const bool traced_ = std::getenv("FAILBACK_SEED") != nullptr;
  const bool real_store_;
  std::mt19937 random_;
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<Target> target_;
  LinkWorld world_;
  FailbackRegistry::Options options_;
  std::map<int, Want> wants_;
  std::map<int, std::string> sessions_;
  int last_session_ = 0;
  uint64_t client_generation_ = 0;
  uint64_t last_version_ = 0;
  bool rivals_ = false;
  bool rival_gone_ = false;
  uint64_t rival_generation_ = 0;
  int waiting_ = 0;
  std::vector<Subscription> subscriptions_;
  std::unique_ptr<FailbackRegistry> registry_;
};

// In blocks, which Bazel spreads over its shards.
constexpr int kBlocks = 8;

class FailbackModelTest : public testing::TestWithParam<int> {
 protected:
  // What the core has to say about repairs is expected here.
  FailbackModelTest() {
    SetLogSink(LogLevel::kError, [](LogLevel, const std::string&, const LogFields&) {});
  }
  ~FailbackModelTest() override { SetLogSink(LogLevel::kWarning, nullptr); }
};

TEST_P(FailbackModelTest, TheRegistryHoldsTheLastIntentsWhenFaultsStop) {
  RunSeeds(10000, {kBlocks, GetParam()},
           [](uint32_t seed) { Story(seed, /*real_store=*/false).Run(); });
}

TEST_P(FailbackModelTest, TheStoreHoldsTheLastIntentsWhenFaultsStop) {
  RunSeeds(2000, {kBlocks, GetParam()},
           [](uint32_t seed) { Story(seed, /*real_store=*/true).Run(); });
}

INSTANTIATE_TEST_SUITE_P(Seeds, FailbackModelTest, testing::Range(0, kBlocks));

}  // namespace
}  // namespace failback
