// Many threads state intents for the same keys while a registry flaps and answers from threads of
// its own. Real time; meant for the sanitizers.

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "registry/failback/failback_group.h"
#include "retry/executor.h"
#include "tests/registry/failback/failback_fixture.h"
#include "tests/registry/failback/subscriber_model.h"
#include "tests/registry/message_listener.h"
#include "tests/util/batch_requests.h"
#include "tests/util/forwarding_registry.h"

namespace failback {
namespace {

constexpr int kThreads = 4;
constexpr int kKeys = 6;
constexpr int kSteps = 150;
// Generous: only something broken takes this long.
constexpr absl::Duration kDeadline = absl::Seconds(60);

// Keeps what is registered, fails every now and then, and answers from a pool of threads.
class FlappingRegistry final : public Registry {
 public:
  explicit FlappingRegistry(uint32_t seed) : random_(seed) {}
  ~FlappingRegistry() override {
    pool_.reset();  // every answer is given
    std::set<Stream*> streams;
    MutexLock lock(&mu_);
    for (Stream* stream : streams_) stream->registry = nullptr;
  }

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override {
    OpenSessionResponse response;
    {
      MutexLock lock(&mu_);
      session_ = absl::StrCat("session-", ++sessions_);
      held_.clear();
      response.set_session_id(session_);
    }
    response.mutable_ttl()->set_nanos(60000000);
    response.set_rank(1);
    response.set_epoch(1);
    Answer<OpenSessionResponse>(std::move(response), std::move(done));
  }
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override {
    KeepAliveResponse response;
    response.set_epoch(1);
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (request.session_id() != session_ || (flapping_ && random_() % 20 == 0)) {
        session_.clear();
        status = SessionUnknown();
      }
    }
    if (!status.ok()) return Answer<KeepAliveResponse>(status, std::move(done));
    Answer<KeepAliveResponse>(std::move(response), std::move(done));
  }
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override {
    Answer<CloseSessionResponse>(CloseSessionResponse(), std::move(done));
  }
  void Write(Batch batch, Callback<BatchResult> done) override {
    WriteInMessages(
        batch, std::move(done),
        [this](const auto& request, auto done) { Register(request, std::move(done)); },
        [this](const auto& request, auto done) { Unregister(request, std::move(done)); });
  }
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override {
    auto notifier = std::make_shared<SerialNotifier>(std::move(listener));
    auto stream = std::make_unique<Stream>(this, notifier);
    const absl::Status status = Fail();
    if (!status.ok()) {
      notifier->PostEnd(status);
    } else {
      MutexLock lock(&mu_);
      streams_.insert(stream.get());
      ++revision_;
      notifier->Post(EventOf(SnapshotEvent(revision_, {MakeInstance("x", 1 + revision_ % 1000)})));
    }
    pool_->Execute([notifier] { notifier->Deliver(); });
    return stream;
  }
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override {
    Answer<UnsubscribeResponse>(UnsubscribeResponse(), std::move(done));
  }
  void List(const ListRequest& request, Callback<ListResponse> done) override {
    Answer<ListResponse>(absl::UnavailableError("no lists"), std::move(done));
  }

  void Settle() {
    MutexLock lock(&mu_);
    flapping_ = false;
  }
  void BreakStreams() {
    std::vector<std::shared_ptr<SerialNotifier>> notifiers;
    {
      MutexLock lock(&mu_);
      for (Stream* stream : streams_) notifiers.push_back(stream->notifier);
    }
    for (const auto& notifier : notifiers) {
      notifier->PostEnd(absl::UnavailableError("broken"));
      pool_->Execute([notifier] { notifier->Deliver(); });
    }
  }
  std::map<std::string, uint32_t> ports() {
    MutexLock lock(&mu_);
    std::map<std::string, uint32_t> ports;
    for (const auto& [id, held] : held_) {
      if (held.second != 0) ports[id] = held.second;
    }
    return ports;
  }

