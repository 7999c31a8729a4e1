#include "registry/etcd/etcd_registry.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "registry/base/proto_time.h"
#include "registry/etcd/fences.h"
#include "registry/etcd/identity.h"
#include "registry/etcd/keys.h"
#include "registry/etcd/limits.h"
#include "registry/etcd/lister.h"
#include "registry/etcd/marks.h"
#include "registry/etcd/operator_view.h"
#include "registry/etcd/pending_calls.h"
#include "registry/etcd/pulse.h"
#include "registry/etcd/services.h"
#include "registry/etcd/sessions.h"
#include "registry/etcd/txn.h"
#include "registry/etcd/writer.h"
#include "registry/model/batch.h"
#include "registry/model/errors.h"

namespace failback {
namespace {

using etcd::AddGet;
using etcd::Client;
using etcd::Found;
using etcd::Identity;
using etcd::SessionPtr;
using etcd::Store;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// Sessions looked up in one transaction.
constexpr size_t kSweepSessions = 100;

etcd::Sessions::Options SessionOptions(const EtcdRegistry::Options& options) {
  etcd::Sessions::Options sessions;
  sessions.default_ttl = options.default_ttl;
  sessions.min_ttl = options.min_ttl;
  sessions.max_ttl = options.max_ttl;
  sessions.lease_spread = options.lease_spread;
  sessions.keys_per_lease = options.keys_per_lease;
  return sessions;
}

etcd::Services::Options ServiceOptions(const EtcdRegistry::Options& options) {
  etcd::Services::Options services;
  services.hub = options.subscriptions;
  services.outage_limit = options.watch_outage_limit;
  return services;
}

etcd::Limits::Options LimitOptions(const EtcdRegistry::Options& options) {
  etcd::Limits::Options limits;
  limits.max_instances = options.max_instances;
  limits.max_instances_per_session = options.max_instances_per_session;
  limits.max_sessions = options.max_sessions;
  return limits;
}

}  // namespace

// The parts, and how they hang together.
class EtcdRegistry::Core {
 public:
  Core(Options given, const MakeClient& make_client)
      : options(std::move(given)),
        owned_client(make_client([this] { identity.BeginEpoch(); })),
        client(*owned_client),
        keys(options.prefix),
        identity(&client, &keys, [this](const Store&) { services.EndEpoch(); }),
        limits(&client, &keys, LimitOptions(options)),
        sessions(&client, &keys, &identity, &limits, SessionOptions(options),
                 [this](const std::string& session_id) {
                   services.EndSession(session_id);
                   operators.agents().Drop(session_id);
                 }),
        fences(&client, &keys, options.keys_per_lease),
        writer(&client, &keys, &sessions, &fences, &limits, options.keys_per_lease),
        services(&client, &keys, &identity, &fences, ServiceOptions(options)),
        lister(&client, &keys, &identity),
        marks(&client, &keys, &identity),
        operators(&client, &keys, &identity),
        pulse(&client, &identity, options.watch_outage_limit) {
    limits.Start();
    ScheduleSweep();
  }

  // Answers everybody, and cancels what is under way.
  void Shutdown() {
    const absl::Status status = absl::CancelledError("the registry is being destroyed");
    calls.Close(status);
    services.Stop(status);
    client.Shutdown();
  }

  ~Core() { client.Close(); }

  void Write(Batch batch, Callback<BatchResult> done);

  const Options options;
  const std::unique_ptr<Client> owned_client;
  Client& client;
  const etcd::Keys keys;
  Identity identity;
  etcd::Limits limits;
  etcd::Sessions sessions;
  etcd::Fences fences;
  etcd::Writer writer;
  etcd::Services services;
  etcd::Lister lister;
  etcd::Marks marks;
  etcd::OperatorView operators;
  etcd::Pulse pulse;
  etcd::PendingCalls calls;

 private:
  void ScheduleSweep() {
    if (client.closed()) return;
    client.After(options.sweep_interval, [this] {
      if (client.closed()) return;
      sessions.Sweep();
      for (const std::string& key : services.StaleMarks(options.offline_memory)) marks.Drop(key);
      services.Sweep();
      lister.Sweep();
      operators.agents().Sweep();
      EndLostSessions(services.Sessions());
      ScheduleSweep();
    });
  }

