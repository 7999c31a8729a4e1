// Who may do what, over the wire.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/security/access_control.h"
#include "tests/registry/security/access_fixture.h"
#include "tests/registry/server/register_stream_client.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_ACCESS_DENIED;
using registry::v1::ERROR_REASON_CREDENTIALS_NEEDED;
using registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  // One loses its token, and one that has no session too; a third its rule, and goes on with
  // another.
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

}  // namespace
}  // namespace failback