 private:
  void Register(const RegisterRequest& request, Callback<RegisterResponse> done) {
    RegisterResponse response;
    absl::Status status = Fail();
    {
      MutexLock lock(&mu_);
      if (request.session_id() != session_) status = SessionUnknown();
      for (const auto& registration : request.registrations()) {
        response.add_results();
        if (!status.ok()) continue;
        auto& [generation, port] = held_[registration.instance().key().instance_id()];
        if (registration.generation() < generation) continue;
        generation = registration.generation();
        port = registration.instance().port();
      }
    }
    if (!status.ok()) return Answer<RegisterResponse>(status, std::move(done));
    Answer<RegisterResponse>(std::move(response), std::move(done));
  }
  void Unregister(const UnregisterRequest& request, Callback<UnregisterResponse> done) {
    UnregisterResponse response;
    absl::Status status = Fail();
    {
      MutexLock lock(&mu_);
      if (request.session_id() != session_) status = SessionUnknown();
      for (const auto& deregistration : request.deregistrations()) {
        response.add_results();
        if (!status.ok()) continue;
        auto& [generation, port] = held_[deregistration.key().instance_id()];
        if (deregistration.generation() < generation) continue;
        generation = deregistration.generation();
        port = 0;
      }
    }
    if (!status.ok()) return Answer<UnregisterResponse>(status, std::move(done));
    Answer<UnregisterResponse>(std::move(response), std::move(done));
  }
  struct Stream final : public SubscribeStream {
    Stream(FlappingRegistry* r, std::shared_ptr<SerialNotifier> n)
        : registry(r), notifier(std::move(n)) {}
    ~Stream() override {
      if (registry != nullptr) {
        MutexLock lock(&registry->mu_);
        registry->streams_.erase(this);
      }
      notifier->Close();
    }
    FlappingRegistry* registry;
    const std::shared_ptr<SerialNotifier> notifier;
  };

  absl::Status Fail() {
    MutexLock lock(&mu_);
    if (!flapping_ || random_() % 4 != 0) return absl::OkStatus();
    return random_() % 2 == 0 ? absl::UnavailableError("flap") : absl::InternalError("flap");
  }

  // Half of them at once on the caller's thread, half from the pool.
  template <typename Response>
  void Answer(absl::StatusOr<Response> response, Callback<Response> done) {
    bool inline_answer;
    {
      MutexLock lock(&mu_);
      inline_answer = random_() % 2 == 0;
    }
    if (inline_answer) return std::move(done)(std::move(response));
    pool_->Execute([response = std::move(response), done = std::move(done)]() mutable {
      std::move(done)(std::move(response));
    });
  }

  Mutex mu_;
  std::mt19937 random_ ABSL_GUARDED_BY(mu_);
  bool flapping_ ABSL_GUARDED_BY(mu_) = true;
  int sessions_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  std::string session_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::pair<uint64_t, uint32_t>> held_ ABSL_GUARDED_BY(mu_);
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ThreadPool> pool_ = std::make_unique<ThreadPool>(2);
};

class Listener final : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    const bool busy = busy_.exchange(true);
    EXPECT_FALSE(busy) << "two calls of one listener at once";
    EXPECT_FALSE(gone) << "a call after the stream was destroyed";
    model_.Hear(*event);
    busy_ = false;
  }
  void OnEnd(const absl::Status&) override { EXPECT_FALSE(gone); }
  std::atomic<bool> gone{false};

 private:
  std::atomic<bool> busy_{false};
  SubscriberModel model_;
};

class FailbackStressTest : public testing::Test {
 protected:
  FailbackStressTest() {
    const char* const text = std::getenv("FAILBACK_SEED");
    seed_ = text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : std::random_device()();
    std::cerr << "FAILBACK_SEED=" << seed_ << "\n";
    HashedWheelTimer::Options timer;
    timer.tick_duration = absl::Milliseconds(1);
    timer_ = HashedWheelTimer::Create(std::move(timer)).value();
    options_.upstream_name = "flapping";
    options_.timer = timer_.get();
    options_.max_batch = 3;
    options_.max_calls_in_flight = 3;
    options_.retry.backoff = {absl::Milliseconds(1), 2.0, absl::Milliseconds(20), 1.0};
    options_.reconnect = {absl::Milliseconds(1), 2.0, absl::Milliseconds(10), 0.2};
    options_.anti_entropy_interval = absl::Milliseconds(50);
    options_.stale_grace = absl::Milliseconds(3);
    options_.empty_snapshot_hold = absl::Milliseconds(5);
    options_.on_event = [this](const IntentEvent&) { ++events_; };
    auto upstream = std::make_unique<FlappingRegistry>(seed_);
    flapping_ = upstream.get();
    registry_ = FailbackRegistry::Create(std::move(upstream), options_).value();
  }

