#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/failback/failback_core.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/event_reader.h"
#include "registry/model/selector.h"
#include "registry/model/validation.h"
#include "registry/watch/owned_listener.h"

namespace failback {
namespace {

// Ended subscriptions that a local session remembers, so that a late Subscribe does not bring one
// back.
constexpr size_t kMaxEnded = 1000;
// The same over all sessions; beyond it those that come are not remembered.
constexpr int64_t kMaxEndedInAll = 100000;

// How long a stream may take with its first message and count as a call in flight.
constexpr absl::Duration kOpeningPatience = absl::Seconds(2);

void ForgetOldest(std::map<std::string, uint64_t>* ended) {
  ended->erase(std::min_element(ended->begin(), ended->end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; }));
}

}  // namespace

// A subscriber's handle. Destroying it takes the subscriber off its watch.
class FailbackRegistry::Core::LocalStream final : public SubscribeStream {
 public:
  LocalStream(std::weak_ptr<Core> core, std::shared_ptr<LocalSubscription> subscription)
      : core_(std::move(core)), subscription_(std::move(subscription)) {}

  ~LocalStream() override {
    if (auto core = core_.lock()) {
      {
        Entry entry(core.get());
        if (entry.ok()) {
          Effects effects;
          {
            MutexLock lock(&core->mu_);
            core->Detach(subscription_, &effects);
          }
          core->CarryOut(std::move(effects));
        }
      }
      core->Pump();
    }
    subscription_->notifier->Close();
  }

 private:
  const std::weak_ptr<Core> core_;
  const std::shared_ptr<LocalSubscription> subscription_;
};

// Receives one upstream stream.
class FailbackRegistry::Core::WatchListener final : public NotifyListener {
 public:
  WatchListener(std::weak_ptr<Core> core, std::shared_ptr<Watch> watch, uint64_t stream_serial)
      : core_(std::move(core)), watch_(std::move(watch)), stream_serial_(stream_serial) {}

  void OnEvent(const EventPtr& event) override {
    if (auto core = core_.lock()) core->OnWatchEvent(watch_, stream_serial_, *event);
  }
  void OnEnd(const absl::Status& status) override {
    if (auto core = core_.lock()) core->OnWatchEnd(watch_, stream_serial_, status);
  }

 private:
  const std::weak_ptr<Core> core_;
  const std::shared_ptr<Watch> watch_;
  const uint64_t stream_serial_;
};

// --- Local subscribers.

std::unique_ptr<SubscribeStream> FailbackRegistry::Core::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  auto subscription = std::make_shared<LocalSubscription>();
  subscription->owner = OwnerOf(listener.get());
  subscription->notifier = std::make_shared<SerialNotifier>(std::move(listener));
  subscription->session_id = request.session_id();
  subscription->subscription_id = request.subscription_id();
  subscription->generation = request.generation();
  subscription->epoch = request.epoch();
  subscription->revision = request.revision();
  auto stream = std::make_unique<LocalStream>(weak_from_this(), subscription);
  absl::Status refused = ValidateSubscribe(request);
  Entry entry(this);
  if (!entry.ok()) refused = absl::CancelledError("the registry client was shut down");
  Effects effects;
  if (refused.ok()) {
    MutexLock lock(&mu_);
    LocalSession* session =
        request.session_id().empty() ? nullptr : FindSession(request.session_id());
    if (closed_) {
      refused = absl::CancelledError("the registry client was shut down");
    } else if (draining_) {
      refused = Refusal(registry::v1::ERROR_REASON_DRAINING,
                        "the agent is draining and takes no new intents");
    } else if (absl::Status room = RoomToFollow(request.selector(), subscription->owner);
               !room.ok()) {
      refused = room;
    } else if (session == nullptr && !request.session_id().empty()) {
      refused = Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                        absl::StrCat("session ", request.session_id(), " is not known here"));
    } else if (session != nullptr) {
      const auto ended = session->unsubscribed.find(request.subscription_id());
      if (ended != session->unsubscribed.end() && request.generation() != 0 &&
          request.generation() <= ended->second) {
        refused = Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                          absl::StrCat("subscription ", request.subscription_id(),
                                       " was ended by generation ", ended->second),
                          {{"generation", absl::StrCat(ended->second)}});
      } else {
        const auto named = session->subscriptions.find(request.subscription_id());
        if (named != session->subscriptions.end()) {
          EndSubscription(named->second,
                          Refusal(registry::v1::ERROR_REASON_REPLACED,
                                  "a newer Subscribe with this id has taken over"),
                          &effects);
        }
        session->subscriptions[request.subscription_id()] = subscription;
      }
    }
    if (refused.ok()) {
      Selector selector = request.selector();
      NormalizeSelector(&selector);
      subscription->watch = FindOrCreateWatch(selector)->watch;
      subscription->serial = ++last_subscription_;
      subscription->watch->subscribers.emplace(subscription->serial, subscription);
      if (subscription->watch->owners.Of(subscription->owner) == 0) {
        watches_of_.Add(subscription->owner, 1);
      }
      subscription->watch->owners.Add(subscription->owner, 1);
      ++listeners_;
      TellFirst(subscription.get());
    }
  }
  if (!refused.ok()) subscription->notifier->PostEnd(refused);
  CarryOut(std::move(effects));
  subscription->notifier->Deliver();
  Pump();
  return stream;
}

