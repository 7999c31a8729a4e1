// The stories of model_story.h played by FailbackRegistry, with its journal on a disk, over a link
// on the timer's wheel; also against the real store. machine_model_test plays many more of them.
//
// FAILBACK_SEED=n runs one seed; FAILBACK_SEEDS=n as many from FAILBACK_FIRST_SEED (default 1).

#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/canonical.h"
#include "registry/store/store_registry.h"
#include "retry/simulated_clock.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/faulty_link.h"
#include "tests/registry/failback/model_story.h"
#include "tests/registry/failback/seeds.h"
#include "tests/registry/failback/subscriber_model.h"

namespace failback {
namespace {

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
    // A session of the same incarnation is the one that is there: ended by a concurrent writer.
    OpenSessionRequest open;
    open.set_incarnation("inc");
    std::string id;
    store_->OpenSession(open, [&](absl::StatusOr<OpenSessionResponse> response) {
      if (response.ok()) id = response->session_id();
    });
    CloseSessionRequest close;
    close.set_session_id(id);
    store_->CloseSession(close, [](const absl::StatusOr<CloseSessionResponse>&) {});
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
    store_->Unregister(request, [](const absl::StatusOr<UnregisterResponse>&) {});
  }
  void HandChange(const InstanceKey& key, uint32_t port) override {
    if (Ports("").count(CanonicalKey(key)) == 0) return;
    RegisterRequest request;
    auto* instance = request.add_registrations()->mutable_instance();
    *instance = MakeInstance(key.instance_id(), port, key.service());
    store_->Register(request, [](const absl::StatusOr<RegisterResponse>&) {});
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

class Listener final : public NotifyListener {
 public:
  explicit Listener(std::shared_ptr<SubscriberModel> model) : model_(std::move(model)) {}
  void OnEvent(const EventPtr& event) override { model_->Hear(*event); }
  void OnEnd(const absl::Status& status) override { model_->End(); }

 private:
  const std::shared_ptr<SubscriberModel> model_;
};

class ShellSubject final : public Subject {
 public:
  explicit ShellSubject(bool real_store) {
    HashedWheelTimer::Options timer;
    timer.clock = &clock_;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(timer).value();
    if (real_store) {
      target_ = std::make_unique<StoreTarget>(timer_.get());
    } else {
      target_ = std::make_unique<ModelTarget>();
    }
    world.timer = timer_.get();
  }

  void Start() override {
    FailbackRegistry::Options all;
    static_cast<FailbackOptions&>(all) = options;
    all.timer = timer_.get();
    all.on_event = on_event;
    if (journal) {
      if (!folder_.has_value()) folder_.emplace();
      all.state_dir = folder_->path();
      all.manual_journal = true;
    }
    auto registry = FailbackRegistry::Create(std::make_unique<FaultyLink>(&world), all);
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
  }
  void Crash() override {
    registry_.reset();
    Start();
  }
  void End() override { registry_.reset(); }
  Target* target() override { return target_.get(); }
  int64_t NowNanos() override { return clock_.NowNanos(); }
  void Advance(absl::Duration duration) override { clock_.Advance(duration); }

  void Write(Batch batch, Done done) override {
    registry_->Write(std::move(batch), [done](absl::StatusOr<BatchResult> result) {
      done(result.status(),
           result.ok() ? result->results : std::vector<registry::v1::IntentResult>());
    });
  }
  std::string OpenSession(const OpenSessionRequest& request) override {
    Answer<OpenSessionResponse> answer;
    registry_->OpenSession(request, answer.Catch());
    return answer.get().ok() ? answer.get()->session_id() : "";
  }
  absl::Status CloseSession(const std::string& id) override {
    CloseSessionRequest request;
    request.set_session_id(id);
    Answer<CloseSessionResponse> answer;
    registry_->CloseSession(request, answer.Catch());
    return answer.get().status();
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<SubscriberModel> model) override {
    return registry_->Subscribe(request, std::make_shared<Listener>(std::move(model)));
  }
  void RetryAll() override { registry_->Retry({}).IgnoreError(); }
  void Drain(absl::Duration deadline, std::function<void()> done) override {
    registry_->Drain(deadline, [done](const absl::StatusOr<agent::v1::DrainResponse>&) { done(); });
  }
  std::vector<agent::v1::PendingOperation> Pending() override { return registry_->Pending(); }
  std::string CheckInvariants() override {
    return FailbackRegistryPeer::CheckInvariants(*registry_);
  }

 private:
  std::optional<StateFolder> folder_;  // destroyed last
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<Target> target_;
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

  static void Play(uint32_t seed, bool real_store) {
    ShellSubject subject(real_store);
    Story(seed, &subject, real_store).Run();
  }
};

TEST_P(FailbackModelTest, TheRegistryHoldsTheLastIntentsWhenFaultsStop) {
  RunSeeds(2000, {kBlocks, GetParam()}, [](uint32_t seed) { Play(seed, /*real_store=*/false); });
}

TEST_P(FailbackModelTest, TheStoreHoldsTheLastIntentsWhenFaultsStop) {
  RunSeeds(2000, {kBlocks, GetParam()}, [](uint32_t seed) { Play(seed, /*real_store=*/true); });
}

INSTANTIATE_TEST_SUITE_P(Seeds, FailbackModelTest, testing::Range(0, kBlocks));

}  // namespace
}  // namespace failback
