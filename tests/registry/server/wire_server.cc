// Serves a registry until SIGTERM: `wire_server ADDRESS memory|silent`.
//
// `memory` is an empty StoreRegistry; `silent` one that never answers Register. Says `listening on
// ADDRESS`, or why not, with exit status 2.

#include <signal.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "registry/server/registry_server.h"
#include "registry/store/store_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/fake_registry.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "wire_server: " << std::string(status.message()) << std::endl;
  return 2;
}

int Run(const std::string& address, const std::string& kind) {
  // Blocked before there are threads, which take the mask over; waited for below.
  sigset_t terminated;
  sigemptyset(&terminated);
  sigaddset(&terminated, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminated, nullptr);
  const auto timer = NewTimer();
  std::unique_ptr<Registry> registry;
  if (kind == "silent") {
    auto fake = std::make_unique<FakeRegistry>();
    fake->registers.Hold();
    registry = std::move(fake);
  } else {
    StoreRegistry::Options options;
    options.uri = absl::StrCat(kind, ":");
    options.timer = timer.get();
    auto store = StoreRegistry::Open(std::move(options));
    if (!store.ok()) return Fail(store.status());
    registry = *std::move(store);
  }
  RegistryServer::Options options;
  options.listen = {address};
  auto server = RegistryServer::Start(registry.get(), std::move(options));
  if (!server.ok()) return Fail(server.status());
  std::cout << "listening on " << (*server)->addresses()[0] << std::endl;
  int signal = 0;
  sigwait(&terminated, &signal);
  (*server)->Shutdown(absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: wire_server ADDRESS memory|silent\n";
    return 2;
  }
  return failback::Run(argv[1], argv[2]);
}
