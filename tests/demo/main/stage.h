// What every demo has: a subscriber that watches a service, checks on what is listed, an end.

#ifndef FAILBACK_TESTS_DEMO_MAIN_STAGE_H_
#define FAILBACK_TESTS_DEMO_MAIN_STAGE_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "retry/mutex.h"
#include "tests/demo/main/timeline.h"
#include "tests/util/observed_states.h"
#include "tests/util/process.h"

namespace failback {

// A wait of a demo for anything; reached only when something is broken.
inline constexpr absl::Duration kDemoPatience = absl::Seconds(30);

// `failbackctl subscribe` on one service, whose messages are shown as they come.
class DemoSubscriber {
 public:
  // `timeline` outlives it.
  DemoSubscriber(Timeline* timeline, const std::string& target, const std::string& service);
  ~DemoSubscriber();

  // Until it has exactly these, from a registry that is there.
  bool ExpectSeen(const std::set<std::string>& ids);
  // Checks all that it was ever told against what was desired.
  bool ExpectOrder(const DesiredHistory& desired);
  // Until the process has ended by itself.
  void WaitForEnd();

 private:
  void PrintEvents();

  Timeline& timeline_;
  const std::unique_ptr<Process> process_;
  std::thread printer_;
};

// Until the registry at `target` lists exactly these.
bool ExpectListed(Timeline* timeline, const std::string& target, const std::string& service,
                  const std::vector<std::string>& ids);

// One run of a demo.
class Stage {
 public:
  // Runs `demo` and prints how many of its checks held, under `title`. When the process is asked to
  // stop meanwhile, it takes with it all that it has started. Returns the exit status.
  static int Run(const std::string& title, const std::function<bool(Stage*)>& demo);

  Timeline* timeline() { return &timeline_; }
  // Ends when the process is asked to stop.
  void OwnFolder(const std::string& path);

 private:
  Stage();
  void WaitForSignal();

  Timeline timeline_;
  Mutex mu_;
  std::vector<std::string> folders_ ABSL_GUARDED_BY(mu_);
};

}  // namespace failback

#endif  // FAILBACK_TESTS_DEMO_MAIN_STAGE_H_
