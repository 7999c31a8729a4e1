#include "registry/store/store_operations.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "registry/base/log.h"

namespace failback {
namespace {

// A commit takes no more intents of large calls than this, some 15 ms of work, but for a single
// call's: who comes during another caller's bulk waits for one commit, not for all of it.
constexpr int64_t kMostIntentsPerCommit = 2000;

// For the log.
const char* NameOf(LeaseEnd::Cause cause) {
  switch (cause) {
    case LeaseEnd::Cause::kTtl:
      return "ttl";
    case LeaseEnd::Cause::kLongestHold:
      return "longest hold";
    case LeaseEnd::Cause::kHoldOver:
      return "hold over";
    case LeaseEnd::Cause::kReleased:
      return "released";
    case LeaseEnd::Cause::kGuardOff:
      return "guard off";
  }
  return "";
}

}  // namespace

std::unique_ptr<StoreRegistry::Group> StoreRegistry::Group::SplitOff() {
  if (intents <= kMostIntentsPerCommit) return nullptr;
  const auto large = std::stable_partition(writes.begin(), writes.end(), [](const WriteOp& write) {
    return write.intents.size() <= kSmallCall;
  });
  auto end = large == writes.end() ? large : large + 1;
  int64_t taken = 0;
  for (auto it = writes.begin(); it != end; ++it) taken += it->Size();
  for (; end != writes.end() && taken + end->Size() <= kMostIntentsPerCommit; ++end) {
    taken += end->Size();
  }
  if (end == writes.end()) return nullptr;
  auto rest = std::make_unique<Group>();
  rest->writes.assign(std::make_move_iterator(end), std::make_move_iterator(writes.end()));
  rest->intents = intents - taken;
  writes.erase(end, writes.end());
  intents = taken;
  return rest;
}

StoreRegistry::Decided::Expiry* StoreRegistry::Decided::ExpiryOf(const LeaseEnd& end) {
  // Few: operators' decisions beside the clock's.
  const auto known = std::find_if(expiries.begin(), expiries.end(),
                                  [&](const Expiry& expiry) { return expiry.end == end; });
  if (known != expiries.end()) return &*known;
  expiries.emplace_back().end = end;
  return &expiries.back();
}

void StoreRegistry::Decided::Expiry::LogEnd() const {
  std::string named = absl::StrJoin(clients, ", ");
  if (const int64_t more = sessions - static_cast<int64_t>(clients.size()); more > 0) {
    absl::StrAppend(&named, " and ", more, " more");
  }
  LogFields fields = {{"sessions", absl::StrCat(sessions)},
                      {"instances", absl::StrCat(instances)},
                      {"clients", named},
                      {"cause", NameOf(end.cause)}};
  if (end.by.size() > 0) fields.emplace_back("by", std::string(end.by.view()));
  Log(LogLevel::kInfo, "sessions expired", fields);
}

}  // namespace failback
