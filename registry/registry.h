// The one interface of the project: a service registry, asynchronous.
//
// Everything is an implementation of it, a decorator of it, or an adapter onto it:
//
//   StoreRegistry      implements it on the embedded store             registry/store
//   EtcdRegistry       implements it on an etcd cluster                registry/etcd
//   GrpcRegistry       implements it on a registry elsewhere           registry/client
//   FailbackRegistry   decorates one: never forgets a failed call      registry/failback
//   FailbackGroup      decorates several: each intent goes to all      registry/failback
//   GuardedRegistry    decorates one: only what a caller may do        registry/security
//   RegistryServer     adapts: serves any of them over gRPC            registry/server
//   Agent              adapts: what C++ programs link                  agent
//
// Its requests and answers are the messages of proto/failback/registry/v1/registry.proto, which say
// what each field means; docs/protocol.md says how the calls work together. Instances are carried
// as a Batch towards the registry and as an Event back.
//
// Example: register one instance and log what came of it.
//
//   RegisterRequest request;
//   request.set_session_id(session_id);
//   *request.add_registrations()->mutable_instance() = instance;
//   registry.Register(request, [](absl::StatusOr<RegisterResponse> response) {
//     if (!response.ok()) return Log(response.status());           // the call as a whole
//     Log(StatusFromProto(response->results(0).status()));         // this instance
//   });
//
// Thread safety: every method may be called from any thread, also from inside a callback
// or a listener.
//
// Contract, for implementations and callers:
// * `done` runs exactly once, on any thread, possibly before the method returns. It must not
//   block; an implementation holds no lock while it runs.
// * A status is an absl::Status whose details (reason, retry delay) are read with
//   registry/model/errors.h. Its code is chosen by what the caller should do next.
// * An implementation may be destroyed while calls are under way: every `done` not yet run is
//   run with CANCELLED before the destructor returns.

#ifndef FAILBACK_REGISTRY_REGISTRY_H_
#define FAILBACK_REGISTRY_REGISTRY_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "registry/model/batch.h"
#include "registry/model/event.h"
#include "registry/model/messages.h"

namespace failback {

template <typename Response>
using Callback = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

// Receives the events of a subscription. Calls come one at a time and in order, without a lock
// held, and after one that throws comes the next. Which thread makes them depends on the
// implementation. On none may the listener wait; from each it may call the registry, end its own
// stream, or subscribe again.
//
//   StoreRegistry      one that commits, subscribes, unsubscribes or destroys it, one that compares
//                      filters, or the timer's
//   EtcdRegistry       one of gRPC's, which reads the watch, or one that subscribes or unsubscribes
//   GrpcRegistry       one of gRPC's: the stream is not read on until the call returns
//   FailbackRegistry   any that calls it, one of the registry below that answers it, or the timer's
//   FailbackGroup      as FailbackRegistry, of whichever upstream has news
//   GuardedRegistry    that of the registry below, or the one that loads a policy which ends access
//
// A listener that has work to do hands it to a thread of its own, as Agent does with an Executor.
class NotifyListener {
 public:
  virtual ~NotifyListener() = default;

  // The next event of the stream. It is shared with the other subscribers of the same set:
  // keep the pointer rather than a copy.
  virtual void OnEvent(const EventPtr& event) = 0;

  // The stream has ended; nothing follows. OK after Unsubscribe, ABORTED (REPLACED) when a
  // newer Subscribe with the same id took over; anything else is a failure: subscribe again, with
  // the last epoch and revision.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// A running Subscribe. Destroying it ends the stream without OnEnd. The destructor waits for a
// callback that runs; from within the listener's own callback it returns at once, and that callback
// is the last. So two listeners must not destroy each other's streams: each would wait for the
// other. Unsubscribe waits for none.
class SubscribeStream {
 public:
  virtual ~SubscribeStream() = default;
};

class Registry {
 public:
  virtual ~Registry() = default;

  virtual void OpenSession(const OpenSessionRequest& request,
                           Callback<OpenSessionResponse> done) = 0;

  // Renews one session. A session that is lost is an error status with reason SESSION_UNKNOWN, not
  // a response with a status.
  virtual void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) = 0;

  virtual void CloseSession(const CloseSessionRequest& request,
                            Callback<CloseSessionResponse> done) = 0;

  // Carries out a batch, which is all of registrations or all of deregistrations. An error is that
  // of the batch as a whole; else there is a result for each intent, or none (BatchResult).
  virtual void Write(Batch batch, Callback<BatchResult> done) = 0;

  // The same of messages: a batch is made of the request, and a response with all results of what
  // has become of it.
  void Register(const RegisterRequest& request, Callback<RegisterResponse> done);
  void Unregister(const UnregisterRequest& request, Callback<UnregisterResponse> done);

  // Errors, bad requests included, are reported through OnEnd, possibly before this returns. Never
  // null.
  virtual std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                                     std::shared_ptr<NotifyListener> listener) = 0;

  virtual void Unsubscribe(const UnsubscribeRequest& request,
                           Callback<UnsubscribeResponse> done) = 0;

  virtual void List(const ListRequest& request, Callback<ListResponse> done) = 0;

  // An operator takes an instance out of rotation, or back. No intent: tried once, and answered
  // when it is so. UNIMPLEMENTED where marks cannot be kept; the message says what to do instead.
  virtual void SetOffline(const SetOfflineRequest& /*request*/, Callback<SetOfflineResponse> done) {
    std::move(done)(absl::UnimplementedError(
        "this registry keeps no marks; have the owner register the instance as DRAINING instead"));
  }

  // Is notified when the connection to the registry breaks while nothing is asked of it, so that
  // its owner need not wait for the next call to find out. One listener; it may run on any thread,
  // and not after the registry's destructor has returned. Registries without a connection never
  // call.
  virtual void SetDisconnectListener(const std::function<void(const absl::Status&)>& /*listener*/) {
  }
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_REGISTRY_H_