  // One thread's share: it owns the keys whose number leaves its own in remainder, and meddles
  // with all before that.
  void Work(int thread, bool own_only, std::map<std::string, uint32_t>* last) {
    std::mt19937 random(seed_ + thread + (own_only ? 100 : 0));
    std::unique_ptr<SubscribeStream> stream;
    std::shared_ptr<Listener> listener;
    for (int step = 0; step < kSteps; ++step) {
      const int key = own_only ? thread : static_cast<int>(random() % kKeys);
      const std::string id = absl::StrCat("i", key);
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          const uint32_t port = 1 + random() % 3;
          RegisterRequest request = MakeRegister({MakeInstance(id, port)});
          request.set_check(!own_only && random() % 8 == 0);
          if (random() % 4 == 0) request.set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
          ++waiting_;
          registry_->Register(request, [this](absl::StatusOr<RegisterResponse>) { --waiting_; });
          (*last)[id] = port;
          break;
        }
        case 3:
        case 4:
          ++waiting_;
          registry_->Unregister(MakeUnregister(id),
                                [this](absl::StatusOr<UnregisterResponse>) { --waiting_; });
          last->erase(id);
          break;
        case 5: {
          SubscribeRequest request;
          request.mutable_selector()->set_service("orders");
          stream.reset();
          if (listener != nullptr) listener->gone = true;
          listener = std::make_shared<Listener>();
          stream = registry_->Subscribe(request, listener);
          break;
        }
        case 6:
          flapping_->BreakStreams();
          break;
        case 7: {
          registry_->Retry({}).IgnoreError();
          const std::string wrong = FailbackRegistryPeer::CheckInvariants(*registry_);
          EXPECT_EQ(wrong, "");
          registry_->Pending();
          registry_->UpstreamStatus();
          registry_->List(ListRequest(), [](absl::StatusOr<ListResponse>) {});
          break;
        }
      }
    }
    stream.reset();
    if (listener != nullptr) listener->gone = true;
  }

  void RunThreads(bool own_only, std::vector<std::map<std::string, uint32_t>>* lasts) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, i, own_only, lasts] { Work(i, own_only, &(*lasts)[i]); });
    }
    for (auto& thread : threads) thread.join();
  }

  uint32_t seed_;
  std::atomic<int> waiting_{0};
  std::atomic<int> events_{0};
  FailbackRegistry::Options options_;
  std::unique_ptr<HashedWheelTimer> timer_;
  FlappingRegistry* flapping_;
  std::unique_ptr<FailbackRegistry> registry_;
};