void FailbackRegistry::Core::TellFirst(LocalSubscription* subscription) {
  WatchedSet& set = subscription->watch->set;
  const bool resumes = subscription->epoch != 0 || subscription->revision != 0;
  if (resumes && set.known() && subscription->IsAt(set)) {
    // Nothing has changed: a delta confirms the position.
    const uint64_t revision = subscription->revision;
    subscription->notifier->Post(
        Event::Delta(subscription->epoch, revision, revision, set.flags(), {}, {}));
    return;
  }
  if (resumes && !subscription->MayHear(set)) {
    // It may have seen more than is known here. What it has is not to go back.
    subscription->apart = true;
    if (set.known()) {
      subscription->told_stale = true;
      subscription->notifier->Post(StaleAt(subscription->epoch, subscription->revision));
    } else {
      ArmStale(subscription->watch);
    }
    return;
  }
  if (set.known()) subscription->notifier->Post(set.Current());
}

void FailbackRegistry::Core::Unsubscribe(const UnsubscribeRequest& request,
                                         Callback<UnsubscribeResponse> done) {
  if (absl::Status status = ValidateUnsubscribe(request); !status.ok()) {
    return std::move(done)(status);
  }
  Entry entry(this);
  if (!entry.ok()) {
    return std::move(done)(absl::CancelledError("the registry client was shut down"));
  }
  Effects effects;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    LocalSession* session = FindSession(request.session_id());
    // An unknown session has no subscriptions left: what was asked for holds.
    if (session != nullptr) {
      const auto it = session->subscriptions.find(request.subscription_id());
      if (it != session->subscriptions.end() && request.generation() != 0 &&
          request.generation() < it->second->generation) {
        refused = Refusal(registry::v1::ERROR_REASON_SUPERSEDED,
                          "a newer Subscribe with this id is there",
                          {{"generation", absl::StrCat(it->second->generation)}});
      } else {
        auto& names = session->unsubscribed;
        const bool known = names.count(request.subscription_id()) > 0;
        if (request.generation() != 0 && (known || ended_names_ < kMaxEndedInAll)) {
          ended_names_ -= static_cast<int64_t>(names.size());
          auto& ended = names[request.subscription_id()];
          ended = std::max(ended, request.generation());
          if (names.size() > kMaxEnded) ForgetOldest(&names);
          ended_names_ += static_cast<int64_t>(names.size());
        }
        if (it != session->subscriptions.end()) {
          EndSubscription(it->second, absl::OkStatus(), &effects);
        }
      }
    }
  }
  CarryOut(std::move(effects));
  Pump();
  if (!refused.ok()) return std::move(done)(refused);
  std::move(done)(UnsubscribeResponse());
}

