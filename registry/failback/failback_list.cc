// Listings at an agent: asked of the registry, and of what is known here while that is unavailable.

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/failback/status_policy.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event.h"
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

void Machine::On(input::List in) {
  const std::string& incarnation = in.request.incarnation();
  const LocalSession* const local = incarnation.empty() ? nullptr : SessionOf(incarnation);
  const UpstreamMachine::State& session = upstream_.state();
  if (local != nullptr || session.phase == UpstreamMachine::Phase::kDown) {
    const absl::Status away = local != nullptr ? absl::OkStatus() : session.last_error;
    return Answer(in.ticket, CollectKnown(in.request, local, ListUnavailable(in.request, away)));
  }
  auto listing = std::make_unique<Listing>();
  listing->ticket = in.ticket;
  listing->late = After(kListPatience, [this, late = listing.get()] {
    late->answered = true;
    const absl::Status why = absl::DeadlineExceededError(
        absl::StrCat("no answer within ", absl::FormatDuration(kListPatience)));
    Answer(late->ticket, CollectKnown(late->request, nullptr, ListUnavailable(late->request, why)));
  });
  Effects::Call& call = out_->calls.emplace_back();
  call.request = in.request;
  listing->request = std::move(in.request);
  CallSlot slot;
  slot.kind = CallSlot::Kind::kListing;
  slot.listing = std::move(listing);
  call.id = NewCall(std::move(slot));
}

void Machine::OnListed(std::unique_ptr<Listing> listing, failback::Answer answer) {
  if (listing->answered) return;
  const auto* const failed = std::get_if<absl::Status>(&answer);
  if (failed == nullptr) return Answer(listing->ticket, std::move(answer));
  const ListRequest& request = listing->request;
  // The call showed this agent's credentials: that they are not there, or not accepted, is no word
  // about the caller's.
  if (absl::IsPermissionDenied(*failed)) {
    return Answer(listing->ticket, ListUnavailable(request, *failed));
  }
  if (IsConnectionFailure(*failed) || absl::IsDeadlineExceeded(*failed) ||
      absl::IsUnauthenticated(*failed)) {
    return Answer(listing->ticket,
                  CollectKnown(request, nullptr, ListUnavailable(request, *failed)));
  }
  Answer(listing->ticket, *failed);
}

absl::Status Machine::ListUnavailable(const ListRequest& request, const absl::Status& why) const {
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

std::unique_ptr<KnownList> Machine::CollectKnown(const ListRequest& request,
                                                 const LocalSession* owner,
                                                 const absl::Status& away) const {
  auto known = std::make_unique<KnownList>();
  known->request = request;
  known->away = away;
  known->stale = owner == nullptr;
  known->complete =
      !request.incarnation().empty() && (owner != nullptr || request.incarnation() == incarnation_);
  // A local client's own are its owner's; this agent's are of many.
  const ListScopes scopes(request,
                          owner != nullptr ? std::optional(SessionOwner(owner->id)) : std::nullopt);
  if (request.incarnation().empty()) {
    CollectSets(scopes, known.get());
  } else {
    known->coverage = scopes.coverage();
    if (!known->complete) return known;
  }
  CollectOwn(scopes, owner, known.get());
  return known;
}

void Machine::CollectSets(const ListScopes& scopes, KnownList* known) const {
  Selector asked = known->request.selector();
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
    known->any = true;
    if (!HasFilter(record->watch->selector)) whole.insert(record->watch->selector.service());
    set.instances().ForEach(
        [&](const Blob& instance) { known->followed[KeyOf(instance)] = instance; });
  }
  const auto& kept = last_known_.entries();
  for (auto entry = kept.rbegin(); entry != kept.rend(); ++entry) {  // newest first
    Selector set;
    if (!set.ParseFromString(entry->selector) || !concerns(set)) continue;
    known->any = true;
    if (whole.count(set.service()) > 0) continue;
    if (!HasFilter(set)) whole.insert(set.service());
    known->kept.push_back(entry->set);
  }
  std::reverse(known->kept.begin(), known->kept.end());
}

void Machine::CollectOwn(const ListScopes& scopes, const LocalSession* owner,
                         KnownList* known) const {
  const ListRequest& request = known->request;
  const bool all = !request.incarnation().empty() && !request.has_selector();
  const bool lapsed = LapsedSince(now_).has_value();
  for (const auto& [view, record] : records_) {
    const std::string& key = record->key;
    if (owner != nullptr && record->owner != owner) continue;
    // What the registry has under this key is no longer this agent's business.
    if (record->stage == Stage::kGivenUp) continue;
    if (!record->present) {
      known->own[key] = std::nullopt;
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
    known->own[key] = std::move(row);
    known->any = true;
  }
}

}  // namespace failback
