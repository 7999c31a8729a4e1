// Waits for several callbacks.

#ifndef FAILBACK_REGISTRY_ETCD_GATHER_H_
#define FAILBACK_REGISTRY_ETCD_GATHER_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

// Runs `done` with the first error, or OK, when every copy of the Gather's holder has gone.
//
//   auto gather = std::make_shared<Gather>([](const absl::Status& status) { … });
//   for (…) client->LeaseRevoke(…, [gather](const auto& r) { gather->Note(r.status()); });
//
// Thread safety: all methods from any thread.
class Gather {
 public:
  explicit Gather(absl::AnyInvocable<void(absl::Status) &&> done) : done_(std::move(done)) {}
  ~Gather() { std::move(done_)(std::move(status_)); }
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  void Note(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
  }

 private:
  absl::AnyInvocable<void(absl::Status) &&> done_;
  Mutex mu_;
  absl::Status status_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_GATHER_H_
