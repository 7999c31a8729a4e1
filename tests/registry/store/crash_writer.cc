// Writes to a store until it is killed, and says on stdout what it is about to do and what was
// acknowledged. Arguments: PATH DURABILITY(full|normal|off) CHECKPOINT_PAGES FIRST_GENERATION
// SEED.
//
//   try THREAD GENERATION register|unregister KEY,KEY,...
//   ack THREAD GENERATION REVISION

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/registry/store/harness.h"
#include "tests/util/timers.h"

namespace failback {
namespace {

constexpr int kThreads = 2;
constexpr int kKeysPerThread = 40;

// One write per line, so that a kill does not tear it from the order of things.
void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::_Exit(3);
  }
}

template <typename Request, typename Response>
void CallOrDie(Registry& registry, void (Registry::*method)(const Request&, Callback<Response>),
               const Request& request, const std::string& thread, uint64_t generation) {
  const auto response = CallAndWait<Response>(registry, method, request);
  if (!response.ok()) {
    Say(absl::StrCat("failed ", response.status().ToString()));
    std::_Exit(4);
  }
  for (const auto& result : response->results()) {
    if (result.status().code() != 0) {
      Say(absl::StrCat("failed ", result.status().message()));
      std::_Exit(5);
    }
  }
  Say(absl::StrCat("ack ", thread, " ", generation, " ", response->revision()));
}

void Write(Registry& registry, int number, uint64_t generation, uint64_t seed) {
  const std::string thread = std::to_string(number);
  std::mt19937_64 random(seed + number);
  OpenSessionRequest open;
  open.set_incarnation("writer-" + thread);
  open.mutable_ttl()->set_seconds(3600);
  const auto session = CallAndWait(registry, &Registry::OpenSession, open);
  if (!session.ok()) {
    Say(absl::StrCat("failed ", session.status().ToString()));
    std::_Exit(6);
  }
  for (;; ++generation) {
    std::vector<std::string> ids;
    const size_t batch = 1 + random() % 20;
    while (ids.size() < batch) {
      std::string id = absl::StrCat(thread, "-", random() % kKeysPerThread);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(std::move(id));
    }
    const bool registers = random() % 3 != 0;
    Say(absl::StrCat("try ", thread, " ", generation, registers ? " register " : " unregister ",
                     absl::StrJoin(ids, ",")));
    RegisterRequest put;
    UnregisterRequest remove;
    put.set_session_id(session->session_id());
    remove.set_session_id(session->session_id());
    for (const std::string& id : ids) {
      // The port carries something that changes, to be compared after the crash.
      const ServiceInstance instance = MakeInstance("crash", id, 1 + generation % 60000);
      if (registers) {
        auto* item = put.add_registrations();
        *item->mutable_instance() = instance;
        item->set_generation(generation);
      } else {
        auto* item = remove.add_deregistrations();
        *item->mutable_key() = instance.key();
        item->set_generation(generation);
      }
    }
    if (registers) {
      CallOrDie(registry, &Registry::Register, put, thread, generation);
    } else {
      CallOrDie(registry, &Registry::Unregister, remove, thread, generation);
    }
  }
}

int Main(int argc, char** argv) {
  if (argc != 6) return 2;
  auto timer = NewTimer();
  StoreRegistry::Options options;
  options.uri = absl::StrCat("sqlite://", argv[1]);
  const std::string durability = argv[2];
  options.durability = durability == "full"     ? Durability::kFull
                       : durability == "normal" ? Durability::kNormal
                                                : Durability::kOff;
  options.checkpoint_pages = std::strtoll(argv[3], nullptr, 10);
  options.timer = timer.get();
  auto registry = StoreRegistry::Open(options);
  if (!registry.ok()) {
    Say(absl::StrCat("failed ", registry.status().ToString()));
    return 1;
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Write(**registry, i, std::strtoull(argv[4], nullptr, 10),
            std::strtoull(argv[5], nullptr, 10));
    });
  }
  for (auto& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) { return failback::Main(argc, argv); }
