// Who may do what, over the wire: the registry on an embedded store, callers with tokens, and rules
// that change.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "registry/security/guarded_registry.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/mutex.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/server/register_stream_client.h"
#include "tests/util/eventually.h"
#include "tests/util/instances.h"
#include "tests/util/process.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_ACCESS_DENIED;
using registry::v1::ERROR_REASON_CREDENTIALS_NEEDED;
using registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using registry::v1::RegistryService;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kRegister = config::v1::PERMISSION_REGISTER;
constexpr auto kRead = config::v1::PERMISSION_READ;

config::v1::Rule MakeRule(const std::string& token, std::vector<config::v1::Permission> allow,
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
AccessRules MakeRules(const std::vector<config::v1::Rule>& rules,
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

void ExpectReason(const absl::Status& status, ErrorReason reason, const std::string& what) {
  EXPECT_EQ(ReasonOf(status), reason) << what << ": " << status;
  const auto code = reason == ERROR_REASON_CREDENTIALS_NEEDED ? absl::StatusCode::kUnauthenticated
                                                              : absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(status.code(), code) << what << ": " << status;
}

TEST_F(AccessTest, WhatIsAllowedWorks) {
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "i", &session).ok());
  EXPECT_TRUE(KeepAlive("orders", session.session_id()).ok());
  EXPECT_TRUE(Register("orders", session.session_id(), "orders").ok());
  EXPECT_TRUE(List("orders", "orders").ok());
  EXPECT_TRUE(List("reader", "orders").ok());
  Subscription subscription = Subscribe("orders", "orders", session.session_id());
  ASSERT_TRUE(subscription.Read());
  EXPECT_EQ(subscription.event.snapshot().instances_size(), 1);
  EXPECT_TRUE(Unsubscribe("orders", session.session_id()).ok());
  EXPECT_TRUE(subscription.End().ok());
  EXPECT_TRUE(Unregister("orders", session.session_id(), "orders").ok());
  EXPECT_TRUE(Close("orders", session.session_id()).ok());
  EXPECT_TRUE(List("", "public").ok());
  EXPECT_EQ(access_->counters().denied(), 0);
}

TEST_F(AccessTest, EachCallIsDeniedToWhoMayNot) {
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "i", &session).ok());
  const std::string& id = session.session_id();
  const struct {
    const char* token;
    ErrorReason reason;
  } kCallers[] = {{"", ERROR_REASON_CREDENTIALS_NEEDED},
                  {"wrong", ERROR_REASON_CREDENTIALS_NEEDED},
                  {"nothing", ERROR_REASON_ACCESS_DENIED},
                  {"reader", ERROR_REASON_ACCESS_DENIED},
                  {"other", ERROR_REASON_ACCESS_DENIED}};
  for (const auto& [token, reason] : kCallers) {
    SCOPED_TRACE(token);
    const std::string who = token;
    OpenSessionResponse mine;
    if (who == "nothing" || who == "wrong") {
      ExpectReason(Open(who, "new", &mine), reason, "OpenSession");
      ExpectReason(List(who, ""), reason, "List");
    }
    // With no session, and so about the service alone.
    ExpectReason(Register(who, "", "orders"), reason, "Register");
    ExpectReason(Unregister(who, "", "orders"), reason, "Unregister");
    if (who != "reader") {
      ExpectReason(List(who, "orders"), reason, "List");
      ExpectReason(Subscribe(who, "orders").End(), reason, "Subscribe");
    }
    // With the session of another.
    const ErrorReason session_reason =
        who == "wrong" ? ERROR_REASON_CREDENTIALS_NEEDED : ERROR_REASON_SESSION_NOT_OWNED;
    // Who may do nothing at all has no stream either.
    ExpectReason(KeepAlive(who, id), who == "nothing" ? reason : session_reason, "KeepAlive");
    ExpectReason(Register(who, id, "orders"), session_reason, "Register");
    ExpectReason(Unregister(who, id, "orders"), session_reason, "Unregister");
    ExpectReason(Subscribe(who, "orders", id).End(), session_reason, "Subscribe");
    ExpectReason(Unsubscribe(who, id), session_reason, "Unsubscribe");
    ExpectReason(Close(who, id), session_reason, "CloseSession");
  }
  // Nothing of it has had an effect.
  EXPECT_TRUE(KeepAlive("orders", id).ok());
  EXPECT_EQ(store_->Stats().instances, 0);
  EXPECT_EQ(store_->Stats().sessions, 1);
  const AccessControl::Counters counters = access_->counters();
  EXPECT_GT(counters.unauthenticated, 10);
  EXPECT_EQ(counters.denied_register, 4);
  EXPECT_EQ(counters.denied_other, 4);
  EXPECT_EQ(counters.denied_session, 23);
}

