#include "registry/server/registry_server.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "registry/base/proto_time.h"
#include "registry/base/trace_context.h"
#include "registry/model/batch.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/grpc_threads.h"
#include "registry/server/admission.h"
#include "registry/server/connection_bounds.h"
#include "registry/server/event_stream.h"
#include "registry/server/read_threads.h"
#include "registry/server/refusals.h"
#include "registry/server/register_stream.h"
#include "registry/server/server_reactors.h"
#include "registry/server/stream_sweep.h"
#include "registry/server/unary_reactor.h"
#include "registry/server/unread_answers.h"
#include "registry/server/write_threads.h"
#include "retry/clock.h"
#include "retry/periodic_task.h"

namespace failback {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using registry::v1::RegistryService;
using Method = CallStats::Method;

// All are served on encoded messages: registry/rpc/bounded_parse.h.
template <typename Base>
using UnaryMethods = RegistryService::WithRawCallbackMethod_OpenSession<
    RegistryService::WithRawCallbackMethod_CloseSession<
        RegistryService::WithRawCallbackMethod_Register<
            RegistryService::WithRawCallbackMethod_Unregister<
                RegistryService::WithRawCallbackMethod_Unsubscribe<
                    RegistryService::WithRawCallbackMethod_List<Base>>>>>>;
using ServiceBase = UnaryMethods<RegistryService::WithRawCallbackMethod_KeepAlive<
    RegistryService::WithRawCallbackMethod_RegisterStream<
        RegistryService::WithRawCallbackMethod_Subscribe<
            RegistryService::WithRawCallbackMethod_Watch<RegistryService::Service>>>>>;

// No session lives for longer without a renewal.
constexpr absl::Duration kLongestTtl = absl::Hours(1);

// For so long a server that stops still answers new calls, with SHUTTING_DOWN.
constexpr absl::Duration kShutdownNotice = absl::Milliseconds(100);

// Of a clock that is never set.
absl::Time Monotonic() { return absl::FromUnixNanos(Clock::Real()->NowNanos()); }

// For reads, and for large writes: they leave room for the threads that serve the connections.
int WorkThreads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2); }

Admission::Options AdmissionOptions(const RegistryServer::Options& options) {
  return {options.access, options.max_calls_in_flight, options.max_subscriptions,
          options.max_subscriptions_per_connection, options.overload_delay};
}

WriteThreads::Options WriteOptions(const RegistryServer::Options& options) {
  return {{BatchRequest(options.max_message_bytes, options.max_batch), options.max_batch},
          options.max_bulk_bytes,
          WorkThreads()};
}

}  // namespace

// RegistryService over the registry. Each call is admitted, then parsed, then carried out.
class RegistryServer::Service final : public ServiceBase {
 public:
  Service(Registry* registry, const Options& options)
      : registry_(registry),
        admission_(registry, AdmissionOptions(options), &call_stats_),
        writes_(WriteOptions(options)),
        unread_(&admission_, options.max_unread_bytes) {
    for (const std::string& session_id : options.stream_sessions) {
      sessions_->Opened(session_id, /*ends_with_stream=*/true, Monotonic(),
                        Monotonic() + kLongestTtl);
    }
  }

  // Ends streams whose clients have stopped, and old ones.
  absl::Status StartSweep(const Options& options) {
    if (options.timer == nullptr) return absl::OkStatus();
    const SweepPlan plan = SweepPlan::Of(options.stalled_stream_timeout,
                                         options.silent_stream_timeout, LongestStream(options));
    auto sweep = PeriodicTask::Start(options.timer, plan.period, [this, plan] {
      for (auto* streams : {&subscribe_streams_, &watch_streams_}) {
        for (const auto& stream : streams->Open()) {
          stream->Sweep(plan.stalled, plan.silent, Jittered(plan.oldest, stream.get()));
        }
      }
      unread_.Sweep(plan.stalled);
      // Answers to renewals are small, and few at a time.
      for (const auto& state : renewal_streams_.Open()) {
        state->Sweep(INT_MAX, plan.silent, Jittered(plan.oldest, state.get()));
      }
      for (const auto& state : register_streams_.Open()) {
        state->Sweep(plan.stalled, plan.silent, Jittered(plan.oldest, state.get()));
      }
    });
    if (!sweep.ok()) return sweep.status();
    sweep_ = *std::move(sweep);
    return absl::OkStatus();
  }

