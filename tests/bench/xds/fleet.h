// What the xDS benchmark runs against: a registry, an agent that serves discovery, backends, each a
// process of its own; and callers in this process that know nothing but `xds:///orders`.
//
// Thread safety: one thread, but for Caller::Call.

#ifndef FAILBACK_TESTS_BENCH_XDS_FLEET_H_
#define FAILBACK_TESTS_BENCH_XDS_FLEET_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "failback/registry/v1/registry.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "tests/util/daemons.h"
#include "tests/util/process.h"

namespace failback {

class Fleet {
 public:
  // Starts both daemons. `for_clients`: and names the agent to this process's xDS clients, of which
  // gRPC has one that keeps its server: at most one fleet of a process.
  explicit Fleet(bool for_clients);

  const std::string& agent_address() const { return agent_->address(); }
  pid_t agent_pid() { return agent_->process().pid(); }

  // Starts a backend; the instance is not registered yet.
  registry::v1::ServiceInstance StartBackend(const std::string& id);
  // SIGTERM: it finishes its calls. SIGKILL.
  void StopBackend(const std::string& id);
  void KillBackend(const std::string& id);

  // Returns when the registry has acknowledged. Dies when it does not.
  void Register(const std::vector<registry::v1::ServiceInstance>& instances);
  void Unregister(const registry::v1::InstanceKey& key);

 private:
  const TempDir dir_;
  std::unique_ptr<Daemon> registry_;
  std::unique_ptr<Daemon> agent_;
  std::unique_ptr<registry::v1::RegistryService::Stub> stub_;
  std::map<std::string, std::unique_ptr<Process>> backends_;
};

// A channel, and calls on it.
class Caller {
 public:
  explicit Caller(const std::string& target);

  // One call; empty when it failed, else who served it. From any thread.
  std::string Call();

 private:
  const std::unique_ptr<grpc::GenericStub> stub_;
};

// Threads that call, each as fast as it is answered.
class Load {
 public:
  Load(Caller* caller, int threads);
  ~Load();

  // Ends the calls.
  void Stop();
  int64_t answered() const { return answered_; }
  int64_t failed() const { return failed_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> answered_{0};
  std::atomic<int64_t> failed_{0};
  std::vector<std::thread> threads_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_XDS_FLEET_H_