TEST_F(FailbackStressTest, ConvergesToTheLastIntents) {
  std::vector<std::map<std::string, uint32_t>> lasts(kThreads);
  RunThreads(/*own_only=*/false, &lasts);
  // Nobody knows who was last with a key that all have touched: now each has its own, and the rest
  // go.
  lasts.assign(kThreads, {});
  for (int key = 0; key < kKeys; ++key) {
    ++waiting_;
    registry_->Unregister(MakeUnregister(absl::StrCat("i", key)),
                          [this](absl::StatusOr<UnregisterResponse>) { --waiting_; });
  }
  RunThreads(/*own_only=*/true, &lasts);
  std::map<std::string, uint32_t> wanted;
  for (const auto& last : lasts) wanted.insert(last.begin(), last.end());
  flapping_->Settle();
  const absl::Time deadline = absl::Now() + kDeadline;
  while ((!registry_->Pending().empty() || waiting_ > 0 || flapping_->ports() != wanted) &&
         absl::Now() < deadline) {
    registry_->Retry({}).IgnoreError();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(flapping_->ports(), wanted);
  EXPECT_EQ(registry_->Pending().size(), 0);
  EXPECT_EQ(waiting_, 0);
  EXPECT_GT(events_, 0);
}

TEST_F(FailbackStressTest, DestructionAmidEverything) {
  std::vector<std::map<std::string, uint32_t>> lasts(kThreads);
  RunThreads(/*own_only=*/false, &lasts);
  registry_.reset();
  EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
  EXPECT_EQ(timer_->pending(), 0);
}

// A Shutdown from within a callback waits for no other thread: a call that has entered by then is
// answered all the same, and so is a subscriber.
TEST_F(FailbackStressTest, ShutdownFromWithinACallbackLeavesNobodyWaiting) {
  struct Ends final : public NotifyListener {
    explicit Ends(std::atomic<int>* waiting) : waiting(waiting) {}
    void OnEvent(const EventPtr&) override {}
    void OnEnd(const absl::Status&) override { --*waiting; }
    std::atomic<int>* const waiting;
  };
  for (int round = 0; round < 100; ++round) {
    FlappingRegistry upstream(seed_ + round);
    // A callback may end the registry: the upstream's threads must not end on themselves.
    registry_ =
        FailbackRegistry::Create(std::make_unique<ForwardingRegistry>(&upstream), options_).value();
    std::atomic<int> subscribed{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        SubscribeRequest request;
        request.mutable_selector()->set_service("orders");
        std::vector<std::unique_ptr<SubscribeStream>> streams;
        for (int step = 0; step < 20; ++step) {
          ++waiting_;
          registry_->Register(MakeRegister({MakeInstance(absl::StrCat("i", thread))}),
                              [this, ends = thread == 0 && step == 3](auto) {
                                if (ends) registry_->Shutdown();
                                --waiting_;
                              });
          ++subscribed;
          streams.push_back(registry_->Subscribe(request, std::make_shared<Ends>(&subscribed)));
        }
        // Those that are open are ended by the Shutdown.
        const absl::Time deadline = absl::Now() + kDeadline;
        while (subscribed > 0 && absl::Now() < deadline) std::this_thread::yield();
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(subscribed, 0) << "subscribers that were never told, round " << round;
    registry_.reset();
    ASSERT_EQ(waiting_, 0) << "callbacks that never ran, round " << round;
  }
}

// Two subscribers on two threads, each of which ends the other one's subscription, and with it the
// upstream's stream that the other thread is in.
TEST_F(FailbackStressTest, TwoListenersMayEndEachOthersSubscriptions) {
  registry_.reset();
  FakeRegistry upstream;
  registry_ =
      FailbackRegistry::Create(std::make_unique<ForwardingRegistry>(&upstream), options_).value();
  OpenSessionRequest open;
  open.set_incarnation("client");
  open.mutable_ttl()->set_seconds(600);
  Answer<OpenSessionResponse> opened;
  registry_->OpenSession(open, opened.Catch());
  ASSERT_TRUE(opened.get().ok());
  const std::string session = opened.get()->session_id();
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> inside{0};
    const auto subscribe = [&](int i) {
      SubscribeRequest request;
      request.set_session_id(session);
      request.set_subscription_id(absl::StrCat("s", i));
      request.set_generation(2 * round + 1);
      request.mutable_selector()->set_service(absl::StrCat("service-", i));
      return registry_->Subscribe(request,
                                  std::make_shared<RecordingListener>([&, i](const MessagePtr&) {
                                    ++inside;
                                    while (inside < 2) std::this_thread::yield();
                                    UnsubscribeRequest other;
                                    other.set_session_id(session);
                                    other.set_subscription_id(absl::StrCat("s", 1 - i));
                                    other.set_generation(2 * round + 2);
                                    registry_->Unsubscribe(other, [](auto) {});
                                  }));
    };
    const auto one = subscribe(0);
    const auto two = subscribe(1);
    const auto at_one = upstream.WaitForSubscription(2 * round);
    const auto at_two = upstream.WaitForSubscription(2 * round + 1);
    ASSERT_NE(at_one, nullptr);
    ASSERT_NE(at_two, nullptr);
    std::thread other([&] { at_one->Push(SnapshotEvent(1, {})); });
    at_two->Push(SnapshotEvent(1, {}));
    other.join();
    EXPECT_TRUE(at_one->WaitForCancel());
    EXPECT_TRUE(at_two->WaitForCancel());
  }
}

// Two upstreams that flap, one subscriber that follows both: merged streams come from both pools.
TEST_F(FailbackStressTest, AGroupOnManyThreads) {
  registry_.reset();
  std::vector<FailbackGroup::Upstream> upstreams;
  std::vector<FlappingRegistry*> flapping;
  for (const char* name : {"old", "new"}) {
    auto upstream = std::make_unique<FlappingRegistry>(seed_ + flapping.size());
    flapping.push_back(upstream.get());
    upstreams.push_back({name, name, std::move(upstream)});
  }
  auto group = FailbackGroup::Create(std::move(upstreams), options_).value();
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::unique_ptr<SubscribeStream>> streams;  // outlive the group
  for (int i = 0; i < kThreads; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    SubscribeRequest request;
    request.mutable_selector()->set_service("orders");
    streams.push_back(group->Subscribe(request, listeners.back()));
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(seed_ + thread);
      for (int step = 0; step < kSteps; ++step) {
        const std::string id = absl::StrCat("i", random() % kKeys);
        SubscribeRequest request;
        request.mutable_selector()->set_service("orders");
        ++waiting_;
        switch (random() % 5) {
          case 0:
          case 1:
            group->Register(MakeRegister({MakeInstance(id, 1 + random() % 3)}),
                            [this](absl::StatusOr<RegisterResponse>) { --waiting_; });
            break;
          case 2:
            group->Unregister(MakeUnregister(id),
                              [this](absl::StatusOr<UnregisterResponse>) { --waiting_; });
            break;
          case 3: {
            if (random() % 3 == 0) request.set_upstream("new");
            auto listener = std::make_shared<Listener>();
            group->Subscribe(request, listener).reset();
            listener->gone = true;
            --waiting_;
            break;
          }
          case 4:
            flapping[random() % 2]->BreakStreams();
            group->Retry(agent::v1::PendingSelector()).IgnoreError();
            group->List(ListRequest(), [this](absl::StatusOr<ListResponse>) { --waiting_; });
            break;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  group.reset();
  for (const auto& listener : listeners) listener->gone = true;
  EXPECT_EQ(waiting_, 0) << "callbacks that never ran";
  streams.clear();
  EXPECT_EQ(timer_->pending(), 0);
}

}  // namespace
}  // namespace failback
