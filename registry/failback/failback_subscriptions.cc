#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_machine.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

// Ended subscriptions that a local session remembers, so that a late Subscribe does not bring one
// back.
constexpr size_t kMaxEnded = 1000;
// The same over all sessions; beyond it those that come are not remembered.
constexpr int64_t kMaxEndedInAll = 100000;

void ForgetOldest(std::map<std::string, uint64_t>* ended) {
  ended->erase(std::min_element(ended->begin(), ended->end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; }));
}

}  // namespace

void Machine::On(input::Subscribe in) {
  const auto subscription = std::make_shared<LocalSubscription>();
  subscription->id = in.id;
  subscription->owner = std::move(in.owner);
  subscription->session_id = in.request.session_id();
  subscription->subscription_id = in.request.subscription_id();
  subscription->generation = in.request.generation();
  subscription->ends_when_refused = in.ends_when_refused;
  subscription->epoch = in.request.epoch();
  subscription->revision = in.request.revision();
  if (absl::Status refused = Admit(in.request, subscription); !refused.ok()) {
    return subscribers_->PostEnd(in.id, refused);
  }
  Selector selector = in.request.selector();
  NormalizeSelector(&selector);
  const RecordPtr record = FindOrCreateWatch(selector);
  const WatchPtr watch = record->watch;
  subscription->watch = watch;
  watch->subscribers.emplace(in.id, subscription);
  if (watch->owners.Of(subscription->owner) == 0) watches_of_.Add(subscription->owner, 1);
  watch->owners.Add(subscription->owner, 1);
  subscriptions_.emplace(in.id, subscription);
  if (subscription->ends_when_refused && IsRefused(*record)) {
    return EndSubscription(subscription, record->last_status);
  }
  TellFirst(subscription.get());
}

bool Machine::IsRefused(const Record& record) {
  return record.stage == Stage::kParked &&
         DecideNextStep(OperationKind::kSubscribe, record.last_status) == NextStep::kPark;
}

void Machine::EndRefused(const RecordPtr& record) {
  if (!IsRefused(*record)) return;
  const absl::Status refused = record->last_status;
  std::vector<SubscriptionPtr> ended;
  for (const auto& [id, subscriber] : record->watch->subscribers) {
    if (subscriber->ends_when_refused) ended.push_back(subscriber);
  }
  for (const SubscriptionPtr& subscriber : ended) EndSubscription(subscriber, refused);
}

absl::Status Machine::Admit(const SubscribeRequest& request, const SubscriptionPtr& subscription) {
  if (draining_) {
    return Refusal(registry::v1::ERROR_REASON_DRAINING,
                   "the agent is draining and takes no new intents");
  }
  absl::Status room = RoomToFollow(request.selector(), subscription->owner);
  if (!room.ok() || request.session_id().empty()) return room;
  LocalSession* const session = FindSession(request.session_id());
  if (session == nullptr) return SessionUnknown(request.session_id());
  const auto ended = session->unsubscribed.find(request.subscription_id());
  if (ended != session->unsubscribed.end() && request.generation() != 0 &&
      request.generation() <= ended->second) {
    return Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                   absl::StrCat("subscription ", request.subscription_id(),
                                " was ended by generation ", ended->second),
                   {{"generation", absl::StrCat(ended->second)}});
  }
  const auto named = session->subscriptions.find(request.subscription_id());
  if (named != session->subscriptions.end()) {
    EndSubscription(named->second, Refusal(registry::v1::ERROR_REASON_REPLACED,
                                           "a newer Subscribe with this id has taken over"));
  }
  session->subscriptions[request.subscription_id()] = subscription;
  return absl::OkStatus();
}

void Machine::TellFirst(LocalSubscription* subscription) {
  WatchedSet& set = subscription->watch->set;
  const bool resumes = subscription->epoch != 0 || subscription->revision != 0;
  if (resumes && set.known() && subscription->IsAt(set)) {
    // Nothing has changed: a delta confirms the position.
    const uint64_t revision = subscription->revision;
    subscribers_->Post(subscription->id,
                       Event::Delta(subscription->epoch, revision, revision, set.flags(), {}, {}));
    return;
  }
  if (resumes && !subscription->MayHear(set)) {
    // It may have seen more than is known here. What it has is not to go back.
    subscription->apart = true;
    if (set.known()) {
      subscription->told_stale = true;
      subscribers_->Post(subscription->id, StaleAt(subscription->epoch, subscription->revision));
    } else {
      ArmStale(subscription->watch.get());
    }
    return;
  }
  if (set.known()) subscribers_->Post(subscription->id, set.Current());
}

