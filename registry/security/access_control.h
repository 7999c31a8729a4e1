// Decides for each call of a server who makes it and whether it may: the one place for that.
//
// RegistryServer asks it to identify the caller, and serves the call on a GuardedRegistry, which
// asks it about each service and session that the call names. Services beside RegistryService ask
// Check themselves. The rules may be replaced at any time: the next question is answered by the new
// ones, and subscriptions that they do not allow any more are ended.
//
//   auto access = std::make_shared<AccessControl>(*AccessRules::Make(&policy, &tokens));
//   options.access = access;                    // of a RegistryServer
//   …
//   access->Update(*AccessRules::Make(&new_policy, &new_tokens));
//
// What is denied is counted, and logged as a warning; of one caller at most ten lines a second, of
// all together thirty, the next of which says how many were left out.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_SECURITY_ACCESS_CONTROL_H_
#define FAILBACK_REGISTRY_SECURITY_ACCESS_CONTROL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "failback/config/v1/access.pb.h"
#include "grpcpp/server_context.h"
#include "registry/base/log.h"
#include "registry/security/access_rules.h"
#include "registry/security/certificate_expiry.h"
#include "registry/security/identity.h"
#include "retry/mutex.h"

namespace failback {

class AccessControl {
 public:
  // Calls that were refused, by what they lacked.
  struct Counters {
    int64_t unauthenticated = 0;  // credentials: none, or not accepted
    int64_t denied_register = 0;  // a permission
    int64_t denied_read = 0;
    int64_t denied_administer = 0;
    int64_t denied_other = 0;     // any permission at all
    int64_t denied_session = 0;   // the session is another caller's
    int64_t revoked_streams = 0;  // subscriptions ended by new rules

    int64_t denied() const {
      return unauthenticated + denied_register + denied_read + denied_administer + denied_other +
             denied_session;
    }
  };

  explicit AccessControl(AccessRules rules);
  AccessControl(const AccessControl&) = delete;
  AccessControl& operator=(const AccessControl&) = delete;

  // Replaces the rules, and asks every watch. Who had opened sessions and is shut out now, or let in
  // again, is logged: a line for each of the first 20, with what `OnRevoked` says of it.
  void Update(AccessRules rules);

  // What is logged of a caller that is shut out, or let in again. Before the first call.
  using OnRevoked = std::function<LogFields(const Identity& who, bool revoked)>;
  void SetOnRevoked(OnRevoked on_revoked) { on_revoked_ = std::move(on_revoked); }

  // `who` may open sessions, and does. Remembered of the first 4,096.
  void NoteOwner(const Identity& who);

  std::shared_ptr<const AccessRules> rules() const;

  // Who makes a call: by its `authorization: Bearer` metadata, else by the connection's
  // certificate. UNAUTHENTICATED for a token that is not accepted.
  // `call` is the method's name, for the log.
  absl::StatusOr<Identity> Identify(const grpc::ServerContextBase& context, const char* call);

  // The same of a call that came another way.
  struct Shown {
    // `Bearer` and a token, as a header has it; nullopt: none.
    std::optional<std::string> authorization;
    // Of the connection: who owns the certificate, and the certificate in PEM; empty: none.
    Identity owner;
    std::string certificate;
    std::string peer;
  };
  absl::StatusOr<Identity> Identify(const Shown& shown, const char* call);

  // For services that are about the server itself. OK if the caller may do `what` everywhere.
  absl::Status Check(const grpc::ServerContextBase& context, const char* call,
                     config::v1::Permission what);
  // OK if the caller may do anything at all.
  absl::Status CheckAny(const grpc::ServerContextBase& context, const char* call);

  // Counts and logs `status`, which is a refusal of `call` by `who`, and returns it.
  absl::Status Denied(const Identity& who, const char* call, config::v1::Permission what,
                      absl::Status status);

  // Something that goes on only as long as `judge` is OK with the rules; `end` runs once, outside
  // locks, why it is not. `judge` must not call back.
  using WatchId = uint64_t;
  using Judge = std::function<absl::Status(const AccessRules&)>;
  using End = std::function<void(const absl::Status&)>;
  WatchId Watch(Judge judge, End end);
  // An `end` that is running may still be when this returns.
  void Unwatch(WatchId id);

  Counters counters() const;

  // What callers have shown of their certificates lately.
  CertificateWatch::Summary certificates() const { return certificates_.Look(absl::Now()); }

 private:
  struct Watcher {
    Judge judge;
    End end;
  };

  struct Owner {
    Identity who;
    bool revoked = false;
  };
  void JudgeOwners(const AccessRules& rules);

  OnRevoked on_revoked_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Owner> owners_ ABSL_GUARDED_BY(mu_);  // by tag
  std::shared_ptr<const AccessRules> rules_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<WatchId, std::shared_ptr<const Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  WatchId last_watch_ ABSL_GUARDED_BY(mu_) = 0;

  // Sees the certificate of the connection that a call came on, if it has one.
  void NoteCertificate(const grpc::ServerContextBase& context);
  // The bearer of what the caller shows; `peer`: where it came from.
  absl::StatusOr<Identity> IdentifyBearer(std::string_view authorization, const std::string& peer,
                                          const char* call);

  LogThrottle log_;
  CertificateWatch certificates_;

  std::atomic<int64_t> unauthenticated_{0};
  std::atomic<int64_t> by_permission_[config::v1::Permission_ARRAYSIZE] = {};
  std::atomic<int64_t> denied_session_{0};
  std::atomic<int64_t> revoked_{0};
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_ACCESS_CONTROL_H_