  // Ends the streams, and refuses new calls and those that wait.
  void Stop() {
    admission_.Stop();
    writes_.Stop();
    if (sweep_ != nullptr) sweep_->Stop();
    for (auto* streams : {&subscribe_streams_, &watch_streams_}) {
      for (const auto& stream : streams->Close()) stream->Abort(ShuttingDown());
    }
    for (const auto& state : renewal_streams_.Close()) state->End(ShuttingDown());
    for (const auto& state : register_streams_.Close()) state->Drain(ShuttingDown());
  }

  // To be called when gRPC has ended all calls: from the return on the registry is not called.
  void Finish() {
    writes_.Join();
    reads_.Join();
  }

  Statistics Stats() const {
    Statistics stats;
    stats.calls = call_stats_.Take();
    stats.calls_in_flight = admission_.calls_in_flight();
    stats.subscriptions = subscribe_streams_.size() + watched_->load(std::memory_order_relaxed);
    stats.watch_streams = watch_streams_.size();
    stats.renewal_streams = renewal_streams_.size();
    stats.register_streams = register_streams_.size();
    stats.bulk_bytes = writes_.waiting_bytes();
    stats.reads_waiting = reads_.waiting();
    return stats;
  }

  // A connection was closed for want of descriptors.
  void ConnectionRefused() { call_stats_.Refused(CallStats::Limit::kConnections); }

  ServerUnaryReactor* OpenSession(CallbackServerContext* context, const ByteBuffer* request,
                                  ByteBuffer* response) override {
    return Unary<OpenSessionRequest, OpenSessionResponse>(
        context, Method::kOpenSession, *request, response, &Registry::OpenSession,
        [sessions = sessions_](const OpenSessionRequest& request,
                               const OpenSessionResponse& opened) {
          const absl::Time now = Monotonic();
          sessions->Opened(opened.session_id(), request.ends_with_stream(), now,
                           now + FromProto(opened.ttl()));
        });
  }

  ServerUnaryReactor* CloseSession(CallbackServerContext* context, const ByteBuffer* request,
                                   ByteBuffer* response) override {
    return Unary<CloseSessionRequest, CloseSessionResponse>(
        context, Method::kCloseSession, *request, response, &Registry::CloseSession,
        [sessions = sessions_](const CloseSessionRequest& request, const CloseSessionResponse&) {
          sessions->Closed(request.session_id());
        });
  }

  ServerUnaryReactor* Unsubscribe(CallbackServerContext* context, const ByteBuffer* request,
                                  ByteBuffer* response) override {
    return Unary<UnsubscribeRequest, UnsubscribeResponse>(context, Method::kUnsubscribe, *request,
                                                          response, &Registry::Unsubscribe);
  }

  ServerUnaryReactor* Register(CallbackServerContext* context, const ByteBuffer* request,
                               ByteBuffer* response) override {
    return Write(context, Method::kRegister, Batch::Kind::kRegister, *request, response);
  }

  ServerUnaryReactor* Unregister(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* response) override {
    return Write(context, Method::kUnregister, Batch::Kind::kUnregister, *request, response);
  }

  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* RegisterStream(
      CallbackServerContext* context) override {
    const Permit permit = admission_.AdmitStream(*context, Method::kRegisterStream);
    auto* reactor = new RegisterStreamReactor(
        context, &call_stats_, permit.slot,
        [this, registry = permit.registry, parent = TraceParentOf(context->client_metadata())](
            const ByteBuffer& request, Callback<std::string> done) {
          const ScopedTrace trace(parent);
          Permit permit = AdmitWrite(request);
          if (!permit.refusal.ok()) return std::move(done)(permit.refusal);
          writes_.Write(WriteThreads::Source::kStream, Batch::Kind::kRegister, registry, request,
                        [slot = std::move(permit.slot),
                         done = std::move(done)](absl::StatusOr<std::string> response) mutable {
                          std::move(done)(std::move(response));
                        });
        },
        [this](const auto& state) { register_streams_.Remove(state); });
    if (!permit.refusal.ok()) reactor->state()->End(permit.refusal);
    if (!register_streams_.Add(reactor->state())) reactor->state()->End(ShuttingDown());
    return reactor;
  }

  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* KeepAlive(
      CallbackServerContext* context) override {
    const Permit permit = admission_.AdmitStream(*context, Method::kKeepAlive);
    auto* reactor =
        new RenewalReactor(context, permit.registry, sessions_, &call_stats_, permit.slot,
                           ++last_stream_, [this](StreamSessions::StreamId id, const auto& state) {
                             renewal_streams_.Remove(state);
                             EndSessionsOf(id, state->swept());
                           });
    if (!permit.refusal.ok()) reactor->state()->End(permit.refusal);
    if (!renewal_streams_.Add(reactor->state())) reactor->state()->End(ShuttingDown());
    return reactor;
  }

