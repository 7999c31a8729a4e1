// `./dev bench registry --store etcd`: etcd through Failback beside bare etcd calls, in one run.
//
//   register-etcd   100,000 instances of one agent, from the first call to the last acknowledged,
//                   and what they take in etcd; bare: as many puts on leases of 500, in
//                   transactions of 100, 16 under way
//   recover-etcd    etcd is killed, emptied and started; from its first answer until all are there
//   fanout-etcd     a change to 1,000 subscribers of failback-registry (one etcd watch), and to
//                   1,000 bare watches
//
// Every workload checks its work, and ends the process when it was not done.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/client/grpc_registry.h"
#include "registry/etcd/etcd_registry.h"
#include "registry/failback/failback_registry.h"
#include "registry/model/canonical.h"
#include "registry/rpc/grpc_threads.h"
#include "tests/bench/instances.h"
#include "tests/bench/load.h"
#include "tests/bench/report.h"
#include "tests/bench/subject.h"
#include "tests/registry/etcd/etcd_harness.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr char kBare[] = "bare-etcd";
constexpr char kFailback[] = "failback";
constexpr int kOperations = 100;
constexpr int kInFlight = 16;
constexpr int64_t kKeysPerLease = 500;
constexpr absl::Duration kPatience = absl::Minutes(3);

struct Scale {
  int64_t instances = 100000;
  int subscribers = 1000;
  int connections = 8;
  int changes = 30;
};

// Blocks until `count` reaches a number.
class Counter {
 public:
  void Add(int64_t n = 1) {
    std::lock_guard<std::mutex> lock(mu_);
    count_ += n;
    changed_.notify_all();
  }
  void WaitFor(int64_t n, const char* what) {
    std::unique_lock<std::mutex> lock(mu_);
    if (!changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] { return count_ >= n; })) {
      Fatal(absl::StrCat(what, ": ", count_, " of ", n, " in time"));
    }
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int64_t count_ = 0;
};

std::shared_ptr<grpc::Channel> Connect(const EtcdCluster& etcd) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(etcd.endpoints()[static_cast<size_t>(etcd.WaitForLeader())],
                                   grpc::InsecureChannelCredentials(), arguments);
}

// How many keys begin with `prefix`; -1 when etcd does not answer.
int64_t CountKeys(etcdserverpb::KV::Stub* kv, const std::string& prefix) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(prefix.substr(0, prefix.size() - 1) + '0');  // after the slash
  request.set_count_only(true);
  etcdserverpb::RangeResponse response;
  return kv->Range(&context, request, &response).ok() ? response.count() : -1;
}

// What both subjects are given, made before either is measured.
std::vector<RegisterRequest> MakeRequests(int64_t instances) {
  std::vector<RegisterRequest> requests;
  for (int64_t i = 0; i < instances; ++i) {
    if (i % 1000 == 0) {
      requests.emplace_back().set_wait_for(registry::v1::INTENT_STATE_ACKNOWLEDGED);
    }
    *requests.back().add_registrations()->mutable_instance() = NumberedInstance("b", i);
  }
  return requests;
}

// Puts instances as a client of etcd's own would: leases, then transactions of puts.
class BareWriter {
 public:
  explicit BareWriter(const EtcdCluster& etcd)
      : channel_(Connect(etcd)),
        kv_(etcdserverpb::KV::NewStub(channel_)),
        lease_(etcdserverpb::Lease::NewStub(channel_)) {}

  // Keys and values.
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  static Pairs Encode(const std::string& prefix, const std::vector<RegisterRequest>& requests) {
    Pairs pairs;
    for (const RegisterRequest& request : requests) {
      for (const auto& registration : request.registrations()) {
        const auto& instance = registration.instance();
        pairs.emplace_back(
            absl::StrCat(prefix, instance.key().service(), "/", instance.key().instance_id()),
            CanonicalInstance(instance));
      }
    }
    return pairs;
  }

