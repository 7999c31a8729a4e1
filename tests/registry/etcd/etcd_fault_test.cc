// The failback core on a real etcd of three members: whatever is done to the cluster, afterwards
// the registry holds exactly the last intents, and the subscriber knows them.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "registry/failback_registry.h"
#include "registry/proto_time.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

// What a subscriber of a FailbackRegistry knows: as FakeSubscriber, with "stale" and new epochs.
class Follower : public NotifyListener {
 public:
  void OnNotify(const std::shared_ptr<const SubscribeResponse>& event) override {
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
class World {
 public:
  explicit World(const EtcdCluster& etcd, absl::Duration ttl = absl::Seconds(3))
      : etcd_(etcd), prefix_(NewPrefix()), timer_(NewTestTimer()), judge_(etcd, prefix_) {
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
  const std::shared_ptr<Follower> follower_ = std::make_shared<Follower>();
  std::unique_ptr<FailbackRegistry> agent_;
  std::unique_ptr<FailbackRegistry> reader_;
  std::unique_ptr<SubscribeStream> stream_;
};

class EtcdFaultTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EtcdCluster::Options options;
    options.members = 3;
    options.arguments = {"--quota-backend-bytes", "16777216"};
    etcd_ = new EtcdCluster(options);
  }
  static void TearDownTestSuite() {
    delete etcd_;
    etcd_ = nullptr;
  }
  void TearDown() override {
    for (int i = 0; i < etcd().size(); ++i) {
      if (!etcd().running(i)) etcd().Start(i);
    }
    etcd().WaitUntilServing();
  }
  static EtcdCluster& etcd() { return *etcd_; }
  static int AFollower() {
    const int leader = etcd().WaitForLeader();
    return (leader + 1) % etcd().size();
  }

 private:
  static EtcdCluster* etcd_;
};

EtcdCluster* EtcdFaultTest::etcd_ = nullptr;

TEST_F(EtcdFaultTest, LeaderKilled) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  etcd().Kill(etcd().WaitForLeader());
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, FollowerKilled) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  etcd().Kill(AFollower());
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, MemberAfterMemberKilledInTheMiddleOfEverything) {
  World world(etcd());
  world.RegisterMany(40);
  for (int member = 0; member < etcd().size(); ++member) {
    world.Churn();
    etcd().Kill(member);
    world.Churn();
    world.ExpectLastIntents();
    etcd().Start(member);
    etcd().WaitUntilServing();
  }
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AllKilledAndRestarted) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  world.Churn();
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AConnectionThatBreaksWhileNothingIsAskedIsTold) {
  const auto timer = NewTestTimer();
  EtcdRegistry registry(EtcdTestOptions(etcd(), NewPrefix(), timer.get()));
  std::atomic<int> breaks{0};
  registry.SetDisconnectListener([&](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    ++breaks;
  });
  OpenSessionRequest open;
  open.set_incarnation("idle");
  *open.mutable_ttl() = ToProto(absl::Minutes(10));  // no renewal comes to tell instead
  const auto session = CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, open);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(breaks, 0);
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  EXPECT_TRUE(Eventually([&] { return breaks > 0; }));
  // Once it is back the same session goes on, and the next break is told too.
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  etcd().WaitUntilServing();
  const auto again = CallAndWait<OpenSessionResponse>(registry, &Registry::OpenSession, open);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->session_id(), session->session_id());
  const int before = breaks;
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  EXPECT_TRUE(Eventually([&] { return breaks > before; }));
}