  ServerUnaryReactor* List(CallbackServerContext* context, const ByteBuffer* bytes,
                           ByteBuffer* response) override {
    const ScopedTrace trace(TraceParentOf(context->client_metadata()));
    Permit permit = admission_.AdmitCall(*context, Method::kList);
    const std::string reader = ReaderOf(*context, permit.owner);
    std::shared_ptr<void> list = admission_.AdmitList(reader, &permit);
    ListRequest request;
    if (permit.refusal.ok()) permit.refusal = ParseWithin(kSmallRequest, *bytes, &request);
    const auto waits_in = std::make_shared<ReadThreads::Slot>();
    return UnaryReactor<ListResponse>::Run(
        response, std::move(permit.slot), {&call_stats_, Method::kList},
        {&unread_, context, permit.owner},
        [&](Callback<ListResponse> done) {
          if (!permit.refusal.ok()) return std::move(done)(permit.refusal);
          done = [list = std::move(list),
                  done = std::move(done)](absl::StatusOr<ListResponse> response) mutable {
            list.reset();  // before the caller can list again
            std::move(done)(std::move(response));
          };
          *waits_in = reads_.Push(
              reader, [this, registry = std::move(permit.registry), request = std::move(request),
                       parent = CurrentTrace(), done = std::move(done)]() mutable {
                const ScopedTrace trace(std::move(parent));
                if (admission_.stopping()) return std::move(done)(ShuttingDown());
                Guarded([&] { registry->List(request, std::move(done)); }).IgnoreError();
              });
        },
        /*on_success=*/nullptr, [this, waits_in] { reads_.Withdraw(*waits_in); });
  }

  grpc::ServerWriteReactor<ByteBuffer>* Subscribe(CallbackServerContext* context,
                                                  const ByteBuffer* bytes) override {
    Permit permit;
    admission_.Identify(*context, Method::kSubscribe, &permit);
    SubscribeRequest request;
    if (permit.refusal.ok()) permit.refusal = ParseWithin(kSmallRequest, *bytes, &request);
    auto* reactor =
        new SubscribeReactor(StreamOptions(context, WatchFlow::Framing::kSubscribe, &permit),
                             [this](const auto& stream) { subscribe_streams_.Remove(stream); });
    const std::shared_ptr<EventStream> stream = reactor->stream();
    if (!permit.refusal.ok()) {
      stream->Abort(permit.refusal);
    } else if (!subscribe_streams_.Add(stream)) {
      stream->Abort(ShuttingDown());
    } else {
      stream->BeginWith(std::move(request));
    }
    return reactor;
  }

  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* Watch(CallbackServerContext* context) override {
    Permit permit = admission_.AdmitStream(*context, Method::kWatch);
    auto* reactor = new WatchReactor(StreamOptions(context, WatchFlow::Framing::kWatch, &permit),
                                     [this](const auto& stream) { watch_streams_.Remove(stream); });
    const std::shared_ptr<EventStream> stream = reactor->stream();
    if (!permit.refusal.ok()) {
      stream->Abort(permit.refusal);
    } else if (!watch_streams_.Add(stream)) {
      stream->Abort(ShuttingDown());
    } else {
      stream->Begin();
    }
    return reactor;
  }

 private:
  // Of a stream of subscriptions; with a refusal it gets one of its own, or keeps it.
  EventStream::Options StreamOptions(CallbackServerContext* context, WatchFlow::Framing framing,
                                     Permit* permit) {
    EventStream::Options options;
    options.framing = framing;
    options.context = context;
    options.stats = &call_stats_;
    options.reads = &reads_;
    options.reader = ReaderOf(*context, permit->owner);
    options.cache = cache_;
    options.permits = admission_.AdmitSubscriptions(*context, permit);
    options.registry = std::move(permit->registry);
    options.silent = std::move(permit->slot);
    if (framing == WatchFlow::Framing::kWatch) options.watched = watched_;
    return options;
  }

