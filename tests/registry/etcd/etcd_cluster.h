// Real etcd on loopback, for tests, the demo and the benchmarks: one member or several, on ports
// that stay theirs while they are down.
//
// Members are processes of their own, with their data in memory (/dev/shm).
//
//   EtcdCluster etcd(EtcdCluster::Options{3});
//   const int leader = etcd.WaitForLeader();
//   etcd.Kill(leader);
//   etcd.Start(leader);
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_REGISTRY_ETCD_ETCD_CLUSTER_H_
#define FAILBACK_TESTS_REGISTRY_ETCD_ETCD_CLUSTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "etcd/rpc.pb.h"
#include "tests/util/process.h"

namespace failback {

class EtcdCluster {
 public:
  struct Options {
    int members = 1;
    std::vector<std::string> arguments;
    // Folder with ca.crt, server.crt, server.key: clients have to use TLS and certificates.
    std::string tls;
  };

  // Starts the members and waits until they serve; aborts the test if they do not.
  explicit EtcdCluster(Options options);
  ~EtcdCluster();

  // Of the members' data; goes with the cluster.
  const std::string& folder() const { return folder_; }
  int size() const { return static_cast<int>(members_.size()); }
  // `host:port` of each member.
  std::vector<std::string> endpoints() const;
  // As --registry and --store take it.
  std::string Uri(const std::string& path = "") const;

  void Start(int member);
  // SIGKILL.
  void Kill(int member);
  void Signal(int member, int signal);
  // Removes the data of members that do not run: those that start next are a new cluster.
  void Wipe();
  // `etcdctl snapshot save` of one member.
  void Save(const std::string& file) const;
  // Kills all members, and starts them with what is in the file: as the cluster of that name
  // (another name is another cluster to its clients; empty: the name that it has).
  void Restore(const std::string& file, const std::string& name = "");
  pid_t pid(int member) const { return members_[static_cast<size_t>(member)].process->pid(); }
  bool running(int member) const { return members_[member].process != nullptr; }

  // The leader that a running member knows; waits until there is one that runs.
  int WaitForLeader() const;
  // Waits until calls through a majority pass.
  void WaitUntilServing() const;

  // `etcdctl ARGS…` against the running members.
  RunResult Ctl(const std::vector<std::string>& args) const;

  absl::StatusOr<etcdserverpb::StatusResponse> Status(int member) const;
  // The revision after it.
  absl::StatusOr<int64_t> Put(const std::string& key, const std::string& value) const;

 private:
  struct Member {
    int client_port = 0;
    int peer_port = 0;
    std::unique_ptr<Process> process;
  };

  std::string Url(int port, bool client) const;
  // All members, as --initial-cluster takes them.
  std::string Members() const;

  const Options options_;
  std::string folder_;
  std::string name_;  // of the cluster: its token
  std::vector<Member> members_;
};

}  // namespace failback

#endif  // FAILBACK_TESTS_REGISTRY_ETCD_ETCD_CLUSTER_H_
