#include "agent/intent_history.h"

#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/proto_time.h"

namespace failback {
namespace {

admin::v1::ChangeKind KindOf(IntentEvent::Kind kind) {
  switch (kind) {
    case IntentEvent::Kind::kAcknowledged:
      return admin::v1::CHANGE_KIND_ACKNOWLEDGED;
    case IntentEvent::Kind::kRetrying:
      return admin::v1::CHANGE_KIND_RETRYING;
    case IntentEvent::Kind::kParked:
      return admin::v1::CHANGE_KIND_PARKED;
    case IntentEvent::Kind::kSuperseded:
      return admin::v1::CHANGE_KIND_SUPERSEDED;
  }
  return admin::v1::CHANGE_KIND_UNSPECIFIED;
}

// `register default/orders/orders-1` is about `default/orders/orders-1`.
std::string SubjectOf(const std::string& id) { return id.substr(id.find(' ') + 1); }

}  // namespace

void IntentHistory::Add(const IntentEvent& event, absl::Time time) {
  admin::v1::InstanceChange change;
  *change.mutable_time() = ToProto(time);
  change.set_kind(KindOf(event.kind));
  change.set_by(event.upstream);
  change.set_detail(event.id.substr(0, event.id.find(' ')));
  if (!event.status.ok()) {
    change.set_detail(absl::StrCat(change.detail(), ", attempt ", event.times, ": ",
                                   absl::StatusCodeToString(event.status.code()), ": ",
                                   event.status.message()));
  }
  change.set_generation(event.generation);
  MutexLock lock(&mu_);
  events_.emplace_back(SubjectOf(event.id), std::move(change));
  if (events_.size() > max_events_) events_.pop_front();
}

void IntentHistory::Tell(const InstanceKey& key,
                         admin::v1::InstanceDescription* description) const {
  const std::string subject = KeyText(key);
  MutexLock lock(&mu_);
  for (auto it = events_.rbegin(); it != events_.rend(); ++it) {
    if (it->first == subject) *description->add_history() = it->second;
  }
}

}  // namespace failback
