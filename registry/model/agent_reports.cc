#include "registry/model/agent_reports.h"

#include "registry/base/utf8.h"

namespace failback {
namespace {

constexpr int kMaxName = 128;
constexpr int kMaxVersion = 64;
constexpr int kMaxError = 128;

// UTF-8 without control characters, at most `max` characters.
bool IsText(const std::string& text, int max) {
  const int length = Utf8Length(text);
  return length >= 0 && length <= max && !HoldsControl(text);
}

}  // namespace

bool AgentReports::Take(const std::string& session_id, const registry::v1::AgentReport& report,
                        absl::Time time) {
  if (report.ByteSizeLong() > kMaxBytes || !IsText(report.name(), kMaxName) ||
      !IsText(report.version(), kMaxVersion) || !IsText(report.journal_error(), kMaxError)) {
    return false;
  }
  MutexLock lock(&mu_);
  Entry& entry = entries_[session_id];
  entry.session_id = session_id;
  entry.report = report;
  entry.report.DiscardUnknownFields();
  entry.time = time;
  return true;
}

void AgentReports::Drop(const std::string& session_id) {
  MutexLock lock(&mu_);
  entries_.erase(session_id);
}

std::vector<AgentReports::Entry> AgentReports::All() const {
  std::vector<Entry> all;
  MutexLock lock(&mu_);
  all.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) all.push_back(entry);
  return all;
}

}  // namespace failback