TEST_F(AccessTest, ABatchIsJudgedItemByItem) {
  RegisterRequest request;
  for (const char* service : {"other", "orders", "secret", "orders-2"}) AddTo(&request, service);
  RegisterResponse response;
  ASSERT_TRUE(Call("orders", &RegistryService::Stub::Register, request, &response).ok());
  ASSERT_EQ(response.results_size(), 4);
  const auto status = [&](int i) { return StatusFromProto(response.results(i).status()); };
  ExpectReason(status(0), ERROR_REASON_ACCESS_DENIED, "other");
  EXPECT_TRUE(status(1).ok()) << status(1);
  ExpectReason(status(2), ERROR_REASON_ACCESS_DENIED, "secret");
  EXPECT_TRUE(status(3).ok()) << status(3);
  EXPECT_GT(response.revision(), 0u);
  std::vector<std::string> services;
  ASSERT_TRUE(List("reader", "", &services).ok());
  EXPECT_THAT(services, ElementsAre("orders", "orders-2"));
  // A problem of the whole call stays one.
  for (auto& registration : *request.mutable_registrations()) {
    registration.mutable_instance()->set_port(0);
  }
  request.set_session_id("none");
  EXPECT_EQ(ReasonOf(Call("orders", &RegistryService::Stub::Register, request, &response)),
            ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(AccessTest, AStreamOfRegistersIsJudgedMessageByMessage) {
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "i", &session).ok());
  RegisterRequest request;
  request.set_session_id(session.session_id());
  AddTo(&request, "orders");
  RegisterStreamClient owner(server_->addresses()[0], {{"authorization", "Bearer orders"}});
  owner.Send(request);
  auto answer = owner.Read();
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->has_status());
  // Results are left out when all is accepted as requested, with a policy too.
  EXPECT_EQ(answer->results_size(), 0);
  EXPECT_GT(answer->revision(), 0u);
  EXPECT_EQ(store_->Stats().instances, 1);
  AddTo(&request, "other");
  owner.Send(request);
  answer = owner.Read();
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->results_size(), 2);
  EXPECT_FALSE(answer->results(0).has_status());
  ExpectReason(StatusFromProto(answer->results(1).status()), ERROR_REASON_ACCESS_DENIED, "other");
  // The session of another.
  RegisterStreamClient other(server_->addresses()[0], {{"authorization", "Bearer other"}});
  other.Send(request);
  answer = other.Read();
  ASSERT_TRUE(answer.has_value());
  ExpectReason(StatusFromProto(answer->status()), ERROR_REASON_SESSION_NOT_OWNED, "session");
  // New rules count for the next message.
  access_->Update(MakeRules({MakeRule("reader", {kRead}, "*")}, {"orders", "other", "reader"}));
  owner.Send(request);
  answer = owner.Read();
  ASSERT_TRUE(answer.has_value());
  ExpectReason(StatusFromProto(answer->status()), ERROR_REASON_ACCESS_DENIED, "new rules");
  // Who is not known is not let in.
  for (const char* token : {"Bearer wrong", "Basic x"}) {
    RegisterStreamClient unknown(server_->addresses()[0], {{"authorization", token}});
    unknown.Send(request);
    ExpectReason(unknown.Finish(), ERROR_REASON_CREDENTIALS_NEEDED, token);
  }
  EXPECT_EQ(store_->Stats().instances, 1);
}

TEST_F(AccessTest, AListingShowsWhatMayBeRead) {
  ASSERT_TRUE(Register("orders", "", "orders").ok());
  ASSERT_TRUE(Register("other", "", "other").ok());
  std::vector<std::string> services;
  ASSERT_TRUE(List("reader", "", &services).ok());
  EXPECT_THAT(services, ElementsAre("orders", "other"));
  ASSERT_TRUE(List("orders", "", &services).ok());
  EXPECT_THAT(services, ElementsAre("orders"));
  ASSERT_TRUE(List("", "", &services).ok());
  EXPECT_THAT(services, IsEmpty());
}

