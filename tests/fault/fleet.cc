#include "tests/fault/fleet.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/agent/v1/agent.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "tests/registry/registry_calls.h"
#include "tests/util/instances.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

namespace fs = std::filesystem;

// What a store consists of while it is not open.
constexpr const char* kStoreFiles[] = {"", "-wal"};

// The first error of an answer or of one of its items.
template <typename Response>
absl::Status FirstError(const absl::StatusOr<Response>& response) {
  if (!response.ok()) return response.status();
  for (const auto& result : response->results()) {
    absl::Status status = StatusFromProto(result.status());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

InstanceKey Key(const std::string& id) {
  InstanceKey key;
  key.set_namespace_("default");
  key.set_service(kService);
  key.set_instance_id(id);
  return key;
}

std::vector<std::string> Ids(int count) {
  std::vector<std::string> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ids.push_back(absl::StrCat("i-", i));
  return ids;
}

// Calls of the test's own may have to wait for a machine that is busy with other things.
GrpcRegistryOptions Patient() {
  GrpcRegistryOptions options;
  options.call_timeout = kProcessTimeout;
  return options;
}

// AgentService on a connection of its own: an earlier one's backoff does not count.
class Operator {
 public:
  explicit Operator(const std::string& address) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = agent::v1::AgentService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
  }

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (agent::v1::AgentService::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&,
                                                                          Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kConvergence));
    return StatusFromGrpc((stub_.get()->*method)(&context, request, response));
  }

 private:
  std::unique_ptr<agent::v1::AgentService::Stub> stub_;
};

using Stub = agent::v1::AgentService::Stub;

}  // namespace

// --- Fleet

Fleet::Fleet(Options options) : options_(std::move(options)) {
  timer_ = NewTimer(absl::Milliseconds(10));
  if (options_.registry == RegistryKind::kRefusing) {
    StoreRegistry::Options store;
    store.timer = timer_.get();
    store_ = StoreRegistry::Open(store).value();
    refusing_ = std::make_unique<RefusingRegistry>(store_.get());
  }
  StartRegistry();
  proxy_ = FaultProxy::Start(RegistrySocket());
  truth_ = std::make_unique<GrpcRegistry>(std::vector<std::string>{RegistrySocket()}, Patient());
  StartAgent();
  if (options_.watched) watcher_ = std::make_unique<Watcher>(client_);
}

Fleet::~Fleet() {
  // A stopped process would not let go of what waits for it.
  if (registry_ != nullptr) ContinueRegistry();
  watcher_.reset();
  library_.reset();
  agent_client_.reset();
  truth_.reset();
}

void Fleet::StartRegistry() {
  if (refusing_ != nullptr) {
    RegistryServer::Options server;
    server.listen = {RegistrySocket()};
    server_ = RegistryServer::Start(refusing_.get(), server).value();
    return;
  }
  std::vector<std::string> args = {
      "--listen", RegistrySocket(), "--store",
      absl::StrCat("sqlite://", dir_.File(absl::StrCat("r", store_number_, ".db")))};
  args.insert(args.end(), options_.registry_args.begin(), options_.registry_args.end());
  registry_ = std::make_unique<Daemon>(Daemon::Registry(args));
}

void Fleet::KillRegistry() {
  if (server_ != nullptr) {
    server_->Shutdown(absl::ZeroDuration());
    server_.reset();
    return;
  }
  registry_->Kill();
}

void Fleet::PauseRegistry() { registry_->process().Signal(SIGSTOP); }
void Fleet::ContinueRegistry() { registry_->process().Signal(SIGCONT); }

void Fleet::RestartRegistryEmpty() {
  registry_->Kill();
  ++store_number_;
  StartRegistry();
}

void Fleet::BackUpStore() {
  const std::string store = dir_.File(absl::StrCat("r", store_number_, ".db"));
  const std::string backup = dir_.File("backup");
  for (const char* suffix : kStoreFiles) {
    fs::remove(backup + suffix);
    if (fs::exists(store + suffix)) fs::copy_file(store + suffix, backup + suffix);
  }
}

