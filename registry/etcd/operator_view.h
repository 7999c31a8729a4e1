// What an operator asks of the registry on etcd: services of all namespaces, sessions, agents, and
// what became of one instance.
//
// Nothing of this is kept here but the agents' reports (registry/etcd/renewing_agents.h); every
// answer is read from etcd, in pages.
//
//  * Services are counted by reading every instance. One such reading is under way at a time: a
//    caller that asks meanwhile waits for the next one, with all the others.
//  * Sessions are their keys; of those on the requested page, etcd reports when the leases end.
//  * The history of an instance is etcd's own: earlier versions of its key, as far back as etcd has
//    not compacted them, and at most kMaxHistory; and the operator's mark, if there is one now. It
//    is the same at every server, and of an instance whose key has gone (its session ended) there
//    is none.
//
// Thread safety: all methods from any thread. Callbacks run on the client's threads, perhaps before
// the method returns.

#ifndef FAILBACK_REGISTRY_ETCD_OPERATOR_VIEW_H_
#define FAILBACK_REGISTRY_ETCD_OPERATOR_VIEW_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "failback/admin/v1/admin.pb.h"
#include "registry/etcd/client.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/renewing_agents.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class OperatorView {
 public:
  static constexpr int kMaxHistory = 20;

  // All outlive this; the client is closed before this goes.
  OperatorView(Client* client, const Keys* keys, Identity* identity)
      : client_(client), keys_(keys), identity_(identity), agents_(&client->clock()) {}

  RenewingAgents& agents() { return agents_; }

  void ListServices(const admin::v1::ListServicesRequest& request,
                    Callback<admin::v1::ListServicesResponse> done);
  void ListSessions(const admin::v1::ListSessionsRequest& request,
                    Callback<admin::v1::ListSessionsResponse> done);
  void ListAgents(const admin::v1::ListAgentsRequest& request,
                  Callback<admin::v1::ListAgentsResponse> done) const;
  // `key` is valid and canonical. NOT_FOUND when it is neither an instance nor a tombstone.
  void Describe(const InstanceKey& key, Callback<admin::v1::InstanceDescription> done);
  // What a registry's overview has of the store.
  void Count(Callback<admin::v1::RegistryOverview> done);

 private:
  // What one reading of all instances finds.
  struct Contents {
    // An instance whose mark, if there is one, is the next key.
    std::optional<mvccpb::KeyValue> last;
    std::string last_canonical;
    // By `namespace NUL service`.
    absl::btree_map<std::string, admin::v1::InstanceCounts> services;
    absl::flat_hash_map<std::string, int32_t> owned;  // by incarnation
  };
  using ContentsPtr = std::shared_ptr<const Contents>;
  struct SessionListing;
  struct Description;

  void ReadContents(Client::Done<ContentsPtr> done);
  void StartReading();
  void ReadMore(const std::shared_ptr<Contents>& contents, std::string after);
  void Take(const mvccpb::KeyValue& kv, Contents* contents) const;
  // Counts the last instance. `mark` may be null.
  static void TakeLast(const mvccpb::KeyValue* mark, Contents* contents);
  void FinishReading(const absl::StatusOr<ContentsPtr>& contents);

  void ReadSessions(const std::shared_ptr<SessionListing>& listing, std::string begin);
  void SelectSessions(const std::shared_ptr<SessionListing>& listing);
  // Of the sessions selected, from the one at `begin` on.
  void ReadLeases(const std::shared_ptr<SessionListing>& listing, int begin);

  // The version of the key that held before `before`; without a limit when that is 0.
  void ReadVersion(const std::shared_ptr<Description>& description, int64_t before);
  void ReadOwner(const std::shared_ptr<Description>& description);
  void ReadOwnersLeases(const std::shared_ptr<Description>& description,
                        const mvccpb::KeyValue& kv);
  static void FinishDescription(const std::shared_ptr<Description>& description);

  Client* const client_;
  const Keys* const keys_;
  Identity* const identity_;
  RenewingAgents agents_;

  Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Client::Done<ContentsPtr>> waiting_for_contents_
      ABSL_GUARDED_BY(mu_);                                              // by this reading
  std::vector<Client::Done<ContentsPtr>> waiting_ ABSL_GUARDED_BY(mu_);  // for the next
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_OPERATOR_VIEW_H_