// An agent that may only register compares what it has registered with what is there.
TEST_F(AccessTest, AListingOfOnesOwnNeedsNoRead) {
  access_->Update(MakeRules({MakeRule("orders", {kRegister}, "orders")}, {"orders"}));
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "mine", &session).ok());
  ASSERT_TRUE(Register("orders", session.session_id(), "orders").ok());
  std::vector<std::string> services;
  ASSERT_TRUE(List("orders", "", &services, "mine").ok());
  EXPECT_THAT(services, ElementsAre("orders"));
  ASSERT_TRUE(List("orders", "", &services).ok());
  EXPECT_THAT(services, IsEmpty());
  ExpectReason(List("orders", "orders"), ERROR_REASON_ACCESS_DENIED, "List");
}

TEST_F(AccessTest, NewRulesEndWhatTheyDoNotAllow) {
  Subscription orders = Subscribe("orders", "orders");
  Subscription other = Subscribe("other", "other");
  Subscription reader = Subscribe("reader", "orders");
  ASSERT_TRUE(orders.Read() && other.Read() && reader.Read());
  // `orders` loses its rule, `other` its token; `reader` stays.
  access_->Update(
      MakeRules({MakeRule("other", {kRead}, "other"), MakeRule("reader", {kRegister, kRead}, "*")},
                {"orders", "reader"}));
  ExpectReason(orders.End(), ERROR_REASON_ACCESS_DENIED, "orders");
  ExpectReason(other.End(), ERROR_REASON_CREDENTIALS_NEEDED, "other");
  EXPECT_EQ(access_->counters().revoked_streams, 2);
  ASSERT_TRUE(Register("reader", "", "orders").ok());
  ASSERT_TRUE(reader.Read());
  EXPECT_EQ(reader.event.delta().upserts_size(), 1);
  reader.context->TryCancel();
  EXPECT_TRUE(absl::IsCancelled(reader.End()));
  // What has ended is not asked again.
  access_->Update(DefaultRules());
  EXPECT_EQ(access_->counters().revoked_streams, 2);
}

TEST_F(AccessTest, WhoIsShutOutIsNamedWithWhatGoesWithIt) {
  std::vector<std::string> lines;
  SetLogSink(LogLevel::kInfo, [&](LogLevel, const std::string& event, const LogFields& fields) {
    if (event.rfind("access ", 0) == 0) lines.push_back(FormatLogLine(event, fields));
  });
  access_->SetOnRevoked([this](const Identity& who, bool revoked) -> LogFields {
    const State::Holdings has = store_->SetRevoked(who.OwnerTag(), revoked ? who.ToString() : "");
    return {{"sessions", absl::StrCat(has.sessions)}, {"instances", absl::StrCat(has.instances)}};
  });
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "i", &session).ok());
  ASSERT_TRUE(Open("orders", "j", &session).ok());
  ASSERT_TRUE(Register("orders", session.session_id(), "orders").ok());
  ASSERT_TRUE(Open("reader", "k", &session).ok());
  // One loses its token, and one that has no session too; a third its rule, and goes on with another.
  access_->Update(MakeRules({MakeRule("reader", {kRead}, "public")}, {"reader"}));
  const std::string why = "why=\"the token is no longer accepted\" ";
  EXPECT_THAT(lines, ElementsAre("access revoked caller=\"token orders\" " + why +
                                 "sessions=2 instances=1"));
  access_->Update(MakeRules({MakeRule("reader", {kRead}, "*")}, {"reader"}));
  EXPECT_EQ(lines.size(), 1u) << "once";
  access_->Update(MakeRules({MakeRule("other", {kRead}, "*")}, {"reader"}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], AllOf(HasSubstr("caller=\"token reader\""), HasSubstr("may not"),
                              HasSubstr("sessions=1 instances=0")));
  access_->Update(DefaultRules());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines, Contains("access restored caller=\"token orders\" sessions=2 instances=1"));
}

