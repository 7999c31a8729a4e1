// What a message may make the daemons do before anybody knows whose it is: a few bytes do not
// become many, compressed or not. On real processes, whose memory tells.

#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"
#include "tests/util/sanitized_build.h"
#include "tests/util/wire_field.h"

namespace failback {
namespace {

using registry::v1::RegistryService;
using ::testing::HasSubstr;

constexpr char kService[] = "/failback.registry.v1.RegistryService/";

// The most memory that the process has had.
int64_t PeakBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "VmHWM:")) continue;
    int64_t kilobytes = 0;
    const std::string number = line.substr(6, line.find('k') - 6);
    EXPECT_TRUE(absl::SimpleAtoi(number, &kilobytes)) << line;
    return kilobytes << 10;
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

enum class Which { kRegistry, kAgent };

class BoundsTest : public ::testing::TestWithParam<Which> {
 protected:
  BoundsTest() : registry_(Daemon::Registry({"--store", "memory:"})) {
    if (GetParam() == Which::kAgent) {
      agent_ =
          std::make_unique<Daemon>(Daemon::Agent(registry_.address(), {"--listen", "127.0.0.1:0"}));
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(daemon().address(), grpc::InsecureChannelCredentials(),
                                         arguments);
  }

  Daemon& daemon() { return agent_ != nullptr ? *agent_ : registry_; }
  int64_t peak() { return PeakBytes(daemon().process().pid()); }

  // One message, as it is or compressed, on a call or a stream of that name, of RegistryService or
  // with its service.
  grpc::Status Send(const std::string& method, const std::string& bytes,
                    grpc_compression_algorithm algorithm = GRPC_COMPRESS_NONE) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
    context.set_compression_algorithm(algorithm);
    grpc::CompletionQueue queue;
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok));
      return ok;
    };
    const char* const service = absl::StartsWith(method, "/") ? "" : kService;
    auto call = stub.PrepareCall(&context, absl::StrCat(service, method), &queue);
    call->StartCall(this);
    wait();
    grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
    wait();
    grpc::ByteBuffer response;
    do {
      call->Read(&response, this);
    } while (wait());
    grpc::Status status;
    call->Finish(&status, this);
    wait();
    return status;
  }

  // Serves on, and stops at once when it is asked to.
  void ExpectWell() {
    EXPECT_TRUE(RegistryClient(daemon().address()).List("x").ok());
    EXPECT_EQ(daemon().Stop(), 0);
  }

  Daemon registry_;
  std::unique_ptr<Daemon> agent_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_P(BoundsTest, CompressedMessagesAreRefusedAndNotInflated) {
  const int64_t before = peak();
  // As the name of a client, 40 MB of one letter: 40 KB when they are compressed.
  OpenSessionRequest request;
  request.set_client_name(std::string(40 << 20, 'x'));
  const std::string bytes = request.SerializeAsString();
  for (const char* method : {"OpenSession", "Register", "Subscribe", "KeepAlive"}) {
    for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
      const grpc::Status status = Send(method, bytes, algorithm);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
          << method << ": " << status.error_message();
    }
  }
  if (kMemoryIsMeasurable) {
    EXPECT_LT(peak() - before, 16 << 20);
  }
  ExpectWell();
}

// A million and a half empty fields are three megabytes, and many times that when they are parsed.
TEST_P(BoundsTest, AMessageOfManySmallPartsIsRefusedBeforeItIsParsed) {
  const int64_t before = peak();
  constexpr int kParts = 1500000;  // below the limit on bytes
  std::string zones;
  for (int i = 0; i < kParts; ++i) zones.append("\x22\0", 2);
  std::vector<std::pair<std::string, std::string>> calls = {
      {"List", WireField(ListRequest::kSelectorFieldNumber, zones)},
      {"Subscribe", WireField(SubscribeRequest::kSelectorFieldNumber, zones)},
      {"Unregister", zones},
      {"Register", zones},
      {"KeepAlive", zones},
      {"OpenSession", zones},
      {"/failback.admin.v1.AdminService/ListInstances", zones},
      {"/failback.admin.v1.AdminService/GetOverview", zones},
      {"/grpc.health.v1.Health/Check", zones},
      {"/grpc.health.v1.Health/Watch", zones}};
  if (GetParam() == Which::kAgent) {
    calls.emplace_back("/failback.agent.v1.AgentService/Retry", WireField(1, zones));
    calls.emplace_back("/failback.agent.v1.AgentService/GetStatus", zones);
  }
  for (const auto& [method, bytes] : calls) {
    const grpc::Status status = Send(method, bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(ReasonOf(StatusFromGrpc(status)), registry::v1::ERROR_REASON_TOO_LARGE)
        << method << ": " << status.error_message();
  }
  // The message itself, while it is read, and once more in one piece; parsed it would be 60 MB.
  if (kMemoryIsMeasurable) {
    EXPECT_LT(peak() - before, 32 << 20);
  }
  ExpectWell();
}

// Metadata in falling order: what took 11 s of CPU, and a SIGTERM waited for it.
TEST_P(BoundsTest, AnInstanceOfManyEntriesIsRefused) {
  RegisterRequest request;
  auto* const instance = request.add_registrations()->mutable_instance();
  *instance = MakeInstance("orders", "1", 1);
  std::string bytes = instance->SerializeAsString();
  for (int i = 90000; i > 0; --i) {
    const std::string key = absl::StrCat(100000 + i);
    bytes += absl::StrCat("\x3a\x0b\x0a\x06", key, "\x12\x01v");
  }
  ASSERT_TRUE(instance->ParseFromString(bytes));
  ASSERT_EQ(instance->metadata_size(), 90000);
  RegistryClient client(daemon().address());
  const auto refused = client.Register("", {*instance});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("at most"));
  ExpectWell();
}

// A registry that an agent has been led to. When the test says so, it answers with 40 MB of one
// letter, which are 40 KB when they are compressed.
class SwellingRegistry final : public RegistryService::Service {
 public:
  SwellingRegistry() : answer_(40 << 20, 'x') {}

  grpc::Status OpenSession(grpc::ServerContext* context, const OpenSessionRequest*,
                           OpenSessionResponse* response) override {
    ++calls_;
    if (!swells_) return {grpc::StatusCode::UNAVAILABLE, "not yet"};
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    response->set_store_id(answer_);
    return grpc::Status::OK;
  }

  void Swell() { swells_ = true; }
  int calls() const { return calls_; }

 private:
  const std::string answer_;
  std::atomic<bool> swells_{false};
  std::atomic<int> calls_{0};
};

TEST(AgentBoundsTest, CompressedAnswersAreRefusedAndNotInflated) {
  SwellingRegistry registry;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&registry);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  Daemon agent = Daemon::Agent(absl::StrCat("127.0.0.1:", port), {});
  ASSERT_TRUE(Eventually([&] { return registry.calls() >= 2; }));
  const int64_t before = PeakBytes(agent.process().pid());
  registry.Swell();
  // A client that asks again has had the answer before.
  const int calls = registry.calls();
  ASSERT_TRUE(Eventually([&] { return registry.calls() >= calls + 3; }));
  if (kMemoryIsMeasurable) {
    EXPECT_LT(PeakBytes(agent.process().pid()) - before, 16 << 20);
  }
  EXPECT_EQ(agent.Stop(), 0);
  server->Shutdown();
}

INSTANTIATE_TEST_SUITE_P(Daemons, BoundsTest, ::testing::Values(Which::kRegistry, Which::kAgent),
                         [](const auto& info) {
                           return info.param == Which::kRegistry ? "Registry" : "Agent";
                         });

}  // namespace
}  // namespace failback
