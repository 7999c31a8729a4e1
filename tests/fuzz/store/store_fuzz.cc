// A store's file with damage anywhere, or any bytes in its place: opening it gives a registry that
// can be read, or an error that names the file. Nothing crashes.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/simulated_clock.h"
#include "tests/fuzz/fuzz_input.h"

namespace failback {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// A folder for this process, in memory where there is some.
const std::string& Folder() {
  static const auto* const folder = [] {
    std::string path = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path += "/failback-store-fuzz-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) Die("no folder for the store");
    std::atexit([] {
      const std::string command = "rm -rf '" + Folder() + "'";
      if (std::system(command.c_str()) != 0) std::perror("rm");
    });
    return new std::string(path);
  }();
  return *folder;
}

class Store {
 public:
  Store() {
    HashedWheelTimer::Options options;
    options.clock = &clock_;
    timer_ = *HashedWheelTimer::Create(options);
  }

  absl::Status Open(const std::string& path) {
    StoreRegistry::Options options;
    options.timer = timer_.get();
    options.uri = "sqlite://" + path;
    options.durability = Durability::kOff;
    options.commit_inline = true;
    auto opened = StoreRegistry::Open(std::move(options));
    if (opened.ok()) registry_ = *std::move(opened);
    return opened.status();
  }

  Registry& registry() { return *registry_; }
  absl::Status CheckInvariants() { return registry_->CheckInvariants(); }

 private:
  SimulatedClock clock_;
  std::unique_ptr<HashedWheelTimer> timer_;
  std::unique_ptr<StoreRegistry> registry_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Register(Registry* registry, const std::string& session, int port) {
  RegisterRequest request;
  request.set_session_id(session);
  auto* const instance = request.add_registrations()->mutable_instance();
  instance->mutable_key()->set_service("orders");
  instance->mutable_key()->set_instance_id(std::to_string(port));
  instance->set_address("10.0.0.1");
  instance->set_port(static_cast<uint32_t>(port));
  (*instance->mutable_metadata())["k"] = "v";
  registry->Register(request, [](const auto&) {});
}

// The bytes of a store with sessions, instances and tombstones.
const std::string& GoodFile() {
  static const auto* const bytes = [] {
    const std::string path = Folder() + "/good.db";
    {
      Store store;
      if (const absl::Status status = store.Open(path); !status.ok()) Die(status.ToString());
      OpenSessionRequest open;
      open.set_incarnation("i");
      std::string session;
      store.registry().OpenSession(open,
                                   [&](const auto& opened) { session = opened->session_id(); });
      for (int port = 1; port <= 20; ++port) {
        Register(&store.registry(), port % 2 == 0 ? session : "", port);
      }
      UnregisterRequest gone;
      gone.set_session_id(session);
      auto* const key = gone.add_deregistrations()->mutable_key();
      key->set_service("orders");
      key->set_instance_id("2");
      store.registry().Unregister(gone, [](const auto&) {});
    }
    return new std::string(ReadFile(path));
  }();
  return *bytes;
}

std::string Damaged(FuzzInput* input) {
  const uint8_t kind = input->Byte();
  if (kind % 8 == 0) return input->Rest();
  std::string bytes = GoodFile();
  if (kind % 8 == 1) bytes.resize(bytes.size() * input->Byte() / 255);
  while (!input->empty() && !bytes.empty()) {
    // Often in a page's head or in the last rows, where the structure is.
    const size_t place = (static_cast<size_t>(input->Number()) << 8 | input->Byte());
    bytes[place % bytes.size()] = static_cast<char>(input->Byte());
  }
  return bytes;
}

}  // namespace
}  // namespace failback

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace failback;
  FuzzInput input(data, size);
  const std::string path = Folder() + "/damaged.db";
  for (const char* suffix : {"", "-wal", "-shm", ".lock", ".mark", "-journal"}) {
    unlink((path + suffix).c_str());
  }
  const std::string content = Damaged(&input);
  std::ofstream(path, std::ios::binary) << content;
  Store store;
  const absl::Status status = store.Open(path);
  if (!status.ok()) {
    const std::string message(status.message());
    if (message.find(path) == std::string::npos) Die("the file is not named: " + message);
    if (message.find('\n') != std::string::npos) Die("more than a line: " + message);
    return 0;
  }
  if (const absl::Status broken = store.CheckInvariants(); !broken.ok()) Die(broken.ToString());
  int answers = 0;
  store.registry().List(ListRequest(), [&](const auto&) { ++answers; });
  if (answers != 1) Die("List was not answered once");
  Register(&store.registry(), "", 9999);
  if (const absl::Status broken = store.CheckInvariants(); !broken.ok()) Die(broken.ToString());
  return 0;
}