TEST_F(AccessTest, AnOpenStreamOfRenewalsIsJudgedByTheNewRules) {
  OpenSessionResponse session;
  ASSERT_TRUE(Open("orders", "i", &session).ok());
  auto context = As("orders");
  auto stream = stub_->KeepAlive(context.get());
  KeepAliveRequest request;
  request.set_session_id(session.session_id());
  KeepAliveResponse response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_status());
  access_->Update(MakeRules({MakeRule("reader", {kRead}, "*")}, {"orders", "reader"}));
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  ExpectReason(StatusFromProto(response.status()), ERROR_REASON_ACCESS_DENIED, "renewal");
}

TEST_F(AccessTest, NoCallerTakesAllSubscriptions) {
  max_subscriptions_ = 4;
  Start("memory:");
  std::vector<Subscription> open;
  for (int i = 0; i < 2; ++i) {
    open.push_back(Subscribe("reader", "orders"));
    ASSERT_TRUE(open.back().Read());
  }
  const absl::Status refused = Subscribe("reader", "other").End();
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "2");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("the share of one owner, of 4"));
  open.push_back(Subscribe("other", "other"));
  ASSERT_TRUE(open.back().Read());
  for (Subscription& subscription : open) {
    subscription.context->TryCancel();
    EXPECT_EQ(subscription.End().code(), absl::StatusCode::kCancelled);
  }
}

// A registry in which listing `orders` takes as long as the test wants.
class SlowReads {
 public:
  SlowReads(const std::string& address, std::shared_ptr<AccessControl> access,
            int max_calls_in_flight) {
    fake_.lists.AnswerWith([this](const ListRequest& request) {
      if (request.selector().service() == "orders") {
        MutexLock lock(&mu_);
        while (permits_ == 0) changed_.Wait(&mu_);
        --permits_;
      }
      return ListResponse();
    });
    RegistryServer::Options options;
    options.listen = {address};
    options.access = std::move(access);
    options.max_calls_in_flight = max_calls_in_flight;
    auto server = RegistryServer::Start(&fake_, options);
    if (!server.ok()) Fatal(server.status().ToString());
    server_ = *std::move(server);
    stub_ = RegistryService::NewStub(
        grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  }
  ~SlowReads() {
    Permit(static_cast<int>(calls_.size()));
    for (Call& call : calls_) {
      if (call.end.valid()) call.end.wait();
    }
  }

  // Begins one.
  void List(std::unique_ptr<grpc::ClientContext> context, const std::string& service) {
    Call& call = calls_.emplace_back();
    call.context = std::move(context);
    call.request.mutable_selector()->set_service(service);
    stub_->async()->List(
        call.context.get(), &call.request, &call.response,
        [&call](const grpc::Status& status) { call.status.set_value(StatusFromGrpc(status)); });
  }
  // How the `index`-th ended.
  absl::Status End(size_t index) { return calls_[index].end.get(); }

  // Whether so many come to be at the server at once.
  bool WaitForCalls(int64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (server_->Stats().calls_in_flight != count) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Whether so many come to wait for their turn.
  bool WaitForWaiting(int64_t count) {
    return Eventually([&] { return server_->Stats().reads_waiting == count; });
  }

  // So many slow ones may end.
  void Permit(int count) {
    MutexLock lock(&mu_);
    permits_ += count;
    changed_.SignalAll();
  }
  FakeRegistry& fake() { return fake_; }

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    ListRequest request;
    ListResponse response;
    std::promise<absl::Status> status;
    std::future<absl::Status> end = status.get_future();
  };

  Mutex mu_;
  CondVar changed_;
  int permits_ ABSL_GUARDED_BY(mu_) = 0;
  FakeRegistry fake_;
  std::deque<Call> calls_;
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<RegistryService::Stub> stub_;
};

TEST_F(AccessTest, NoCallersSlowReadsHoldUpThoseOfOthers) {
  constexpr int kReads = 1000;
  SlowReads slow(absl::StrCat("unix:", folder_.File("reads")), access_, 10 * kReads);
  for (int i = 0; i < kReads; ++i) slow.List(As("orders"), "orders");
  ASSERT_TRUE(slow.WaitForCalls(kReads));
  // On all threads for reads.
  const size_t begun = std::max<size_t>(std::thread::hardware_concurrency() / 2, 1);
  ASSERT_TRUE(slow.fake().lists.WaitForRequests(begun));
  slow.List(As("reader"), "other");
  ASSERT_TRUE(slow.WaitForWaiting(static_cast<int64_t>(kReads - begun + 1)));
  // As soon as one thread becomes free, its turn comes.
  slow.Permit(1);
  ASSERT_TRUE(slow.fake().lists.WaitForRequests(begun + 1));
  EXPECT_EQ(slow.fake().lists.requests()[begun].selector().service(), "other");
  EXPECT_EQ(slow.End(kReads), absl::OkStatus());
  slow.Permit(kReads);
  for (int i = 0; i < kReads; ++i) EXPECT_EQ(slow.End(i), absl::OkStatus());
}

TEST_F(AccessTest, NoCallersListsTakeAllCalls) {
  SlowReads slow(absl::StrCat("unix:", folder_.File("reads")), access_, 4);
  for (int i = 0; i < 2; ++i) slow.List(As("orders"), "orders");
  ASSERT_TRUE(slow.WaitForCalls(2));
  slow.List(As("orders"), "orders");
  const absl::Status refused = slow.End(2);
  EXPECT_EQ(ReasonOf(refused), registry::v1::ERROR_REASON_OVERLOADED) << refused;
  EXPECT_EQ(ReasonMetadata(refused, "limit"), "2");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("its share of 4 calls"));
  slow.List(As("reader"), "other");
  slow.Permit(2);
  EXPECT_EQ(slow.End(0), absl::OkStatus());
  EXPECT_EQ(slow.End(1), absl::OkStatus());
  EXPECT_EQ(slow.End(3), absl::OkStatus());
  ASSERT_TRUE(slow.WaitForCalls(0));
  slow.Permit(1);
  slow.List(As("orders"), "orders");
  EXPECT_EQ(slow.End(4), absl::OkStatus()) << "there is room again";
}

