// Listings at an agent: asked of the registry, and of what is known here while that is unavailable.

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/failback/failback_core.h"
#include "registry/failback/merged_pages.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/list_scope.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// For so long an answer of the registry is waited for. Then what is known here is the answer: it
// has to come before the caller gives up, after five seconds as a rule.
constexpr absl::Duration kListPatience = absl::Seconds(3);

}  // namespace

// A List that the registry was asked. Answered once: by it, or when it takes too long.
struct FailbackRegistry::Core::Listing {
  ListRequest request;
  Callback<ListResponse> done;
  std::atomic<bool> answered = false;
  Timeout late;  // set before the registry is asked
};

// What is known of what a List asks for, the later over the earlier. Collected under the lock, and
// read without it.
struct FailbackRegistry::Core::Known {
  // Sets that no subscriber follows now, oldest first.
  std::vector<LastKnownSets::Set> kept;
  // What subscriptions show. By canonical key, as what follows.
  std::map<std::string, Blob> followed;
  // Own intents; nullopt: the instance is to be gone.
  std::map<std::string, std::optional<InstanceRecord>> own;
  // There is a set, or an own intent, of what is asked for.
  bool any = false;
  // There is nothing else: what a local session, or this agent, has stated.
  bool complete = false;
  // Of a local session, which is never behind.
  bool stale = true;
  registry::v1::ListCoverage coverage = registry::v1::LIST_COVERAGE_UNSPECIFIED;
};

void FailbackRegistry::Core::List(const ListRequest& request, Callback<ListResponse> done) {
  if (absl::Status status = ValidateList(request); !status.ok()) return std::move(done)(status);
  Entry entry(this);
  if (!entry.ok()) {
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  }
  std::shared_ptr<Registry> upstream;
  std::optional<Known> known;
  absl::Status away;
  {
    MutexLock lock(&mu_);
    upstream = upstream_;
    const auto local = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& session) {
      return !request.incarnation().empty() && session.second->incarnation == request.incarnation();
    });
    const UpstreamSession::State session = session_->state();
    if (local != sessions_.end()) {
      known = CollectKnown(request, local->second.get());
    } else if (session.phase == UpstreamSession::Phase::kDown) {
      away = session.last_error;
      known = CollectKnown(request, nullptr);
    }
  }
  if (known.has_value()) {
    return std::move(done)(ListKnown(request, *known, ListUnavailable(request, away)));
  }
  const auto listing = std::make_shared<Listing>();
  listing->request = request;
  listing->done = std::move(done);
  listing->late =
      After(kListPatience, [weak = std::weak_ptr<Listing>(listing)](Core*, Effects* effects) {
        const auto listing = weak.lock();
        if (listing == nullptr || listing->answered.exchange(true)) return;
        effects->Answer(listing);
      });
  upstream->List(
      request, [weak = weak_from_this(), listing](absl::StatusOr<ListResponse> response) {
        if (listing->answered.exchange(true)) return;
        listing->late.Cancel();
        const auto self = weak.lock();
        const absl::Status& status = response.status();
        // The call showed this agent's credentials: that they are not there, or not accepted, is no
        // word about the caller's.
        const bool away = IsConnectionFailure(status) || absl::IsDeadlineExceeded(status) ||
                          absl::IsUnauthenticated(status);
        const bool denied = absl::IsPermissionDenied(status);
        if (self == nullptr || !(away || denied)) {
          return std::move(listing->done)(std::move(response));
        }
        if (denied) {
          return std::move(listing->done)(self->ListUnavailable(listing->request, status));
        }
        std::move(listing->done)(self->ListWithout(listing->request, status));
      });
}

void FailbackRegistry::Core::AnswerLate(Listing* listing) {
  std::move(listing->done)(ListWithout(
      listing->request, absl::DeadlineExceededError(absl::StrCat(
                            "no answer within ", absl::FormatDuration(kListPatience)))));
}

absl::StatusOr<ListResponse> FailbackRegistry::Core::ListWithout(const ListRequest& request,
                                                                 const absl::Status& why) {
  std::optional<Known> known;
  {
    MutexLock lock(&mu_);
    known = CollectKnown(request, nullptr);
  }
  return ListKnown(request, *known, ListUnavailable(request, why));
}