void Fleet::RestoreStore() {
  const std::string store = dir_.File(absl::StrCat("r", store_number_, ".db"));
  const std::string backup = dir_.File("backup");
  fs::remove(store + "-shm");
  for (const char* suffix : kStoreFiles) {
    fs::remove(store + suffix);
    if (fs::exists(backup + suffix)) fs::copy_file(backup + suffix, store + suffix);
  }
}

void Fleet::StartAgent() {
  const std::string upstream = absl::StrCat("grpc://", proxy_->address());
  if (options_.agent == AgentKind::kLibrary) {
    GrpcRegistryOptions grpc;
    grpc.call_timeout = options_.call_timeout;
    FailbackRegistry::Options failback;
    failback.upstream_name = upstream;
    failback.session_ttl = options_.ttl;
    failback.retry.backoff.initial = absl::Milliseconds(50);
    failback.retry.backoff.max = absl::Milliseconds(500);
    failback.timer = timer_.get();
    library_ = FailbackRegistry::Create(std::make_unique<GrpcRegistry>(
                                            std::vector<std::string>{proxy_->address()}, grpc),
                                        failback)
                   .value();
    client_ = library_.get();
    return;
  }
  std::vector<std::string> args = {"--listen",
                                   AgentSocket(),
                                   "--session-ttl",
                                   absl::FormatDuration(options_.ttl),
                                   "--retry-backoff-initial",
                                   "50ms",
                                   "--retry-backoff-max",
                                   "500ms",
                                   "--log-level",
                                   "warning"};
  if (options_.agent_has_state) {
    args.insert(args.end(), {"--state-dir", dir_.File("state")});
  }
  args.insert(args.end(), options_.agent_args.begin(), options_.agent_args.end());
  agent_ = std::make_unique<Daemon>(Daemon::Agent(upstream, args));
  if (agent_client_ == nullptr) {
    agent_client_ =
        std::make_unique<GrpcRegistry>(std::vector<std::string>{AgentSocket()}, Patient());
  }
  client_ = agent_client_.get();
}

void Fleet::KillAgent() { agent_->Kill(); }

void Fleet::State(const std::map<std::string, std::optional<int>>& ports) {
  RegisterRequest there;
  UnregisterRequest gone;
  for (const auto& [id, port] : ports) {
    MutexLock lock(&mu_);
    if (port.has_value()) {
      ServiceInstance* const instance = there.add_registrations()->mutable_instance();
      *instance = MakeInstance(id, *port, kService);
      intents_[id] = *instance;
      history_.Registered(*instance);
    } else {
      *gone.add_deregistrations()->mutable_key() = Key(id);
      intents_.erase(id);
      history_.Unregistered(id);
    }
  }
  absl::Status status;
  const bool accepted = Eventually(
      [&] {
        status = absl::OkStatus();
        if (!there.registrations().empty()) {
          status = FirstError(CallAndWait(*client_, &Registry::Register, there));
        }
        if (status.ok() && !gone.deregistrations().empty()) {
          status = FirstError(CallAndWait(*client_, &Registry::Unregister, gone));
        }
        return status.ok();
      },
      kConvergence);
  if (!accepted) ADD_FAILURE() << "the agent does not accept an intent: " << status;
}

void Fleet::Register(const std::string& id, int port) {
  MutexLock lock(&id_locks_[std::hash<std::string>()(id) % std::size(id_locks_)]);
  State({{id, port}});
}

void Fleet::Unregister(const std::string& id) {
  MutexLock lock(&id_locks_[std::hash<std::string>()(id) % std::size(id_locks_)]);
  State({{id, std::nullopt}});
}

void Fleet::RegisterMany(int count) {
  constexpr size_t kBatch = 500;
  std::map<std::string, std::optional<int>> ports;
  for (const std::string& id : Ids(count)) {
    ports[id] = 8080;
    if (ports.size() == kBatch) State(std::exchange(ports, {}));
  }
  State(ports);
}