TEST_F(AccessTest, WhoMayRegisterNothingReportsNothing) {
  for (const std::string token : {"reader", "orders"}) {
    OpenSessionResponse session;
    ASSERT_TRUE(Open(token, "i-" + token, &session).ok());
    auto context = As(token);
    auto stream = stub_->KeepAlive(context.get());
    KeepAliveRequest request;
    request.set_session_id(session.session_id());
    request.mutable_report()->set_name("agent of " + token);
    request.mutable_report()->set_parked(7);
    KeepAliveResponse response;
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_FALSE(response.has_status()) << "the session is renewed all the same";
  }
  const auto agents = store_->ListAgents(admin::v1::ListAgentsRequest());
  ASSERT_TRUE(agents.ok());
  ASSERT_EQ(agents->agents_size(), 1);
  EXPECT_EQ(agents->agents(0).report().name(), "agent of orders");
}

// Incarnations are shown in listings: knowing one must not give its session away.
TEST_F(AccessTest, ASessionIsNotStolenByItsIncarnation) {
  OpenSessionResponse mine;
  ASSERT_TRUE(Open("orders", "known-to-all", &mine).ok());
  ASSERT_TRUE(Register("orders", mine.session_id(), "orders").ok());
  OpenSessionResponse stolen;
  ExpectReason(Open("other", "known-to-all", &stolen), ERROR_REASON_SESSION_NOT_OWNED, "theft");
  EXPECT_EQ(stolen.session_id(), "");
  OpenSessionResponse again;
  ASSERT_TRUE(Open("orders", "known-to-all", &again).ok());
  EXPECT_TRUE(again.resumed());
  EXPECT_EQ(again.session_id(), mine.session_id());
  // An owner that the thief names himself is overwritten.
  OpenSessionRequest request;
  request.set_incarnation("known-to-all");
  request.set_owner(mine.session_id().substr(mine.session_id().find('.') + 1));
  ExpectReason(Call("other", &RegistryService::Stub::OpenSession, request, &stolen),
               ERROR_REASON_SESSION_NOT_OWNED, "theft");
  // Also once it has ended: who has the incarnation keeps its owner out.
  ASSERT_TRUE(Close("orders", mine.session_id()).ok());
  ExpectReason(Open("other", "known-to-all", &stolen), ERROR_REASON_SESSION_NOT_OWNED, "theft");
  EXPECT_TRUE(Open("orders", "known-to-all", &again).ok());
}

