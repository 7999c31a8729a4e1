#include "tests/bench/secured.h"

#include "tests/bench/load.h"
#include "tests/registry/security/test_authority.h"

namespace failback {
namespace {

constexpr char kToken[] = "bench";
constexpr char kTokens[] =
    "tokens:\n"
    "- {name: bench, sha256: 1b32c28cb38c05480eccc1bd60ff97029b57a05c96718b96dad7e9d84894f549}\n";
// The rule that counts is not the first.
constexpr char kPolicy[] =
    "rules:\n"
    "- {tokens: [billing], allow: [register, read], namespaces: default, services: 'billing*'}\n"
    "- {certificates: ['spiffe://bench/*'], allow: read, namespaces: '*', services: '*'}\n"
    "- {tokens: [bench], allow: [register, read], namespaces: default, services: '*'}\n";

}  // namespace

Secured::Secured(bool policy) : policy_(policy) {
  const TestAuthority authority("bench");
  authority_ = authority.cert();
  const TestAuthority::Pair server = authority.IssueServer();
  dir_.Write("server.crt", server.cert);
  dir_.Write("server.key", server.key);
  dir_.Write("tokens.yaml", kTokens);
  dir_.Write("policy.yaml", kPolicy);
}

std::vector<std::string> Secured::ServerArgs() const {
  std::vector<std::string> args = {"--tls-cert",          dir_.File("server.crt"),
                                   "--tls-key",           dir_.File("server.key"),
                                   "--known-tokens-file", dir_.File("tokens.yaml")};
  if (policy_) args.insert(args.end(), {"--policy-file", dir_.File("policy.yaml")});
  return args;
}

std::shared_ptr<grpc::Channel> Secured::NewChannel(const std::string& address) const {
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = authority_;
  return failback::NewChannel(
      address, grpc::CompositeChannelCredentials(grpc::SslCredentials(tls),
                                                 grpc::AccessTokenCredentials(kToken)));
}

}  // namespace failback