void FailbackRegistry::Core::EndSubscription(const std::shared_ptr<LocalSubscription>& subscription,
                                             const absl::Status& status, Effects* effects) {
  // A copy: Detach may drop the caller's reference.
  const std::shared_ptr<LocalSubscription> ended = subscription;
  Detach(ended, effects);
  ended->notifier->PostEnd(status);
  effects->Deliver(ended->notifier);
}

void FailbackRegistry::Core::Detach(const std::shared_ptr<LocalSubscription>& subscription,
                                    Effects* effects) {
  const std::shared_ptr<LocalSubscription> detached = subscription;
  if (LocalSession* session = FindSession(detached->session_id); session != nullptr) {
    const auto it = session->subscriptions.find(detached->subscription_id);
    if (it != session->subscriptions.end() && it->second == detached) {
      session->subscriptions.erase(it);
    }
  }
  const std::shared_ptr<Watch> watch = detached->watch;
  if (watch == nullptr || watch->subscribers.erase(detached->serial) == 0) return;
  watch->owners.Add(detached->owner, -1);
  if (watch->owners.Of(detached->owner) == 0) watches_of_.Add(detached->owner, -1);
  --listeners_;
  if (!watch->subscribers.empty()) return;
  const RecordPtr record = watch->record.lock();
  if (record == nullptr || record->stage == Stage::kNone || !record->present) return;
  // The last one has left: the intent is now to be gone.
  const bool never_sent = record->acknowledged == 0 && record->in_flight == 0 &&
                          record->retry == nullptr && record->stage == Stage::kQueued;
  CloseStream(watch, effects);
  watch->stale_timer.Cancel();
  watch->hold_timer.Cancel();
  WriteSnapshot(watch.get());
  KeepLastKnown(*watch, detached->owner);
  watch->set = WatchedSet(options_.empty_snapshot_hold > absl::ZeroDuration());
  record->present = false;
  if (never_sent) {
    Erase(record, absl::OkStatus(), effects);
    return;
  }
  NewGeneration(record);
}