// A registry that does not know owners may have opened it for anybody.
TEST_F(AccessTest, ASessionWithoutAnOwnerThatWasThereIsNotHandedOut) {
  FakeRegistry ownerless;
  GuardedRegistry guarded(&ownerless, access_,
                          Identity{Identity::Kind::kToken, {"orders"}, Sha256("orders")});
  OpenSessionRequest request;
  request.set_incarnation("known-to-all");
  OpenSessionResponse theirs;
  theirs.set_session_id("without-owner");
  theirs.set_resumed(true);
  ownerless.opens.Answer(theirs);
  ExpectReason(CallAndWait(guarded, &Registry::OpenSession, request).status(),
               ERROR_REASON_SESSION_NOT_OWNED, "resumed");
  theirs.set_resumed(false);
  ownerless.opens.Answer(theirs);
  EXPECT_TRUE(CallAndWait(guarded, &Registry::OpenSession, request).ok()) << "a new one";
}

TEST_F(AccessTest, AnAlteredSessionIdIsUnknown) {
  OpenSessionResponse mine;
  OpenSessionResponse his;
  ASSERT_TRUE(Open("orders", "mine", &mine).ok());
  ASSERT_TRUE(Open("other", "his", &his).ok());
  const auto random = [](const std::string& id) { return id.substr(0, id.find('.')); };
  const auto owner = [](const std::string& id) { return id.substr(id.find('.')); };
  EXPECT_EQ(ReasonOf(KeepAlive("other", random(mine.session_id()) + owner(his.session_id()))),
            ERROR_REASON_SESSION_UNKNOWN);
  EXPECT_EQ(ReasonOf(KeepAlive("other", random(mine.session_id()))), ERROR_REASON_SESSION_UNKNOWN);
}

TEST_F(AccessTest, SessionsKeepTheirOwnerThroughARestart) {
  const std::string uri = absl::StrCat("sqlite://", folder_.File("r.db"));
  Start(uri);
  OpenSessionResponse mine;
  ASSERT_TRUE(Open("orders", "i", &mine).ok());
  ASSERT_TRUE(Register("orders", mine.session_id(), "orders").ok());
  Start(uri);
  ExpectReason(KeepAlive("other", mine.session_id()), ERROR_REASON_SESSION_NOT_OWNED, "other");
  ExpectReason(Close("other", mine.session_id()), ERROR_REASON_SESSION_NOT_OWNED, "other");
  OpenSessionResponse stolen;
  ExpectReason(Open("other", "i", &stolen), ERROR_REASON_SESSION_NOT_OWNED, "other");
  EXPECT_TRUE(KeepAlive("orders", mine.session_id()).ok());
  EXPECT_EQ(store_->Stats().instances, 1);
}

TEST_F(AccessTest, MoreThanOneAuthorizationIsRefused) {
  for (const std::string value : {"Basic b3JkZXJz", "Bearer", "orders"}) {
    auto context = As("");
    context->AddMetadata("authorization", value);
    ListResponse response;
    ExpectReason(StatusFromGrpc(stub_->List(context.get(), ListRequest(), &response)),
                 ERROR_REASON_CREDENTIALS_NEEDED, value);
  }
  auto context = As("orders");
  context->AddMetadata("authorization", "Bearer reader");
  ListResponse response;
  ExpectReason(StatusFromGrpc(stub_->List(context.get(), ListRequest(), &response)),
               ERROR_REASON_CREDENTIALS_NEEDED, "two");
}

TEST_F(AccessTest, DenialsAreLoggedInMeasure) {
  std::atomic<int> lines{0};
  SetLogSink(LogLevel::kWarning, [&](LogLevel, const std::string& event, const LogFields& fields) {
    if (event != "denied") return;
    ++lines;
    for (const auto& [name, value] : fields) {
      if (name == "caller") {
        EXPECT_EQ(value, "token other");
      }
      if (name == "peer") {
        EXPECT_NE(value, "") << "where it came from";
      }
      EXPECT_EQ(value.find("Bearer"), std::string::npos);
    }
  });
  const absl::Time begin = absl::Now();
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    ExpectReason(List("other", "orders"), ERROR_REASON_ACCESS_DENIED, "List");
  }
  const auto seconds = absl::ToInt64Seconds(absl::Now() - begin) + 2;
  EXPECT_EQ(access_->counters().denied_read, kCalls);
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 10 * seconds);
}

}  // namespace
}  // namespace failback