  // The time that it took.
  double Put(const Pairs& pairs) {
    const auto instances = static_cast<int64_t>(pairs.size());
    const double began = NowSeconds();
    GrantLeases((instances + kKeysPerLease - 1) / kKeysPerLease);
    const int64_t txns = (instances + kOperations - 1) / kOperations;
    next_ = 0;
    Counter done;
    for (int i = 0; i < kInFlight; ++i) PutNext(pairs, txns, &done);
    done.WaitFor(txns, "bare transactions");
    return NowSeconds() - began;
  }

  etcdserverpb::KV::Stub* kv() { return kv_.get(); }

 private:
  struct Call {
    grpc::ClientContext context;
    TxnRequest request;
    TxnResponse response;
  };

  void GrantLeases(int64_t count) {
    struct Grant {
      grpc::ClientContext context;
      etcdserverpb::LeaseGrantRequest request;
      etcdserverpb::LeaseGrantResponse response;
    };
    Counter granted;
    std::vector<std::unique_ptr<Grant>> grants;
    for (int64_t i = 0; i < count; ++i) {
      grants.push_back(std::make_unique<Grant>());
      Grant* const grant = grants.back().get();
      grant->request.set_ttl(600);
      lease_->async()->LeaseGrant(&grant->context, &grant->request, &grant->response,
                                  [&granted](const grpc::Status& status) {
                                    if (!status.ok()) Fatal(status.error_message());
                                    granted.Add();
                                  });
    }
    granted.WaitFor(count, "leases");
    leases_.clear();
    for (const auto& grant : grants) leases_.push_back(grant->response.id());
  }

  void PutNext(const Pairs& pairs, int64_t txns, Counter* done) {
    const int64_t index = next_++;
    if (index >= txns) return;
    auto call = std::make_shared<Call>();
    const auto end = std::min<int64_t>((index + 1) * kOperations, pairs.size());
    for (int64_t i = index * kOperations; i < end; ++i) {
      auto* put = call->request.add_success()->mutable_request_put();
      put->set_key(pairs[i].first);
      put->set_value(pairs[i].second);
      put->set_lease(leases_[static_cast<size_t>(i / kKeysPerLease)]);
    }
    kv_->async()->Txn(&call->context, &call->request, &call->response,
                      [this, call, &pairs, txns, done](const grpc::Status& status) {
                        if (!status.ok()) Fatal(status.error_message());
                        PutNext(pairs, txns, done);
                        done->Add();
                      });
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<etcdserverpb::KV::Stub> kv_;
  const std::unique_ptr<etcdserverpb::Lease::Stub> lease_;
  std::vector<int64_t> leases_;
  std::atomic<int64_t> next_{0};
};

// An agent's core over etcd.
class Core {
 public:
  Core(const EtcdCluster& etcd, const std::string& prefix)
      : timer_(NewTimer(kTestTick)), registry_(Make(etcd, prefix)) {}

  // Every time that etcd has taken one.
  Counter acknowledged;

  // The time until all are acknowledged.
  double Register(const std::vector<RegisterRequest>& requests) {
    Counter done;
    const double began = NowSeconds();
    for (const RegisterRequest& request : requests) {
      registry_->Register(request, [&](const absl::StatusOr<RegisterResponse>& response) {
        if (!response.ok()) Fatal(response.status().ToString());
        for (const auto& result : response->results()) {
          if (result.state() != registry::v1::INTENT_STATE_ACKNOWLEDGED) {
            Fatal(result.ShortDebugString());
          }
        }
        done.Add();
      });
    }
    done.WaitFor(static_cast<int64_t>(requests.size()), "registrations");
    return NowSeconds() - began;
  }

