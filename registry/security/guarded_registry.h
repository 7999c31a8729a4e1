// A Registry as one caller may use it: a decorator that asks AccessControl before each call.
//
// It is made for one call or one stream, and costs little. What is not allowed is not carried out:
//  * Write: item by item, by their keys; those that are allowed go on, the others have
//    PERMISSION_DENIED in their results;
//  * Subscribe: the whole stream; it also ends when new rules do not allow it any more;
//  * List: of one service, the call; of more, what may not be read is left out, and left untouched:
//    the registry gets the caller's services as a scope (registry/model/list_scope.h), a part of
//    them at a time. In a listing of an incarnation of the caller's, what may be registered is shown too: its agent
//    compares it with what it wants;
//  * a session of another caller is not renewed, closed, or used, whatever the permissions. One
//    that was opened when callers were not distinguished is for every caller who knows its id.
//
//   GuardedRegistry guarded(&registry, access, *access->Identify(context, "List"));
//   guarded.Write(std::move(batch), std::move(done));
//
// Thread safety: as Registry. It may go as soon as its methods have returned, unless a stream of
// its Subscribe lives; the callbacks run all the same.

#ifndef FAILBACK_REGISTRY_SECURITY_GUARDED_REGISTRY_H_
#define FAILBACK_REGISTRY_SECURITY_GUARDED_REGISTRY_H_

#include <memory>
#include <string>

#include "registry/registry.h"
#include "registry/security/access_control.h"

namespace failback {

class GuardedRegistry final : public Registry {
 public:
  // `registry` outlives this, and the streams.
  GuardedRegistry(Registry* registry, std::shared_ptr<AccessControl> access, Identity caller);

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;

 private:
  class Stream;

  // OK if the caller may use the session, and anything at all here.
  absl::Status CheckSession(const char* call, const std::string& session_id) const;

  Registry* const registry_;
  const std::shared_ptr<AccessControl> access_;
  const Identity caller_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_SECURITY_GUARDED_REGISTRY_H_
