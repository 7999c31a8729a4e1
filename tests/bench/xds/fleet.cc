#include "tests/bench/xds/fleet.h"

#include <signal.h>

#include <cstdlib>
#include <future>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/load.h"
#include "tests/util/instances.h"

namespace failback {
namespace {

using registry::v1::INTENT_STATE_ACKNOWLEDGED;
using registry::v1::RegisterRequest;
using registry::v1::RegisterResponse;
using registry::v1::RegistryService;
using registry::v1::ServiceInstance;
using registry::v1::UnregisterRequest;
using registry::v1::UnregisterResponse;

constexpr auto kCallDeadline = std::chrono::seconds(10);

}  // namespace

Fleet::Fleet(bool for_clients) {
  registry_ = std::make_unique<Daemon>(
      Daemon::Registry({"--store", absl::StrCat("sqlite://", dir_.File("registry.db")),
                        "--durability", "normal", "--log-level", "error"}));
  const std::string bootstrap = dir_.File("xds.json");
  agent_ = std::make_unique<Daemon>(Daemon::Agent(
      registry_->address(), {"--listen", absl::StrCat("unix:", dir_.File("agent.sock")),
                             "--xds-bootstrap", bootstrap, "--log-level", "error"}));
  if (for_clients) setenv("GRPC_XDS_BOOTSTRAP", bootstrap.c_str(), 1);
  stub_ = RegistryService::NewStub(
      grpc::CreateChannel(agent_->address(), grpc::InsecureChannelCredentials()));
}

ServiceInstance Fleet::StartBackend(const std::string& id) {
  auto& backend = backends_[id];
  backend = Process::Start({RunfilePath("tests/gateway/xds/backend"), id});
  const std::string marker = "listening on 127.0.0.1:";
  const auto line = backend->WaitForLine(marker);
  int port = 0;
  if (!line || !absl::SimpleAtoi(line->substr(line->find(marker) + marker.size()), &port)) {
    Die(backend->Describe());
  }
  ServiceInstance instance = MakeInstance("orders", id, port);
  instance.set_address("127.0.0.1");
  return instance;
}

void Fleet::StopBackend(const std::string& id) {
  backends_[id]->Signal(SIGTERM);
  if (backends_[id]->WaitForExit() != 0) Die(backends_[id]->Describe());
  backends_.erase(id);
}

void Fleet::KillBackend(const std::string& id) {
  backends_[id]->Kill();
  backends_.erase(id);
}

void Fleet::Register(const std::vector<ServiceInstance>& instances) {
  RegisterRequest request;
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  for (const auto& instance : instances)
    *request.add_registrations()->mutable_instance() = instance;
  RegisterResponse response;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::Status status = stub_->Register(&context, request, &response);
  if (!status.ok()) Die(absl::StrCat("Register: ", status.error_message()));
  for (const auto& result : response.results()) {
    if (result.status().code() != 0) Die(absl::StrCat("Register: ", result.status().message()));
  }
}

void Fleet::Unregister(const registry::v1::InstanceKey& key) {
  UnregisterRequest request;
  request.set_wait_for(INTENT_STATE_ACKNOWLEDGED);
  *request.add_deregistrations()->mutable_key() = key;
  UnregisterResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Unregister(&context, request, &response);
  if (!status.ok()) Die(absl::StrCat("Unregister: ", status.error_message()));
}

Caller::Caller(const std::string& target)
    : stub_(std::make_unique<grpc::GenericStub>(
          grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))) {}

std::string Caller::Call() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  const grpc::Slice empty(static_cast<size_t>(0));
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub_->UnaryCall(&context, "/failback.examples.Orders/GetOrder", grpc::StubOptions(), &request,
                   &response, [&done](grpc::Status status) { done.set_value(std::move(status)); });
  if (!done.get_future().get().ok()) return "";
  grpc::Slice slice;
  if (!response.DumpToSingleSlice(&slice).ok() || slice.size() < 3) Die("a garbled answer");
  // An Order with served_by and no order_id: tag, length, text.
  return std::string(reinterpret_cast<const char*>(slice.begin()) + 2, slice.size() - 2);
}

Load::Load(Caller* caller, int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, caller] {
      while (!stop_) ++(caller->Call().empty() ? failed_ : answered_);
    });
  }
}

Load::~Load() { Stop(); }

void Load::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace failback
