// Stock gRPC clients find services through the agent's xDS server: real daemons, real backends, and
// a client process that is given what to call (see client.cc). The same story for each language;
// the program's arguments are the client's command.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gateway/xds/bootstrap.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/instances.h"
#include "tests/util/process.h"

namespace failback {
namespace {

using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::RegistryService;
using registry::v1::ServiceInstance;
using registry::v1::UnregisterRequest;
using registry::v1::UnregisterResponse;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string>* const client_command = new std::vector<std::string>;

// Far above what a call takes, and below the 15 s for which a client waits for a resource that its
// server says nothing of: what fails otherwise than by this deadline has failed "at once".
constexpr int kDeadlineMs = 10000;

// Who served how many calls.
using Counts = std::map<std::string, int>;

std::set<std::string> Names(const Counts& counts) {
  std::set<std::string> names;
  for (const auto& [name, calls] : counts) names.insert(name);
  return names;
}

class Client {
 public:
  Client(const TempDir& dir, const std::string& bootstrap) : fifo_(dir.File("commands")) {
    unlink(fifo_.c_str());
    if (mkfifo(fifo_.c_str(), 0600) != 0) Fatal("mkfifo");
    std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$@\" < \"$0\"", fifo_};
    command.insert(command.end(), client_command->begin(), client_command->end());
    process_ = Process::Start(command, {{"GRPC_XDS_BOOTSTRAP", bootstrap}});
    input_ = open(fifo_.c_str(), O_WRONLY | O_CLOEXEC);
  }
  ~Client() { close(input_); }

  Counts Call(const std::string& target, int count, int deadline_ms = kDeadlineMs) {
    Tell(absl::StrCat("call ", target, " ", count, " ", deadline_ms));
    return Answer();
  }
  void Start(const std::string& target) { Tell(absl::StrCat("start ", target)); }
  Counts Stop() {
    Tell("stop");
    return Answer();
  }

  std::string Describe() const { return process_->Describe(); }

 private:
  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    if (write(input_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      Fatal("the client has gone: " + process_->Describe());
    }
  }

  Counts Answer() {
    ++answers_;
    std::string answer;
    const bool answered = process_->WaitForOutput(
        [&](const std::string& out) {
          int found = 0;
          const std::vector<std::string> lines =
              absl::StrSplit(out.substr(0, out.rfind('\n') + 1), '\n');
          for (const std::string& line : lines) {
            if (absl::StartsWith(line, "result") && ++found == answers_) answer = line;
          }
          return found >= answers_;
        },
        absl::Minutes(1));
    if (!answered) Fatal("no answer: " + process_->Describe());
    Counts counts;
    const std::vector<std::string> words = absl::StrSplit(answer, ' ', absl::SkipEmpty());
    for (size_t i = 1; i < words.size(); ++i) {
      const std::pair<std::string, std::string> word = absl::StrSplit(words[i], '=');
      if (!absl::SimpleAtoi(word.second, &counts[word.first])) Fatal("not a count: " + answer);
    }
    return counts;
  }

  const std::string fifo_;
  std::unique_ptr<Process> process_;
  int input_ = -1;
  int answers_ = 0;
};

class StockClientTest : public ::testing::Test {
 protected:
  void StartRegistry() {
    std::vector<std::string> args = {"--store", "sqlite://" + dir_.File("registry.db"),
                                     "--durability", "normal"};
    if (!registry_address_.empty()) args.insert(args.end(), {"--listen", registry_address_});
    registry_ = std::make_unique<Daemon>(Daemon::Registry(args));
    registry_address_ = registry_->address();
  }

  void StartAgent(std::vector<std::string> args = {}) {
    agent_.reset();
    args.insert(args.end(),
                {"--listen", "unix:" + dir_.File("agent.sock"), "--xds-bootstrap", Bootstrap()});
    agent_ = std::make_unique<Daemon>(Daemon::Agent(registry_address_, args));
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(agent_->address(), grpc::InsecureChannelCredentials()));
  }

  // Both daemons, and the client.
  void StartAll(const std::vector<std::string>& agent_args = {}) {
    StartRegistry();
    StartAgent(agent_args);
    client_ = std::make_unique<Client>(dir_, Bootstrap());
  }

