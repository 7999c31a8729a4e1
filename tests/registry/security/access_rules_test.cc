#include "registry/security/access_rules.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/config_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "registry/model/errors.h"
#include "registry/security/identity.h"

namespace failback {
namespace {

using config::v1::PERMISSION_ADMINISTER;
using config::v1::PERMISSION_READ;
using config::v1::PERMISSION_REGISTER;
using ::testing::HasSubstr;

template <typename Message>
Message Parse(const std::string& yaml) {
  Message message;
  const absl::Status status = ParseYaml("test.yaml", yaml, &message);
  EXPECT_TRUE(status.ok()) << status;
  return message;
}

absl::StatusOr<AccessRules> MakePolicy(const std::string& yaml) {
  const auto policy = Parse<config::v1::Policy>(yaml);
  return AccessRules::Make(&policy, nullptr);
}

std::string PolicyError(const std::string& yaml) {
  return std::string(MakePolicy(yaml).status().message());
}

std::string TokenYaml(const std::string& name, const std::string& token) {
  return absl::StrCat("- {name: ", name, ", sha256: ", absl::BytesToHexString(Sha256(token)),
                      "}\n");
}

Identity Certificate(std::vector<std::string> names) {
  return {Identity::Kind::kCertificate, std::move(names), ""};
}

bool Allowed(const absl::Status& status) { return status.ok(); }
bool Denied(const absl::Status& status) {
  return ReasonOf(status) == registry::v1::ERROR_REASON_ACCESS_DENIED &&
         absl::IsPermissionDenied(status);
}
bool NeedsCredentials(const absl::Status& status) {
  return ReasonOf(status) == registry::v1::ERROR_REASON_CREDENTIALS_NEEDED &&
         absl::IsUnauthenticated(status);
}

constexpr char kPolicy[] = R"(
rules:
- name: orders registers itself
  certificates: ["spiffe://prod/orders", "orders.internal"]
  allow: [register]
  namespaces: [default]
  services: [orders, orders-*]
- certificates: ["spiffe://prod/*"]
  allow: read
  namespaces: "*"
  services: "*"
- tokens: [ci]
  allow: [register, read]
  namespaces: ["ci-*"]
  services: "*"
- tokens: [operator]
  allow: [administer, read]
  namespaces: "*"
  services: "*"
- anonymous: true
  allow: read
  namespaces: [public]
  services: [clock]
)";

TEST(AccessRulesTest, WithoutFilesEverythingIsAllowed) {
  const AccessRules rules;
  EXPECT_TRUE(Allowed(rules.Judge(Identity(), PERMISSION_REGISTER, "a", "b")));
  EXPECT_TRUE(Allowed(rules.JudgeAll(Identity(), PERMISSION_ADMINISTER, std::nullopt)));
  EXPECT_TRUE(Allowed(rules.JudgeAny(Identity())));
  EXPECT_TRUE(NeedsCredentials(rules.BearerOf("anything").status()))
      << "a token that nobody knows proves nothing";
}

TEST(AccessRulesTest, CertificatesByEachOfTheirNames) {
  const AccessRules rules = *MakePolicy(kPolicy);
  for (const Identity& orders :
       {Certificate({"spiffe://prod/orders"}), Certificate({"orders.internal"}),
        Certificate({"other.internal", "orders.internal"})}) {
    EXPECT_TRUE(Allowed(rules.Judge(orders, PERMISSION_REGISTER, "default", "orders")));
    EXPECT_TRUE(Allowed(rules.Judge(orders, PERMISSION_REGISTER, "default", "orders-eu")));
    EXPECT_TRUE(Denied(rules.Judge(orders, PERMISSION_REGISTER, "default", "order")));
    EXPECT_TRUE(Denied(rules.Judge(orders, PERMISSION_REGISTER, "default", "ordersx")));
    EXPECT_TRUE(Denied(rules.Judge(orders, PERMISSION_REGISTER, "other", "orders")));
    EXPECT_TRUE(Denied(rules.JudgeAll(orders, PERMISSION_ADMINISTER, std::nullopt)));
  }
  // The second rule's prefix.
  const Identity other = Certificate({"spiffe://prod/payments"});
  EXPECT_TRUE(Allowed(rules.Judge(other, PERMISSION_READ, "x", "y")));
  EXPECT_TRUE(Denied(rules.Judge(other, PERMISSION_REGISTER, "default", "orders")));
  const Identity foreign = Certificate({"spiffe://test/orders"});
  EXPECT_TRUE(Denied(rules.Judge(foreign, PERMISSION_READ, "x", "y")));
  EXPECT_TRUE(Denied(rules.JudgeAny(foreign)));
  // A token is no certificate of that name, nor the other way round.
  EXPECT_TRUE(Denied(rules.Judge(Certificate({"ci"}), PERMISSION_READ, "ci-1", "y")));
}

TEST(AccessRulesTest, AnonymousCallersAreAskedForCredentials) {
  const AccessRules rules = *MakePolicy(kPolicy);
  EXPECT_TRUE(Allowed(rules.Judge(Identity(), PERMISSION_READ, "public", "clock")));
  EXPECT_TRUE(Allowed(rules.JudgeAny(Identity())));
  EXPECT_TRUE(NeedsCredentials(rules.Judge(Identity(), PERMISSION_READ, "public", "clocks")));
  EXPECT_TRUE(NeedsCredentials(rules.Judge(Identity(), PERMISSION_REGISTER, "public", "clock")));
}

TEST(AccessRulesTest, AllMeansAll) {
  const AccessRules rules = *MakePolicy(kPolicy);
  const Identity reader = Certificate({"spiffe://prod/x"});
  EXPECT_TRUE(Allowed(rules.JudgeAll(reader, PERMISSION_READ, "default")));
  EXPECT_TRUE(Allowed(rules.JudgeAll(reader, PERMISSION_READ, std::nullopt)));
  const AccessRules some = *MakePolicy(R"(
rules:
- {certificates: [a], allow: read, namespaces: [one], services: "*"}
- {certificates: [b], allow: read, namespaces: "*", services: "o*"}
)");
  EXPECT_TRUE(Allowed(some.JudgeAll(Certificate({"a"}), PERMISSION_READ, "one")));
  EXPECT_TRUE(Denied(some.JudgeAll(Certificate({"a"}), PERMISSION_READ, "two")));
  EXPECT_TRUE(Denied(some.JudgeAll(Certificate({"a"}), PERMISSION_READ, std::nullopt)));
  EXPECT_TRUE(Denied(some.JudgeAll(Certificate({"b"}), PERMISSION_READ, "one")));
}

TEST(AccessRulesTest, TokensByTheirDigest) {
  const auto policy = Parse<config::v1::Policy>(kPolicy);
  const auto tokens = Parse<config::v1::Tokens>(
      "tokens:\n" + TokenYaml("ci", "old") + TokenYaml("ci", "new") + TokenYaml("operator", "op"));
  const AccessRules rules = *AccessRules::Make(&policy, &tokens);
  for (const std::string token : {"old", "new"}) {
    const absl::StatusOr<Identity> ci = rules.BearerOf(token);
    ASSERT_TRUE(ci.ok()) << ci.status();
    EXPECT_EQ(ci->ToString(), "token ci");
    EXPECT_EQ(ci->OwnerTag(), rules.BearerOf("new")->OwnerTag());
    EXPECT_TRUE(Allowed(rules.Judge(*ci, PERMISSION_REGISTER, "ci-7", "x")));
    EXPECT_TRUE(Denied(rules.Judge(*ci, PERMISSION_REGISTER, "default", "x")));
  }
  EXPECT_NE(rules.BearerOf("op")->OwnerTag(), rules.BearerOf("new")->OwnerTag());
  for (const std::string token : {"", "ol", "old ", "oldd", "OLD"}) {
    EXPECT_TRUE(NeedsCredentials(rules.BearerOf(token).status())) << token;
  }
  // One that is taken back is worth nothing, also where it was known before.
  const auto fewer = Parse<config::v1::Tokens>("tokens:\n" + TokenYaml("ci", "new"));
  const AccessRules later = *AccessRules::Make(&policy, &fewer);
  EXPECT_TRUE(NeedsCredentials(later.Judge(*rules.BearerOf("old"), PERMISSION_READ, "ci-7", "x")));
  EXPECT_TRUE(Allowed(later.Judge(*rules.BearerOf("new"), PERMISSION_READ, "ci-7", "x")));
}

TEST(AccessRulesTest, TokensWithoutPolicyAskForCredentials) {
  const auto tokens = Parse<config::v1::Tokens>("tokens:\n" + TokenYaml("ci", "secret"));
  const AccessRules rules = *AccessRules::Make(nullptr, &tokens);
  EXPECT_TRUE(NeedsCredentials(rules.Judge(Identity(), PERMISSION_READ, "a", "b")));
  EXPECT_TRUE(NeedsCredentials(rules.JudgeAny(Identity())));
  EXPECT_TRUE(Allowed(rules.Judge(*rules.BearerOf("secret"), PERMISSION_REGISTER, "a", "b")));
  EXPECT_TRUE(Allowed(rules.Judge(Certificate({"x"}), PERMISSION_REGISTER, "a", "b")));
}

// Of a connection.
class FakeAuthContext final : public grpc::AuthContext {
 public:
  explicit FakeAuthContext(std::multimap<std::string, std::string> properties)
      : properties_(std::move(properties)) {}

