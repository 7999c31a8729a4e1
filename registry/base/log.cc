#include "registry/base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "registry/base/trace_context.h"
#include "registry/base/utf8.h"
#include "retry/mutex.h"

namespace failback {
namespace {

void WriteToStderr(LogLevel level, const std::string& event, const LogFields& fields) {
  const std::string line =
      std::string("failback: ") + LogLevelName(level) + ": " + FormatLogLine(event, fields) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

struct Target {
  Mutex mu;
  std::shared_ptr<const LogSink> sink ABSL_GUARDED_BY(mu) =
      std::make_shared<const LogSink>(WriteToStderr);
  std::atomic<LogLevel> level{LogLevel::kWarning};
};

// Never destroyed: other threads may log while the process exits.
Target& GetTarget() {
  static Target* const target = new Target;
  return *target;
}

// A second, of a throttle.
constexpr int kLinesOfCaller = 10;
constexpr int kLinesOfAll = 30;

// A byte of a character that is not its first.
bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool TooLong(const std::pair<std::string, std::string>& field) {
  return field.second.size() > kMaxLogValue;
}

bool NeedsQuotes(const std::string& value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (!absl::ascii_isgraph(c) || c == '"' || c == '=' || c == '\\') return true;
  }
  return false;
}

}  // namespace

const char* LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

void SetLogSink(LogLevel level, LogSink sink) {
  if (!sink) {
    level = LogLevel::kWarning;
    sink = WriteToStderr;
  }
  auto replacement = std::make_shared<const LogSink>(std::move(sink));
  Target& target = GetTarget();
  MutexLock lock(&target.mu);
  target.level.store(level, std::memory_order_relaxed);
  target.sink.swap(replacement);
}

void SetLogLevel(LogLevel level) { GetTarget().level.store(level, std::memory_order_relaxed); }

LogLevel GetLogLevel() { return GetTarget().level.load(std::memory_order_relaxed); }

bool LogEnabled(LogLevel level) {
  return level >= GetTarget().level.load(std::memory_order_relaxed);
}

void Log(LogLevel level, const std::string& event, const LogFields& fields) {
  if (!LogEnabled(level)) return;
  Target& target = GetTarget();
  std::shared_ptr<const LogSink> sink;
  {
    MutexLock lock(&target.mu);
    sink = target.sink;
  }
  const std::string& trace = CurrentTrace();
  if (trace.empty() && std::none_of(fields.begin(), fields.end(), TooLong)) {
    return (*sink)(level, event, fields);
  }
  LogFields bounded = CutFields(fields);
  if (!trace.empty()) bounded.emplace_back(kTraceParent, trace);
  (*sink)(level, event, bounded);
}

LogFields CutFields(LogFields fields) {
  for (auto& field : fields) {
    if (!TooLong(field)) continue;
    std::string& value = field.second;
    size_t end = kMaxLogValue;
    // What is no UTF-8 is cut where it is.
    while (end > kMaxLogValue - 4 && Continues(value[end])) --end;
    if (Continues(value[end])) end = kMaxLogValue;
    value = absl::StrCat(value.substr(0, end), "… (", value.size(), " bytes)");
  }
  return fields;
}

void LogThrottle::LogFor(const std::string& caller, LogLevel level, const std::string& event,
                         LogFields fields) {
  if (!LogEnabled(level)) return;
  const absl::Time now = now_();
  {
    MutexLock lock(&mu_);
    if (now - second_ >= absl::Seconds(1) || now < second_) {
      second_ = now;
      lines_of_.clear();
      lines_ = 0;
    }
    const auto known = lines_of_.find(caller);
    if (lines_ == kLinesOfAll || (known != lines_of_.end() && known->second == kLinesOfCaller)) {
      ++left_out_;
      return;
    }
    ++lines_;
    ++lines_of_[caller];
    const int64_t left_out = std::exchange(left_out_, 0);
    if (left_out > 0) fields.emplace_back("left_out", absl::StrCat(left_out));
  }
  failback::Log(level, event, fields);
}

std::string FormatLogLine(const std::string& event, const LogFields& fields) {
  std::string line = event;
  for (const auto& [name, value] : fields) {
    line += " ";
    line += name;
    line += "=";
    if (NeedsQuotes(value)) {
      line += "\"";
      // Between double quotes a single one needs nothing.
      line += absl::StrReplaceAll(WithControlsEscaped(absl::Utf8SafeCEscape(MadeUtf8(value))),
                                  {{R"(\\)", R"(\\)"}, {R"(\')", "'"}});
      line += "\"";
    } else {
      line += value;
    }
  }
  return line;
}

}  // namespace failback
