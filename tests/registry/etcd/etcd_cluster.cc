#include "tests/registry/etcd/etcd_cluster.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/model/errors.h"
#include "tests/util/ports.h"

namespace failback {
namespace {

std::string NewFolder() {
  std::string folder =
      access("/dev/shm", W_OK) == 0 ? "/dev/shm/failback-etcd-XXXXXX" : "/tmp/failback-etcd-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) Fatal("no temporary folder for etcd");
  return folder;
}

}  // namespace

EtcdCluster::EtcdCluster(Options options)
    : options_(std::move(options)), folder_(NewFolder()), name_(folder_) {
  members_.resize(static_cast<size_t>(options_.members));
  for (Member& member : members_) {
    member.client_port = ReservedPort();
    member.peer_port = ReservedPort();
  }
  for (int i = 0; i < size(); ++i) Start(i);
  WaitUntilServing();
}

EtcdCluster::~EtcdCluster() {
  for (Member& member : members_) {
    if (member.process != nullptr) member.process->Kill();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string EtcdCluster::Url(int port, bool client) const {
  return absl::StrCat(client && !options_.tls.empty() ? "https" : "http", "://127.0.0.1:", port);
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) {
    endpoints.push_back(absl::StrCat("127.0.0.1:", member.client_port));
  }
  return endpoints;
}

std::string EtcdCluster::Uri(const std::string& path) const {
  return absl::StrCat("etcd://", absl::StrJoin(endpoints(), ","), path);
}

std::string EtcdCluster::Members() const {
  std::vector<std::string> cluster;
  cluster.reserve(members_.size());
  for (int i = 0; i < size(); ++i) {
    cluster.push_back(
        absl::StrCat("m", i, "=", Url(members_[static_cast<size_t>(i)].peer_port, false)));
  }
  return absl::StrJoin(cluster, ",");
}

void EtcdCluster::Start(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  const std::string client_url = Url(member.client_port, true);
  const std::string peer_url = Url(member.peer_port, false);
  std::vector<std::string> args = {"/usr/bin/etcd",
                                   "--name",
                                   absl::StrCat("m", index),
                                   "--data-dir",
                                   absl::StrCat(folder_, "/m", index),
                                   "--listen-client-urls",
                                   client_url,
                                   "--advertise-client-urls",
                                   client_url,
                                   "--listen-peer-urls",
                                   peer_url,
                                   "--initial-advertise-peer-urls",
                                   peer_url,
                                   "--initial-cluster",
                                   Members(),
                                   "--initial-cluster-token",
                                   name_,
                                   "--heartbeat-interval",
                                   "50",
                                   "--election-timeout",
                                   "500",
                                   "--logger",
                                   "zap",
                                   "--log-level",
                                   "error"};
  if (!options_.tls.empty()) {
    for (const auto& [flag, file] :
         {std::pair<const char*, const char*>{"--cert-file", "server.crt"},
          {"--key-file", "server.key"},
          {"--trusted-ca-file", "ca.crt"}}) {
      args.push_back(flag);
      args.push_back(absl::StrCat(options_.tls, "/", file));
    }
    args.push_back("--client-cert-auth");
  }
  args.insert(args.end(), options_.arguments.begin(), options_.arguments.end());
  member.process = Process::Start(args, {{"GOMAXPROCS", "2"}});
}

void EtcdCluster::Kill(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  member.process->Kill();
  member.process = nullptr;
}

void EtcdCluster::Wipe() {
  for (int i = 0; i < size(); ++i) {
    std::error_code ignored;
    if (!running(i)) std::filesystem::remove_all(absl::StrCat(folder_, "/m", i), ignored);
  }
}

void EtcdCluster::Save(const std::string& file) const {
  const RunResult saved = RunProcess({"/usr/bin/etcdctl", "--endpoints",
                                      Url(members_[0].client_port, true), "snapshot", "save", file},
                                     {{"ETCDCTL_API", "3"}}, 2 * kProcessTimeout);
  if (saved.status != 0) Fatal(saved.err);
}

void EtcdCluster::Restore(const std::string& file, const std::string& name) {
  for (int i = 0; i < size(); ++i) {
    if (running(i)) Kill(i);
  }
  Wipe();
  if (!name.empty()) name_ = name;
  for (int i = 0; i < size(); ++i) {
    const RunResult restored = RunProcess(
        {"/usr/bin/etcdctl", "snapshot", "restore", file, "--name", absl::StrCat("m", i),
         "--initial-cluster", Members(), "--initial-cluster-token", name_,
         "--initial-advertise-peer-urls", Url(members_[static_cast<size_t>(i)].peer_port, false),
         "--data-dir", absl::StrCat(folder_, "/m", i)},
        {{"ETCDCTL_API", "3"}}, 2 * kProcessTimeout);
    if (restored.status != 0) Fatal(restored.err);
  }
  for (int i = 0; i < size(); ++i) Start(i);
  WaitUntilServing();
}

void EtcdCluster::Signal(int index, int signal) {
  members_[static_cast<size_t>(index)].process->Signal(signal);
}

absl::StatusOr<etcdserverpb::StatusResponse> EtcdCluster::Status(int index) const {
  if (!options_.tls.empty()) return absl::UnimplementedError("not with TLS");
  const auto channel = grpc::CreateChannel(endpoints()[static_cast<size_t>(index)],
                                           grpc::InsecureChannelCredentials());
  const auto stub = etcdserverpb::Maintenance::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  etcdserverpb::StatusResponse response;
  const grpc::Status status = stub->Status(&context, {}, &response);
  if (!status.ok()) return StatusFromGrpc(status);
  return response;
}

absl::StatusOr<int64_t> EtcdCluster::Put(const std::string& key, const std::string& value) const {
  const auto channel = grpc::CreateChannel(endpoints()[static_cast<size_t>(WaitForLeader())],
                                           grpc::InsecureChannelCredentials());
  const auto stub = etcdserverpb::KV::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kProcessTimeout));
  etcdserverpb::PutRequest request;
  request.set_key(key);
  request.set_value(value);
  etcdserverpb::PutResponse response;
  const grpc::Status status = stub->Put(&context, request, &response);
  if (!status.ok()) return StatusFromGrpc(status);
  return response.header().revision();
}