  // A small call. `on_success`, if given, sees the response before the client.
  template <typename Request, typename Response>
  ServerUnaryReactor* Unary(
      CallbackServerContext* context, Method name, const ByteBuffer& bytes, ByteBuffer* response,
      void (Registry::*method)(const Request&, Callback<Response>),
      std::function<void(const Request&, const Response&)> on_success = nullptr) {
    const ScopedTrace trace(TraceParentOf(context->client_metadata()));
    Permit permit = admission_.AdmitCall(*context, name);
    Request request;
    if (permit.refusal.ok()) permit.refusal = ParseWithin(kSmallRequest, bytes, &request);
    // Where callers have no names, none may take one.
    if constexpr (std::is_same_v<Request, OpenSessionRequest>) {
      if (!admission_.distinguishes_callers()) request.clear_owner();
    }
    typename UnaryReactor<Response>::Hook hook;
    if (on_success != nullptr) {
      hook = [request, on_success = std::move(on_success)](const Response& response) {
        on_success(request, response);
      };
    }
    return UnaryReactor<Response>::Run(
        response, std::move(permit.slot), {&call_stats_, name}, {&unread_, context, permit.owner},
        [&](Callback<Response> done) {
          if (!permit.refusal.ok()) return std::move(done)(permit.refusal);
          (permit.registry.get()->*method)(request, std::move(done));
        },
        std::move(hook));
  }

  ServerUnaryReactor* Write(CallbackServerContext* context, Method name, Batch::Kind kind,
                            const ByteBuffer& request, ByteBuffer* response) {
    const ScopedTrace trace(TraceParentOf(context->client_metadata()));
    Permit permit = AdmitWrite(request);
    admission_.Identify(*context, name, &permit);
    return UnaryReactor<std::string>::Run(
        response, std::move(permit.slot), {&call_stats_, name}, {&unread_, context, permit.owner},
        [&](Callback<std::string> done) {
          if (!permit.refusal.ok()) return std::move(done)(permit.refusal);
          writes_.Write(WriteThreads::Source::kCall, kind, std::move(permit.registry), request,
                        std::move(done));
        });
  }

  // A Register or Unregister whose caller is still to be identified, or is known.
  Permit AdmitWrite(const ByteBuffer& request) {
    Permit permit = admission_.AdmitMessage();
    if (permit.refusal.ok() && !writes_.HasRoomFor(request)) {
      permit.refusal =
          admission_.Overloaded(CallStats::Limit::kBulkBytes, writes_.max_waiting_bytes());
    }
    return permit;
  }

  // The KeepAlive stream `id` has ended: its process has ended, unless it is the server that stops,
  // or that has ended the stream for its silence.
  void EndSessionsOf(StreamSessions::StreamId id, bool silent) {
    if (admission_.stopping()) return;
    for (const std::string& session_id : sessions_->Ended(id)) {
      if (silent) continue;
      CloseSessionRequest request;
      request.set_session_id(session_id);
      // If this fails the session's TTL ends it.
      Guarded([&] {
        registry_->CloseSession(request, [](const absl::StatusOr<CloseSessionResponse>&) {});
      }).IgnoreError();
    }
  }

  Registry* const registry_;
  CallStats call_stats_;
  Admission admission_;
  std::atomic<StreamSessions::StreamId> last_stream_ = 0;
  // Callbacks that the registry holds may outlive the server.
  const std::shared_ptr<StreamSessions> sessions_ = std::make_shared<StreamSessions>();
  const std::shared_ptr<EventCache> cache_ = std::make_shared<EventCache>();
  OpenStreams<EventStream> subscribe_streams_;
  OpenStreams<EventStream> watch_streams_;
  const std::shared_ptr<std::atomic<int64_t>> watched_ = std::make_shared<std::atomic<int64_t>>(0);
  OpenStreams<RenewalReactor::State> renewal_streams_;
  OpenStreams<RegisterStreamReactor::State> register_streams_;
  WriteThreads writes_;
  UnreadAnswers unread_;
  ReadThreads reads_{WorkThreads()};
  std::unique_ptr<PeriodicTask> sweep_;
};

