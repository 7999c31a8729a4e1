#include "registry/store/agent_reports.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "google/protobuf/stubs/common.h"

namespace failback {
namespace {

constexpr size_t kMaxName = 128;
constexpr size_t kMaxVersion = 64;

// UTF-8 without control characters, at most `max` characters.
bool IsText(const std::string& text, size_t max) {
  if (!google::protobuf::internal::IsStructurallyValidUTF8(text.data(),
                                                           static_cast<int>(text.size()))) {
    return false;
  }
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins)) <= max &&
         std::none_of(text.begin(), text.end(),
                      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

}  // namespace

bool AgentReports::Take(const std::string& session_id, const registry::v1::AgentReport& report,
                        absl::Time time) {
  if (report.ByteSizeLong() > kMaxBytes || !IsText(report.name(), kMaxName) ||
      !IsText(report.version(), kMaxVersion)) {
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

int64_t AgentReports::size() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace failback
