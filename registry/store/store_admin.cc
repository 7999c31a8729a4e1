// What StoreRegistry shows an operator.

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/health_change.h"
#include "registry/model/instance_query.h"
#include "registry/store/store_operations.h"
#include "registry/store/store_registry.h"

namespace failback {
namespace {

using admin::v1::ChangeKind;
using admin::v1::InstanceDescription;
using admin::v1::ServiceSummary;

ChangeKind ToProto(ChangeLog::Kind kind) {
  switch (kind) {
    case ChangeLog::Kind::kRegistered:
      return admin::v1::CHANGE_KIND_REGISTERED;
    case ChangeLog::Kind::kUpdated:
      return admin::v1::CHANGE_KIND_UPDATED;
    case ChangeLog::Kind::kReplaced:
      return admin::v1::CHANGE_KIND_REPLACED;
    case ChangeLog::Kind::kUnregistered:
      return admin::v1::CHANGE_KIND_UNREGISTERED;
    case ChangeLog::Kind::kExpired:
      return admin::v1::CHANGE_KIND_EXPIRED;
    case ChangeLog::Kind::kClosed:
      return admin::v1::CHANGE_KIND_CLOSED;
    case ChangeLog::Kind::kOffline:
      return admin::v1::CHANGE_KIND_OFFLINE;
    case ChangeLog::Kind::kOnline:
      return admin::v1::CHANGE_KIND_ONLINE;
    case ChangeLog::Kind::kRenamed:
    case ChangeLog::Kind::kNone:
      break;
  }
  return admin::v1::CHANGE_KIND_UNSPECIFIED;
}

void SetEnd(const LeaseEnd& end, admin::v1::InstanceChange* change) {
  const auto because = [&](admin::v1::EndCause cause, const char* held_until) {
    const std::string by(end.by.view());
    change->set_cause(cause);
    change->set_ended_by(by);
    change->set_detail(absl::StrCat("its session was not renewed within the TTL", held_until,
                                    by.empty() ? "" : " by ", by));
  };
  switch (end.cause) {
    case LeaseEnd::Cause::kTtl:
      return because(admin::v1::END_CAUSE_TTL, "");
    case LeaseEnd::Cause::kLongestHold:
      return because(admin::v1::END_CAUSE_LONGEST_HOLD,
                     "; the eviction guard held it until its longest hold was over");
    case LeaseEnd::Cause::kHoldOver:
      return because(admin::v1::END_CAUSE_HOLD_OVER,
                     "; the eviction guard held it until few enough sessions were missing");
    case LeaseEnd::Cause::kReleased:
      return because(admin::v1::END_CAUSE_RELEASED,
                     "; the eviction guard held it until it was released");
    case LeaseEnd::Cause::kGuardOff:
      return because(admin::v1::END_CAUSE_GUARD_OFF,
                     "; the eviction guard held it until that was switched off");
  }
}

template <typename Message>
Message Parse(const Blob& bytes) {
  Message message;
  message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return message;
}

// `by`: the client's name. `before`: the instance as it was, if that is remembered.
admin::v1::InstanceChange ChangeOf(const ChangeLog::Entry& entry, const std::string& by,
                                   const Blob& before) {
  admin::v1::InstanceChange change;
  *change.mutable_time() = failback::ToProto(absl::FromUnixMillis(entry.unix_ms));
  change.set_kind(ToProto(entry.kind));
  change.set_by(by);
  if (entry.mark) {
    const auto mark = Parse<registry::v1::OfflineMark>(entry.mark);
    change.set_by(mark.by());
    change.set_detail(mark.reason());
  }
  if (entry.kind == ChangeLog::Kind::kExpired) {
    SetEnd(entry.lease_end, &change);
    if (entry.revoked) {
      change.set_revoked(std::string(entry.revoked.view()));
      absl::StrAppend(
          change.mutable_detail(), "; ", change.revoked(),
          " is no longer let in: its token, or what the policy allowed it, was removed");
    }
  }
  if (entry.kind == ChangeLog::Kind::kUpdated && before && entry.instance) {
    SetHealthChange(Parse<ServiceInstance>(before), Parse<ServiceInstance>(entry.instance),
                    &change);
  }
  change.set_revision(entry.revision);
  change.set_generation(entry.generation);
  return change;
}

}  // namespace

std::vector<ServiceSummary> StoreRegistry::ServiceSummaries() const {
  // As many names as one may look at while others wait.
  constexpr size_t kNames = 1000;
  std::vector<std::string> keys;
  for (size_t more = kNames; more == kNames;) {
    std::vector<std::string> part;
    {
      MutexLock lock(&mu_);
      part = state_->ListedServices(keys.empty() ? "" : keys.back(), kNames);
    }
    more = part.size();
    keys.insert(keys.end(), std::make_move_iterator(part.begin()),
                std::make_move_iterator(part.end()));
  }
  std::vector<ServiceSummary> services;
  services.reserve(keys.size());
  for (const std::string& key : keys) {
    StateCounts counts;
    {
      // One at a time: counting a large one for the first time takes a while.
      MutexLock lock(&mu_);
      counts = state_->CountOf(key);
    }
    if (counts.total == 0) continue;
    ServiceSummary& service = services.emplace_back();
    const size_t end = key.find('\0');
    service.set_namespace_(key.substr(0, end));
    service.set_name(key.substr(end + 1));
    admin::v1::InstanceCounts& instances = *service.mutable_instances();
    instances.set_total(counts.total);
    instances.set_healthy(counts.healthy);
    instances.set_unhealthy(counts.unhealthy);
    instances.set_draining(counts.draining);
    instances.set_offline(counts.offline);
    instances.set_persistent(counts.persistent);
  }
  CountHeld(&services);
  return services;
}

absl::StatusOr<InstanceDescription> StoreRegistry::Describe(const InstanceKey& key) const {
  InstanceDescription description;
  const std::string canonical = CanonicalKey(key);
  // The bytes of an instance begin with its key.
  ServiceInstance bare;
  *bare.mutable_key() = key;
  const std::string begins = CanonicalInstance(bare);
  std::string session_id;
  std::vector<State::NamedChange> changes;
  {
    MutexLock lock(&mu_);
    const Record* const record = state_->FindInstance(canonical);
    if (record != nullptr) {
      const ListItem item = State::MakeItem(*record);
      auto instance = Parse<ServiceInstance>(item.instance);
      description.mutable_instance()->set_state(StateOf(instance));
      *description.mutable_instance()->mutable_record() = ToRecord(item, std::move(instance));
      description.set_fence_rank(record->version.fence.rank);
      const Incarnation* const owner = record->version.owner;
      if (owner != nullptr && owner->session != nullptr) {
        session_id = owner->session->id;
        *description.mutable_session() = Summarize(*owner->session);
      }
    }
    changes = state_->ChangesOf(begins);
  }
  if (!description.has_instance() && changes.empty()) {
    return Refusal(registry::v1::ERROR_REASON_NOT_FOUND,
                   absl::StrCat("key: ", KeyText(key),
                                " is not registered, and nothing is remembered of it since "
                                "the registry started"));
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool has_before = i + 1 < changes.size();
    *description.add_history() = ChangeOf(changes[i].entry, changes[i].client,
                                          has_before ? changes[i + 1].entry.instance : Blob());
  }
  if (!description.has_instance() && changes[0].entry.fence_rank != 0) {
    const ChangeLog::Entry& last = changes[0].entry;
    const absl::Time end = absl::FromUnixMillis(last.unix_ms + last.fence_ms);
    if (end > options_.timer->clock()->WallNow()) {
      *description.mutable_fence_end_time() = failback::ToProto(end);
      description.set_fence_rank(last.fence_rank);
    }
  }
  if (description.has_session()) {
    AddLease(session_id, description.mutable_session());
    if (description.session().held_back()) {
      description.mutable_instance()->mutable_record()->set_held(true);
      description.mutable_instance()->set_state(StateOf(description.instance().record()));
    }
  }
  return description;
}

}  // namespace failback
