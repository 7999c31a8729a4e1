// Four interchangeable failback-registry over one etcd, and a fleet of agents that has all four in
// its list: it spreads, and when one of them is killed its clients go on elsewhere, with nothing
// lost, nothing written again, and what they follow told from where they were.
//
// Servers are processes; agents are their cores, each with its own connections. FAILBACK_FLEET=1000
// is for a larger fleet than the usual one.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/admin/v1/admin.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/client/grpc_registry.h"
#include "registry/failback/failback_registry.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/registry/message_listener.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

constexpr int kServers = 4;
// As agents have it: a busy machine may keep a thousand of them from renewing for seconds.
constexpr absl::Duration kTtl = absl::Seconds(10);

int FleetSize() {
  const char* const size = std::getenv("FAILBACK_FLEET");
  return size == nullptr ? 200 : std::atoi(size);
}

// Follows a service at whichever server it finds, from where it was.
class PositionedFollower {
 public:
  PositionedFollower(const std::vector<std::string>& addresses, HashedWheelTimer* timer)
      : registry_(addresses, Options(timer)) {
    EnsureOpen();
  }

  // Subscribes again, from the last position, if the stream has ended.
  void EnsureOpen() {
    SubscribeRequest request;
    request.mutable_selector()->set_service("s");
    {
      std::lock_guard<std::mutex> lock(listener_->mu);
      if (stream_ != nullptr && !listener_->ended) return;
      listener_->ended = false;
      listener_->first = true;
      request.set_epoch(listener_->epoch);
      request.set_revision(listener_->revision);
    }
    stream_ = registry_.Subscribe(request, listener_);
  }

  size_t known() const {
    std::lock_guard<std::mutex> lock(listener_->mu);
    return listener_->ids.size();
  }
  // Streams that have told something.
  int streams() const {
    std::lock_guard<std::mutex> lock(listener_->mu);
    return listener_->began;
  }
  int snapshots() const {
    std::lock_guard<std::mutex> lock(listener_->mu);
    return listener_->snapshots;
  }
  int removals() const {
    std::lock_guard<std::mutex> lock(listener_->mu);
    return listener_->removals;
  }

 private:
  struct Listener : MessageListener {
    void OnMessage(const MessagePtr& event) override {
      std::lock_guard<std::mutex> lock(mu);
      if (first) ++began;
      if (event->has_snapshot()) {
        if (first) {
          ++snapshots;
          ids.clear();
        }
        for (const auto& instance : event->snapshot().instances()) {
          ids.insert(instance.key().instance_id());
        }
      } else if (event->has_delta()) {
        EXPECT_EQ(event->delta().base_revision(), revision);
        removals += event->delta().removals_size();
        for (const auto& instance : event->delta().upserts()) {
          ids.insert(instance.key().instance_id());
        }
        for (const auto& key : event->delta().removals()) ids.erase(key.instance_id());
      }
      first = false;
      epoch = event->epoch();
      revision = event->revision();
    }
    void OnEnd(const absl::Status&) override {
      std::lock_guard<std::mutex> lock(mu);
      ended = true;
    }

    std::mutex mu;
    std::set<std::string> ids;
    uint64_t epoch = 0, revision = 0;
    bool ended = false, first = true;
    int began = 0, snapshots = 0, removals = 0;
  };

  static GrpcRegistryOptions Options(HashedWheelTimer* timer) {
    GrpcRegistryOptions options;
    options.timer = timer;
    return options;
  }

  const std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  GrpcRegistry registry_;
  std::unique_ptr<SubscribeStream> stream_;
};

class FourServersTest : public testing::Test {
 protected:
  FourServersTest()
      : etcd_(EtcdCluster::Options{}), judge_(etcd_, "/four"), timer_(NewTimer(kTestTick)) {
    for (int i = 0; i < kServers; ++i) {
      servers_.push_back(Daemon::Registry({"--store", etcd_.Uri("/four")}));
      addresses_.push_back(servers_.back().address());
      admins_.push_back(admin::v1::AdminService::NewStub(
          grpc::CreateChannel(addresses_.back(), grpc::InsecureChannelCredentials())));
    }
  }

  void StartFleet(int size) {
    for (int i = 0; i < size; ++i) {
      GrpcRegistryOptions grpc;
      grpc.timer = timer_.get();
      FailbackRegistry::Options options;
      options.upstream_name = "registry";
      options.client_name = absl::StrCat("agent", i);
      options.session_ttl = kTtl;
      options.timer = timer_.get();
      agents_.push_back(FailbackRegistry::Create(std::make_unique<GrpcRegistry>(addresses_, grpc),
                                                 std::move(options))
                            .value());
    }
  }

