// An agent's core over a real etcd, with its intents, and one that follows: whatever is done to the
// cluster, afterwards etcd has to hold exactly the last intents, and the follower to know them.
//
//   EtcdWorld world(etcd);
//   world.RegisterMany(40);
//   … something happens …
//   world.Churn();
//   world.ExpectLastIntents();
//
// Thread safety: of one thread.

#ifndef FAILBACK_TESTS_REGISTRY_ETCD_ETCD_WORLD_H_
#define FAILBACK_TESTS_REGISTRY_ETCD_ETCD_WORLD_H_

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "registry/failback/failback_registry.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/registry/message_listener.h"
#include "tests/util/daemons.h"

namespace failback {

// What a subscriber of a FailbackRegistry knows: as FakeSubscriber, with "stale" and new epochs.
class EtcdFollower : public MessageListener {
 public:
  void OnMessage(const MessagePtr& event) override {
    std::lock_guard<std::mutex> lock(mu_);
    stale_ = event->stale();
    if (event->has_snapshot()) {
      if (!in_parts_) known_.clear();
      in_parts_ = event->snapshot().more();
      for (const auto& instance : event->snapshot().instances()) Put(instance);
    } else if (event->has_delta()) {
      for (const auto& instance : event->delta().upserts()) Put(instance);
      for (const auto& key : event->delta().removals()) known_.erase(key.instance_id());
    }
  }
  void OnEnd(const absl::Status& status) override { ADD_FAILURE() << "ended: " << status; }

  std::map<std::string, uint32_t> known() const {
    std::lock_guard<std::mutex> lock(mu_);
    return stale_ ? std::map<std::string, uint32_t>{{"stale", 0}} : known_;
  }

 private:
  void Put(const ServiceInstance& instance) {
    known_[instance.key().instance_id()] = instance.port();
  }

  mutable std::mutex mu_;
  std::map<std::string, uint32_t> known_;
  bool stale_ = false;
  bool in_parts_ = false;
};

// An agent's core over etcd, with its intents; a second one that follows.
class EtcdWorld {
 public:
  explicit EtcdWorld(const EtcdCluster& etcd, absl::Duration ttl = absl::Seconds(3))
      : etcd_(etcd), prefix_(NewPrefix()), timer_(NewTimer(kTestTick)), judge_(etcd, prefix_) {
    judge_.options().client.call_timeout = kProcessTimeout;
    judge_.Open();
    agent_ = NewCore("agent", ttl);
    reader_ = NewCore("reader", ttl);
    SubscribeRequest request;
    request.mutable_selector()->set_service("s");
    stream_ = reader_->Subscribe(request, follower_);
  }

  const std::string& prefix() const { return prefix_; }
  EtcdHarness& judge() { return judge_; }
  FailbackRegistry& agent() { return *agent_; }

  // States an intent.
  void Register(const std::string& id, uint32_t port) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = MakeInstance("s", id, port);
    agent_->Register(request, [](const absl::StatusOr<RegisterResponse>& response) {
      EXPECT_TRUE(response.ok()) << response.status();
    });
    intents_[id] = port;
  }
  void Unregister(const std::string& id) {
    UnregisterRequest request;
    *request.add_deregistrations()->mutable_key() = MakeInstance("s", id).key();
    agent_->Unregister(request, [](const absl::StatusOr<UnregisterResponse>& response) {
      EXPECT_TRUE(response.ok()) << response.status();
    });
    intents_.erase(id);
  }
  void RegisterMany(int count) {
    for (int i = 0; i < count; ++i) Register(absl::StrCat("i", i), 1000);
  }
  // A few intents of each kind, as happen at any time.
  void Churn() {
    for (int i = 0; i < 20; ++i) {
      const std::string id = absl::StrCat("i", random_() % 60);
      if (random_() % 3 == 0) {
        Unregister(id);
      } else {
        Register(id, 1 + random_() % 60000);
      }
    }
  }

  // Etcd has the last intents and nothing else, and so has the subscriber.
  void ExpectLastIntents() {
    std::map<std::string, uint32_t> listed;
    const auto as_intended = [&] {
      ListRequest request;
      request.mutable_selector()->set_service("s");
      auto response = CallAndWait<ListResponse>(*judge_, &Registry::List, request);
      if (!response.ok()) return false;
      listed.clear();
      for (const auto& record : response->records()) {
        listed[record.instance().key().instance_id()] = record.instance().port();
      }
      return listed == intents_ && agent_->Pending().empty();
    };
    if (!Eventually(as_intended, absl::Seconds(60))) {
      EXPECT_EQ(listed, intents_);
      for (const auto& pending : agent_->Pending()) ADD_FAILURE() << pending.ShortDebugString();
    }
    if (!Eventually([&] { return follower_->known() == intents_; }, absl::Seconds(60))) {
      EXPECT_EQ(follower_->known(), intents_);
    }
  }

 private:
  std::unique_ptr<FailbackRegistry> NewCore(const std::string& name, absl::Duration ttl) {
    FailbackRegistry::Options options;
    options.upstream_name = "etcd";
    options.client_name = name;
    options.session_ttl = ttl;
    options.anti_entropy_interval = absl::Milliseconds(500);
    options.retry.backoff = {absl::Milliseconds(50), 2.0, absl::Seconds(1), 1.0};
    options.timer = timer_.get();
    EtcdRegistry::Options etcd = EtcdTestOptions(etcd_, prefix_, timer_.get());
    etcd.client.call_timeout = absl::Seconds(3);
    etcd.watch_outage_limit = absl::Seconds(3);
    return FailbackRegistry::Create(std::make_unique<EtcdRegistry>(std::move(etcd)),
                                    std::move(options))
        .value();
  }

  const EtcdCluster& etcd_;
  const std::string prefix_;
  const std::unique_ptr<HashedWheelTimer> timer_;
  EtcdHarness judge_;
  std::mt19937 random_{std::random_device()()};
  std::map<std::string, uint32_t> intents_;
  const std::shared_ptr<EtcdFollower> follower_ = std::make_shared<EtcdFollower>();
  std::unique_ptr<FailbackRegistry> agent_;
  std::unique_ptr<FailbackRegistry> reader_;
  std::unique_ptr<SubscribeStream> stream_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_ETCD_ETCD_WORLD_H_