  // Sessions that ended elsewhere, or without a word, have names of subscriptions here.
  void EndLostSessions(std::vector<std::string> session_ids) {
    for (size_t begin = 0; begin < session_ids.size(); begin += kSweepSessions) {
      const size_t end = std::min(session_ids.size(), begin + kSweepSessions);
      std::vector<std::string> part(session_ids.begin() + begin, session_ids.begin() + end);
      TxnRequest read;
      for (const std::string& id : part) AddGet(keys.Session(id), read.mutable_success());
      client.Txn(std::move(read),
                 [this, part = std::move(part)](absl::StatusOr<TxnResponse> response) {
                   if (!response.ok()) return;
                   for (size_t i = 0; i < part.size(); ++i) {
                     if (Found(*response, static_cast<int>(i)) == nullptr) sessions.Forget(part[i]);
                   }
                 });
    }
  }
};

void EtcdRegistry::Core::Write(Batch batch, Callback<BatchResult> done) {
  // The answer names the epoch.
  auto write = [this, batch = std::move(batch),
                done = std::move(done)](absl::StatusOr<Store> store) mutable {
    if (!store.ok()) return std::move(done)(store.status());
    auto on_written = [epoch = store->epoch, done = std::move(done)](
                          absl::StatusOr<etcd::Writer::Written> written) mutable {
      if (!written.ok()) return std::move(done)(written.status());
      std::move(done)(ResultOf(written->outcomes, written->as_asked, epoch, written->revision));
    };
    const std::string session_id = batch.session_id();
    std::vector<Intent> intents = std::move(batch).TakeIntents();
    if (session_id.empty()) {
      return writer.Write(nullptr, std::move(intents), std::move(on_written));
    }
    sessions.Find(session_id,
                  [this, intents = std::move(intents),
                   on_written = std::move(on_written)](absl::StatusOr<SessionPtr> session) mutable {
                    if (!session.ok()) return std::move(on_written)(session.status());
                    writer.Write(*std::move(session), std::move(intents), std::move(on_written));
                  });
  };
  Store known = identity.Get();
  if (known.known()) return std::move(write)(std::move(known));
  identity.Ensure(std::move(write));
}

EtcdRegistry::EtcdRegistry(Options options)
    : EtcdRegistry(options, [&options](std::function<void()> on_regress) {
        etcd::GrpcClient::Options client = options.client;
        client.on_regress = std::move(on_regress);
        return std::make_unique<etcd::GrpcClient>(std::move(client));
      }) {}

EtcdRegistry::EtcdRegistry(Options options, const MakeClient& make_client)
    : core_(std::make_unique<Core>(std::move(options), make_client)) {}

void EtcdRegistry::Connect(std::function<void(bool reachable)> on_change) {
  core_->pulse.Start(std::move(on_change));
}

void EtcdRegistry::Disconnect() { core_->pulse.Silence(); }

absl::Status EtcdRegistry::Reachable() const { return core_->pulse.Look(); }

EtcdRegistry::~EtcdRegistry() {
  core_->Shutdown();
  if (!core_->client.InCallback()) return;
  // gRPC waits for this thread: another one waits for gRPC.
  std::thread([core = std::move(core_)] {}).detach();
}

void EtcdRegistry::OpenSession(const OpenSessionRequest& request,
                               Callback<OpenSessionResponse> done) {
  if (auto status = ValidateOpenSession(request); !status.ok()) return std::move(done)(status);
  core_->sessions.Open(request, [core = core_.get(), done = core_->calls.Add(std::move(done))](
                                    absl::StatusOr<etcd::Sessions::Opened> opened) mutable {
    if (!opened.ok()) return std::move(done)(opened.status());
    OpenSessionResponse response;
    response.set_session_id(opened->session->id);
    *response.mutable_ttl() = ToProto(opened->session->ttl());
    response.set_rank(opened->session->rank);
    response.set_store_id(opened->store.store_id);
    response.set_epoch(opened->store.epoch);
    response.set_resumed(opened->resumed);
    response.mutable_limits()->set_max_request_bytes(core->options.max_request_bytes);
    response.mutable_limits()->set_max_batch(core->options.max_batch);
    std::move(done)(std::move(response));
  });
}

void EtcdRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  if (auto status = ValidateKeepAlive(request); !status.ok()) return std::move(done)(status);
  core_->sessions.Renew(request.session_id(),
                        [core = core_.get(), request, done = core_->calls.Add(std::move(done))](
                            absl::StatusOr<etcd::Sessions::Renewed> renewed) mutable {
                          if (!renewed.ok()) return std::move(done)(renewed.status());
                          core->operators.agents().Renewed(*renewed->session, request);
                          KeepAliveResponse response;
                          response.set_session_id(renewed->session->id);
                          *response.mutable_ttl() = ToProto(renewed->session->ttl());
                          response.set_epoch(renewed->store.epoch);
                          response.set_revision(renewed->revision);
                          std::move(done)(std::move(response));
                        });
}

