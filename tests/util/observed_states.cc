#include "tests/util/observed_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/canonical.h"

namespace failback {
namespace {

using registry::v1::ServiceInstance;
using registry::v1::SubscribeResponse;

template <typename... Parts>
absl::Status Broken(const SubscribeResponse& event, const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts..., ": ", event.ShortDebugString()));
}

}  // namespace

absl::Status ObservedStates::ApplyDelta(const SubscribeResponse& event, State* next) const {
  if (states_.empty()) return Broken(event, "a delta before any snapshot");
  const State& last = states_.back();
  if (event.epoch() != last.epoch) return Broken(event, "a delta in a new epoch");
  if (event.delta().base_revision() != last.revision) {
    return Broken(event, "a delta from revision ", event.delta().base_revision(), " on ",
                  last.revision);
  }
  next->instances = last.instances;
  for (const auto& key : event.delta().removals()) {
    if (next->instances.erase(key.instance_id()) == 0) {
      return Broken(event, "removes ", key.instance_id(), ", which was not there");
    }
  }
  for (const ServiceInstance& instance : event.delta().upserts()) {
    next->instances[instance.key().instance_id()] = CanonicalInstance(instance);
  }
  return absl::OkStatus();
}

absl::Status ObservedStates::Apply(const SubscribeResponse& event) {
  State next;
  next.epoch = event.epoch();
  next.revision = event.revision();
  next.stale = event.stale();
  if (event.has_snapshot()) {
    if (!in_parts_) parts_.clear();
    for (const ServiceInstance& instance : event.snapshot().instances()) {
      parts_[instance.key().instance_id()] = CanonicalInstance(instance);
    }
    in_parts_ = event.snapshot().more();
    if (in_parts_) return absl::OkStatus();
    next.instances = std::exchange(parts_, {});
  } else if (event.has_delta()) {
    absl::Status status = ApplyDelta(event, &next);
    if (!status.ok()) return status;
  } else {
    if (states_.empty()) return Broken(event, "no snapshot first");
    next.instances = states_.back().instances;
  }
  if (!states_.empty()) {
    const State& last = states_.back();
    if (next.epoch == last.epoch && next.revision < last.revision) {
      return Broken(event, "revision ", next.revision, " after ", last.revision);
    }
    if (next.epoch == last.epoch && next.stale == last.stale && next.instances == last.instances) {
      return Broken(event, "the same state twice in a row");
    }
  }
  states_.push_back(std::move(next));
  return absl::OkStatus();
}

std::set<std::string> ObservedStates::CurrentIds() const {
  std::set<std::string> ids;
  if (states_.empty()) return ids;
  for (const auto& [id, payload] : states_.back().instances) ids.insert(id);
  return ids;
}

void DesiredHistory::Registered(const ServiceInstance& instance) {
  std::vector<std::string>& steps = history_[instance.key().instance_id()];
  if (steps.empty()) steps.push_back("");
  steps.push_back(CanonicalInstance(instance));
}

void DesiredHistory::Unregistered(const std::string& instance_id) {
  std::vector<std::string>& steps = history_[instance_id];
  if (steps.empty()) steps.push_back("");
  steps.push_back("");
}

absl::Status DesiredHistory::Explains(const std::vector<ObservedStates::State>& states) const {
  for (const ObservedStates::State& state : states) {
    for (const auto& [id, payload] : state.instances) {
      if (history_.count(id) == 0) {
        return absl::FailedPreconditionError(absl::StrCat(id, " was seen and never desired"));
      }
    }
  }
  for (const auto& [id, steps] : history_) {
    auto step = steps.begin();
    uint64_t epoch = 0;
    for (const ObservedStates::State& state : states) {
      // A new epoch may go back.
      if (std::exchange(epoch, state.epoch) != state.epoch) step = steps.begin();
      const auto found = state.instances.find(id);
      const std::string seen = found == state.instances.end() ? "" : found->second;
      if (may_lapse_ && seen.empty()) continue;
      step = std::find(step, steps.end(), seen);
      if (step == steps.end()) {
        return absl::FailedPreconditionError(
            absl::StrCat(id, " was seen ", seen.empty() ? "gone" : "registered", " at revision ",
                         state.revision, ", which was not desired then"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSubscription(const std::vector<SubscribeResponse>& events,
                               const DesiredHistory& desired) {
  ObservedStates observed;
  for (const SubscribeResponse& event : events) {
    absl::Status status = observed.Apply(event);
    if (!status.ok()) return status;
  }
  return desired.Explains(observed.states());
}

}  // namespace failback
