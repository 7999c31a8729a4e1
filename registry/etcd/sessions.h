// Sessions on etcd: a key, and leases that hold the session's instances.
//
// A session is a key `.session/<id>` on the session's first lease; the key's value names the
// incarnation, its rank and all the leases. A put onto a lease costs etcd time in proportion to the
// keys that are on it, so that a lease gets at most Options::keys_per_lease, and a session takes
// further leases as it grows; with another TTL it gets others (registry/etcd/session_ttl.cc). Each
// lease has a key `.lease/<id>/<lease>` on it, by which who closes the session finds it also when
// the session's key has gone before it; so does who closes the session that the incarnation opens
// next, as what is on it may not have been written again yet.
// Nothing is kept here that is not in etcd too: any server that has the session's id can renew it,
// write for it, and end it.
//
// A session is alive as long as its key is there: every write of the session compares that. When
// any of its leases is lost the key is deleted, so that the client opens a new session and sends
// everything again, while what is on the other leases stays until it is written again.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_SESSIONS_H_
#define FAILBACK_REGISTRY_ETCD_SESSIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "failback/etcd/v1/stored.pb.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/lease_renewer.h"
#include "registry/etcd/limits.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

// A concurrent writer was faster, again and again.
absl::Status SessionContended();

// A session as it is known here.
struct Session {
  std::string id;
  std::string incarnation;
  std::string client_name;
  uint64_t rank = 0;
  std::atomic<int64_t> ttl_ms{0};  // may change when the session is resumed
  int64_t create_revision = 0;     // of its key
  int64_t incarnation_lease = 0;

  struct Lease {
    int64_t id;
    int64_t keys;  // instances, at most so many; kUncounted when another server may have used it
    bool retiring = false;  // what is on it is moved: it has an earlier TTL
  };
  static constexpr int64_t kUncounted = -1;

  mutable Mutex mu;
  int64_t mod_revision ABSL_GUARDED_BY(mu) = 0;  // of its key
  std::vector<Lease> leases ABSL_GUARDED_BY(mu);
  struct Waiter {
    int64_t keys;
    Client::Done<int64_t> done;
  };
  std::vector<Waiter> waiting ABSL_GUARDED_BY(mu);  // for a lease with room
  bool growing ABSL_GUARDED_BY(mu) = false;
  bool moving ABSL_GUARDED_BY(mu) = false;  // what is on retiring leases
  // Most registrations of a young session are of keys that are not there. When that was wrong the
  // keys are read first.
  bool expects_absent ABSL_GUARDED_BY(mu) = true;
  SteadyTime last_used ABSL_GUARDED_BY(mu);
  SteadyTime counted ABSL_GUARDED_BY(mu) = SteadyPast();  // that of the leases
  SteadyTime incarnation_renewed ABSL_GUARDED_BY(mu) = SteadyPast();

  absl::Duration ttl() const { return absl::Milliseconds(ttl_ms.load()); }
  // Whether the lease is the session's; and whether something may be put on it.
  bool Has(int64_t lease) const;
  bool Keeps(int64_t lease) const;
  // Instances on the leases, what is on its way included; nullopt when that is to be counted first.
  std::optional<int64_t> Held() const;
  // `fresh` were granted just now, and have no instance.
  void SetCounted(const std::vector<int64_t>& fresh);
  // That of the session's key. Another TTL moves the key to another: who writes compares it, so
  // that nothing is put on a lease that retires.
  int64_t KeyLease() const;
};
using SessionPtr = std::shared_ptr<Session>;

class Sessions {
 public:
  struct Options {
    absl::Duration default_ttl;
    absl::Duration min_ttl;
    absl::Duration max_ttl;
    // Leases live longer than the session asked for by up to this share, at random: so that those
    // of a fleet that has gone do not all end in the same second.
    double lease_spread;
    int64_t keys_per_lease;
  };
  struct Opened {
    SessionPtr session;
    Store store;
    bool resumed = false;
  };
  struct Renewed {
    SessionPtr session;
    Store store;
    uint64_t revision = 0;
  };

  // `on_end` gets the id of a session that is found to be over. All outlive this.
  Sessions(Client* client, const Keys* keys, Identity* identity, Limits* limits, Options options,
           std::function<void(const std::string&)> on_end)
      : client_(client),
        keys_(keys),
        identity_(identity),
        limits_(limits),
        options_(options),
        on_end_(std::move(on_end)),
        renewer_(client) {}

  void Open(const OpenSessionRequest& request, Client::Done<Opened> done);
  // SESSION_UNKNOWN when it is over.
  void Renew(const std::string& session_id, Client::Done<Renewed> done);
  // The revision after it. A session that is not there is closed.
  void Close(const std::string& session_id, Client::Done<uint64_t> done);

  // The session if it is known here, or as etcd has it; SESSION_UNKNOWN when it is over.
  void Find(const std::string& session_id, Client::Done<SessionPtr> done);

