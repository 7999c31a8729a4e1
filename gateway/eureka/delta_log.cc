#include "gateway/eureka/delta_log.h"

#include <utility>

#include "registry/model/event.h"

namespace failback::eureka {

const char* ActionName(DeltaLog::Action action) {
  switch (action) {
    case DeltaLog::Action::kAdded:
      return "ADDED";
    case DeltaLog::Action::kModified:
      return "MODIFIED";
    default:
      return "DELETED";
  }
}

void DeltaLog::Add(Action action, const std::string& service, const Blob& instance,
                   absl::Time now) {
  ++version_;
  if (changes_.size() >= most_) {
    changes_.pop_front();
    dropped_until_ = now + kDeltaKept;
  }
  changes_.push_back({action, instance, service, now});
}

void DeltaLog::Compare(const std::string& service, const InstanceSet& before,
                       const InstanceSet& after, absl::Time now) {
  const InstanceSet::Changes changes = InstanceSet::Difference(before, after);
  for (const std::string& key : changes.removals) {
    Add(Action::kDeleted, service, before.Find(key), now);
  }
  for (const Blob& instance : changes.upserts) {
    const bool present = static_cast<bool>(before.Find(KeyOf(instance)));
    Add(present ? Action::kModified : Action::kAdded, service, instance, now);
  }
}

void DeltaLog::Update(const catalog::NamespaceView::Services& services, absl::Time now) {
  while (!changes_.empty() && now - changes_.front().time > kDeltaKept) {
    changes_.pop_front();
    ++version_;
  }
  if (now > dropped_until_) dropped_until_ = absl::InfinitePast();

  static const InstanceSet& none = *new InstanceSet;
  std::map<std::string, std::shared_ptr<const InstanceSet>> before = std::exchange(seen_, {});
  for (const auto& service : services) {
    const auto was = before.find(service.name);
    if (was == before.end()) {
      Compare(service.name, none, *service.instances, now);
    } else if (was->second != service.instances) {
      Compare(service.name, *was->second, *service.instances, now);
    }
    if (was != before.end()) before.erase(was);
    seen_[service.name] = service.instances;
  }
  for (const auto& [service, was] : before) Compare(service, *was, none, now);
}

}  // namespace failback::eureka
