// Every method of every service of both daemons asks who calls: none was forgotten. What is open to
// all is open.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/admin/v1/admin.pb.h"
#include "failback/agent/v1/agent.pb.h"
#include "failback/registry/v1/registry.pb.h"
#include "failback/xds/discovery.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "gtest/gtest.h"
#include "tests/util/daemons.h"
#include "tests/util/http_client.h"
#include "tests/util/process.h"

namespace failback {
namespace {

constexpr char kRegisterStream[] = "/failback.registry.v1.RegistryService/RegisterStream";

// Calls a method, of whatever kind, with one message: an empty one, or no protobuf.
grpc::StatusCode Call(const std::string& address, const std::string& method,
                      const std::string& token, const std::string& bytes = "") {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  wait();
  const grpc::Slice slice(bytes);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  wait();
  // A stream may answer, as the renewals of one that is not renewed; the end tells.
  grpc::ByteBuffer answer;
  grpc::ByteBuffer last;
  for (call->Read(&answer, nullptr); wait(); call->Read(&answer, nullptr)) last.Swap(&answer);
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  // Each message of this stream has a status of its own.
  registry::v1::RegisterStreamResponse response;
  if (status.ok() && method == kRegisterStream &&
      grpc::SerializationTraits<registry::v1::RegisterStreamResponse>::Deserialize(&last, &response)
          .ok()) {
    return static_cast<grpc::StatusCode>(response.status().code());
  }
  return status.error_code();
}

std::vector<std::string> MethodsOf(const google::protobuf::FileDescriptor* file) {
  std::vector<std::string> methods;
  for (int i = 0; i < file->service_count(); ++i) {
    const auto* const service = file->service(i);
    for (int j = 0; j < service->method_count(); ++j) {
      methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(j)->name()));
    }
  }
  return methods;
}

class EveryMethodTest : public ::testing::Test {
 protected:
  // The first digest is that of "secret". The rules are for another token, that nobody has.
  EveryMethodTest() {
    dir_.Write("policy.yaml", "rules:\n- {tokens: [b], allow: read, namespaces: x, services: x}\n");
    dir_.Write("tokens.yaml",
               "tokens:\n- name: a\n  sha256: "
               "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
               "- name: b\n  sha256: "
               "3bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n");
  }

  void ExpectAllClosed(const std::string& address,
                       const std::vector<const google::protobuf::FileDescriptor*>& files) {
    int methods = 0;
    for (const auto* file : files) {
      for (const std::string& method : MethodsOf(file)) {
        SCOPED_TRACE(method);
        ++methods;
        EXPECT_EQ(Call(address, method, "wrong"), grpc::StatusCode::UNAUTHENTICATED);
        EXPECT_EQ(Call(address, method, "wrong", "\xff"), grpc::StatusCode::UNAUTHENTICATED)
            << "parsed for somebody unknown";
        // There each renewal has its own status.
        if (method == "/failback.registry.v1.RegistryService/KeepAlive") continue;
        EXPECT_EQ(Call(address, method, ""), grpc::StatusCode::UNAUTHENTICATED);
        EXPECT_EQ(Call(address, method, "secret"), grpc::StatusCode::PERMISSION_DENIED);
      }
    }
    EXPECT_GE(methods, 14);
    // Who starts or watches the daemon needs no credentials for it.
    EXPECT_EQ(Call(address, "/grpc.health.v1.Health/Check", ""), grpc::StatusCode::OK);
  }

  const TempDir dir_;
  const std::vector<std::string> flags_ = {"--policy-file", dir_.File("policy.yaml"),
                                           "--known-tokens-file", dir_.File("tokens.yaml")};
};

TEST_F(EveryMethodTest, OfTheRegistry) {
  std::vector<std::string> args = {"--store", "memory:"};
  args.insert(args.end(), flags_.begin(), flags_.end());
  Daemon registry = Daemon::Registry(args);
  ExpectAllClosed(
      registry.address(),
      {registry::v1::ListRequest::descriptor()->file(), admin::v1::Overview::descriptor()->file(),
       envoy::service::discovery::v3::DiscoveryRequest::descriptor()->file()});
}

TEST_F(EveryMethodTest, OfTheAgent) {
  Daemon agent = Daemon::Agent("grpc://127.0.0.1:1", flags_);
  ExpectAllClosed(
      agent.address(),
      {registry::v1::ListRequest::descriptor()->file(), admin::v1::Overview::descriptor()->file(),
       agent::v1::DrainRequest::descriptor()->file(),
       envoy::service::discovery::v3::DiscoveryRequest::descriptor()->file()});
}

TEST_F(EveryMethodTest, ARefusalIsLoggedWithTheMethodsName) {
  Daemon agent = Daemon::Agent("grpc://127.0.0.1:1", flags_);
  const struct {
    const char* method;
    const char* token;
  } calls[] = {
      {"/failback.registry.v1.RegistryService/List", "wrong"},
      {kRegisterStream, "wrong"},
      {"/failback.registry.v1.RegistryService/Subscribe", "wrong"},
      {"/failback.agent.v1.AgentService/GetStatus", "secret"},
      {"/failback.agent.v1.AgentService/Drain", "secret"},
      {"/failback.admin.v1.AdminService/ListServices", "secret"},
      {"/failback.admin.v1.AdminService/SetOffline", "wrong"},
  };
  for (const auto& [method, token] : calls) {
    SCOPED_TRACE(method);
    EXPECT_NE(Call(agent.address(), method, token), grpc::StatusCode::OK);
    const std::string name = std::string(method).substr(std::string(method).rfind('/') + 1);
    EXPECT_TRUE(agent.process().WaitForLine(absl::StrCat("call=", name, " ")).has_value())
        << agent.process().Describe();
  }
}

// docs/security.md: the admin endpoint over HTTP is outside of the policy, until it is switched
// off. What is changed there needs its own token all the same.
TEST_F(EveryMethodTest, HttpOnThisMachineIsReadByAllAndChangedByNone) {
  std::vector<std::string> args = {"--store", "memory:", "--admin", "127.0.0.1:0"};
  args.insert(args.end(), flags_.begin(), flags_.end());
  Daemon registry = Daemon::Registry(args);
  for (const char* path : {"/ready", "/overview", "/services", "/metrics", "/config"}) {
    EXPECT_EQ(Http(registry.admin(), "GET", path).status, 200) << path;
  }
  for (const char* path : {"/logging", "/services/default/orders/1/offline"}) {
    EXPECT_EQ(Http(registry.admin(), "POST", path, {}, "{}").status, 403) << path;
  }
}

}  // namespace
}  // namespace failback
