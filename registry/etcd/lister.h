// Listings: ranges of keys, page by page, or what one incarnation has.
//
// A page of services is made of ranges (registry/model/list_scope.h), in the order of etcd's keys,
// some with each request until the page is full or much has been looked at. What an incarnation has
// is found through its session's leases (etcd knows the keys of a lease) and the index of its
// persistent instances, and sorted by key; the keys are remembered from one page to the next.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_LISTER_H_
#define FAILBACK_REGISTRY_ETCD_LISTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/client.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/registry.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {

class Lister {
 public:
  Lister(Client* client, const Keys* keys, Identity* identity)
      : client_(client), keys_(keys), identity_(identity) {}

  // `request` is valid.
  void List(const ListRequest& request, Callback<ListResponse> done);

  // Forgets listings that no client continues.
  void Sweep();

 private:
  struct Listing;
  // What an incarnation has, and whose it is.
  struct Owned {
    std::vector<std::string> keys;  // canonical
    std::string owner;
  };
  using OwnedPtr = std::shared_ptr<const Owned>;

  // Reads the ranges on, until the page is full.
  void ListRanges(const std::shared_ptr<Listing>& listing);
  void ListIncarnation(const std::shared_ptr<Listing>& listing);
  void ReadLeases(const std::shared_ptr<Listing>& listing, const std::string& session_id);
  void ReadKeys(const std::shared_ptr<Listing>& listing);
  static void Finish(const std::shared_ptr<Listing>& listing, const std::string& next_after);

  Client* const client_;
  const Keys* const keys_;
  Identity* const identity_;

  struct Remembered {
    OwnedPtr owned;
    SteadyTime until;
  };
  Mutex mu_;
  absl::flat_hash_map<std::string, Remembered> remembered_ ABSL_GUARDED_BY(mu_);  // by incarnation
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_LISTER_H_
