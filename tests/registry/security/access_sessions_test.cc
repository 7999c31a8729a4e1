// Whose a session is, over the wire.

#include <string>

#include "absl/strings/str_cat.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/security/guarded_registry.h"
#include "tests/registry/fake_registry.h"
#include "tests/registry/registry_calls.h"
#include "tests/registry/security/access_fixture.h"

namespace failback {
namespace {

using registry::v1::ERROR_REASON_CREDENTIALS_NEEDED;
using registry::v1::ERROR_REASON_SESSION_NOT_OWNED;
using registry::v1::ERROR_REASON_SESSION_UNKNOWN;

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

}  // namespace
}  // namespace failback