 private:
  std::unique_ptr<FailbackRegistry> Make(const EtcdCluster& etcd, const std::string& prefix) {
    FailbackRegistry::Options options;
    options.upstream_name = "etcd";
    options.timer = timer_.get();
    options.session_ttl = absl::Seconds(60);
    options.anti_entropy_interval = absl::ZeroDuration();
    options.on_event = [this](const IntentEvent& event) {
      if (event.kind == IntentEvent::Kind::kAcknowledged) acknowledged.Add();
    };
    return FailbackRegistry::Create(
               std::make_unique<EtcdRegistry>(ParseEtcdUri(etcd.Uri(prefix), timer_.get()).value()),
               std::move(options))
        .value();
  }

  const std::unique_ptr<HashedWheelTimer> timer_;
  const std::unique_ptr<FailbackRegistry> registry_;
};

EtcdCluster::Options ClusterOptions(int members) {
  EtcdCluster::Options options;
  options.members = members;
  options.arguments = {"--quota-backend-bytes", "8589934592"};
  return options;
}

// CPU that etcd and this process take, from its making on.
class CpuMeter {
 public:
  explicit CpuMeter(const EtcdCluster& etcd) : etcd_(etcd), etcd_began_(Etcd()), began_(Own()) {}
  void Report(const std::string& workload, const std::string& subject,
              failback::Report* report) const {
    report->Add(workload, subject, "etcd_cpu", Etcd() - etcd_began_, "s");
    report->Add(workload, subject, "client_cpu", Own() - began_, "s");
  }

 private:
  static double Own() { return CpuSecondsOf(getpid()); }
  double Etcd() const {
    double seconds = 0;
    for (int i = 0; i < etcd_.size(); ++i) seconds += CpuSecondsOf(etcd_.pid(i));
    return seconds;
  }

  const EtcdCluster& etcd_;
  const double etcd_began_;
  const double began_;
};

// Each round on an etcd of its own, as an older one has more to carry.
void RegisterAll(const Scale& scale, int members, const std::string& subject, Report* report) {
  EtcdCluster etcd(ClusterOptions(members));
  BareWriter bare(etcd);
  const std::vector<RegisterRequest> requests = MakeRequests(scale.instances);
  const std::string prefix = "/bench";
  double seconds;
  std::string keys = prefix + "/v1/default/";
  if (subject == kBare) {
    keys = "/bare/default/";
    const CpuMeter cpu(etcd);
    seconds = bare.Put(BareWriter::Encode(keys, requests));
    cpu.Report("register-etcd", subject, report);
  } else {
    Core core(etcd, prefix);
    // With its session open, as the bare client with its connection.
    if (!Eventually([&] { return CountKeys(bare.kv(), prefix + "/v1/.session/") == 1; })) {
      Fatal("no session");
    }
    const CpuMeter cpu(etcd);
    seconds = core.Register(requests);
    cpu.Report("register-etcd", subject, report);
    // Before the core, and its session with it, goes.
    if (CountKeys(bare.kv(), keys) != scale.instances) Fatal("not all are in etcd");
  }
  if (CountKeys(bare.kv(), keys) != scale.instances) Fatal("not all are in etcd");
  report->Add("register-etcd", subject, "seconds", seconds, "s");
  const auto status = etcd.Status(0);
  if (!status.ok()) Fatal(status.status().ToString());
  const auto instances = static_cast<double>(scale.instances);
  report->Add("register-etcd", subject, "database_per_instance",
              static_cast<double>(status->dbsize()) / instances, "bytes");
  report->Add("register-etcd", subject, "memory_per_instance",
              static_cast<double>(AnonymousBytesOf(etcd.pid(0))) / instances, "bytes");
  report->Add("register-etcd", subject, "instances_per_s",
              static_cast<double>(scale.instances) / seconds, "1/s");
}

void Recover(const Scale& scale, int members, const std::string& subject, Report* report) {
  EtcdCluster etcd(ClusterOptions(members));
  const std::string keys = "/bench/v1/default/";
  std::unique_ptr<Core> core;
  BareWriter::Pairs pairs;  // that the bare client keeps
  if (subject == kFailback) {
    core = std::make_unique<Core>(etcd, "/bench");
    core->Register(MakeRequests(scale.instances));
  } else {
    pairs = BareWriter::Encode(keys, MakeRequests(scale.instances));
  }
  for (int i = 0; i < etcd.size(); ++i) etcd.Kill(i);
  etcd.Wipe();
  for (int i = 0; i < etcd.size(); ++i) etcd.Start(i);
  etcd.WaitForLeader();
  BareWriter bare(etcd);
  while (CountKeys(bare.kv(), keys) < 0) absl::SleepFor(absl::Milliseconds(1));
  const CpuMeter cpu(etcd);
  const double began = NowSeconds();
  double seconds;
  if (core == nullptr) {
    seconds = bare.Put(pairs);
  } else {
    core->acknowledged.WaitFor(2 * scale.instances, "registrations that are back");
    seconds = NowSeconds() - began;
  }
  cpu.Report("recover-etcd", subject, report);
  // Asked once, and after: to count costs etcd time in proportion to the keys.
  if (CountKeys(bare.kv(), keys) != scale.instances) Fatal("not all are in etcd");
  report->Add("recover-etcd", subject, "seconds", seconds, "s");
}

// Counts who has received the newest change.
class CountingListener : public NotifyListener {
 public:
  CountingListener(Counter* snapshots, Counter* deltas) : snapshots_(snapshots), deltas_(deltas) {}
  void OnEvent(const EventPtr& event) override {
    (event->is_snapshot() ? snapshots_ : deltas_)->Add();
  }
  void OnEnd(const absl::Status& status) override { Fatal(status.ToString()); }