TEST_F(EtcdFaultTest, MemberStoppedForLongerThanTheTtl) {
  World world(etcd(), absl::Seconds(1));
  world.RegisterMany(40);
  world.ExpectLastIntents();
  const int stopped = etcd().WaitForLeader();
  etcd().Signal(stopped, SIGSTOP);
  world.Churn();
  // The session is renewed at another member: a lease of one that is not renewed ends meanwhile.
  const std::string witness = world.judge().Session("witness", absl::Seconds(5));
  EXPECT_TRUE(world.judge().Register(witness, MakeInstance("w", "1"), 1).ok());
  EXPECT_TRUE(Eventually([&] { return world.judge().Ids("w").empty(); }));
  world.ExpectLastIntents();
  etcd().Signal(stopped, SIGCONT);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, CompactionInTheMiddleOfAWatch) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  // Those who follow are away, what they have missed is compacted when they come again.
  for (int i = 0; i < etcd().size(); ++i) etcd().Kill(i);
  for (int i = 0; i < etcd().size(); ++i) etcd().Start(i);
  etcd().WaitUntilServing();
  world.Churn();
  for (int round = 0; round < 5; ++round) {
    const auto revision = etcd().Put("/elsewhere", "x");
    ASSERT_TRUE(revision.ok()) << revision.status();
    EXPECT_EQ(etcd().Ctl({"compact", "--physical", absl::StrCat(*revision)}).status, 0);
    world.Churn();
  }
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, LeaseRevokedByAnotherHand) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  // Every lease that has instances of this test.
  std::set<std::string> leases;
  const RunResult keys =
      etcd().Ctl({"get", "--prefix", world.prefix() + "/v1/default/", "-w", "fields"});
  for (const auto line : absl::StrSplit(keys.out, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, " : ");
    if (parts.size() == 2 && parts[0] == "\"Lease\"" && parts[1] != "0") leases.insert(parts[1]);
  }
  ASSERT_FALSE(leases.empty());
  for (const std::string& lease : leases) {
    EXPECT_EQ(etcd().Ctl({"lease", "revoke", absl::StrCat(absl::Hex(std::stoll(lease)))}).status,
              0);
  }
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, KeysDeletedAndOverwrittenByAnotherHand) {
  World world(etcd());
  world.RegisterMany(40);
  world.ExpectLastIntents();
  const std::string key = world.prefix() + "/v1/default/s/i";
  EXPECT_EQ(etcd().Ctl({"del", key + "1"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"put", key + "2", "rubbish"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"put", key + "3", ""}).status, 0);
  EXPECT_EQ(etcd().Ctl({"del", "--prefix", key + "2"}).status, 0);
  world.ExpectLastIntents();
  // All there is, the sessions and the store's name included.
  EXPECT_EQ(etcd().Ctl({"del", "--prefix", world.prefix() + "/"}).status, 0);
  world.Churn();
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, QuotaAlarm) {
  World world(etcd());
  world.RegisterMany(20);
  world.ExpectLastIntents();
  // Fill the quota of 16 MiB.
  const std::string big(1 << 20, 'x');
  int64_t revision = 0;
  for (int i = 0; i < 40; ++i) {
    const auto put = etcd().Put("/filler", big);
    if (!put.ok()) break;
    revision = *put;
  }
  ASSERT_NE(etcd().Ctl({"alarm", "list"}).out, "") << "the quota was not reached";
  world.Churn();
  // Writes are refused with a typed reason; reads go on.
  EXPECT_TRUE(Eventually([&] {
    const auto pending = world.agent().Pending();
    return std::any_of(pending.begin(), pending.end(), [](const auto& operation) {
      return ReasonOf(StatusFromProto(operation.last_status())) ==
             registry::v1::ERROR_REASON_STORE_READ_ONLY;
    });
  }));
  EXPECT_FALSE(world.judge().List("s").empty());
  // An operator makes room.
  EXPECT_EQ(etcd().Ctl({"compact", "--physical", absl::StrCat(revision)}).status, 0);
  EXPECT_EQ(etcd().Ctl({"defrag"}).status, 0);
  EXPECT_EQ(etcd().Ctl({"alarm", "disarm"}).status, 0);
  world.ExpectLastIntents();
}

TEST_F(EtcdFaultTest, AnEpochEndsWhenItIsToldTo) {
  World world(etcd());
  world.RegisterMany(20);
  world.ExpectLastIntents();
  const uint64_t epoch = world.judge()->Stats().epoch;
  ASSERT_EQ(etcd().Ctl({"put", world.prefix() + "/v1/.epoch", "restored"}).status, 0);
  world.Churn();
  world.ExpectLastIntents();
  EXPECT_NE(world.judge()->Stats().epoch, epoch);
}

}  // namespace
}  // namespace failback
