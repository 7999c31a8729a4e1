// Local sessions of the machine: whether a client on this machine is alive.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/failback/failback_machine.h"
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

}  // namespace

absl::Status Machine::SessionUnknown(const std::string& id) {
  return Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                 absl::StrCat("session ", id, " is not known here"));
}

Machine::LocalSession* Machine::SessionOf(const std::string& incarnation) const {
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& session) {
    return session.second->incarnation == incarnation;
  });
  return it == sessions_.end() ? nullptr : it->second.get();
}

Machine::LocalSession* Machine::FindSession(const std::string& id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

Machine::LocalSession* Machine::NewSession(const OpenSessionRequest& request) {
  auto session = std::make_unique<LocalSession>();
  session->id = setup_.new_session_id(request.owner());
  session->owner = request.owner();
  session->serial = ++last_session_serial_;
  session->incarnation = request.incarnation();
  LocalSession* const opened = session.get();
  sessions_.emplace(opened->id, std::move(session));
  return opened;
}

void Machine::RenewSession(LocalSession* session) {
  const int64_t ttl_nanos = absl::ToInt64Nanoseconds(session->ttl);
  pause_watch_.Granted(ttl_nanos);
  StartHeartbeat();
  if (alarms_.PutOff(&session->lease, now_.nanos, ttl_nanos)) return;
  session->lease = After(session->ttl, [this, session] { OnLease(session); });
}

void Machine::OnLease(LocalSession* session) {
  if (NoticePause(session->lease.due_nanos())) return Log(LogLevel::kWarning, kPaused, {});
  EndSession(session->id, Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                                  "the session was not renewed within its TTL"));
}

void Machine::StartHeartbeat() {
  if (pause_watch_.beating() || closed_ || sessions_.empty()) return;
  const absl::Duration period = absl::Nanoseconds(pause_watch_.Begin(now_.nanos));
  heartbeat_ = After(period, [this] {
    if (!sessions_.empty() && NoticePause(now_.nanos)) Log(LogLevel::kWarning, kPaused, {});
    pause_watch_.End();
    StartHeartbeat();
  });
}

bool Machine::NoticePause(int64_t due_nanos) {
  if (!pause_watch_.Notice(due_nanos, now_.nanos)) return false;
  for (auto& [id, session] : sessions_) RenewSession(session.get());
  return true;
}

absl::Status Machine::CheckOpen(const OpenSessionRequest& request,
                                const LocalSession* known) const {
  if (known != nullptr) {
    return MayResumeSession(known->id, request.owner()) ? absl::OkStatus() : SessionNotOwned();
  }
  const std::string former = former_owners_.OwnerOf(request.incarnation(), now_.nanos);
  if (!former.empty() && !request.owner().empty() && former != request.owner()) {
    return SessionNotOwned();
  }
  absl::Status room =
      CheckRoom(static_cast<int64_t>(sessions_.size()), options_.max_sessions, "local sessions");
  if (!room.ok() || request.owner().empty()) return room;
  const auto own = std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second->owner == request.owner();
  });
  return SharedLimit{"local sessions", "limits.sessions", options_.max_sessions, kOwnersShare}
      .Check(0, own);
}

void Machine::On(const input::OpenSession& in) {
  const OpenSessionRequest& request = in.request;
  LocalSession* const known = SessionOf(request.incarnation());
  if (absl::Status refused = CheckOpen(request, known); !refused.ok()) {
    return Answer(in.ticket, refused);
  }
  LocalSession* const session = known != nullptr ? known : NewSession(request);
  const absl::Duration asked = FromProto(request.ttl());
  session->ttl = asked == absl::ZeroDuration()
                     ? kDefaultLocalTtl
                     : std::clamp(asked, kMinLocalTtl, options_.max_local_ttl);
  RenewSession(session);
  former_owners_.Take(request.incarnation());
  OpenSessionResponse response;
  response.set_resumed(known != nullptr);
  response.set_session_id(session->id);
  response.set_rank(session->serial);
  *response.mutable_ttl() = ToProto(session->ttl);
  response.set_store_id(absl::StrCat("agent-", options_.incarnation));
  response.set_epoch(Digest64(options_.incarnation) | 1);
  response.mutable_limits()->set_max_batch(kDefaultMaxBatch);
  Answer(in.ticket, std::move(response));
}

void Machine::On(const input::KeepAlive& in) {
  LocalSession* const session = FindSession(in.request.session_id());
  if (session == nullptr) return Answer(in.ticket, SessionUnknown(in.request.session_id()));
  RenewSession(session);
  KeepAliveResponse response;
  response.set_session_id(in.request.session_id());
  *response.mutable_ttl() = ToProto(session->ttl);
  response.set_epoch(Digest64(options_.incarnation) | 1);
  Answer(in.ticket, std::move(response));
}

void Machine::On(const input::CloseSession& in) {
  // Answered, as any intent, when it would survive: closing takes back what the session stated.
  const auto reply = std::make_shared<BatchReply>();
  reply->ticket = in.ticket;
  reply->as = BatchReply::As::kCloseSession;
  reply->results.resize(1);
  reply->remaining = 1;
  EndSession(in.request.session_id(),
             Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN, "the session was closed"));
  AwaitJournal(reply);
  Release(reply);
}

void Machine::EndSession(const std::string& id, const absl::Status& why) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  const std::unique_ptr<LocalSession> session = std::move(it->second);
  sessions_.erase(it);
  if (sessions_.empty()) pause_watch_.Clear();
  former_owners_.Leave(session->incarnation, SessionOwner(session->id), now_.nanos);
  ended_names_ -= static_cast<int64_t>(session->unsubscribed.size());
  EndOwned(*session, why);
  EndBeforeChecks(session->serial);
  const auto subscriptions = session->subscriptions;
  for (const auto& [name, subscription] : subscriptions) EndSubscription(subscription, why);
}

void Machine::EndOwned(const LocalSession& session, const absl::Status& why) {
  std::vector<Record*> owned(session.records.begin(), session.records.end());
  std::sort(owned.begin(), owned.end(),
            [](const Record* a, const Record* b) { return a->key < b->key; });
  for (Record* const one : owned) {
    const RecordPtr record = one->shared_from_this();
    SetOwner(one, nullptr, 0);
    if (!record->present || record->persistent) {
      if (record->row != 0 && record->check == nullptr) Persist(record);
      continue;
    }
    Resolve(record, why);
    EndCheck(one);
    record->present = false;
    record->instance = Blob();
    NewGeneration(record);
  }
}

}  // namespace failback
