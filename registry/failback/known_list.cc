#include "registry/failback/known_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "registry/failback/merged_pages.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {

absl::StatusOr<ListResponse> PageOf(const KnownList& known) {
  const ListRequest& request = known.request;
  if (!known.any && !known.complete) return known.away;
  std::string after;
  InstanceKey last;
  if (!request.page_token().empty() &&
      (!absl::WebSafeBase64Unescape(request.page_token(), &after) ||
       !ParseCanonicalKey(after, &last))) {
    return InvalidField("page_token", "is not a token of an earlier page");
  }
  std::map<std::string, InstanceRecord> found;
  for (const LastKnownSets::Set& set : known.kept) {
    SubscribeResponse event;
    event.ParseFromString(*set);
    for (ServiceInstance& instance : *event.mutable_snapshot()->mutable_instances()) {
      if (!SelectorMatches(request.selector(), instance)) continue;
      const std::string key = CanonicalKey(instance.key());
      if (key > after) *found[key].mutable_instance() = std::move(instance);
    }
  }
  for (auto it = known.followed.upper_bound(after); it != known.followed.end(); ++it) {
    ServiceInstance instance = ParseInstance(it->second);
    if (!SelectorMatches(request.selector(), instance)) continue;
    *found[it->first].mutable_instance() = std::move(instance);
  }
  for (auto it = known.own.upper_bound(after); it != known.own.end(); ++it) {
    if (!it->second.has_value()) {
      found.erase(it->first);
    } else if (it->second->state() != registry::v1::INTENT_STATE_SUPERSEDED ||
               found.count(it->first) == 0) {  // else the instance that is there is the winner's
      found[it->first] = *it->second;
    }
  }
  ListResponse response;
  response.set_stale(known.stale);
  response.set_coverage(known.coverage);
  const int page =
      request.page_size() == 0 ? kMaxPageSize : std::min(request.page_size(), kMaxPageSize);
  size_t bytes = 0;
  for (auto& [key, record] : found) {
    bytes += record.ByteSizeLong();
    if (PageIsFull(response.records_size(), page, bytes)) {
      response.set_next_page_token(absl::WebSafeBase64Escape(
          CanonicalKey(response.records(response.records_size() - 1).instance().key())));
      break;
    }
    *response.add_records() = std::move(record);
  }
  return response;
}

}  // namespace failback
