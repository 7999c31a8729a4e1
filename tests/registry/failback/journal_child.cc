// For journal_kill_test: a process that states one intent after the other, and says which of them
// were accepted, until it is killed.
//
//   journal_child STATE_DIR SEED FIRST

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "registry/failback/failback_registry.h"
#include "retry/hashed_wheel_timer.h"
#include "tests/registry/failback/journal_story.h"
#include "tests/registry/fake_registry.h"

namespace failback {
namespace {

int Main(const std::string& dir, uint32_t seed, int first) {
  auto timer = HashedWheelTimer::Create({}).value();
  auto upstream = std::make_unique<FakeRegistry>();
  upstream->opens.AnswerWith([](const auto&) { return absl::UnavailableError("away"); });
  FailbackRegistry::Options options;
  options.upstream_name = "away";
  options.timer = timer.get();
  options.state_dir = dir;
  auto registry = FailbackRegistry::Create(std::move(upstream), options);
  if (!registry.ok()) {
    std::fprintf(stderr, "%s\n", registry.status().ToString().c_str());
    return 1;
  }
  for (int i = first;; ++i) {
    const JournalStep step = MakeJournalStep(seed, i);
    // One write each: a line is there, or it is not.
    const auto say = [i](bool ok) {
      const std::string line = (ok ? "accepted " : "refused ") + std::to_string(i) + "\n";
      if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::_Exit(1);
    };
    if (step.port != 0) {
      (*registry)->Register(step.Register(), [say](absl::StatusOr<RegisterResponse> response) {
        say(response.ok() && !response->results(0).has_status());
      });
    } else {
      (*registry)->Unregister(step.Unregister(),
                              [say](absl::StatusOr<UnregisterResponse> response) {
                                say(response.ok() && !response->results(0).has_status());
                              });
    }
    if (i % 16 == 0) absl::SleepFor(absl::Milliseconds(1));  // a process that works, not a flood
  }
}

}  // namespace
}  // namespace failback

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return failback::Main(argv[1], static_cast<uint32_t>(std::atoi(argv[2])), std::atoi(argv[3]));
}