absl::Status FailbackRegistry::Core::ListUnavailable(const ListRequest& request,
                                                     const absl::Status& why) const {
  const Selector& selector = request.selector();
  const std::string code = absl::StatusCodeToString(why.code());
  const std::string reason = ReasonText(why);
  const char* const problem = absl::IsPermissionDenied(why)
                                  ? " does not let this agent read "
                                  : " is unavailable, and nothing is known here of ";
  // Not the words of `why`: they are for operators, who find them in the agent's status.
  return Refusal(
      registry::v1::ERROR_REASON_UPSTREAM_UNAVAILABLE,
      absl::StrCat(options_.upstream_name, problem,
                   selector.namespace_().empty() ? kDefaultNamespace : selector.namespace_(), "/",
                   selector.service().empty() ? "*" : selector.service(), ": ", code,
                   reason.empty() ? "" : absl::StrCat(" [", reason, "]")),
      {{kUpstreamCode, code}});
}

FailbackRegistry::Core::Known FailbackRegistry::Core::CollectKnown(
    const ListRequest& request, const LocalSession* owner) const {
  Known known;
  known.stale = owner == nullptr;
  known.complete =
      !request.incarnation().empty() && (owner != nullptr || request.incarnation() == incarnation_);
  const bool all = !request.incarnation().empty() && !request.has_selector();
  // A local client's own are its owner's; this agent's are of many.
  const ListScopes scopes(request,
                          owner != nullptr ? std::optional(SessionOwner(owner->id)) : std::nullopt);
  if (!request.incarnation().empty()) {
    known.coverage = scopes.coverage();
  } else {
    Selector asked = request.selector();
    NormalizeSelector(&asked);
    // Whether instances of this set may be among those asked for.
    const auto concerns = [&](const Selector& set) {
      return !set.service().empty() && set.namespace_() == asked.namespace_() &&
             (asked.service().empty() || set.service() == asked.service()) &&
             scopes.Shows(set.namespace_(), set.service());
    };
    // Services of which a set has every instance. An older one adds only what has gone since.
    std::set<std::string> whole;
    for (const auto& [selector, record] : watches_) {
      const WatchedSet& set = record->watch->set;
      if (!set.known() || !concerns(record->watch->selector)) continue;
      known.any = true;
      if (!HasFilter(record->watch->selector)) whole.insert(record->watch->selector.service());
      set.instances().ForEach(
          [&](const Blob& instance) { known.followed[KeyOf(instance)] = instance; });
    }
    const auto& kept = last_known_.entries();
    for (auto entry = kept.rbegin(); entry != kept.rend(); ++entry) {  // newest first
      Selector set;
      if (!set.ParseFromString(entry->selector) || !concerns(set)) continue;
      known.any = true;
      if (whole.count(set.service()) > 0) continue;
      if (!HasFilter(set)) whole.insert(set.service());
      known.kept.push_back(entry->set);
    }
    std::reverse(known.kept.begin(), known.kept.end());
  }
  if (!known.complete && !request.incarnation().empty()) return known;
  const bool lapsed = Lapsed();
  for (const auto& [view, record] : records_) {
    const std::string& key = record->key;
    if (owner != nullptr && record->owner != owner) continue;
    // What the registry has under this key is no longer this agent's business.
    if (record->stage == Stage::kGivenUp) continue;
    if (!record->present) {
      known.own[key] = std::nullopt;
      continue;
    }
    InstanceRecord row;
    *row.mutable_instance() = ParseInstance(record->instance);
    const InstanceKey& name = row.instance().key();
    if (!scopes.Shows(name.namespace_(), name.service())) continue;
    if (!all && !SelectorMatches(request.selector(), row.instance())) continue;
    row.set_incarnation(owner != nullptr ? owner->incarnation : incarnation_);
    row.set_client_name(options_.client_name);
    row.set_generation(owner != nullptr ? record->owner_generation : record->generation);
    row.set_state(StateOf(*record, lapsed));
    known.own[key] = std::move(row);
    known.any = true;
  }
  return known;
}

absl::StatusOr<ListResponse> FailbackRegistry::Core::ListKnown(const ListRequest& request,
                                                               const Known& known,
                                                               const absl::Status& away) {
  if (!known.any && !known.complete) return away;
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