  // Clients refused nothing.
  void TearDown() override {
    for (const auto* daemon : {&registry_, &agent_}) {
      if (*daemon == nullptr) continue;
      EXPECT_THAT((*daemon)->process().err(), Not(HasSubstr("xds client refused")));
    }
  }

  std::string Bootstrap() const { return dir_.File("bootstrap.json"); }

  // Starts a backend, and returns it as an instance of `orders` that is not registered yet.
  ServiceInstance StartBackend(const std::string& id) {
    auto& backend = backends_[id];
    backend = Process::Start({RunfilePath("tests/gateway/xds/backend"), id});
    const std::string marker = "listening on 127.0.0.1:";
    const auto line = backend->WaitForLine(marker);
    if (!line) Fatal(backend->Describe());
    int port = 0;
    if (!absl::SimpleAtoi(line->substr(line->find(marker) + marker.size()), &port)) Fatal(*line);
    ServiceInstance instance = MakeInstance("orders", id, port);
    instance.set_address("127.0.0.1");
    return instance;
  }

  // At the agent, which carries it.
  void Register(const ServiceInstance& instance) {
    RegisterRequest request;
    *request.add_registrations()->mutable_instance() = instance;
    RegisterResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const grpc::Status status = stub_->Register(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.results(0).status().code(), 0) << response.DebugString();
  }

  ServiceInstance RegisterBackend(const std::string& id) {
    ServiceInstance instance = StartBackend(id);
    Register(instance);
    return instance;
  }

  void Unregister(const std::string& id) {
    UnregisterRequest request;
    request.add_deregistrations()->mutable_key()->set_service("orders");
    request.mutable_deregistrations(0)->mutable_key()->set_instance_id(id);
    UnregisterResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const grpc::Status status = stub_->Unregister(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // Until calls to the target are served by exactly these: each at least once in a row of calls
  // that no other served.
  void ExpectServedBy(const std::set<std::string>& ids, const std::string& target = kOrders) {
    Counts counts;
    EXPECT_TRUE(Eventually(
        [&] {
          counts = client_->Call(target, 20);
          return Names(counts) == ids;
        },
        absl::Minutes(1)))
        << "last " << absl::StrJoin(Names(counts), " ") << "\n"
        << client_->Describe() << agent_->process().Describe();
  }

  static constexpr char kOrders[] = "xds:///orders";

  const TempDir dir_;
  std::string registry_address_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<Daemon> agent_;
  std::unique_ptr<RegistryService::Stub> stub_;
  std::map<std::string, std::unique_ptr<Process>> backends_;
  std::unique_ptr<Client> client_;
};

TEST_F(StockClientTest, FollowsWhatComesAndGoes) {
  StartAll();
  ServiceInstance a = RegisterBackend("a");
  ServiceInstance b = RegisterBackend("b");
  ExpectServedBy({"a", "b"});
  RegisterBackend("c");
  ExpectServedBy({"a", "b", "c"});
  Unregister("c");
  ExpectServedBy({"a", "b"});
  // Registered, and not to get anything new.
  a.set_status(registry::v1::HEALTH_STATUS_DRAINING);
  Register(a);
  ExpectServedBy({"b"});
  a.set_status(registry::v1::HEALTH_STATUS_HEALTHY);
  Register(a);
  b.set_status(registry::v1::HEALTH_STATUS_UNHEALTHY);
  Register(b);
  ExpectServedBy({"a"});
  b.clear_status();
  b.set_weight(0);
  Register(b);
  RegisterBackend("d");
  ExpectServedBy({"a", "d"});
}

TEST_F(StockClientTest, HonoursWeights) {
  StartAll();
  ServiceInstance light = StartBackend("light");
  light.set_weight(10);
  ServiceInstance heavy = StartBackend("heavy");
  heavy.set_weight(90);
  Register(light);
  Register(heavy);
  ExpectServedBy({"light", "heavy"});
  // A tenth of 1,000 is 100, with a deviation of 9.5: more than five of them on either side.
  const auto expect_a_tenth = [this](const std::string& id) {
    const Counts counts = client_->Call(kOrders, 1000);
    EXPECT_EQ(counts.count("light") + counts.count("heavy"), counts.size());
    const auto it = counts.find(id);
    ASSERT_NE(it, counts.end());
    EXPECT_GE(it->second, 50);
    EXPECT_LE(it->second, 150);
  };
  expect_a_tenth("light");
  light.set_weight(90);
  heavy.set_weight(10);
  Register(light);
  Register(heavy);
  EXPECT_TRUE(Eventually([&] { return client_->Call(kOrders, 100)["heavy"] < 30; }))
      << client_->Describe();
  expect_a_tenth("heavy");
}

TEST_F(StockClientTest, OutagesOfRegistryAndAgentAreNotNoticed) {
  StartAll();
  RegisterBackend("a");
  RegisterBackend("b");
  ExpectServedBy({"a", "b"});
  client_->Start(kOrders);

  registry_->Kill();
  // Longer than the agent takes to call the set stale.
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(Ctl(agent_->address(), {"status"}).out, "connecting"); }));
  ExpectServedBy({"a", "b"});
  RegisterBackend("c");  // accepted, and carried later
  StartRegistry();
  ExpectServedBy({"a", "b", "c"});

  // The instances are of the agent's session, which ends with it: it has no state directory. What
  // clients have they keep until the new agent knows better.
  agent_->Kill();
  ExpectServedBy({"a", "b", "c"});
  StartAgent();
  for (const char* id : {"a", "b", "c"}) {
    // As programs do when their agent is new.
    RegisterBackend(absl::StrCat(id, "2"));
  }
  EXPECT_TRUE(Eventually(
      [&] {
        const std::set<std::string> names = Names(client_->Call(kOrders, 40));
        return names.count("a2") > 0 && names.count("b2") > 0 && names.count("c2") > 0;
      },
      absl::Minutes(1)))
      << client_->Describe() << agent_->process().Describe();

  const Counts all = client_->Stop();
  for (const auto& [who, calls] : all) {
    EXPECT_FALSE(absl::StartsWith(who, "error")) << who << " " << calls << client_->Describe();
  }
}

