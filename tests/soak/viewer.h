// A subscriber that checks every message as it comes, and subscribes again when its stream ends.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_TESTS_SOAK_VIEWER_H_
#define FAILBACK_TESTS_SOAK_VIEWER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "registry/client/grpc_registry.h"
#include "registry/registry.h"
#include "retry/mutex.h"
#include "tests/soak/ledger.h"

namespace failback {

class Viewer {
 public:
  // Follows `service` at `address`.
  Viewer(std::string name, const std::string& address, std::string service, const Ledger* ledger);
  ~Viewer();

  // Subscribes again, from where it was, if the stream has ended.
  void EnsureOpen();

  // The first rule that was broken.
  absl::Status violation() const;
  // Whether it sees exactly this, and not as stale.
  bool Sees(const std::map<std::string, size_t>& versions) const;
  int64_t messages() const;
  int64_t streams() const;

 private:
  class Listener;
  void OnMessage(const SubscribeResponse& event);
  void OnEnd();
  absl::Status Apply(const SubscribeResponse& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;
  const std::string service_;
  GrpcRegistry registry_;

  mutable Mutex mu_;
  View view_ ABSL_GUARDED_BY(mu_);
  absl::Status violation_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> versions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> parts_ ABSL_GUARDED_BY(mu_);
  bool in_parts_ ABSL_GUARDED_BY(mu_) = false;
  bool first_ ABSL_GUARDED_BY(mu_) = true;  // of the stream
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  bool stale_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t messages_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t streams_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<SubscribeStream> stream_;  // of EnsureOpen's thread
};

}  // namespace failback

#endif  // FAILBACK_TESTS_SOAK_VIEWER_H_