absl::Status FailbackRegistry::Core::RoomToFollow(Selector selector,
                                                  const std::string& owner) const {
  absl::Status room = CheckRoom(listeners_, options_.max_listeners, "listeners");
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

FailbackRegistry::Core::RecordPtr FailbackRegistry::Core::FindOrCreateWatch(
    const Selector& selector) {
  const std::string key = CanonicalSelector(selector);
  auto& record = watches_[key];
  if (record == nullptr) {
    record = std::make_shared<Record>();
    auto watch = std::make_shared<Watch>(options_.empty_snapshot_hold > absl::ZeroDuration());
    watch->selector = selector;
    watch->name = absl::StrCat(selector.namespace_(), "/", selector.service(), "#", ++last_watch_);
    watch->record = record;
    watch->canonical_selector = key;
    record->key = watch->name;
    record->watch = std::move(watch);
  }
  if (!record->present) {
    // A registry that is there says within moments what is so now.
    if (session_->state().phase != UpstreamSession::Phase::kUp) RestoreLastKnown(record->watch);
    ArmStale(record->watch);
    record->present = true;
    NewGeneration(record);
  }
  return record;
}

void FailbackRegistry::Core::KeepLastKnown(const Watch& watch, const std::string& owner) {
  if (!watch.set.known()) return;
  DropFromJournal(last_known_.Put(watch.canonical_selector, watch.set.Whole(), owner));
}

bool FailbackRegistry::Core::RestoreLastKnown(const std::shared_ptr<Watch>& watch) {
  const LastKnownSets::Set set = last_known_.Take(watch->canonical_selector);
  if (set == nullptr) return false;
  const absl::StatusOr<EventPtr> event = EventReader().Read(*set);
  if (!event.ok() || *event == nullptr || !(*event)->is_snapshot()) return false;
  watch->set.Restore(**event);
  return true;
}

// --- The upstream's streams.

void FailbackRegistry::Core::SendSubscribe(Call call) {
  const RecordPtr record = call.items.front().first;
  const std::shared_ptr<Watch> watch = record->watch;
  call.subscribe_request.set_session_id(call.session_id);
  auto stream = call.upstream->Subscribe(
      call.subscribe_request,
      std::make_shared<WatchListener>(weak_from_this(), watch, call.stream_serial));
  {
    MutexLock lock(&mu_);
    // Unless it has ended already, or is no longer wanted.
    if (!closed_ && watch->stream_serial == call.stream_serial) watch->stream.swap(stream);
  }
}

void FailbackRegistry::Core::OnWatchEvent(const std::shared_ptr<Watch>& watch,
                                          uint64_t stream_serial, const Event& event) {
  Entry entry(this);
  if (!entry.ok()) return;
  Effects effects;
  bool began = false;
  {
    MutexLock lock(&mu_);
    const RecordPtr record = watch->record.lock();
    if (record == nullptr || record->stage == Stage::kNone || watch->stream_serial != stream_serial)
      return;
    if (watch->phase != Watch::Phase::kStreaming) {
      began = true;
      watch->opening_timer.Cancel();
      if (watch->phase == Watch::Phase::kOpening) --calls_in_flight_;
      watch->phase = Watch::Phase::kStreaming;
      CountAttempt(OperationKind::kSubscribe, absl::OkStatus());
      AttemptDone(record, record->in_flight, absl::OkStatus(), /*sent=*/true, &effects);
    }
    Publish(watch, watch->set.Apply(event), &effects);
    if (watch->set.gap()) {
      CloseStream(watch, &effects);
      ArmStale(watch);
      AttemptDone(record, record->generation,
                  absl::AbortedError("an event of the stream was lost: starting over"),
                  /*sent=*/true, &effects);
    } else {
      watch->silenced = false;
      watch->stale_timer.Cancel();
      ArmHold(watch);
    }
  }
  CarryOut(std::move(effects));
  if (began) Pump();
}

void FailbackRegistry::Core::OnWatchEnd(const std::shared_ptr<Watch>& watch, uint64_t stream_serial,
                                        const absl::Status& end) {
  Entry entry(this);
  if (!entry.ok()) return;
  Effects effects;
  // While the subscription is wanted, any end of its stream is a failure.
  absl::Status status = end.ok() ? absl::UnavailableError("the registry ended the stream") : end;
  std::string session_id;
  {
    MutexLock lock(&mu_);
    const RecordPtr record = watch->record.lock();
    if (record == nullptr || record->stage == Stage::kNone || watch->stream_serial != stream_serial)
      return;
    session_id = watch->session_id;
    if (watch->phase != Watch::Phase::kStreaming) CountAttempt(OperationKind::kSubscribe, status);
    const bool lost = ReasonOf(status) == registry::v1::ERROR_REASON_POSITION_LOST;
    if ((lost || IsTooLargeToReceive(status)) && watch->set.epoch() != 0) {
      // What is followed began again; or a delta is too large, where a snapshot comes in parts.
      watch->set.DropPosition();
      status = absl::AbortedError(
          absl::StrCat("subscribing again without a position: ", std::string(status.message())));
    }
    CloseStream(watch, &effects);
    ArmStale(watch);
    AttemptDone(record, record->generation, status, /*sent=*/true, &effects);
  }
  if (!end.ok() && IsConnectionFailure(end)) session_->ReportFailure(end);
  if (DecideNextStep(OperationKind::kSubscribe, status) == NextStep::kResync) {
    session_->ReportLost(session_id);
  }
  CarryOut(std::move(effects));
  Pump();
}

void FailbackRegistry::Core::ArmStale(const std::shared_ptr<Watch>& watch) {
  if (IsArmed(watch->stale_timer)) return;
  const bool known = watch->set.known();
  const bool resumed = std::any_of(watch->subscribers.begin(), watch->subscribers.end(),
                                   [](const auto& subscriber) { return subscriber.second->apart; });
  if (known ? watch->set.stale() : !resumed && !last_known_.Contains(watch->canonical_selector)) {
    return;
  }
  watch->stale_timer = After(options_.stale_grace, [watch](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    const bool streaming = watch->phase == Watch::Phase::kStreaming;
    if (streaming && !core->session_down_) return;
    if (!watch->set.known()) {
      // The registry has not said anything in time: what was known last is better than nothing.
      if (core->RestoreLastKnown(watch)) core->Publish(watch, watch->set.Current(), effects);
      TellApart(*watch, effects);
      return;
    }
    watch->silenced = streaming;
    core->Publish(watch, watch->set.MarkStale(), effects);
  });
}

void FailbackRegistry::Core::WatchSession(bool down, bool lost, Effects* effects) {
  if (std::exchange(session_down_, down) == down) return;
  for (const auto& [selector, record] : watches_) {
    const std::shared_ptr<Watch>& watch = record->watch;
    if (down) {
      ArmStale(watch);
    } else if (std::exchange(watch->silenced, false) && !lost) {
      // The stream has outlived the trouble, so nothing of it was lost. (In a new session it is
      // opened again, and its first message has it.)
      Publish(watch, watch->set.MarkFresh(), effects);
    }
  }
}

void FailbackRegistry::Core::ArmHold(const std::shared_ptr<Watch>& watch) {
  if (!watch->set.holding()) {
    watch->hold_timer.Cancel();
    return;
  }
  if (IsArmed(watch->hold_timer)) return;
  watch->hold_timer = After(options_.empty_snapshot_hold, [watch](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    // While the registry is unavailable its silence confirms nothing; its next message arms this
    // again.
    if (watch->phase == Watch::Phase::kStreaming) {
      core->Publish(watch, watch->set.Release(), effects);
    }
  });
}

void FailbackRegistry::Core::ArmOpening(const std::shared_ptr<Watch>& watch) {
  watch->opening_timer =
      After(kOpeningPatience, [watch, serial = watch->stream_serial](Core* core, Effects*) {
        core->mu_.AssertHeld();
        if (watch->stream_serial != serial || watch->phase != Watch::Phase::kOpening) return;
        watch->phase = Watch::Phase::kQuiet;
        --core->calls_in_flight_;
      });
}

void FailbackRegistry::Core::Publish(const std::shared_ptr<Watch>& watch, const EventPtr& event,
                                     Effects* effects) {
  if (event == nullptr) return;
  if (const RecordPtr record = watch->record.lock(); record != nullptr) Count(record.get());
  PersistSnapshot(watch);
  // What was kept of an earlier time is behind the set.
  if (event->is_snapshot()) last_known_.Take(watch->canonical_selector);
  for (const auto& [serial, subscriber] : watch->subscribers) {
    if (!subscriber->apart) {
      subscriber->notifier->Post(event);
    } else if (subscriber->MayHear(watch->set)) {
      subscriber->apart = false;
      subscriber->notifier->Post(watch->set.Current());
    } else {
      continue;
    }
    effects->Deliver(subscriber->notifier);
  }
}

void FailbackRegistry::Core::TellApart(const Watch& watch, Effects* effects) {
  for (const auto& [serial, subscriber] : watch.subscribers) {
    if (!subscriber->apart || std::exchange(subscriber->told_stale, true)) continue;
    subscriber->notifier->Post(StaleAt(subscriber->epoch, subscriber->revision));
    effects->Deliver(subscriber->notifier);
  }
}

void FailbackRegistry::Core::CloseStream(const std::shared_ptr<Watch>& watch, Effects* effects) {
  ++watch->stream_serial;
  if (watch->phase == Watch::Phase::kOpening) --calls_in_flight_;
  if (watch->phase == Watch::Phase::kOpening || watch->phase == Watch::Phase::kQuiet) {
    watch->opening_timer.Cancel();
    if (const RecordPtr record = watch->record.lock(); record != nullptr) record->in_flight = 0;
  }
  watch->phase = Watch::Phase::kClosed;
  watch->silenced = false;
  if (watch->stream == nullptr) return;
  effects->End(std::move(watch->stream));
}

}  // namespace failback
