// What a registry is served and called with where callers show who they are: TLS, a token, and with
// kFailbackPolicy a policy that lets the token's bearer register. Both on a store in memory, so
// that what security costs is not lost behind a disk.
//
//   const Secured secured(/*policy=*/true);
//   Subject::Options options;
//   options.more_args = secured.ServerArgs();
//   Subject server(kFailbackMemory, options);
//   const auto channel = secured.NewChannel(server.address());
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_TESTS_BENCH_SECURED_H_
#define FAILBACK_TESTS_BENCH_SECURED_H_

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "tests/util/process.h"

namespace failback {

inline constexpr char kFailbackTokens[] = "failback-memory-tls-tokens";
inline constexpr char kFailbackPolicy[] = "failback-memory-tls-tokens-policy";

class Secured {
 public:
  explicit Secured(bool policy);

  std::vector<std::string> ServerArgs() const;
  // A connection of its own, whose calls show the token.
  std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) const;

 private:
  const TempDir dir_;
  const bool policy_;
  std::string authority_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_SECURED_H_
