#include "agent/carried_overlay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/instance_query.h"

namespace failback {
namespace {

using agent::v1::CarriedIntent;
using registry::v1::InstanceRecord;

// Makes `holder` the owner that `record` shows; empty: it is not known.
void SetOwner(const std::string& holder, InstanceRecord* record) {
  record->clear_incarnation();
  record->set_client_name(holder);
}

}  // namespace

void OverlayCarried(const std::vector<CarriedIntent>& carried, const CarriedOverlay& overlay,
                    std::vector<InstanceRecord>* records) {
  std::map<std::string, InstanceRecord> by_key;
  for (InstanceRecord& record : *records) {
    by_key.emplace(CanonicalKey(record.instance().key()), std::move(record));
  }
  std::set<std::string> acknowledged_keys;
  for (const CarriedIntent& intent : carried) {
    if (intent.state() != registry::v1::INTENT_STATE_ACKNOWLEDGED) continue;
    acknowledged_keys.insert(CanonicalKey(intent.instance().key()));
  }
  std::set<std::string> unsettled;
  for (const CarriedIntent& intent : carried) {
    const bool acknowledged = intent.state() == registry::v1::INTENT_STATE_ACKNOWLEDGED;
    if (acknowledged && !overlay.all) continue;
    const std::string key = CanonicalKey(intent.instance().key());
    if (!overlay.add && by_key.count(key) == 0) continue;
    const auto [it, is_new] = by_key.try_emplace(key);
    InstanceRecord& record = it->second;
    if (is_new) {
      *record.mutable_instance() = intent.instance();
      record.set_incarnation(overlay.incarnation);
      record.set_generation(intent.generation());
    }
    const bool first = !acknowledged && unsettled.insert(key).second;
    if (is_new || first) record.set_state(intent.state());
    if (!first || intent.state() != registry::v1::INTENT_STATE_SUPERSEDED) continue;

    // Who holds the key at this upstream? A record of the agent itself does not say.
    const std::optional<std::string> holder =
        ReasonMetadata(StatusFromProto(intent.last_status()), "holder");
    const bool own = !overlay.incarnation.empty() && record.incarnation() == overlay.incarnation;
    if (own) {
      SetOwner(holder.value_or(""), &record);
    } else if (holder.has_value() && (is_new || acknowledged_keys.count(key) > 0) &&
               record.client_name() != *holder && record.incarnation() != *holder) {
      SetOwner(*holder, &record);
    }
  }
  records->clear();
  for (auto& [key, record] : by_key) records->push_back(std::move(record));
}

CarriedCounts CountCarried(const std::vector<CarriedRecord>& carried) {
  CarriedCounts counts;
  InstanceRecord record;  // of the instance that is looked at
  std::string_view service;
  for (auto it = carried.begin(); it != carried.end();) {
    const CarriedRecord& first = *it;
    // Of several upstreams the first that has not acknowledged it.
    const auto next = std::find_if(it, carried.end(),
                                   [&](const CarriedRecord& one) { return one.key != first.key; });
    const auto unsettled = std::find_if(it, next, [](const CarriedRecord& one) {
      return one.state != registry::v1::INTENT_STATE_ACKNOWLEDGED;
    });
    record.set_state(unsettled == next ? first.state : unsettled->state);
    *record.mutable_instance() = ParseInstance(first.instance);
    Count(StateOf(record), record.instance().persistent(), +1, &counts.instances);
    const std::string_view own = ServiceKeyOf(first.key);
    if (own != service) ++counts.services;
    service = own;
    it = next;
  }
  return counts;
}

}  // namespace failback