int EtcdCluster::WaitForLeader() const {
  const absl::Time deadline = absl::Now() + kProcessTimeout;
  while (absl::Now() < deadline) {
    for (int i = 0; i < size(); ++i) {
      if (!running(i)) continue;
      const auto status = Status(i);
      if (status.ok() && status->leader() != 0 &&
          status->leader() == status->header().member_id()) {
        return i;
      }
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  Fatal("etcd has no leader");
}

void EtcdCluster::WaitUntilServing() const {
  const absl::Time deadline = absl::Now() + kProcessTimeout;
  while (Ctl({"get", "nothing"}).status != 0) {
    if (absl::Now() > deadline) {
      for (const Member& member : members_) {
        if (member.process != nullptr) Fatal(member.process->Describe());
      }
      Fatal("etcd does not serve");
    }
  }
}

RunResult EtcdCluster::Ctl(const std::vector<std::string>& args) const {
  std::vector<std::string> running_endpoints;
  for (int i = 0; i < size(); ++i) {
    if (running(i)) {
      running_endpoints.push_back(Url(members_[static_cast<size_t>(i)].client_port, true));
    }
  }
  std::vector<std::string> command = {"/usr/bin/etcdctl", "--endpoints",
                                      absl::StrJoin(running_endpoints, ","), "--dial-timeout=5s",
                                      "--command-timeout=30s"};
  if (!options_.tls.empty()) {
    for (const auto& [flag, file] : {std::pair<const char*, const char*>{"--cert", "client.crt"},
                                     {"--key", "client.key"},
                                     {"--cacert", "ca.crt"}}) {
      command.push_back(flag);
      command.push_back(absl::StrCat(options_.tls, "/", file));
    }
  }
  command.insert(command.end(), args.begin(), args.end());
  return RunProcess(command, {{"ETCDCTL_API", "3"}}, 2 * kProcessTimeout);
}

}  // namespace failback