  // Has etcd count what is on the session's leases, if that was not done just now.
  void Count(const SessionPtr& session, absl::AnyInvocable<void(absl::Status) &&> done);
  // A lease of the session with room for `keys` more, which are counted from now on.
  void TakeRoom(const SessionPtr& session, int64_t keys, Client::Done<int64_t> done);
  // `keys` keys are no longer on the lease.
  void GiveRoom(const SessionPtr& session, int64_t lease, int64_t keys);

  // Some of `leases` are gone. If they are the session's this ends it: `done` gets SESSION_UNKNOWN,
  // or why it could not be ended. OK when another server has retired them meanwhile: the session is
  // as etcd has it now.
  void Lose(const SessionPtr& session, std::vector<int64_t> leases,
            absl::AnyInvocable<void(absl::Status) &&> done);
  // Takes what etcd has for a session; null when that makes no sense.
  SessionPtr Adopt(const std::string& session_id, const mvccpb::KeyValue& kv);
  // The same, for a session that is known here. `kv` null: its key is not there. False, and the
  // session is forgotten, when it is over.
  bool Refresh(const Session& session, const mvccpb::KeyValue* kv);
  // The session's key is not there.
  void Forget(const std::string& session_id);

  // Is notified when the connection that renewals take breaks while no renewal is under way.
  void SetBreakListener(std::function<void(const absl::Status&)> on_break) {
    renewer_.SetBreakListener(std::move(on_break));
  }

  // Drops from memory what was not used for two TTLs.
  void Sweep();

 private:
  // How often a step is repeated when a concurrent writer was faster.
  static constexpr int kMaxTries = 8;

  struct Opening;

  void Finish(Opening* opening, Opened opened);
  void ReadIncarnation(const std::shared_ptr<Opening>& opening);
  // Whether the rank that the incarnation says it had may be its own again.
  void CheckClaim(const std::shared_ptr<Opening>& opening);
  void ReadSession(const std::shared_ptr<Opening>& opening, const std::string& session_id);
  void GrantLeases(const std::shared_ptr<Opening>& opening);
  void Create(const std::shared_ptr<Opening>& opening);
  void Revoke(int64_t lease);
  // `found`: the session's key, and those of LeasesOf.
  void CloseAsRead(const std::string& session_id, const etcdserverpb::TxnResponse& found, int tries,
                   Client::Done<uint64_t> done);
  void NoteClosed(const std::string& session_id, const failback::etcd::v1::SessionRecord& record,
                  Client::Done<uint64_t> done);
  void RevokeLeases(const std::string& session_id, const failback::etcd::v1::SessionRecord& record,
                    Client::Done<uint64_t> done);

  absl::Duration ClampTtl(const google::protobuf::Duration& ttl) const;
  int64_t LeaseSeconds(absl::Duration ttl) const;
  void End(const SessionPtr& session, absl::AnyInvocable<void(absl::Status) &&> done);
  // Puts a key on a lease by which it is found without the session's key.
  void AddLease(const std::string& session_id, const failback::etcd::v1::SessionRecord& session,
                int64_t lease, etcdserverpb::TxnRequest* write) const;
  // The value of its key.
  static failback::etcd::v1::SessionRecord RecordOf(const Session& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session.mu);
  // Writes what `change` makes of the session's key, unless a concurrent writer has changed it
  // since it was read: then `done` gets false, and the session is as etcd has it now.
  // SESSION_UNKNOWN when it is over.
  void Update(const SessionPtr& session,
              absl::FunctionRef<void(failback::etcd::v1::SessionRecord*)> change,
              Client::Done<bool> done);
  void RenewLeases(SessionPtr session, Store store, uint64_t revision, Client::Done<Renewed> done);

  // Gives a session another TTL: its key, and what comes, is on new leases from now on, and what
  // there is is moved to them in the background.
  void Retime(const SessionPtr& session, absl::Duration ttl, int tries,
              absl::AnyInvocable<void(absl::Status) &&> done);
  struct Move;
  void MoveRetiring(SessionPtr session);
  void MoveNext(std::shared_ptr<Move> move);
  void ReadToMove(const std::shared_ptr<Move>& move, std::vector<std::string> keys);
  void WriteMoved(std::shared_ptr<Move> move, std::vector<mvccpb::KeyValue> moved, int64_t lease);
  void DropRetired(std::shared_ptr<Move> move);
  static void EndMove(const std::shared_ptr<Move>& move);

  void Grow(const SessionPtr& session);
  void ReadCounts(const SessionPtr& session, const std::vector<int64_t>& leases,
                  absl::AnyInvocable<void(absl::Status) &&> done);
  void CountLeases(const SessionPtr& session, const std::vector<int64_t>& uncounted);
  void AddLeases(const SessionPtr& session, std::vector<int64_t> leases, int tries);
  void Grown(const SessionPtr& session, const absl::Status& status);

  Client* const client_;
  const Keys* const keys_;
  Identity* const identity_;
  Limits* const limits_;
  const Options options_;
  const std::function<void(const std::string&)> on_end_;
  LeaseRenewer renewer_;

  Mutex mu_;
  absl::flat_hash_map<std::string, SessionPtr> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_SESSIONS_H_
