#include "tests/demo/main/stage.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/ctl/output.h"
#include "tests/util/daemons.h"

namespace failback {
namespace {

using registry::v1::SubscribeResponse;

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

DemoSubscriber::DemoSubscriber(Timeline* timeline, const std::string& target,
                               const std::string& service)
    : timeline_(*timeline),
      process_(
          Process::Start({CtlBinary(), "--target", target, "subscribe", service, "-o", "json"})),
      printer_([this] { PrintEvents(); }) {}

DemoSubscriber::~DemoSubscriber() {
  process_->Kill();
  printer_.join();
}

void DemoSubscriber::PrintEvents() {
  size_t printed = 0;
  const auto print_new = [&](const std::string& out) {
    const std::vector<SubscribeResponse> events = ParseEvents(out);
    for (; printed < events.size(); ++printed) {
      const std::string line = FormatEvent(events[printed], absl::Now());
      // The timeline has the time already.
      timeline_.Event("subscriber", line.substr(line.find("  ") + 2));
    }
    return false;
  };
  process_->WaitForOutput(print_new, absl::InfiniteDuration());
}

bool DemoSubscriber::ExpectSeen(const std::set<std::string>& ids) {
  ObservedStates observed;
  const bool seen = process_->WaitForOutput(
      [&](const std::string& out) {
        observed = ObservedStates();
        for (const SubscribeResponse& event : ParseEvents(out)) {
          if (!observed.Apply(event).ok()) return false;
        }
        return observed.CurrentIds() == ids && !observed.states().back().stale;
      },
      kDemoPatience);
  return timeline_.Check(
      seen, absl::StrCat("the subscriber has ", absl::StrJoin(observed.CurrentIds(), ", ")));
}

bool DemoSubscriber::ExpectOrder(const DesiredHistory& desired) {
  const std::vector<SubscribeResponse> events = ParseEvents(process_->out());
  const absl::Status status = CheckSubscription(events, desired);
  return timeline_.Check(
      status.ok(), status.ok()
                       ? absl::StrCat("the subscriber saw no state twice in a row and none that "
                                      "was never desired, in ",
                                      events.size(), " messages")
                       : absl::StrCat("the subscriber: ", std::string(status.message())));
}

void DemoSubscriber::WaitForEnd() { process_->WaitForExit(kDemoPatience); }

bool ExpectListed(Timeline* timeline, const std::string& target, const std::string& service,
                  const std::vector<std::string>& ids) {
  std::vector<std::string> listed;
  Eventually([&] { return (listed = ListedIds(target, service)) == ids; }, kDemoPatience);
  return timeline->Check(
      listed == ids,
      absl::StrCat("the registry lists ", listed.empty() ? "nothing" : absl::StrJoin(listed, ", "),
                   listed == ids ? "" : absl::StrCat("; expected ", absl::StrJoin(ids, ", "))));
}

Stage::Stage() : timeline_(isatty(STDOUT_FILENO) != 0) {}

int Stage::Run(const std::string& title, const std::function<bool(Stage*)>& demo) {
  // Before the first thread, so that all of them leave the signals to WaitForSignal.
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Never destroyed: the thread that waits for a signal uses it to the end.
  auto* const stage = new Stage;
  std::thread([stage] { stage->WaitForSignal(); }).detach();
  const Timeline& timeline = stage->timeline_;
  const bool held = demo(stage) && timeline.failures() == 0;
  std::printf("\n%s: %d of %d checks held, in %.1f s\n", held ? title.c_str() : "FAILED",
              timeline.checks() - timeline.failures(), timeline.checks(),
              absl::ToDoubleSeconds(timeline.elapsed()));
  return held ? 0 : 1;
}

void Stage::OwnFolder(const std::string& path) {
  MutexLock lock(&mu_);
  folders_.push_back(path);
}

void Stage::WaitForSignal() {
  const sigset_t set = StopSet();
  int signal = 0;
  sigwait(&set, &signal);
  Process::KillAll();
  MutexLock lock(&mu_);
  std::error_code ignored;
  for (const std::string& folder : folders_) std::filesystem::remove_all(folder, ignored);
  _exit(128 + signal);
}

}  // namespace failback
