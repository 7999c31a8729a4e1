// The registry on an embedded store over the wire, callers with tokens, and rules that change.

#ifndef FAILBACK_TESTS_REGISTRY_SECURITY_ACCESS_FIXTURE_H_
#define FAILBACK_TESTS_REGISTRY_SECURITY_ACCESS_FIXTURE_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/util/instances.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {

constexpr auto kRegister = config::v1::PERMISSION_REGISTER;
constexpr auto kRead = config::v1::PERMISSION_READ;

inline config::v1::Rule MakeRule(const std::string& token,
                                 std::vector<config::v1::Permission> allow,
                                 const std::string& service) {
  config::v1::Rule rule;
  if (token.empty()) {
    rule.set_anonymous(true);
  } else {
    rule.add_tokens(token);
  }
  for (const auto permission : allow) rule.add_allow(permission);
  rule.add_namespaces("default");
  rule.add_services(service);
  return rule;
}

// Each name is its own token.
inline AccessRules MakeRules(const std::vector<config::v1::Rule>& rules,
                             const std::vector<std::string>& tokens) {
  config::v1::Policy policy;
  for (const auto& rule : rules) *policy.add_rules() = rule;
  config::v1::Tokens known;
  for (const std::string& name : tokens) {
    auto* const token = known.add_tokens();
    token->set_name(name);
    token->set_sha256(absl::BytesToHexString(Sha256(name)));
  }
  auto made = AccessRules::Make(&policy, &known);
  if (!made.ok()) Fatal(made.status().ToString());
  return *std::move(made);
}

class AccessTest : public ::testing::Test {
 protected:
  using RegistryService = registry::v1::RegistryService;

  AccessTest() {
    timer_ = NewTimer();
    access_ = std::make_shared<AccessControl>(DefaultRules());
    Start("memory:");
  }
  ~AccessTest() override { SetLogSink(LogLevel::kWarning, nullptr); }

  static AccessRules DefaultRules() {
    return MakeRules({MakeRule("orders", {kRegister, kRead}, "orders*"),
                      MakeRule("other", {kRegister, kRead}, "other"),
                      MakeRule("reader", {kRead}, "*"), MakeRule("", {kRead}, "public")},
                     {"orders", "other", "reader", "nothing"});
  }

  void Start(const std::string& uri) {
    server_.reset();
    store_.reset();
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.uri = uri;
    auto store = StoreRegistry::Open(std::move(options));
    if (!store.ok()) Fatal(store.status().ToString());
    store_ = *std::move(store);
    RegistryServer::Options server_options;
    server_options.listen = {absl::StrCat("unix:", folder_.File("s"))};
    server_options.access = access_;
    server_options.max_subscriptions = max_subscriptions_;
    auto server = RegistryServer::Start(store_.get(), server_options);
    if (!server.ok()) Fatal(server.status().ToString());
    server_ = *std::move(server);
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  }

  static std::unique_ptr<grpc::ClientContext> As(const std::string& token) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context->set_wait_for_ready(true);
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    return context;
  }

  template <typename Request, typename Response>
  absl::Status Call(const std::string& token,
                    grpc::Status (RegistryService::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    const Request& request, Response* response) {
    return StatusFromGrpc((stub_.get()->*method)(As(token).get(), request, response));
  }

  absl::Status Open(const std::string& token, const std::string& incarnation,
                    OpenSessionResponse* response) {
    OpenSessionRequest request;
    request.set_incarnation(incarnation);
    return Call(token, &RegistryService::Stub::OpenSession, request, response);
  }

  // The status of the call, or of its only item.
  absl::Status Register(const std::string& token, const std::string& session,
                        const std::string& service) {
    RegisterRequest request;
    request.set_session_id(session);
    AddTo(&request, service);
    RegisterResponse response;
    absl::Status status = Call(token, &RegistryService::Stub::Register, request, &response);
    return status.ok() ? StatusFromProto(response.results(0).status()) : status;
  }

  static void AddTo(RegisterRequest* request, const std::string& service) {
    *request->add_registrations()->mutable_instance() = MakeInstance(service, "1");
  }

  absl::Status Unregister(const std::string& token, const std::string& session,
                          const std::string& service) {
    UnregisterRequest request;
    request.set_session_id(session);
    auto* const key = request.add_deregistrations()->mutable_key();
    key->set_service(service);
    key->set_instance_id("1");
    UnregisterResponse response;
    absl::Status status = Call(token, &RegistryService::Stub::Unregister, request, &response);
    return status.ok() ? StatusFromProto(response.results(0).status()) : status;
  }

  absl::Status KeepAlive(const std::string& token, const std::string& session) {
    auto context = As(token);
    auto stream = stub_->KeepAlive(context.get());
    KeepAliveRequest request;
    request.set_session_id(session);
    stream->Write(request);
    stream->WritesDone();
    KeepAliveResponse response;
    const bool answered = stream->Read(&response);
    absl::Status status = StatusFromGrpc(stream->Finish());
    if (!status.ok()) return status;
    if (!answered) return absl::DataLossError("no answer");
    return StatusFromProto(response.status());
  }

  absl::Status Close(const std::string& token, const std::string& session) {
    CloseSessionRequest request;
    request.set_session_id(session);
    CloseSessionResponse response;
    return Call(token, &RegistryService::Stub::CloseSession, request, &response);
  }

  absl::Status List(const std::string& token, const std::string& service,
                    std::vector<std::string>* services = nullptr,
                    const std::string& incarnation = "") {
    ListRequest request;
    request.mutable_selector()->set_service(service);
    request.set_incarnation(incarnation);
    ListResponse response;
    absl::Status status = Call(token, &RegistryService::Stub::List, request, &response);
    if (services != nullptr) {
      services->clear();
      for (const auto& record : response.records()) {
        services->push_back(record.instance().key().service());
      }
    }
    return status;
  }

  struct Subscription {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<SubscribeResponse>> stream;
    SubscribeResponse event;

    bool Read() { return stream->Read(&event); }
    absl::Status End() {
      while (Read()) {
      }
      return StatusFromGrpc(stream->Finish());
    }
  };
  Subscription Subscribe(const std::string& token, const std::string& service,
                         const std::string& session = "") {
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    request.set_session_id(session);
    if (!session.empty()) request.set_subscription_id("s");
    Subscription subscription;
    subscription.context = As(token);
    subscription.stream = stub_->Subscribe(subscription.context.get(), request);
    return subscription;
  }

  absl::Status Unsubscribe(const std::string& token, const std::string& session) {
    UnsubscribeRequest request;
    request.set_session_id(session);
    request.set_subscription_id("s");
    UnsubscribeResponse response;
    return Call(token, &RegistryService::Stub::Unsubscribe, request, &response);
  }

  const TempDir folder_;
  int max_subscriptions_ = 100;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::shared_ptr<AccessControl> access_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

inline void ExpectReason(const absl::Status& status, ErrorReason reason, const std::string& what) {
  EXPECT_EQ(ReasonOf(status), reason) << what << ": " << status;
  const auto code = reason == registry::v1::ERROR_REASON_CREDENTIALS_NEEDED
                        ? absl::StatusCode::kUnauthenticated
                        : absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(status.code(), code) << what << ": " << status;
}

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_SECURITY_ACCESS_FIXTURE_H_
