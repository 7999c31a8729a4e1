// Operators' marks on etcd: an instance that is out of rotation has a key of its own beside it.
//
// The mark is put while the instance is there, by a transaction that compares both keys; it has no
// lease, so that it outlives the instance's session, and a deregistration deletes it in the
// transaction that leaves the tombstone (registry/etcd/writer.h). Who lists or follows the service
// reads it right behind its instance.
//
// Thread safety: all methods from any thread.

#ifndef FAILBACK_REGISTRY_ETCD_MARKS_H_
#define FAILBACK_REGISTRY_ETCD_MARKS_H_

#include <memory>
#include <string>

#include "registry/etcd/client.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/registry.h"

namespace failback {
namespace etcd {

class Marks {
 public:
  // All outlive this; the client is closed before this goes.
  Marks(Client* client, const Keys* keys, Identity* identity)
      : client_(client), keys_(keys), identity_(identity) {}

  // `request` is valid.
  void Set(const SetOfflineRequest& request, Callback<SetOfflineResponse> done);

  // Deletes the mark on an instance (canonical) unless the instance is there.
  void Drop(const std::string& canonical);

 private:
  struct Marking;

  void Read(const std::shared_ptr<Marking>& marking);
  void Write(const std::shared_ptr<Marking>& marking);

  Client* const client_;
  const Keys* const keys_;
  Identity* const identity_;
};

}  // namespace etcd
}  // namespace failback

#endif  // FAILBACK_REGISTRY_ETCD_MARKS_H_
