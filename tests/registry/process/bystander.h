// A client that minds its own business while others misbehave: registers, lists and renews, over
// and over, on a connection of its own, and remembers what failed.

#ifndef FAILBACK_TESTS_REGISTRY_PROCESS_BYSTANDER_H_
#define FAILBACK_TESTS_REGISTRY_PROCESS_BYSTANDER_H_

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "retry/mutex.h"
#include "tests/registry/process/registry_client.h"
#include "tests/util/daemons.h"

namespace failback {

class Bystander {
 public:
  explicit Bystander(const std::string& address) : thread_([this, address] { Run(address); }) {}
  ~Bystander() {
    stop_ = true;
    thread_.join();
  }

  // Waits until `more` rounds have gone well since this was called; false when one has failed.
  bool Prospers(int more = 3) {
    const int goal = rounds_ + more;
    return Eventually([&] { return rounds_ >= goal || !failure().empty(); }) && failure().empty();
  }

  std::string failure() const {
    MutexLock lock(&mu_);
    return failure_;
  }

 private:
  void Run(const std::string& address) {
    RegistryClient client(address);
    const auto session = client.Open("bystander");
    if (!session.ok()) return Fail(session.status());
    for (uint32_t port = 1; !stop_; ++port) {
      const auto instance = MakeInstance("bystander", "1", 1 + port % 60000);
      if (auto put = client.Register(session->session_id(), {instance}, port); !put.ok()) {
        return Fail(put.status());
      }
      const auto listed = client.List("bystander");
      if (!listed.ok()) return Fail(listed.status());
      if (listed->size() != 1 || (*listed)[0].instance().port() != instance.port()) {
        return Fail(absl::InternalError("the listing is not what was registered"));
      }
      if (auto status = client.KeepAlive(session->session_id()); !status.ok()) {
        return Fail(status);
      }
      ++rounds_;
    }
  }

  void Fail(const absl::Status& status) {
    MutexLock lock(&mu_);
    failure_ = absl::StrCat("after ", rounds_.load(), " rounds: ", status.ToString());
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int> rounds_ = 0;
  mutable Mutex mu_;
  std::string failure_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_PROCESS_BYSTANDER_H_
