#include "registry/security/access_control.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc_security_constants.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using config::v1::Permission;

constexpr char kScheme[] = "Bearer ";
// Callers with sessions that are remembered, each with names of so many bytes; and lines about
// them.
constexpr size_t kMostOwners = 4096;
constexpr size_t kMostOwnerBytes = 4096;
constexpr size_t kMostOwnerLines = 20;

// "ipv4:10.0.0.7:40112" without the port, which is another one with each connection.
std::string HostOfPeer(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

AccessControl::AccessControl(AccessRules rules)
    : rules_(std::make_shared<const AccessRules>(std::move(rules))) {}

std::shared_ptr<const AccessRules> AccessControl::rules() const {
  MutexLock lock(&mu_);
  return rules_;
}

void AccessControl::Update(AccessRules rules) {
  auto updated = std::make_shared<const AccessRules>(std::move(rules));
  std::vector<std::pair<WatchId, std::shared_ptr<const Watcher>>> watchers;
  {
    MutexLock lock(&mu_);
    rules_ = updated;
    watchers.assign(watchers_.begin(), watchers_.end());
  }
  JudgeOwners(*updated);
  for (const auto& [id, watcher] : watchers) {
    const absl::Status status = watcher->judge(*updated);
    if (status.ok()) continue;
    {
      MutexLock lock(&mu_);
      if (watchers_.erase(id) == 0) continue;  // it has ended meanwhile
    }
    revoked_.fetch_add(1, std::memory_order_relaxed);
    watcher->end(status);
  }
}

void AccessControl::JudgeOwners(const AccessRules& rules) {
  struct Change {
    Identity who;
    absl::Status status;
  };
  std::vector<Owner> owners;
  {
    MutexLock lock(&mu_);
    owners.reserve(owners_.size());
    for (const auto& [tag, owner] : owners_) owners.push_back(owner);
  }
  std::vector<Change> changes;
  for (Owner& owner : owners) {
    // Calls go on meanwhile: with many rules this takes a while.
    absl::Status status = rules.JudgeAny(owner.who);
    const bool revoked = !status.ok();
    if (revoked == owner.revoked) continue;
    MutexLock lock(&mu_);
    Owner& known = owners_[owner.who.OwnerTag()];
    // With another token, that one is let in.
    if (known.who.token_digest != owner.who.token_digest) continue;
    known.revoked = revoked;
    changes.push_back({std::move(owner.who), std::move(status)});
  }
  size_t lines = 0;
  for (const Change& change : changes) {
    const bool revoked = !change.status.ok();
    LogFields fields = {{"caller", change.who.ToString()}};
    if (revoked) fields.emplace_back("why", std::string(change.status.message()));
    if (on_revoked_ != nullptr) {
      for (auto& field : on_revoked_(change.who, revoked)) fields.push_back(std::move(field));
    }
    if (++lines > kMostOwnerLines) continue;
    Log(revoked ? LogLevel::kWarning : LogLevel::kInfo,
        revoked ? "access revoked" : "access restored", fields);
  }
  if (lines > kMostOwnerLines) {
    Log(LogLevel::kWarning, "access of others has changed too",
        {{"callers", absl::StrCat(lines - kMostOwnerLines)}});
  }
}

void AccessControl::NoteOwner(const Identity& who) {
  size_t bytes = 0;
  for (const std::string& name : who.names) bytes += name.size();
  if (bytes > kMostOwnerBytes) return;
  const std::string tag = who.OwnerTag();
  {
    MutexLock lock(&mu_);
    const auto it = owners_.find(tag);
    if (it == owners_.end()) {
      if (owners_.size() < kMostOwners) owners_.emplace(tag, Owner{who});
      return;
    }
    it->second.who = who;  // its token may be another one
    if (!std::exchange(it->second.revoked, false)) return;
  }
  LogFields fields = {{"caller", who.ToString()}};
  if (on_revoked_ != nullptr) {
    for (auto& field : on_revoked_(who, /*revoked=*/false)) fields.push_back(std::move(field));
  }
  Log(LogLevel::kInfo, "access restored", fields);
}

void AccessControl::NoteCertificate(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr) return;
  const std::vector<grpc::string_ref> shown =
      peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (shown.empty()) return;
  const Identity who = IdentityOfPeer(*peer);
  certificates_.Note(who.names.empty() ? "" : who.names.front(), context.peer(),
                     {shown.front().data(), shown.front().size()}, absl::Now());
}

