// What has changed lately in a namespace, for clients that apply changes to what they have.
//
// It compares the namespace with what it was when a client last asked, and keeps what differs for
// three minutes: clients that ask at least that often miss nothing. When it begins it has all
// instances as added, so that a client that comes with the state of another server's, or of the
// same one before it started again, gets them; one of these that has since gone it finds by the
// hash. Beyond `most` changes there is no delta, and the client fetches all.
//
// Example:
//
//   DeltaLog log;
//   log.Update(*view.services, now);
//   if (log.too_many()) return Refuse();
//   for (const DeltaLog::Change& change : log.changes()) Write(change.action, change.instance);
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_GATEWAY_EUREKA_DELTA_LOG_H_
#define FAILBACK_GATEWAY_EUREKA_DELTA_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gateway/catalog/catalog.h"
#include "registry/model/blob.h"
#include "registry/model/instance_set.h"

namespace failback::eureka {

inline constexpr absl::Duration kDeltaKept = absl::Minutes(3);

class DeltaLog {
 public:
  enum class Action { kAdded, kModified, kDeleted };

  struct Change {
    Action action = Action::kModified;
    Blob instance;  // of a deleted one: as it was last
    std::string service;
    absl::Time time;
  };

  explicit DeltaLog(size_t most = 20000) : most_(most) {}

  void Update(const catalog::NamespaceView::Services& services, absl::Time now);

  // The oldest first. Of one instance there may be several.
  const std::deque<Change>& changes() const { return changes_; }
  // Some were left out.
  bool too_many() const { return dropped_until_ > absl::InfinitePast(); }
  // Grows with each change of `changes`.
  uint64_t version() const { return version_; }

 private:
  void Add(Action action, const std::string& service, const Blob& instance, absl::Time now);
  void Compare(const std::string& service, const InstanceSet& before, const InstanceSet& after,
               absl::Time now);

  size_t most_;
  std::map<std::string, std::shared_ptr<const InstanceSet>> seen_;  // by service
  std::deque<Change> changes_;
  absl::Time dropped_until_ = absl::InfinitePast();
  uint64_t version_ = 0;
};

// "ADDED".
const char* ActionName(DeltaLog::Action action);

}  // namespace failback::eureka

#endif  // FAILBACK_GATEWAY_EUREKA_DELTA_LOG_H_
