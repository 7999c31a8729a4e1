// The registry's protocol over the simulated network: what GrpcRegistry and RegistryServer are over
// gRPC. Requests, answers and events cross as bytes, and are read on the other side as those read
// them: a batch within its bounds, events in parts, in order and joined. Subscriptions share a Watch
// stream, renewals a KeepAlive stream, and some large Registers a RegisterStream; each is one of the
// product's flows at either end (wire_stream.h).
//
//   auto server = std::make_shared<WireServer>(&network, registry_process, store);
//   WireRegistry client(&network, agent_process, link, [&] { return server; });
//   client.Write(std::move(batch), [](absl::StatusOr<BatchResult> result) { … });
//
// A server that stops for good is destroyed: its streams go, and what is on its way to it is
// refused.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_WIRE_H_
#define FAILBACK_TESTS_SIMULATE_WIRE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "registry/registry.h"
#include "registry/security/access_control.h"
#include "registry/security/guarded_registry.h"
#include "tests/simulate/network.h"
#include "tests/simulate/process.h"
#include "tests/simulate/wire_stream.h"
#include "tests/simulate/witness.h"

namespace failback::simulate {

enum class Method {
  kOpenSession,
  kCloseSession,
  kRegister,
  kUnregister,
  kUnsubscribe,
  kList,
  kSetOffline,
};

// An answer as it is on the wire: bytes of a response, or of a status.
struct WireAnswer {
  bool ok = false;
  std::string bytes;
};

class WireServer : public std::enable_shared_from_this<WireServer> {
 public:
  // `access`: who may do what; null: all may do all.
  WireServer(Network* network, std::shared_ptr<Process> process, Registry* registry,
             Witness* witness, std::shared_ptr<AccessControl> access)
      : network_(network),
        process_(std::move(process)),
        registry_(registry),
        witness_(witness),
        access_(std::move(access)) {}
  ~WireServer();

  // How a policy names who calls on a link.
  static std::string NameOf(int link) { return absl::StrCat("link-", link); }

  const std::shared_ptr<Process>& process() const { return process_; }

  using Reply = std::function<void(const WireAnswer&)>;
  void Call(Method method, int link, const std::string& bytes, const Reply& reply);
  // A stream begins here.
  void Open(const std::shared_ptr<WireStream>& stream);
  // From now on streams that are old, idle or not read are ended.
  void Sweep();

 private:
  class ServedStream;
  class WatchEnd;
  class AnswerEnd;
  void Forget(ServedStream* gone);
  // The registry as the caller may use it; `guarded` outlives the call.
  Registry* For(int link, std::optional<GuardedRegistry>* guarded);
  template <typename Request, typename Response>
  void Unary(Registry* registry, void (Registry::*method)(const Request&, Callback<Response>),
             const std::string& bytes, const Reply& reply);
  template <typename Request, typename Response>
  void NoteSession(const Request& request, const Response& response);
  void Write(Registry* registry, int link, Batch::Kind kind, bool leave_out,
             const std::string& bytes, const Reply& reply);

  Network* const network_;
  const std::shared_ptr<Process> process_;
  Registry* const registry_;
  Witness* const witness_;
  const std::shared_ptr<AccessControl> access_;
  std::vector<std::shared_ptr<ServedStream>> streams_;
};

class WireRegistry final : public Registry {
 public:
  using Server = std::function<std::weak_ptr<WireServer>()>;

  // `server`: the one that listens now. `network` outlives it.
  WireRegistry(Network* network, std::weak_ptr<Process> self, int link, Server server);
  ~WireRegistry() override;

  void OpenSession(const OpenSessionRequest& request, Callback<OpenSessionResponse> done) override;
  void KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) override;
  void CloseSession(const CloseSessionRequest& request,
                    Callback<CloseSessionResponse> done) override;
  void Write(Batch batch, Callback<BatchResult> done) override;
  std::unique_ptr<SubscribeStream> Subscribe(const SubscribeRequest& request,
                                             std::shared_ptr<NotifyListener> listener) override;
  void Unsubscribe(const UnsubscribeRequest& request, Callback<UnsubscribeResponse> done) override;
  void List(const ListRequest& request, Callback<ListResponse> done) override;
  void SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) override;
  void SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) override;

  // Its connection is broken, and it knows; else what ran at a server that is gone, behind a
  // balancer.
  std::function<void()> Breaker(bool connection);
  // Its process is killed: it sends no call any more.
  std::function<void()> Killer();
  // Calls and subscriptions that were sent.
  std::function<int64_t()> Counter();
  // How long ago it asked for the session that it has, of a registry that still runs; or for ever.
  std::function<absl::Duration()> SessionAge();

  class Shared;

 private:
  template <typename Response, typename Request>
  void Ask(Method method, const Request& request, Callback<Response> done);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_WIRE_H_