void EtcdRegistry::CloseSession(const CloseSessionRequest& request,
                                Callback<CloseSessionResponse> done) {
  if (auto status = ValidateCloseSession(request); !status.ok()) return std::move(done)(status);
  core_->sessions.Close(request.session_id(), [done = core_->calls.Add(std::move(done))](
                                                  absl::StatusOr<uint64_t> revision) mutable {
    if (!revision.ok()) return std::move(done)(revision.status());
    CloseSessionResponse response;
    response.set_revision(*revision);
    std::move(done)(std::move(response));
  });
}

void EtcdRegistry::Write(Batch batch, Callback<BatchResult> done) {
  const absl::Status status = batch.Check(core_->options.max_batch);
  if (!status.ok()) return std::move(done)(status);
  core_->Write(std::move(batch), core_->calls.Add(std::move(done)));
}

std::unique_ptr<SubscribeStream> EtcdRegistry::Subscribe(const SubscribeRequest& request,
                                                         std::shared_ptr<NotifyListener> listener) {
  SubscribeRequest canonical = request;
  NormalizeSelector(canonical.mutable_selector());
  auto stream = etcd::Services::NewStream(canonical, std::move(listener));
  auto handle = etcd::Services::NewHandle(stream);
  if (auto status = ValidateSubscribe(request); !status.ok()) {
    etcd::Services::Refuse(stream, status);
  } else if (request.session_id().empty()) {
    core_->services.Follow(stream);
  } else {
    core_->sessions.Find(request.session_id(),
                         [core = core_.get(), stream](const absl::StatusOr<SessionPtr>& session) {
                           if (!session.ok())
                             return etcd::Services::Refuse(stream, session.status());
                           core->services.Follow(stream);
                         });
  }
  return handle;
}

void EtcdRegistry::Unsubscribe(const UnsubscribeRequest& request,
                               Callback<UnsubscribeResponse> done) {
  if (auto status = ValidateUnsubscribe(request); !status.ok()) return std::move(done)(status);
  core_->sessions.Find(
      request.session_id(), [core = core_.get(), request, done = core_->calls.Add(std::move(done))](
                                const absl::StatusOr<SessionPtr>& session) mutable {
        // A session that has ended took its subscriptions with it.
        absl::Status status = session.status();
        if (status.ok()) status = core->services.Unsubscribe(request);
        if (!status.ok() && ReasonOf(status) != registry::v1::ERROR_REASON_SESSION_UNKNOWN) {
          return std::move(done)(status);
        }
        std::move(done)(UnsubscribeResponse());
      });
}

void EtcdRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  if (auto status = ValidateList(request); !status.ok()) return std::move(done)(status);
  core_->lister.List(request, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::SetOffline(const SetOfflineRequest& request, Callback<SetOfflineResponse> done) {
  if (auto status = ValidateSetOffline(request); !status.ok()) return std::move(done)(status);
  core_->marks.Set(request, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::SetDisconnectListener(const std::function<void(const absl::Status&)>& listener) {
  core_->sessions.SetBreakListener(listener);
}

EtcdRegistry::Statistics EtcdRegistry::Stats() const {
  const Store store = core_->identity.Get();
  Statistics stats;
  stats.store_id = store.store_id;
  stats.epoch = store.epoch;
  stats.watched_services = core_->services.watched();
  stats.calls = core_->client.Stats();
  return stats;
}

void EtcdRegistry::ListServices(const admin::v1::ListServicesRequest& request,
                                Callback<admin::v1::ListServicesResponse> done) {
  core_->operators.ListServices(request, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::ListSessions(const admin::v1::ListSessionsRequest& request,
                                Callback<admin::v1::ListSessionsResponse> done) {
  core_->operators.ListSessions(request, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::ListAgents(const admin::v1::ListAgentsRequest& request,
                              Callback<admin::v1::ListAgentsResponse> done) {
  core_->operators.ListAgents(request, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::Describe(const InstanceKey& named,
                            Callback<admin::v1::InstanceDescription> done) {
  InstanceKey key = named;
  NormalizeKey(&key);
  if (auto status = ValidateKey(FieldPath("key"), key); !status.ok()) {
    return std::move(done)(status);
  }
  core_->operators.Describe(key, core_->calls.Add(std::move(done)));
}

void EtcdRegistry::Count(Callback<admin::v1::RegistryOverview> done) {
  core_->operators.Count(core_->calls.Add(std::move(done)));
}

}  // namespace failback