absl::StatusOr<std::vector<ListenAddress>> RegistryServer::Claim(const Options& options) {
  if (options.listen.empty()) {
    return absl::InvalidArgumentError("no address to listen on is given");
  }
  ListenOptions listen_options = options.listen_options;
  // TLS, when asked for, is fit for the outside.
  if (options.credentials != nullptr) listen_options.allow_remote_plaintext = true;
  std::vector<ListenAddress> claimed;
  for (const std::string& address : options.listen) {
    auto prepared = ListenAddress::Prepare(address, listen_options);
    if (!prepared.ok()) return prepared.status();
    claimed.push_back(*std::move(prepared));
  }
  return claimed;
}

absl::StatusOr<std::unique_ptr<RegistryServer>> RegistryServer::Start(Registry* registry,
                                                                      const Options& options) {
  auto claimed = Claim(options);
  if (!claimed.ok()) return claimed.status();
  return Start(registry, options, *std::move(claimed));
}

absl::StatusOr<std::unique_ptr<RegistryServer>> RegistryServer::Start(
    Registry* registry, const Options& options, std::vector<ListenAddress> claimed) {
  KeepGrpcCallbackThreads();
  std::unique_ptr<RegistryServer> server(
      new RegistryServer(std::make_unique<Service>(registry, options), std::move(claimed)));
  grpc::ServerBuilder builder;
  BoundConnections(options, &builder);
  std::vector<std::shared_ptr<GrpcAcceptor>> acceptors;
  for (const ListenAddress& listen : server->listen_) {
    // A Unix socket does not leave the machine; its mode says who may connect.
    const bool tls = options.credentials != nullptr && !listen.address().is_unix();
    acceptors.push_back(builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        tls ? options.credentials : grpc::InsecureServerCredentials()));
  }
  builder.RegisterService(server->service_.get());
  builder.RegisterService(&server->health_);
  server->health_names_ = {"", RegistryService::service_full_name()};
  for (const ExtraService& extra : options.extra_services) {
    builder.RegisterService(extra.service);
    server->health_names_.push_back(extra.name);
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::InternalError("gRPC does not start a server");
  if (auto status = server->service_->StartSweep(options); !status.ok()) return status;
  server->SetServing(true);
  // The first connection comes when everything else is there.
  if (auto status = server->Accept(acceptors, options.ping_interval); !status.ok()) return status;
  return server;
}

absl::Status RegistryServer::Accept(const std::vector<std::shared_ptr<GrpcAcceptor>>& acceptors,
                                    absl::Duration unacknowledged_timeout) {
  ConnectionAcceptor::Options options;
  options.unacknowledged_timeout = unacknowledged_timeout;
  options.on_refused = [service = service_.get()] { service->ConnectionRefused(); };
  for (size_t i = 0; i < acceptors.size(); ++i) {
    auto sockets = listen_[i].Listen();
    if (!sockets.ok()) return sockets.status();
    for (const int socket : *sockets) {
      options.listeners.push_back({socket, [acceptor = acceptors[i]](int listener, int fd) {
                                     GrpcAcceptor::NewConnectionParameters connection;
                                     connection.listener_fd = listener;
                                     connection.fd = fd;
                                     acceptor->HandleNewConnection(&connection);
                                   }});
    }
    addresses_.push_back(listen_[i].text());
  }
  auto accepting = ConnectionAcceptor::Start(std::move(options));
  if (!accepting.ok()) return accepting.status();
  acceptor_ = *std::move(accepting);
  return absl::OkStatus();
}

RegistryServer::RegistryServer(std::unique_ptr<Service> service, std::vector<ListenAddress> listen)
    : service_(std::move(service)), listen_(std::move(listen)) {}

RegistryServer::Statistics RegistryServer::Stats() const { return service_->Stats(); }

RegistryServer::~RegistryServer() { Shutdown(absl::ZeroDuration()); }

void RegistryServer::SetServing(bool serving) {
  for (const std::string& name : health_names_) health_.Set(name, serving);
}

void RegistryServer::SetServing(const std::string& name, bool serving) {
  health_.Set(name, serving);
}

void RegistryServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  health_.Stop();
  acceptor_.reset();
  for (ListenAddress& listen : listen_) listen.Close();
  service_->Stop();
  // gRPC will end calls that come with CANCELLED, from which a client learns nothing. First they
  // are answered with SHUTTING_DOWN.
  absl::SleepFor(std::min(grace, kShutdownNotice));
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  service_->Finish();
}

}  // namespace failback
