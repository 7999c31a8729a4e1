#include "agent/intent_history.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

admin::v1::ChangeKind KindOf(const IntentEvent& event) {
  switch (event.kind) {
    case IntentEvent::Kind::kAcknowledged:
      return admin::v1::CHANGE_KIND_ACKNOWLEDGED;
    case IntentEvent::Kind::kRetrying:
      return admin::v1::CHANGE_KIND_RETRYING;
    case IntentEvent::Kind::kParked:
      return event.refused ? admin::v1::CHANGE_KIND_REFUSED : admin::v1::CHANGE_KIND_PARKED;
    case IntentEvent::Kind::kSuperseded:
      return admin::v1::CHANGE_KIND_SUPERSEDED;
    case IntentEvent::Kind::kCancelled:
      return admin::v1::CHANGE_KIND_CANCELLED;
    case IntentEvent::Kind::kLapsed:
      return admin::v1::CHANGE_KIND_LAPSED;
    case IntentEvent::Kind::kRenewed:
      return admin::v1::CHANGE_KIND_ACKNOWLEDGED;
  }
  return admin::v1::CHANGE_KIND_UNSPECIFIED;
}

// `register default/orders/orders-1` is about `default/orders/orders-1`.
std::string SubjectOf(const std::string& id) { return id.substr(id.find(' ') + 1); }

std::string DetailOf(const IntentEvent& event) {
  if (event.kind == IntentEvent::Kind::kRenewed) return "the lease is renewed";
  const bool lapsed = event.kind == IntentEvent::Kind::kLapsed;
  std::string what =
      lapsed ? "the lease has run out"
      : event.kind == IntentEvent::Kind::kCancelled
          ? absl::StrCat(event.id.substr(0, event.id.find(' ')), ", given up by an operator")
          : event.id.substr(0, event.id.find(' '));
  if (event.status.ok()) return what;
  // Not why it was pending: its call was under way.
  if (event.kind == IntentEvent::Kind::kCancelled && absl::IsCancelled(event.status)) {
    return absl::StrCat(what, "; ", event.status.message());
  }
  return absl::StrCat(what, lapsed ? "" : absl::StrCat(", attempt ", event.times), ": ",
                      absl::StatusCodeToString(event.status.code()), ": ", event.status.message());
}

}  // namespace

void IntentHistory::Add(const IntentEvent& event, absl::Time time) {
  admin::v1::InstanceChange change;
  *change.mutable_time() = ToProto(time);
  change.set_kind(KindOf(event));
  change.set_by(event.upstream);
  change.set_detail(DetailOf(event));
  change.set_generation(event.generation);
  MutexLock lock(&mu_);
  events_.emplace_back(SubjectOf(event.id), std::move(change));
  if (events_.size() > max_events_) events_.pop_front();
}

void IntentHistory::AddTo(const InstanceKey& key,
                          admin::v1::InstanceDescription* description) const {
  const std::string subject = KeyText(key);
  MutexLock lock(&mu_);
  // What befell the session befell this one too, from its first event on.
  std::vector<const admin::v1::InstanceChange*> of_session;
  for (auto it = events_.rbegin(); it != events_.rend(); ++it) {
    if (it->first.empty()) of_session.push_back(&it->second);
    if (it->first != subject) continue;
    for (const auto* change : of_session) *description->add_history() = *change;
    of_session.clear();
    *description->add_history() = it->second;
  }
}

}  // namespace failback
