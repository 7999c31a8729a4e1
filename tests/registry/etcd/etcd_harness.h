// An EtcdRegistry with keys of its own on a cluster that tests share, and short words for its
// calls.

#ifndef FAILBACK_TESTS_REGISTRY_ETCD_ETCD_HARNESS_H_
#define FAILBACK_TESTS_REGISTRY_ETCD_ETCD_HARNESS_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/etcd/etcd_uri.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/etcd/etcd_cluster.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/timers.h"

namespace failback {

// Of wheels in these tests: shorter than the default, as they wait for what happens on them.
constexpr absl::Duration kTestTick = absl::Milliseconds(5);

// A prefix that no other test of this process has.
inline std::string NewPrefix() {
  static std::atomic<int> last{0};
  return absl::StrCat("/test", ++last);
}

inline EtcdRegistry::Options EtcdTestOptions(const EtcdCluster& etcd, const std::string& prefix,
                                             HashedWheelTimer* timer) {
  EtcdRegistry::Options options = ParseEtcdUri(etcd.Uri(prefix), timer).value();
  // A member that is down is given up sooner, a busy machine is borne longer.
  options.client.attempt_timeout = absl::Seconds(1);
  options.client.call_timeout = kProcessTimeout;
  return options;
}

// Tests that share a cluster of one member.
class EtcdTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { etcd_ = new EtcdCluster(EtcdCluster::Options{}); }
  static void TearDownTestSuite() {
    delete etcd_;
    etcd_ = nullptr;
  }
  static EtcdCluster& etcd() { return *etcd_; }

 private:
  static inline EtcdCluster* etcd_ = nullptr;
};

class EtcdHarness : public RegistryCalls {
 public:
  EtcdHarness(const EtcdCluster& etcd, std::string prefix)
      : prefix_(std::move(prefix)),
        timer_(NewTimer(kTestTick)),
        options_(EtcdTestOptions(etcd, prefix_, timer_.get())) {
    Open();
  }

  EtcdRegistry::Options& options() { return options_; }
  const std::string& prefix() const { return prefix_; }
  HashedWheelTimer* timer() { return timer_.get(); }
  void Open() { registry_ = std::make_unique<EtcdRegistry>(options_); }
  void Close() { registry_.reset(); }
  EtcdRegistry& operator*() { return *registry_; }
  EtcdRegistry* operator->() { return registry_.get(); }

 private:
  Registry& registry() override { return *registry_; }

  const std::string prefix_;
  const std::unique_ptr<HashedWheelTimer> timer_;
  EtcdRegistry::Options options_;
  std::unique_ptr<EtcdRegistry> registry_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_ETCD_ETCD_HARNESS_H_
