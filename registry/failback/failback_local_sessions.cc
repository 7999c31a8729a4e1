// Local sessions of FailbackRegistry: whether a client on this machine is alive.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_core.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/validation.h"

namespace failback {
namespace {

constexpr absl::Duration kDefaultLocalTtl = absl::Seconds(10);
constexpr absl::Duration kMinLocalTtl = absl::Seconds(1);

// Of all sessions, those that one owner may have, where callers are distinguished: a quarter.
constexpr int64_t kOwnersShare = 4;

constexpr char kPaused[] = "this process was away: every local session has its full time again";

absl::Status Cancelled() { return absl::CancelledError("the registry client was shut down"); }

}  // namespace

FailbackRegistry::Core::LocalSession* FailbackRegistry::Core::FindSession(const std::string& id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

FailbackRegistry::Core::LocalSession* FailbackRegistry::Core::NewSession(
    const OpenSessionRequest& request) {
  auto session = std::make_unique<LocalSession>();
  session->id = NewSessionId(request.owner());
  session->owner = request.owner();
  session->serial = ++last_session_serial_;
  session->incarnation = request.incarnation();
  LocalSession* const opened = session.get();
  sessions_.emplace(opened->id, std::move(session));
  return opened;
}

void FailbackRegistry::Core::RenewSession(LocalSession* session) {
  const int64_t ttl_nanos = absl::ToInt64Nanoseconds(session->ttl);
  session->deadline_nanos = NowNanos() + ttl_nanos;
  pause_watch_.Granted(ttl_nanos);
  StartHeartbeat();
  if (session->lease.Reschedule(session->ttl)) return;
  auto lease = options_.timer->ScheduleUnbounded(
      [weak = weak_from_this(), id = session->id, serial = ++session->lease_serial] {
        if (auto self = weak.lock()) self->OnLease(id, serial);
      },
      session->ttl);
  // Refused only by a wheel that was stopped; then sessions end with the process.
  if (lease.ok()) session->lease = *std::move(lease);
}

void FailbackRegistry::Core::OnLease(const std::string& id, uint64_t lease_serial) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    bool was_away;
    {
      MutexLock lock(&mu_);
      const LocalSession* const session = FindSession(id);
      if (session == nullptr || session->lease_serial != lease_serial) return;
      was_away = NoticePause(session->deadline_nanos);
    }
    if (was_away) return Log(LogLevel::kWarning, kPaused);
  }
  EndSession(id, lease_serial,
             Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                     "the session was not renewed within its TTL"));
}

void FailbackRegistry::Core::StartHeartbeat() {
  if (pause_watch_.beating() || closed_ || sessions_.empty()) return;
  const absl::Duration period = absl::Nanoseconds(pause_watch_.Begin(NowNanos()));
  heartbeat_ = After(period, [](Core* core, Effects* effects) {
    core->mu_.AssertHeld();
    if (!core->sessions_.empty() && core->NoticePause(core->NowNanos())) {
      effects->Log(LogLevel::kWarning, kPaused, {});
    }
    core->pause_watch_.End();
    core->StartHeartbeat();
  });
  if (!heartbeat_) pause_watch_.End();
}

bool FailbackRegistry::Core::NoticePause(int64_t due_nanos) {
  if (!pause_watch_.Notice(due_nanos, NowNanos())) return false;
  for (auto& [id, session] : sessions_) RenewSession(session.get());
  return true;
}

void FailbackRegistry::Core::OpenSession(const OpenSessionRequest& request,
                                         Callback<OpenSessionResponse> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  if (absl::Status status = ValidateOpenSession(request); !status.ok()) {
    return std::move(done)(status);
  }
  OpenSessionResponse response;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
      return entry.second->incarnation == request.incarnation();
    });
    response.set_resumed(it != sessions_.end());
    LocalSession* const known = response.resumed() ? it->second.get() : nullptr;
    const std::string former =
        known == nullptr ? former_owners_.OwnerOf(request.incarnation(), NowNanos()) : "";
    const bool is_anothers =
        known != nullptr ? !MayResumeSession(known->id, request.owner())
                         : !former.empty() && !request.owner().empty() && former != request.owner();
    if (is_anothers) {
      refused = SessionNotOwned();
    } else if (known == nullptr) {
      refused = CheckRoom(static_cast<int64_t>(sessions_.size()), options_.max_sessions,
                          "local sessions");
      if (refused.ok() && !request.owner().empty()) {
        const auto own = std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
          return entry.second->owner == request.owner();
        });
        refused =
            SharedLimit{"local sessions", "limits.sessions", options_.max_sessions, kOwnersShare}
                .Check(0, own);
      }
    }
    if (refused.ok()) {
      LocalSession* const session = known != nullptr ? known : NewSession(request);
      const absl::Duration asked = FromProto(request.ttl());
      session->ttl = asked == absl::ZeroDuration()
                         ? kDefaultLocalTtl
                         : std::clamp(asked, kMinLocalTtl, options_.max_local_ttl);
      RenewSession(session);
      former_owners_.Take(request.incarnation());
      response.set_session_id(session->id);
      response.set_rank(session->serial);
      *response.mutable_ttl() = ToProto(session->ttl);
    }
  }
  if (!refused.ok()) return std::move(done)(refused);
  response.set_store_id(absl::StrCat("agent-", options_.incarnation));
  response.set_epoch(Digest64(options_.incarnation) | 1);
  response.mutable_limits()->set_max_batch(kDefaultMaxBatch);
  std::move(done)(std::move(response));
}