TEST_F(StockClientTest, AServiceThatIsNotThereFailsAtOnceAndWorksWhenItIs) {
  StartAll();
  EXPECT_EQ(Names(client_->Call(kOrders, 2)), std::set<std::string>{"error14"});
  // A name that can be no service is reported like one that has no instances.
  EXPECT_EQ(Names(client_->Call("xds:///or$ders", 1)), std::set<std::string>{"error14"});
  RegisterBackend("a");
  ExpectServedBy({"a"});
  Unregister("a");
  ExpectServedBy({"error14"});
  RegisterBackend("b");
  ExpectServedBy({"b"});
}

TEST_F(StockClientTest, NamespacesAreServicesOfTheirOwn) {
  StartAll();
  RegisterBackend("a");
  ServiceInstance b = StartBackend("b");
  b.mutable_key()->set_namespace_("staging");
  Register(b);
  ExpectServedBy({"a"});
  ExpectServedBy({"b"}, "xds:///staging/orders");
  ExpectServedBy({"a"}, "xds:///default/orders");
}

TEST_F(StockClientTest, TheOwnZoneFirst) {
  StartAll({"--zone", "here", "--xds-zone-aware", "true"});
  ServiceInstance near = StartBackend("near");
  near.set_zone("here");
  ServiceInstance far = StartBackend("far");
  far.set_zone("there");
  Register(far);
  ExpectServedBy({"far"});
  Register(near);
  ExpectServedBy({"near"});
  // Its process dies without unregistering: calls spill over.
  backends_["near"]->Kill();
  ExpectServedBy({"far"});
}

TEST_F(StockClientTest, TheRegistryServesThemToo) {
  StartRegistry();
  StartAgent();
  ASSERT_TRUE(xds::WriteBootstrap({registry_address_, "test", ""}, Bootstrap()).ok());
  client_ = std::make_unique<Client>(dir_, Bootstrap());
  RegisterBackend("a");
  ExpectServedBy({"a"});
  RegisterBackend("b");
  ExpectServedBy({"a", "b"});
  registry_->Kill();
  ExpectServedBy({"a", "b"});
  StartRegistry();
  RegisterBackend("c");
  ExpectServedBy({"a", "b", "c"});
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) failback::client_command->push_back(argv[i]);
  if (failback::client_command->empty()) failback::Fatal("no client is named");
  return RUN_ALL_TESTS();
}
