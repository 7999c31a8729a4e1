#include "agent/intent_log.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "registry/base/trace_context.h"

namespace failback {
namespace {

const char* NameOf(IntentEvent::Kind kind) {
  switch (kind) {
    case IntentEvent::Kind::kAcknowledged:
      return "acknowledged";
    case IntentEvent::Kind::kRetrying:
      return "retrying";
    case IntentEvent::Kind::kParked:
      return "parked";
    case IntentEvent::Kind::kSuperseded:
      return "superseded";
    case IntentEvent::Kind::kCancelled:
      return "cancelled";
    case IntentEvent::Kind::kLapsed:
    case IntentEvent::Kind::kRenewed:
      break;  // the core's own lines
  }
  return "unknown";
}

LogLevel LevelOf(IntentEvent::Kind kind) {
  const bool is_news =
      kind == IntentEvent::Kind::kAcknowledged || kind == IntentEvent::Kind::kRetrying;
  return is_news ? LogLevel::kInfo : LogLevel::kWarning;
}

}  // namespace

LogFields IntentFields(const IntentEvent& event) {
  LogFields fields = {{"operation", OperationName(event.operation)}};
  if (event.key.service().empty()) {
    fields.emplace_back("id", event.id);
  } else {
    fields.emplace_back("namespace", event.key.namespace_());
    fields.emplace_back("service", event.key.service());
    fields.emplace_back("instance", event.key.instance_id());
  }
  fields.emplace_back("upstream", event.upstream);
  fields.emplace_back("generation", absl::StrCat(event.generation));
  if (!event.status.ok()) {
    fields.emplace_back("times", absl::StrCat(event.times));
    fields.emplace_back("code", absl::StatusCodeToString(event.status.code()));
    fields.emplace_back("message", std::string(event.status.message()));
  }
  return fields;
}

IntentLog::~IntentLog() {
  Timeout end;
  {
    MutexLock lock(&mu_);
    end = std::exchange(window_end_, Timeout());
  }
  if (end && !end.Cancel()) end.Wait();
  EndWindow();
}

void IntentLog::Record(const IntentEvent& event) {
  if (static_cast<size_t>(event.kind) >= kKinds) return;
  if (!LogEnabled(LevelOf(event.kind))) return;
  const LogLevel level = MayLog(event.kind) ? LevelOf(event.kind) : LogLevel::kDebug;
  const ScopedTrace trace(event.traceparent);
  if (LogEnabled(level)) Log(level, NameOf(event.kind), IntentFields(event));
}

bool IntentLog::MayLog(IntentEvent::Kind kind) {
  MutexLock lock(&mu_);
  Count& count = counts_[static_cast<size_t>(kind)];
  if (!window_open_) {
    auto end = timer_->NewTimeout([this] { EndWindow(); }, kWindow);
    // A timer that has stopped belongs to an agent that is about to: nothing is a flood any more.
    if (!end.ok()) return true;
    window_end_ = *std::move(end);
    window_open_ = true;
  }
  if (count.logged < kLines) {
    ++count.logged;
    return true;
  }
  ++count.left_out;
  return false;
}

void IntentLog::EndWindow() {
  std::array<Count, kKinds> counts;
  {
    MutexLock lock(&mu_);
    counts = std::exchange(counts_, {});
    window_open_ = false;
  }
  for (size_t i = 0; i < kKinds; ++i) {
    if (counts[i].left_out == 0) continue;
    const auto kind = static_cast<IntentEvent::Kind>(i);
    Log(LevelOf(kind), "left out",
        {{"of", NameOf(kind)}, {"count", absl::StrCat(counts[i].left_out)}});
  }
}

}  // namespace failback