 private:
  Counter* const snapshots_;
  Counter* const deltas_;
};

// One stream with many watches of one service.
class BareWatches
    : public grpc::ClientBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse> {
 public:
  BareWatches(const EtcdCluster& etcd, const std::string& prefix, int watches, Counter* created,
              Counter* events)
      : channel_(Connect(etcd)),
        stub_(etcdserverpb::Watch::NewStub(channel_)),
        watches_(watches),
        created_(created),
        events_(events) {
    auto* create = request_.mutable_create_request();
    create->set_key(prefix);
    create->set_range_end(prefix.substr(0, prefix.size() - 1) + '0');
    stub_->async()->Watch(&context_, this);
    StartRead(&response_);
    Write();
    StartCall();
  }
  ~BareWatches() override {
    context_.TryCancel();
    done_.WaitFor(1, "the end of a watch");
  }

 private:
  void Write() {
    if (written_++ < watches_) StartWrite(&request_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) Write();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    (response_.created() ? created_ : events_)->Add();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override { done_.Add(); }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<etcdserverpb::Watch::Stub> stub_;
  const int watches_;
  Counter* const created_;
  Counter* const events_;
  grpc::ClientContext context_;
  etcdserverpb::WatchRequest request_;
  etcdserverpb::WatchResponse response_;
  int written_ = 0;
  Counter done_;
};

void Fanout(const Scale& scale, const std::string& subject, Report* report) {
  EtcdCluster etcd(ClusterOptions(1));
  EtcdHarness writer(etcd, "/bench");
  const std::string session = writer.Session("writer", absl::Seconds(60));
  for (int i = 0; i < 100; ++i) {
    if (!writer.Register(session, NumberedInstance("f", i, true), 1).ok()) Fatal("not registered");
  }
  const std::string service = NumberedInstance("f", 0, true).key().service();
  Counter ready;
  Counter told;
  std::unique_ptr<Daemon> server;
  std::vector<std::unique_ptr<GrpcRegistry>> clients;
  std::vector<std::unique_ptr<SubscribeStream>> streams;
  std::vector<std::unique_ptr<BareWatches>> watches;
  const int each = scale.subscribers / scale.connections;
  for (int c = 0; c < scale.connections; ++c) {
    if (subject == kBare) {
      watches.push_back(std::make_unique<BareWatches>(
          etcd, absl::StrCat("/bench/v1/default/", service, "/"), each, &ready, &told));
      continue;
    }
    if (server == nullptr) {
      server = std::make_unique<Daemon>(Daemon::Registry({"--store", etcd.Uri("/bench")}));
    }
    clients.push_back(std::make_unique<GrpcRegistry>(std::vector<std::string>{server->address()},
                                                     GrpcRegistryOptions()));
    SubscribeRequest request;
    request.mutable_selector()->set_service(service);
    for (int i = 0; i < each; ++i) {
      streams.push_back(
          clients.back()->Subscribe(request, std::make_shared<CountingListener>(&ready, &told)));
    }
  }
  const int64_t subscribers = int64_t{each} * scale.connections;
  ready.WaitFor(subscribers, "subscribers");
  const double etcd_cpu = CpuSecondsOf(etcd.pid(0));
  std::vector<double> seconds;
  for (int change = 0; change < scale.changes; ++change) {
    const double began = NowSeconds();
    ServiceInstance instance = NumberedInstance("f", change % 100, true);
    instance.set_port(1 + static_cast<uint32_t>(change));
    if (!writer.Register(session, instance, static_cast<uint64_t>(change) + 2).ok()) {
      Fatal("not changed");
    }
    told.WaitFor(subscribers * (change + 1), "news");
    seconds.push_back(NowSeconds() - began);
  }
  report->Add("fanout-etcd", subject, "last_told_p50", Median(seconds) * 1e3, "ms");
  report->Add("fanout-etcd", subject, "last_told_p99", Percentile(seconds, 0.99) * 1e3, "ms");
  report->Add("fanout-etcd", subject, "etcd_cpu_per_change",
              (CpuSecondsOf(etcd.pid(0)) - etcd_cpu) / scale.changes * 1e3, "ms");
}

int Main(int argc, char** argv) {
  KeepGrpcCallbackThreads();
  Report::Options options;
  options.name = "registry --store etcd";
  int rounds = 5;
  int members = 1;
  bool quick = false;
  std::vector<std::string> only;
  CLI::App app("Measures etcd through Failback against bare etcd calls.");
  app.add_option("--json", options.json_path, "file for JSON lines");
  app.add_option("--revision", options.revision, "what is measured, as git names it");
  app.add_option("--rounds", rounds, "of each workload; medians are shown")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--members", members, "of the etcd cluster")
      ->check(CLI::Range(1, 5))
      ->capture_default_str();
  app.add_option("--workload", only, "only these; several with commas")->delimiter(',');
  app.add_flag("--quick", quick, "one small round: shows that it works, not how fast");
  CLI11_PARSE(app, argc, argv);
  Scale scale;
  if (quick) {
    scale = {2000, 40, 4, 3};
    rounds = 1;
  }
  const std::pair<std::string, std::function<void(const std::string&, Report*)>> workloads[] = {
      {"register-etcd", [&](const std::string& subject,
                            Report* report) { RegisterAll(scale, members, subject, report); }},
      {"recover-etcd", [&](const std::string& subject,
                           Report* report) { Recover(scale, members, subject, report); }},
      {"fanout-etcd",
       [&](const std::string& subject, Report* report) { Fanout(scale, subject, report); }},
  };
  Report report(options);
  report.Note(absl::StrCat("etcd of ", members, " member(s), data in memory"));
  for (const auto& [name, run] : workloads) {
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
    for (int round = 0; round < rounds; ++round) {
      // In turn, so that none profits from its place.
      run(round % 2 == 0 ? kBare : kFailback, &report);
      run(round % 2 == 0 ? kFailback : kBare, &report);
    }
  }
  report.Ratio("register-etcd", "instances_per_s", kFailback, kBare);
  report.Ratio("register-etcd", "etcd_cpu", kFailback, kBare);
  report.Ratio("recover-etcd", "seconds", kFailback, kBare);
  for (const char* metric : {"last_told_p50", "last_told_p99", "etcd_cpu_per_change"}) {
    report.Ratio("fanout-etcd", metric, kFailback, kBare);
  }
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
