// Tickets: for whom, for which path, for how long.

#include "gateway/door/door_guard.h"

#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "registry/security/identity.h"
#include "registry/security/token_seal.h"

namespace failback {
namespace {

constexpr char kPath[] = "/v1/services/orders";

Identity Reader() {
  Identity identity;
  identity.kind = Identity::Kind::kToken;
  identity.names = {"reader"};
  identity.token_digest = Sha256("secret");
  return identity;
}

TEST(TicketTest, StandsForItsCallerAndItsPathForAMinute) {
  const absl::Time now = absl::FromUnixSeconds(1800000000);
  const std::string ticket = NewTicket(Reader(), kPath, now).ticket();
  const auto owner = OwnerOfTicket(ticket, kPath, now + absl::Seconds(59));
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(owner->ToString(), "token reader");
  EXPECT_EQ(owner->token_digest, Sha256("secret")) << "a token that is revoked takes it along";
  EXPECT_FALSE(OwnerOfTicket(ticket, kPath, now + absl::Seconds(61)).ok());
  EXPECT_FALSE(OwnerOfTicket(ticket, "/v1/services/payments", now).ok());
  EXPECT_EQ(ticket.find("reader"), std::string::npos);
}

TEST(TicketTest, NothingElseIsOne) {
  const absl::Time now = absl::Now();
  std::string changed = NewTicket(Reader(), kPath, now).ticket();
  changed[changed.size() / 2] = changed[changed.size() / 2] == 'A' ? 'B' : 'A';
  // A page token is sealed with the same key.
  for (const std::string& text : {std::string(), std::string("x"), changed,
                                  SealToken("default/orders/1"), std::string(20000, 'x')}) {
    const auto owner = OwnerOfTicket(text, kPath, now);
    EXPECT_EQ(owner.status().code(), absl::StatusCode::kUnauthenticated) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace failback