void FailbackRegistry::Core::KeepAlive(const KeepAliveRequest& request,
                                       Callback<KeepAliveResponse> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  KeepAliveResponse response;
  bool known = false;
  {
    MutexLock lock(&mu_);
    if (LocalSession* session = FindSession(request.session_id()); session != nullptr) {
      known = true;
      RenewSession(session);
      *response.mutable_ttl() = ToProto(session->ttl);
    }
  }
  if (!known) {
    return std::move(done)(
        Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                absl::StrCat("session ", request.session_id(), " is not known here")));
  }
  response.set_session_id(request.session_id());
  response.set_epoch(Digest64(options_.incarnation) | 1);
  std::move(done)(std::move(response));
}

void FailbackRegistry::Core::CloseSession(const CloseSessionRequest& request,
                                          Callback<CloseSessionResponse> done) {
  Entry entry(this);
  if (!entry.ok()) return std::move(done)(Cancelled());
  // Answered, as any intent, when it would survive: closing takes back what the session stated.
  auto reply = std::make_shared<BatchReply>();
  reply->results.resize(1);
  reply->done = [done = std::move(done)](absl::StatusOr<Results> results) mutable {
    if (!results.ok()) return std::move(done)(results.status());
    if (results->front().has_status()) {
      return std::move(done)(StatusFromProto(results->front().status()));
    }
    std::move(done)(CloseSessionResponse());
  };
  reply->remaining = 1;
  EndSession(request.session_id(), /*lease_serial=*/0,
             Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN, "the session was closed"), reply);
  bool durable;
  {
    MutexLock lock(&mu_);
    durable = --reply->remaining == 0;
  }
  if (durable) std::move(reply->done)(std::move(reply->results));
}

void FailbackRegistry::Core::EndSession(const std::string& id, uint64_t lease_serial,
                                        const absl::Status& why,
                                        const std::shared_ptr<BatchReply>& reply) {
  {
    Entry entry(this);
    if (!entry.ok()) return;
    Effects effects;
    {
      MutexLock lock(&mu_);
      const auto it = sessions_.find(id);
      if (it == sessions_.end()) {
        if (reply != nullptr) AwaitJournal(reply);  // one that ended a moment ago
        return;
      }
      // A renewal came in while the timeout was already under way.
      if (lease_serial != 0 && lease_serial != it->second->lease_serial) return;
      const std::unique_ptr<LocalSession> session = std::move(it->second);
      sessions_.erase(it);
      if (sessions_.empty()) pause_watch_.Clear();
      session->lease.Cancel();
      former_owners_.Leave(session->incarnation, SessionOwner(session->id), NowNanos());
      ended_names_ -= static_cast<int64_t>(session->unsubscribed.size());
      std::vector<Record*> owned(session->records.begin(), session->records.end());
      std::sort(owned.begin(), owned.end(),
                [](const Record* a, const Record* b) { return a->key < b->key; });
      for (Record* owned_record : owned) {
        const RecordPtr record = *records_.Find(owned_record->key);
        SetOwner(owned_record, nullptr, 0);
        if (!record->present || record->persistent) {
          if (record->row != 0 && record->check == nullptr) Persist(record);
          continue;
        }
        Resolve(record, why, &effects);
        EndCheck(owned_record);
        record->present = false;
        record->instance = Blob();
        NewGeneration(record);
      }
      EndBeforeChecks(session->serial);
      for (const auto& [subscription_id, subscription] : session->subscriptions) {
        EndSubscription(subscription, why, &effects);
      }
      if (reply != nullptr) AwaitJournal(reply);
    }
    CarryOut(std::move(effects));
  }
  Pump();
}

}  // namespace failback
