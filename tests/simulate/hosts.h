// The machines of a story: the registry's, or those of several on one etcd, and those of agents.
// Each runs the real thing on a process, a disk and a link of its own, and can be killed, stopped
// and started.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_HOSTS_H_
#define FAILBACK_TESTS_SIMULATE_HOSTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/failback/failback_registry.h"
#include "registry/security/access_control.h"
#include "registry/store/store_registry.h"
#include "retry/executor.h"
#include "tests/simulate/etcd/model_client.h"
#include "tests/simulate/fencing_check.h"
#include "tests/simulate/gateways.h"
#include "tests/simulate/history.h"
#include "tests/simulate/host_disk.h"
#include "tests/simulate/process.h"
#include "tests/simulate/wire.h"
#include "tests/simulate/witness.h"
#include "tests/simulate/world.h"

namespace failback::simulate {

// Sources of what a client may do a session, in seconds.
inline constexpr int kSessionTtl = 10;

class RegistryHost {
 public:
  struct Options {
    // The seed of the disk that its store is on; none: the store is in memory.
    std::optional<uint64_t> disk;
    // What it is on in place of a store, and its link to that; null: it has a store.
    std::shared_ptr<EtcdHost> etcd;
    Witness* on_etcd = nullptr;  // of what it answers then
    int64_t keys_per_lease = 0;
    int link = 0;
    // Callers need a policy that allows them.
    bool secured = false;
    bool short_messages = false;
  };

  // `truth` and `fencing` follow what a store does.
  RegistryHost(World* world, Truth* truth, FencingCheck* fencing, Options options);
  ~RegistryHost();

  void Start();
  // SIGKILL, or a power cut.
  void Kill();
  // It is about to be killed, and its disk ends in the middle of a call.
  void EndDiskSoon();
  void HealDisk();
  int64_t DiskBytes() const { return disk_.has_value() ? disk_->HeldBytes() : 0; }
  void Stop() { process_->Stop(); }
  void Continue(bool reads_first) { process_->Continue(reads_first); }
  bool up() const { return process_ != nullptr; }
  bool running() const { return up() && !process_->stopped(); }

  // While it is down. Another disk: an empty one, or as of the backup.
  void Wipe();
  void Backup();
  bool Restore();

  void SetWall(absl::Duration offset);
  // By link, what its caller may not do: 1 register, 2 anything. All others may do all.
  void SetPolicy(const std::map<int, int>& denied);
  std::weak_ptr<WireServer> server() const { return server_; }
  absl::Status CheckInvariants() const;
  // Its store refuses writes, as its disk has failed one.
  bool refuses_writes() const {
    return store_ != nullptr && disk_.has_value() && disk_->fails() &&
           !store_->Stats().write_status.ok();
  }

 private:
  void StartStore();
  void StartOnEtcd();
  // Its clients reach `registry`.
  void Serve(Registry* registry, Witness* witness);

  World* const world_;
  Truth* const truth_;
  FencingCheck* const fencing_;
  const Options options_;
  uint64_t epoch_ = 0;  // of the last life
  std::optional<HostDisk> disk_;
  std::map<int, int> denied_;
  std::shared_ptr<AccessControl> access_;
  HostDisk::Files backup_;
  absl::Duration wall_ = absl::ZeroDuration();
  std::shared_ptr<Process> process_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StoreRegistry> store_;
  std::unique_ptr<EtcdRegistry> on_etcd_;
  std::shared_ptr<WireServer> server_;
};

class AgentHost {
 public:
  struct Options {
    int index = 0;
    bool journal = false;
    uint64_t seed = 0;
    WireRegistry::Server server;
    std::function<void(const IntentEvent&)> on_event;
    FailbackRegistry::Options registry;  // what varies from story to story
    int gateways_to = 0;                 // so many services; 0: it has none
  };
  enum class Disk { kSame, kEmpty, kOlder };

  AgentHost(World* world, Options options);
  ~AgentHost();

  void Start();
  void Kill(Disk disk);
  // In good order, as after a drain.
  void End();
  void Stop() { process_->Stop(); }
  void Continue(bool reads_first) { process_->Continue(reads_first); }
  void Backup();
  // It is about to be killed, and its disk ends in the middle of a call.
  void EndDiskSoon();
  void HealDisk();
  int64_t DiskBytes() const { return disk_.has_value() ? disk_->HeldBytes() : 0; }
  // Whether it failed in the last life: what the agent did it may not know of.
  bool disk_failed() const { return disk_failed_; }

  bool up() const { return process_ != nullptr; }
  bool running() const { return up() && !process_->stopped(); }
  bool has_journal() const { return disk_.has_value(); }
  // Counts its starts.
  int life() const { return life_; }
  int index() const { return options_.index; }
  FailbackRegistry* registry() { return registry_.get(); }
  // Null: it has none, or is down.
  Gateways* gateways() { return gateways_.get(); }
  const std::shared_ptr<Process>& process() const { return process_; }
  void SetWall(absl::Duration offset);
  // Its connection is broken, or the streams on it only, and it knows.
  void Break(bool connection);
  // Calls that it has sent, over all lives.
  int64_t calls() const { return former_calls_ + (counter_ ? counter_() : 0); }
  std::string CheckInvariants() const;
  // As WireRegistry::SessionAge.
  absl::Duration session_age() const {
    return session_age_ ? session_age_() : absl::InfiniteDuration();
  }

 private:
  World* const world_;
  const Options options_;
  std::optional<HostDisk> disk_;
  HostDisk::Files backup_;
  bool disk_failed_ = false;
  SeededNumbers numbers_;
  absl::Duration wall_ = absl::ZeroDuration();
  int life_ = 0;
  int64_t former_calls_ = 0;
  std::function<void(bool connection)> breaker_;
  std::function<void()> killer_;
  std::function<int64_t()> counter_;
  std::function<absl::Duration()> session_age_;
  std::shared_ptr<Process> process_;
  std::unique_ptr<FailbackRegistry> registry_;
  std::unique_ptr<Gateways> gateways_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_HOSTS_H_
