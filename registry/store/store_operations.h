// What waits for a commit of StoreRegistry, and the effects of one. Internal to StoreRegistry.

#ifndef FAILBACK_REGISTRY_STORE_STORE_OPERATIONS_H_
#define FAILBACK_REGISTRY_STORE_STORE_OPERATIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/model/errors.h"
#include "registry/model/fencing.h"
#include "registry/registry.h"
#include "registry/store/store_registry.h"
#include "registry/store/transaction.h"
#include "registry/watch/subscription_hub.h"

namespace failback {

inline absl::Status RegistryGone() {
  return absl::CancelledError("the registry is being destroyed");
}

// A session, but for its lease.
admin::v1::SessionSummary Summarize(const Session& session);

// Calls of no more intents than this go before the others.
inline constexpr size_t kSmallCall = 20;

// A Register or an Unregister on its way: the canonical intents, and what came of each.
struct StoreRegistry::WriteOp {
  std::string session_id;
  std::vector<Intent> intents;
  std::vector<IntentOutcome> outcomes;  // not OK from the start: refused by validation
  bool as_asked = false;  // each outcome is OK, under the generation that its intent came with
  absl::AnyInvocable<void(absl::Status, const WriteOp& decided, uint64_t revision) &&> done;

  int64_t Size() const { return static_cast<int64_t>(intents.size()); }
  void Answer(absl::Status status, uint64_t revision) && {
    std::move(done)(std::move(status), *this, revision);
  }
  void Fail(const absl::Status& status) && { std::move(*this).Answer(status, 0); }
};

struct StoreRegistry::OpenOp {
  State::Transaction::Opening opening;
  uint64_t process = 0;
  Callback<OpenSessionResponse> done;

  void Fail(const absl::Status& status) && { std::move(done)(status); }
};

struct StoreRegistry::EndOp {
  std::vector<std::string> session_ids;
  State::Transaction::End end = State::Transaction::End::kClosed;
  Callback<CloseSessionResponse> done;  // null for expiry

  void Fail(const absl::Status& status) && {
    if (done) std::move(done)(status);
  }
};

// An operator's mark on its way.
struct StoreRegistry::SetOfflineOp {
  std::string key;                                // canonical
  std::optional<registry::v1::OfflineMark> mark;  // none: back into rotation
  Callback<SetOfflineResponse> done;

  void Fail(const absl::Status& status) && { std::move(done)(status); }
};

// Forgets fences whose time has passed.
struct StoreRegistry::PurgeOp {
  void Fail(const absl::Status& status) && {}
};

// Finds out whether a store that could not be written can be.
struct StoreRegistry::ProbeOp {
  void Fail(const absl::Status& status) && {}
};

struct StoreRegistry::Group {
  std::vector<EndOp> endings;
  std::vector<OpenOp> openings;
  std::vector<WriteOp> writes;
  std::vector<SetOfflineOp> markings;
  bool purge = false;
  bool probe = false;
  int64_t intents = 0;

  void Add(EndOp ending) { endings.push_back(std::move(ending)); }
  void Add(OpenOp opening) { openings.push_back(std::move(opening)); }
  void Add(WriteOp write) {
    intents += write.Size();
    writes.push_back(std::move(write));
  }
  void Add(SetOfflineOp marking) { markings.push_back(std::move(marking)); }
  void Add(PurgeOp) { purge = true; }
  void Add(ProbeOp) { probe = true; }

  // Puts small calls first, in order of arrival as the others, and takes off what is too much for
  // one commit; null if nothing is. At least one of the others stays, so that none waits for ever.
  std::unique_ptr<Group> SplitOff();

  void Fail(const absl::Status& status) && {
    for (auto& ending : endings) std::move(ending).Fail(status);
    for (auto& opening : openings) std::move(opening).Fail(status);
    for (auto& write : writes) std::move(write).Fail(status);
    for (auto& marking : markings) std::move(marking).Fail(status);
  }
};

// What has become of the operations of a group, each in the order of its kind.
struct StoreRegistry::Decided {
  std::vector<std::string> expiring;  // sessions
  // Those of one cause: a line of the log.
  struct Expiry {
    LeaseEnd end;
    int64_t sessions = 0;
    int64_t instances = 0;
    std::vector<std::string> clients;  // of some of them

    void LogEnd() const;
  };
  std::vector<Expiry> expiries;
  Expiry* ExpiryOf(const LeaseEnd& end);
  std::vector<State::Transaction::Opened> opened;
  std::vector<absl::Status> writes;  // of calls as a whole
  std::vector<State::Transaction::Marked> marked;
};

// What a commit has to report to callers and subscribers, when no lock is held.
class StoreRegistry::Effects {
 public:
  void Call(absl::AnyInvocable<void() &&> callback) { callbacks_.push_back(std::move(callback)); }
  SubscriptionHub::Deliveries* deliveries() { return &deliveries_; }
  SubscriptionHub::Due* due() { return &due_; }
  // All but what is due.
  void Run() {
    for (auto& callback : callbacks_) std::move(callback)();
    SubscriptionHub::Deliver(deliveries_);
  }

 private:
  std::vector<absl::AnyInvocable<void() &&>> callbacks_;
  SubscriptionHub::Deliveries deliveries_;
  SubscriptionHub::Due due_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_STORE_STORE_OPERATIONS_H_