absl::StatusOr<Identity> AccessControl::Identify(const grpc::ServerContextBase& context,
                                                 const char* call) {
  NoteCertificate(context);
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end) {
    const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
    Identity who = peer == nullptr ? Identity() : IdentityOfPeer(*peer);
    who.peer = context.peer();
    return who;
  }
  const bool one = std::next(begin) == end;
  return IdentifyBearer(
      one ? std::string_view(begin->second.data(), begin->second.size()) : std::string_view(),
      context.peer(), call);
}

absl::StatusOr<Identity> AccessControl::Identify(const Shown& shown, const char* call) {
  if (!shown.certificate.empty()) {
    certificates_.Note(shown.owner.names.empty() ? "" : shown.owner.names.front(), shown.peer,
                       shown.certificate, absl::Now());
  }
  if (shown.authorization.has_value()) {
    return IdentifyBearer(*shown.authorization, shown.peer, call);
  }
  Identity who = shown.owner;
  who.peer = shown.peer;
  return who;
}

absl::StatusOr<Identity> AccessControl::IdentifyBearer(std::string_view authorization,
                                                       const std::string& peer, const char* call) {
  absl::StatusOr<Identity> bearer = Refusal(registry::v1::ERROR_REASON_CREDENTIALS_NEEDED,
                                            "authorization: has to be one 'Bearer' and a token");
  if (absl::StartsWithIgnoreCase({authorization.data(), authorization.size()}, kScheme)) {
    bearer = rules()->BearerOf(std::string(authorization.substr(sizeof(kScheme) - 1)));
  }
  if (bearer.ok()) {
    bearer->peer = peer;
    return bearer;
  }
  Identity anonymous;
  anonymous.peer = peer;
  return Denied(anonymous, call, config::v1::PERMISSION_UNSPECIFIED, bearer.status());
}

absl::Status AccessControl::Check(const grpc::ServerContextBase& context, const char* call,
                                  Permission what) {
  const absl::StatusOr<Identity> who = Identify(context, call);
  if (!who.ok()) return who.status();
  absl::Status status = rules()->JudgeAll(*who, what, std::nullopt);
  return status.ok() ? status : Denied(*who, call, what, std::move(status));
}

absl::Status AccessControl::CheckAny(const grpc::ServerContextBase& context, const char* call) {
  const absl::StatusOr<Identity> who = Identify(context, call);
  if (!who.ok()) return who.status();
  absl::Status status = rules()->JudgeAny(*who);
  return status.ok() ? status
                     : Denied(*who, call, config::v1::PERMISSION_UNSPECIFIED, std::move(status));
}

absl::Status AccessControl::Denied(const Identity& who, const char* call, Permission what,
                                   absl::Status status) {
  switch (ReasonOf(status)) {
    case registry::v1::ERROR_REASON_CREDENTIALS_NEEDED:
      unauthenticated_.fetch_add(1, std::memory_order_relaxed);
      break;
    case registry::v1::ERROR_REASON_SESSION_NOT_OWNED:
      denied_session_.fetch_add(1, std::memory_order_relaxed);
      break;
    default:
      by_permission_[what].fetch_add(1, std::memory_order_relaxed);
  }
  if (!LogEnabled(LogLevel::kWarning)) return status;
  const std::string caller = who.ToString();
  log_.LogFor(who.names.empty() ? absl::StrCat(caller, " at ", HostOfPeer(who.peer)) : caller,
              LogLevel::kWarning, "denied",
              {{"caller", caller},
               {"peer", who.peer},
               {"call", call},
               {"status", absl::StatusCodeToString(status.code())},
               {"why", std::string(status.message())}});
  return status;
}

AccessControl::WatchId AccessControl::Watch(Judge judge, End end) {
  auto watcher = std::make_shared<const Watcher>(Watcher{std::move(judge), std::move(end)});
  MutexLock lock(&mu_);
  watchers_.emplace(++last_watch_, std::move(watcher));
  return last_watch_;
}

void AccessControl::Unwatch(WatchId id) {
  std::shared_ptr<const Watcher> removed;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = watchers_.find(id);
  if (it == watchers_.end()) return;
  removed = std::move(it->second);
  watchers_.erase(it);
}

AccessControl::Counters AccessControl::counters() const {
  const auto read = [](const std::atomic<int64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  Counters counters;
  counters.unauthenticated = read(unauthenticated_);
  counters.denied_register = read(by_permission_[config::v1::PERMISSION_REGISTER]);
  counters.denied_read = read(by_permission_[config::v1::PERMISSION_READ]);
  counters.denied_administer = read(by_permission_[config::v1::PERMISSION_ADMINISTER]);
  counters.denied_other = read(by_permission_[config::v1::PERMISSION_UNSPECIFIED]);
  counters.denied_session = read(denied_session_);
  counters.revoked_streams = read(revoked_);
  return counters;
}

}  // namespace failback
