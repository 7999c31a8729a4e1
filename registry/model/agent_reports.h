// The last report of each agent that renews a session here: how many intents it carries, and how
// many are not where they should be (registry.proto, AgentReport).
//
// Reports are what callers say of themselves. A session has one, of at most 512 bytes; with the
// session it goes.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_MODEL_AGENT_REPORTS_H_
#define FAILBACK_REGISTRY_MODEL_AGENT_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "failback/registry/v1/registry.pb.h"
#include "retry/mutex.h"

namespace failback {

class AgentReports {
 public:
  static constexpr size_t kMaxBytes = 512;

  struct Entry {
    std::string session_id;
    registry::v1::AgentReport report;
    // When it came.
    absl::Time time;
  };

  // Keeps the report in place of an earlier one. False: it is too large, or its text is none.
  bool Take(const std::string& session_id, const registry::v1::AgentReport& report,
            absl::Time time);

  // The session has ended. Nothing if it has no report.
  void Drop(const std::string& session_id);

  std::vector<Entry> All() const;

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by session
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_MODEL_AGENT_REPORTS_H_