void Fleet::UnregisterMany(int count) {
  constexpr size_t kBatch = 500;
  std::map<std::string, std::optional<int>> ports;
  for (const std::string& id : Ids(count)) {
    ports[id] = std::nullopt;
    if (ports.size() == kBatch) State(std::exchange(ports, {}));
  }
  State(ports);
}

void Fleet::MayLapse() {
  MutexLock lock(&mu_);
  history_.MayLapse();
}

absl::StatusOr<std::map<std::string, InstanceRecord>> Fleet::Listed() {
  std::map<std::string, InstanceRecord> records;
  ListRequest request;
  request.mutable_selector()->set_service(kService);
  do {
    absl::StatusOr<ListResponse> page = CallAndWait(*truth_, &Registry::List, request);
    if (!page.ok()) return page.status();
    for (InstanceRecord& record : *page->mutable_records()) {
      const std::string id = record.instance().key().instance_id();
      records[id] = std::move(record);
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return records;
}

std::vector<agent::v1::PendingOperation> Fleet::Pending() {
  if (library_ != nullptr) return library_->Pending();
  std::vector<agent::v1::PendingOperation> operations;
  agent::v1::ListPendingRequest request;
  do {
    agent::v1::ListPendingResponse response;
    const absl::Status status =
        Operator(AgentSocket()).Call(&Stub::ListPending, request, &response);
    if (!status.ok()) {
      // One that stands for not knowing.
      operations.emplace_back().set_id(status.ToString());
      return operations;
    }
    for (auto& operation : *response.mutable_operations()) {
      operations.push_back(std::move(operation));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return operations;
}

absl::StatusOr<agent::v1::UpstreamStatus> Fleet::Upstream() {
  if (library_ != nullptr) return library_->UpstreamStatus();
  agent::v1::GetStatusResponse response;
  const absl::Status status =
      Operator(AgentSocket()).Call(&Stub::GetStatus, agent::v1::GetStatusRequest(), &response);
  if (!status.ok()) return status;
  return response.upstreams(0);
}

bool Fleet::WaitForUpstream(agent::v1::UpstreamState state) {
  return Eventually(
      [&] {
        const auto upstream = Upstream();
        return upstream.ok() && upstream->state() == state;
      },
      kConvergence);
}

bool Fleet::WaitForFailure(std::optional<absl::StatusCode> code) {
  return Eventually(
      [&] {
        const auto pending = Pending();
        return std::any_of(pending.begin(), pending.end(), [&](const auto& operation) {
          const int last = operation.last_status().code();
          return code.has_value() ? last == static_cast<int>(*code) : last != 0;
        });
      },
      kConvergence);
}

void Fleet::RetryAll() {
  if (library_ != nullptr) {
    EXPECT_TRUE(library_->Retry({}).ok());
    return;
  }
  agent::v1::RetryResponse response;
  const absl::Status status =
      Operator(AgentSocket()).Call(&Stub::Retry, agent::v1::RetryRequest(), &response);
  EXPECT_TRUE(status.ok()) << status;
}

void Fleet::CancelAll() {
  if (library_ != nullptr) {
    EXPECT_TRUE(library_->Cancel({}).ok());
    return;
  }
  agent::v1::CancelRequest request;
  request.set_all(true);
  agent::v1::CancelResponse response;
  const absl::Status status = Operator(AgentSocket()).Call(&Stub::Cancel, request, &response);
  EXPECT_TRUE(status.ok()) << status;
}

void Fleet::WaitForASessionToRunOut(absl::Duration ttl) {
  StoreRegistry::Options options;
  options.timer = timer_.get();
  const auto witness = StoreRegistry::Open(options).value();
  OpenSessionRequest open;
  open.set_incarnation("witness");
  *open.mutable_ttl() = ToProto(ttl);
  const auto opened = CallAndWait(*witness, &Registry::OpenSession, open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(Eventually([&] { return witness->Stats().expired_sessions == 1; }, kConvergence));
}

Fleet::Difference Fleet::Compare() {
  const auto content = [](const std::string& text) { return Difference{text, ""}; };
  const auto unsettled = [](const std::string& text) { return Difference{"", text}; };
  const auto listed = Listed();
  if (!listed.ok()) {
    return unsettled(absl::StrCat("the registry cannot list: ", listed.status().ToString()));
  }
  std::map<std::string, std::string> intents;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, instance] : intents_) intents[id] = CanonicalInstance(instance);
  }
  for (const auto& [id, record] : *listed) {
    const auto intent = intents.find(id);
    if (intent == intents.end()) return content(id + " is listed and should be gone");
    if (intent->second != CanonicalInstance(record.instance())) {
      return content(absl::StrCat(id, " is not as intended: ", record.ShortDebugString()));
    }
  }
  for (const auto& [id, bytes] : intents) {
    if (listed->count(id) == 0) return content(id + " is missing at the registry");
  }
  const auto pending = Pending();
  if (!pending.empty()) {
    return unsettled(absl::StrCat(pending.size(), " pending, the first: ", pending[0].id(),
                                  " in state ", agent::v1::PendingState_Name(pending[0].state()),
                                  ", last status ", pending[0].last_status().code()));
  }
  if (watcher_ == nullptr) return Difference();
  watcher_->EnsureOpen();
  const auto seen = watcher_->Newest();
  if (!seen.has_value()) return unsettled("the watcher has seen nothing");
  if (seen->stale) return unsettled("the watcher sees a stale state");
  if (seen->instances != intents) {
    return content(absl::StrCat("the watcher sees ", seen->instances.size(),
                                " instances that differ from ", intents.size(), " intents"));
  }
  return Difference();
}

::testing::AssertionResult Fleet::Converged(absl::Duration timeout) {
  // Once reached it has to stay: nothing that is still on its way may change it. (An agent on a
  // machine that stalls may find its registry away for a moment, and state everything again.)
  constexpr int kLooks = 5;
  Difference difference;
  bool reached = false;
  int looks = 0;
  Eventually(
      [&] {
        difference = Compare();
        looks = difference.none() ? looks + 1 : 0;
        const bool lost = reached && !difference.content.empty();
        if (lost) difference.content = absl::StrCat("reached and lost: ", difference.content);
        reached = reached || difference.none();
        return lost || looks == kLooks;
      },
      timeout);
  absl::Status seen;
  if (watcher_ != nullptr) {
    MutexLock lock(&mu_);
    seen = watcher_->Check(history_);
  }
  if (difference.none() && seen.ok()) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure();
  if (!difference.none()) failure << difference.content << difference.unsettled << "\n";
  if (!seen.ok()) failure << "the watcher: " << seen << "\n";
  const auto upstream = Upstream();
  if (upstream.ok()) failure << upstream->ShortDebugString() << "\n";
  if (agent_ != nullptr) failure << agent_->process().Describe() << "\n";
  if (registry_ != nullptr) failure << registry_->process().Describe();
  return failure;
}

// --- Churn

Churn::Churn(Fleet* fleet, int threads, int ids, uint64_t seed) {
  for (int thread = 0; thread < threads; ++thread) {
    threads_.emplace_back([this, fleet, ids, seed, thread] {
      std::mt19937_64 random(seed + thread);
      const auto below = [&random](int n) { return static_cast<int>(random() % n); };
      while (!stop_) {
        const std::string id = absl::StrCat("churn-", below(ids));
        if (below(3) == 0) {
          fleet->Unregister(id);
        } else {
          fleet->Register(id, 1 + below(65535));
        }
        ++count_;
        // Load, not a flood: the machine has other tests to run.
        absl::SleepFor(absl::Milliseconds(below(10)));
      }
    });
  }
}

Churn::~Churn() { Stop(); }

void Churn::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Churn::Go(int64_t intents) {
  const int64_t enough = count_ + intents;
  EXPECT_TRUE(Eventually([&] { return count_ >= enough; }, kConvergence)) << "intents get stuck";
}

uint64_t TestSeed() {
  const char* const given = std::getenv("FAILBACK_FAULT_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("replay with --test_env=FAILBACK_FAULT_SEED=%llu\n",
              static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace failback
