// The events that the library logs, and where they go: a sink that the host replaces.
//
// A library must not decide how its host logs. An event is a short name of what happened and
// fields, kept apart so that a sink may write text, JSON or a metric. Without a sink, warnings
// and errors go to stderr, one line each; everything else is dropped.
//
// An event that belongs to a call with a trace (registry/base/trace_context.h) has the field
// `traceparent`.
//
// What others choose is bounded: a value is cut, and lines that others can cause go through a
// LogThrottle.
//
// The sink is the one thing that all agents of a process share: what an event belongs to is in its
// fields (`upstream`).
//
// Example: events into the host's own log.
//
//   SetLogSink(LogLevel::kInfo, [](LogLevel level, const std::string& event,
//                                  const LogFields& fields) { MyLog(level, event, fields); });
//   …
//   Log(LogLevel::kInfo, "registered", {{"service", "orders"}, {"generation", "7"}});
//
// Thread safety: every function may be called from any thread. The sink is called by several
// threads at once, with no lock held. It must not block, and must not log through here.

#ifndef FAILBACK_REGISTRY_BASE_LOG_H_
#define FAILBACK_REGISTRY_BASE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "retry/mutex.h"

namespace failback {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// "debug", "info", "warning", "error".
const char* LogLevelName(LogLevel level);

// Name and value, in the order to be written.
using LogFields = std::vector<std::pair<std::string, std::string>>;

using LogSink =
    std::function<void(LogLevel level, const std::string& event, const LogFields& fields)>;

// Sends events of `level` and above to `sink` from now on, for the whole process. An empty sink
// brings the default back. A call of the previous sink may still be running when this returns.
void SetLogSink(LogLevel level, LogSink sink);

// Moves the level of the sink in force, and returns what it is.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Whether an event of this level goes anywhere: asked before fields that are costly to make.
bool LogEnabled(LogLevel level);

// Most bytes of a value in a line.
inline constexpr size_t kMaxLogValue = 512;

// With each value that is longer cut after a whole character: `orders… (1048576 bytes)`.
LogFields CutFields(LogFields fields);

// Calls the sink, if the level is enabled. `event` says what happened in a few words, the same
// words each time; what varies goes into `fields`, of which the sink sees what CutFields leaves.
void Log(LogLevel level, const std::string& event, const LogFields& fields = {});

// For lines that a client can cause as often as it likes: lets ten a second of one caller through,
// and thirty of all together, so that a caller who causes many hides no other's. The next one then
// says in `left_out` how many were not. At most thirty callers are remembered.
class LogThrottle {
 public:
  // `now`: for tests.
  explicit LogThrottle(absl::Time (*now)() = absl::Now) : now_(now) {}

  void LogFor(const std::string& caller, LogLevel level, const std::string& event, LogFields fields)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Where callers have no names: ten in all.
  void Log(LogLevel level, const std::string& event, LogFields fields) ABSL_LOCKS_EXCLUDED(mu_) {
    LogFor("", level, event, std::move(fields));
  }

 private:
  absl::Time (*const now_)();
  Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // when it began
  std::map<std::string, int> lines_of_ ABSL_GUARDED_BY(mu_);       // in that second
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// `event key=value key="a value"`: the line of the default sink, without level and newline.
std::string FormatLogLine(const std::string& event, const LogFields& fields);

}  // namespace failback

#endif  // FAILBACK_REGISTRY_BASE_LOG_H_