  std::vector<grpc::string_ref> FindPropertyValues(const std::string& name) const override {
    std::vector<grpc::string_ref> values;
    const auto [begin, end] = properties_.equal_range(name);
    for (auto it = begin; it != end; ++it) {
      values.emplace_back(it->second.data(), it->second.size());
    }
    return values;
  }
  bool IsPeerAuthenticated() const override { return true; }
  std::vector<grpc::string_ref> GetPeerIdentity() const override { return {}; }
  std::string GetPeerIdentityPropertyName() const override { return ""; }
  grpc::AuthPropertyIterator begin() const override { return NoProperty(); }
  grpc::AuthPropertyIterator end() const override { return NoProperty(); }
  void AddProperty(const std::string&, const grpc::string_ref&) override {}
  bool SetPeerIdentityPropertyName(const std::string&) override { return false; }

 private:
  struct NoProperty : grpc::AuthPropertyIterator {};

  const std::multimap<std::string, std::string> properties_;
};

// Names go into session ids, logs and messages.
TEST(AccessRulesTest, NamesOfCertificatesThatAreNoTextAreNone) {
  const auto identity = [](std::multimap<std::string, std::string> properties) {
    return IdentityOfPeer(FakeAuthContext(std::move(properties)));
  };
  EXPECT_EQ(identity({}).kind, Identity::Kind::kAnonymous);
  EXPECT_EQ(identity({{"x509_common_name", "\xe9"}}).kind, Identity::Kind::kAnonymous);
  EXPECT_EQ(identity({{"x509_common_name", ""}}).kind, Identity::Kind::kAnonymous);
  EXPECT_EQ(identity({{"x509_common_name", "é"}}).ToString(), "certificate é");
  const Identity several = identity({{"x509_common_name", "common"},
                                     {"peer_dns", "\xe9.internal"},
                                     {"peer_dns", "orders.internal"},
                                     {"peer_uri", "spiffe://prod/orders"}});
  EXPECT_THAT(several.names, ::testing::ElementsAre("spiffe://prod/orders", "orders.internal"));
  EXPECT_EQ(several.kind, Identity::Kind::kCertificate);
}

TEST(AccessRulesTest, BadPoliciesNameTheField) {
  EXPECT_THAT(PolicyError("rules: []"), HasSubstr("rules: is required"));
  EXPECT_THAT(PolicyError(""), HasSubstr("rules: is required"));
  EXPECT_THAT(PolicyError("rules:\n- {allow: read, namespaces: a, services: b}"),
              HasSubstr("rules[0]: matches no caller"));
  EXPECT_THAT(PolicyError("rules:\n- {anonymous: true, namespaces: a, services: b}"),
              HasSubstr("rules[0].allow: is required"));
  EXPECT_THAT(PolicyError("rules:\n- {anonymous: true, allow: read, services: b}"),
              HasSubstr("rules[0].namespaces: is required; '*' means all"));
  EXPECT_THAT(PolicyError("rules:\n- {anonymous: true, allow: read, namespaces: b}"),
              HasSubstr("rules[0].services: is required"));
  EXPECT_THAT(PolicyError("rules:\n- {tokens: ['a*b'], allow: read, namespaces: b, services: c}"),
              HasSubstr("rules[0].tokens[0]: 'a*b' has a '*' before its end"));
  EXPECT_THAT(PolicyError("rules:\n- {tokens: [''], allow: read, namespaces: b, services: c}"),
              HasSubstr("rules[0].tokens[0]: is empty"));
  for (const std::string limited :
       {"namespaces: a, services: '*'", "namespaces: '*', services: a"}) {
    EXPECT_THAT(PolicyError("rules:\n- {tokens: a, allow: [read, administer], " + limited + "}"),
                HasSubstr("rules[0].allow: administer needs '*' in namespaces and services"));
  }
}

TEST(AccessRulesTest, RulesThatCanNeverMatchAreNamed) {
  const auto policy = Parse<config::v1::Policy>(
      "rules:\n"
      "- {tokens: ci, allow: read, namespaces: '*', services: '*'}\n"
      "- {tokens: [cy, 'old-*'], allow: read, namespaces: '*', services: '*'}\n"
      "- {tokens: 'c*', allow: read, namespaces: '*', services: '*'}\n"
      "- {certificates: orders, allow: read, namespaces: '*', services: '*'}\n"
      "- {certificates: orders, tokens: cy, allow: read, namespaces: '*', services: '*'}\n"
      "- {anonymous: true, tokens: cy, allow: read, namespaces: '*', services: '*'}\n"
      "- {tokens: ci, allow: read, namespaces: '*', services: " +
      std::string(1000, 'x') + "}\n");
  const auto tokens = Parse<config::v1::Tokens>("tokens:\n" + TokenYaml("ci", "secret"));
  const absl::StatusOr<AccessRules> rules = AccessRules::Make(&policy, &tokens);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_THAT(rules->NeverMatching(/*certificates=*/true, ""),
              ::testing::ElementsAre("rules[1]: known_tokens_file has no such token",
                                     "rules[6]: no service can have such a name"));
  EXPECT_THAT(
      rules->NeverMatching(/*certificates=*/false, ""),
      ::testing::ElementsAre("rules[1]: known_tokens_file has no such token",
                             "rules[3]: it is for certificates, and clients are asked for none",
                             "rules[4]: known_tokens_file has no such token, and clients are asked "
                             "for no certificate",
                             "rules[6]: no service can have such a name"));
  EXPECT_THAT(rules->NeverMatching(/*certificates=*/false, "orders"),
              ::testing::ElementsAre("rules[1]: known_tokens_file has no such token",
                                     "rules[6]: no service can have such a name"));
  EXPECT_TRUE(AccessRules().NeverMatching(true, "").empty());
}

TEST(AccessRulesTest, BadTokensNameTheFieldAndNotTheToken) {
  const auto error = [](const std::string& yaml) {
    const auto tokens = Parse<config::v1::Tokens>(yaml);
    return std::string(AccessRules::Make(nullptr, &tokens).status().message());
  };
  EXPECT_THAT(error("tokens: []"), HasSubstr("tokens: is required"));
  EXPECT_THAT(error("tokens:\n- {sha256: abc}"), HasSubstr("tokens[0].name: is required"));
  config::v1::Tokens unreadable;
  unreadable.add_tokens()->set_name("\xe9");
  unreadable.mutable_tokens(0)->set_sha256(absl::BytesToHexString(Sha256("x")));
  EXPECT_THAT(std::string(AccessRules::Make(nullptr, &unreadable).status().message()),
              HasSubstr("tokens[0].name: is not UTF-8"));
  const std::string message = error("tokens:\n- {name: a, sha256: my-secret}");
  EXPECT_THAT(message, HasSubstr("tokens[0].sha256: is no SHA-256 digest"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("my-secret")));
  EXPECT_THAT(error("tokens:\n" + TokenYaml("a", "")),
              HasSubstr("tokens[0].sha256: is the digest of nothing"));
  EXPECT_THAT(error("tokens:\n" + TokenYaml("a", "x") + TokenYaml("b", "x")),
              HasSubstr("tokens[1].sha256: is the digest of 'a' already"));
}

}  // namespace
}  // namespace failback