  // One instance by each agent.
  void RegisterByAll(const std::string& name) {
    for (size_t i = 0; i < agents_.size(); ++i) {
      RegisterRequest request;
      *request.add_registrations()->mutable_instance() =
          MakeInstance("s", absl::StrCat(name, "-", i));
      agents_[i]->Register(request, [](const absl::StatusOr<RegisterResponse>& response) {
        EXPECT_TRUE(response.ok()) << response.status();
      });
    }
  }
  bool AllAcknowledged() {
    return std::all_of(agents_.begin(), agents_.end(),
                       [](const auto& agent) { return agent->Pending().empty(); });
  }

  // Modify revisions by instance id, of all pages.
  std::map<std::string, uint64_t> Listed() {
    std::map<std::string, uint64_t> revisions;
    ListRequest request;
    request.mutable_selector()->set_service("s");
    do {
      const auto page = CallAndWait<ListResponse>(*judge_, &Registry::List, request);
      if (!page.ok()) return {};
      for (const auto& record : page->records()) {
        revisions[record.instance().key().instance_id()] = record.modify_revision();
      }
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return revisions;
  }

  // Agents that renew at a server.
  int AgentsAt(int server) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    admin::v1::ListAgentsRequest request;
    request.set_page_size(1);
    admin::v1::ListAgentsResponse response;
    const grpc::Status status =
        admins_[static_cast<size_t>(server)]->ListAgents(&context, request, &response);
    return status.ok() ? response.total_agents() : -1;
  }

  EtcdCluster etcd_;
  EtcdHarness judge_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::vector<Daemon> servers_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<admin::v1::AdminService::Stub>> admins_;
  std::vector<std::unique_ptr<FailbackRegistry>> agents_;
};

TEST_F(FourServersTest, AFleetSpreadsAndOutlivesAServer) {
  const int size = FleetSize();
  StartFleet(size);
  RegisterByAll("i");
  ASSERT_TRUE(Eventually([&] { return AllAcknowledged(); }, absl::Seconds(60)));
  const std::map<std::string, uint64_t> before = Listed();
  EXPECT_EQ(before.size(), static_cast<size_t>(size));

  std::map<int, int> spread;
  const auto count = [&](int first) {
    int sum = 0;
    spread.clear();
    for (int i = first; i < kServers; ++i) sum += spread[i] = AgentsAt(i);
    return sum;
  };
  EXPECT_TRUE(Eventually([&] { return count(0) == size; }));
  for (const auto& [server, agents] : spread) {
    EXPECT_GT(agents, size / 10) << "at server " << server;
  }

  std::vector<std::unique_ptr<PositionedFollower>> followers;
  for (int i = 0; i < 24; ++i) {
    followers.push_back(std::make_unique<PositionedFollower>(addresses_, timer_.get()));
  }
  const auto all_know = [&](size_t instances) {
    return Eventually(
        [&] {
          for (const auto& follower : followers) follower->EnsureOpen();
          return std::all_of(followers.begin(), followers.end(),
                             [&](const auto& follower) { return follower->known() == instances; });
        },
        absl::Seconds(60));
  };
  ASSERT_TRUE(all_know(static_cast<size_t>(size)));

  servers_[0].Kill();
  RegisterByAll("j");
  ASSERT_TRUE(Eventually([&] { return AllAcknowledged(); }, absl::Seconds(60)));
  EXPECT_TRUE(all_know(2 * static_cast<size_t>(size)));

  // Beyond a TTL: every session is renewed elsewhere.
  const std::string witness = judge_.Session("witness", kTtl + absl::Seconds(2));
  ASSERT_TRUE(judge_.Register(witness, MakeInstance("w", "1"), 1).ok());
  EXPECT_TRUE(Eventually([&] { return count(1) == size; }));
  for (const auto& [server, agents] : spread) {
    EXPECT_GT(agents, size / 6) << "at server " << server;
  }
  ASSERT_TRUE(Eventually([&] { return judge_.Ids("w").empty(); }));
  const std::map<std::string, uint64_t> after = Listed();
  EXPECT_EQ(after.size(), 2 * static_cast<size_t>(size));
  for (const auto& [id, revision] : before) {
    const auto it = after.find(id);
    ASSERT_NE(it, after.end()) << id << " is lost";
    EXPECT_EQ(it->second, revision) << id << " was written again";
  }
  int moved = 0;
  for (const auto& follower : followers) {
    EXPECT_EQ(follower->removals(), 0);
    EXPECT_EQ(follower->snapshots(), 1) << "a follower goes on from its position";
    if (follower->streams() > 1) ++moved;
  }
  EXPECT_GT(moved, 0) << "none of them followed at the server that was killed";
}

}  // namespace
}  // namespace failback