void Machine::On(const input::Unsubscribe& in) {
  const UnsubscribeRequest& request = in.request;
  LocalSession* const session = FindSession(request.session_id());
  // An unknown session has no subscriptions left: what was asked for holds.
  if (session == nullptr) return Answer(in.ticket, UnsubscribeResponse());
  const auto it = session->subscriptions.find(request.subscription_id());
  const bool there = it != session->subscriptions.end();
  if (there && request.generation() != 0 && request.generation() < it->second->generation) {
    return Answer(in.ticket, Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                                     "a newer Subscribe with this id is there",
                                     {{"generation", absl::StrCat(it->second->generation)}}));
  }
  RememberEnd(session, request.subscription_id(), request.generation());
  if (there) EndSubscription(it->second, absl::OkStatus());
  Answer(in.ticket, UnsubscribeResponse());
}

void Machine::RememberEnd(LocalSession* session, const std::string& name, uint64_t generation) {
  auto& names = session->unsubscribed;
  const bool known = names.count(name) > 0;
  if (generation == 0 || (!known && ended_names_ >= kMaxEndedInAll)) return;
  ended_names_ -= static_cast<int64_t>(names.size());
  auto& ended = names[name];
  ended = std::max(ended, generation);
  if (names.size() > kMaxEnded) ForgetOldest(&names);
  ended_names_ += static_cast<int64_t>(names.size());
}

void Machine::EndSubscription(const SubscriptionPtr& subscription, const absl::Status& status) {
  // A copy: Detach may drop the caller's reference.
  const SubscriptionPtr ended = subscription;
  Detach(ended);
  subscribers_->PostEnd(ended->id, status);
}

void Machine::On(input::Detach in) {
  const auto it = subscriptions_.find(in.id);
  if (it != subscriptions_.end()) Detach(it->second);
}

void Machine::Detach(const SubscriptionPtr& subscription) {
  const SubscriptionPtr detached = subscription;
  subscriptions_.erase(detached->id);
  if (LocalSession* session = FindSession(detached->session_id); session != nullptr) {
    const auto it = session->subscriptions.find(detached->subscription_id);
    if (it != session->subscriptions.end() && it->second == detached) {
      session->subscriptions.erase(it);
    }
  }
  const WatchPtr watch = detached->watch;
  if (watch == nullptr || watch->subscribers.erase(detached->id) == 0) return;
  watch->owners.Add(detached->owner, -1);
  if (watch->owners.Of(detached->owner) == 0) watches_of_.Add(detached->owner, -1);
  if (watch->subscribers.empty()) Abandon(watch.get(), detached->owner);
}

absl::Status Machine::RoomToFollow(Selector selector, const std::string& owner) const {
  absl::Status room =
      CheckRoom(static_cast<int64_t>(subscriptions_.size()), options_.max_listeners, "listeners");
  if (!room.ok()) return room;
  NormalizeSelector(&selector);
  const auto found = watches_.find(CanonicalSelector(selector));
  // One that it follows already costs nothing.
  if (found == watches_.end() || found->second->watch->owners.Of(owner) == 0) {
    const SharedLimit limit = {"subscriptions", "limits.subscriptions", options_.max_subscriptions};
    room = limit.Check(0, watches_of_.Of(owner));
  }
  if (!room.ok() || found != watches_.end()) return room;
  room =
      CheckRoom(static_cast<int64_t>(watches_.size()), options_.max_subscriptions, "subscriptions");
  return room.ok() ? CheckRoom(totals_.pending(), options_.max_pending, "pending operations")
                   : room;
}

void Machine::Publish(Watch* watch, const EventPtr& event) {
  if (event == nullptr) return;
  if (const RecordPtr record = watch->record.lock(); record != nullptr) Count(record.get());
  PersistSnapshot(watch);
  // What was kept of an earlier time is behind the set.
  if (event->is_snapshot()) last_known_.Take(watch->canonical_selector);
  for (const auto& [id, subscriber] : watch->subscribers) {
    if (!subscriber->apart) {
      subscribers_->Post(id, event);
    } else if (subscriber->MayHear(watch->set)) {
      subscriber->apart = false;
      subscribers_->Post(id, watch->set.Current());
    }
  }
}

void Machine::TellApart(const Watch& watch) {
  for (const auto& [id, subscriber] : watch.subscribers) {
    if (!subscriber->apart || std::exchange(subscriber->told_stale, true)) continue;
    subscribers_->Post(id, StaleAt(subscriber->epoch, subscriber->revision));
  }
}

}  // namespace failback
