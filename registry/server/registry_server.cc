#include "registry/server/registry_server.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "failback/registry/v1/registry.grpc.pb.h"
#include "registry/base/proto_time.h"
#include "registry/base/trace_context.h"
#include "registry/model/shared_limit.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/call_gauge.h"
#include "registry/rpc/grpc_threads.h"
#include "registry/security/guarded_registry.h"
#include "registry/server/fair_queue.h"
#include "registry/server/register_stream.h"
#include "registry/server/server_reactors.h"
#include "retry/executor.h"
#include "retry/periodic_task.h"

namespace failback {
namespace {

using registry::v1::RegistryService;

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
        RegistryService::WithRawCallbackMethod_Subscribe<RegistryService::Service>>>>;

// A request that is larger than this, some twenty instances, is bulk.
constexpr size_t kLargestSmallRequest = 4096;

// A message of a stream that is no larger than this, some thousand instances, may be carried out
// where it was read.
constexpr size_t kLargestMessageHere = 256 << 10;

// No session lives for longer without a renewal.
constexpr absl::Duration kLongestTtl = absl::Hours(1);

// Of a clock that is never set.
absl::Time Monotonic() { return absl::FromUnixNanos(Clock::Real()->NowNanos()); }

// For so long calls are answered that the server stops, before it does.
constexpr absl::Duration kFarewell = absl::Milliseconds(100);

// Threads for bulk: they leave room for those that serve the connections.
int BulkThreads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2); }

// Carries out an encoded RegisterRequest or UnregisterRequest, and answers in bytes.
struct WriteInBytes {
  Batch::Kind kind;
  bool leave_out;  // results that are as asked
  Batch::Limits limits;

  void operator()(Registry* registry, const grpc::ByteBuffer& request,
                  Callback<std::string> done) const {
    absl::StatusOr<Batch> batch = Batch::Read(kind, Contiguous(request).view(), limits);
    if (!batch.ok()) return std::move(done)(batch.status());
    std::optional<Batch::Generations> asked;
    if (!leave_out) asked = batch->generations();
    registry->Write(*std::move(batch), [asked = std::move(asked), done = std::move(done)](
                                           absl::StatusOr<BatchResult> result) mutable {
      if (!result.ok()) return std::move(done)(result.status());
      std::move(done)(EncodeResponse(*result, asked.has_value() ? &*asked : nullptr));
    });
  }
};

// Where TLS is on, connections end at longest_connection_age, and before that their streams, with a
// status that makes the client go on on a new one:
//   at g (gRPC moves it by a tenth)  no more calls are taken on the connection (GOAWAY);
//   when it is g old at most         each stream ends, on any connection;
//   1.1 g after the first            what is left is cut off.
// The three together are 2.1 g, give or take a tenth of g.
absl::Duration LongestStream(const RegistryServer::Options& options) {
  if (options.credentials == nullptr) return absl::InfiniteDuration();
  return options.longest_connection_age / 2.1;
}

int Millis(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, INT_MAX));
}

// Up to a fifth less, always the same for a stream: not all end at once.
int Jittered(int sweeps, const void* stream) {
  return sweeps - static_cast<int>(absl::HashOf(stream) % (static_cast<size_t>(sweeps) / 5 + 1));
}

absl::Status ShuttingDown() {
  return Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the server is stopping");
}

const char* TextOf(CallStats::Limit limit) {
  switch (limit) {
    case CallStats::Limit::kCalls:
      return "calls";
    case CallStats::Limit::kBulkBytes:
      return "bytes of large calls";
    case CallStats::Limit::kSubscriptions:
      return "subscriptions";
    case CallStats::Limit::kSubscriptionsPerConnection:
      return "subscriptions on one connection";
    case CallStats::Limit::kConnections:
      return "connections";
    case CallStats::Limit::kSilentStreams:
      return "streams without a message on one connection";
  }
  return "";
}

// The states of open streams of one kind, for the shutdown and the sweep.
template <typename State>
class OpenStreams {
 public:
  // False after Close(), which has not seen `state`.
  bool Add(const std::shared_ptr<State>& state) {
    MutexLock lock(&mu_);
    if (!closed_) states_.insert(state);
    return !closed_;
  }

  void Remove(const std::shared_ptr<State>& state) {
    MutexLock lock(&mu_);
    states_.erase(state);
  }

  std::vector<std::shared_ptr<State>> Open() {
    MutexLock lock(&mu_);
    return {states_.begin(), states_.end()};
  }

  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(states_.size());
  }

  std::set<std::shared_ptr<State>> Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    return std::exchange(states_, {});
  }

 private:
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<State>> states_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

class RegistryServer::Service final : public ServiceBase {
  using Method = CallStats::Method;
  using Limit = CallStats::Limit;

 public:
  Service(Registry* registry, const Options& options)
      : registry_(std::shared_ptr<void>(), registry),
        access_(options.access),
        batch_{BatchRequest(options.max_message_bytes, options.max_batch), options.max_batch},
        overload_delay_(options.overload_delay),
        max_bulk_bytes_(options.max_bulk_bytes),
        calls_(options.max_calls_in_flight),
        lists_of_readers_(static_cast<int>(
            SharedLimit{"calls", "limits.max_calls_in_flight", options.max_calls_in_flight}
                .share())),
        subscriptions_(options.max_subscriptions),
        subscriptions_of_owners_(static_cast<int>(
            SharedLimit{"subscriptions", "limits.max_subscriptions", options.max_subscriptions}
                .share())),
        subscriptions_per_connection_(options.max_subscriptions_per_connection) {
    for (const std::string& session_id : options.stream_sessions) {
      sessions_->Opened(session_id, /*ends_with_stream=*/true, Monotonic(),
                        Monotonic() + kLongestTtl);
    }
  }

  // Ends streams whose clients have stopped, and old ones: looks four times in each timeout.
  absl::Status StartSweep(const Options& options) {
    if (options.timer == nullptr) return absl::OkStatus();
    const absl::Duration oldest = LongestStream(options);
    const absl::Duration period =
        std::min({options.stalled_stream_timeout / kSweeps, options.silent_stream_timeout / kSweeps,
                  oldest / kSweepsOfAge});
    const auto sweeps = [period](absl::Duration timeout) {
      return static_cast<int>(
          std::clamp<int64_t>(absl::Ceil(timeout, period) / period, kSweeps, INT32_MAX));
    };
    auto sweep = PeriodicTask::Start(
        options.timer, period,
        [this, stalled = sweeps(options.stalled_stream_timeout),
         silent = sweeps(options.silent_stream_timeout), oldest = sweeps(oldest)] {
          for (const auto& state : subscribe_streams_.Open()) {
            state->Sweep(stalled, Jittered(oldest, state.get()));
          }
          // Answers to renewals are small, and few at a time.
          for (const auto& state : renewal_streams_.Open()) {
            state->Sweep(INT_MAX, silent, Jittered(oldest, state.get()));
          }
          for (const auto& state : register_streams_.Open()) {
            state->Sweep(stalled, silent, Jittered(oldest, state.get()));
          }
        });
    if (!sweep.ok()) return sweep.status();
    sweep_ = *std::move(sweep);
    return absl::OkStatus();
  }

  // Ends the streams and refuses what comes.
  void Stop() {
    stopping_ = true;
    if (sweep_ != nullptr) sweep_->Stop();
    for (const auto& state : subscribe_streams_.Close()) state->Abort(ShuttingDown());
    for (const auto& state : renewal_streams_.Close()) state->End(ShuttingDown());
    for (const auto& state : register_streams_.Close()) state->Drain(ShuttingDown());
  }

  Statistics Stats() const {
    Statistics stats;
    stats.calls = call_stats_.Take();
    stats.calls_in_flight = calls_.count();
    stats.subscriptions = subscribe_streams_.size();
    stats.renewal_streams = renewal_streams_.size();
    stats.register_streams = register_streams_.size();
    stats.bulk_bytes = bulk_bytes_;
    MutexLock lock(&reads_mu_);
    stats.reads_waiting = waiting_reads_.size();
    return stats;
  }

  // A connection was closed for want of descriptors.
  void ConnectionRefused() { call_stats_.Refused(Limit::kConnections); }

  // To be called when gRPC has ended all calls: from the return on the registry is not called.
  void Finish() {
    bulk_.reset();
    reads_.reset();
  }

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Unary<OpenSessionRequest, OpenSessionResponse>(
        *context, Method::kOpenSession, *request, response, &Registry::OpenSession,
        [sessions = sessions_](const OpenSessionRequest& request,
                               const OpenSessionResponse& opened) {
          const absl::Time now = Monotonic();
          sessions->Opened(opened.session_id(), request.ends_with_stream(), now,
                           now + FromProto(opened.ttl()));
        });
  }

  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Unary<CloseSessionRequest, CloseSessionResponse>(
        *context, Method::kCloseSession, *request, response, &Registry::CloseSession,
        [sessions = sessions_](const CloseSessionRequest& request, const CloseSessionResponse&) {
          sessions->Closed(request.session_id());
        });
  }

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return Sized<std::string>(*context, Method::kRegister, request, response,
                              WriteInBytes{Batch::Kind::kRegister, /*leave_out=*/false, batch_});
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RegisterStream(
      grpc::CallbackServerContext* context) override {
    const StreamPlace place = AdmitStream(*context, Method::kRegisterStream);
    auto state = std::make_shared<std::shared_ptr<RegisterStreamReactor::State>>();
    auto* reactor = new RegisterStreamReactor(
        context, &call_stats_, place.silent,
        [this, registry = place.registry, parent = TraceParentOf(context->client_metadata())](
            const grpc::ByteBuffer& request, Callback<std::string> done) {
          const ScopedTrace trace(parent);
          Place place = Admit(request);
          if (!place.refusal.ok()) return std::move(done)(place.refusal);
          CarryOut<std::string>(
              registry, request, WriteInBytes{Batch::Kind::kRegister, /*leave_out=*/true, batch_},
              [token = std::move(place.token),
               done = std::move(done)](absl::StatusOr<std::string> response) mutable {
                std::move(done)(std::move(response));
              },
              /*stay=*/true);
        },
        [this, state] { register_streams_.Remove(*state); });
    *state = reactor->state();
    if (!place.refusal.ok()) (*state)->End(place.refusal);
    if (!register_streams_.Add(*state)) (*state)->End(ShuttingDown());
    return reactor;
  }

  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return Sized<std::string>(*context, Method::kUnregister, request, response,
                              WriteInBytes{Batch::Kind::kUnregister, /*leave_out=*/false, batch_});
  }

  grpc::ServerUnaryReactor* Unsubscribe(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Unary<UnsubscribeRequest, UnsubscribeResponse>(*context, Method::kUnsubscribe, *request,
                                                          response, &Registry::Unsubscribe);
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override {
    return Unary<ListRequest, ListResponse>(*context, Method::kList, *request, response,
                                            &Registry::List);
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KeepAlive(
      grpc::CallbackServerContext* context) override {
    const StreamPlace place = AdmitStream(*context, Method::kKeepAlive);
    // The state is known only when the reactor is; OnDone comes after both.
    auto state = std::make_shared<std::shared_ptr<RenewalReactor::State>>();
    auto* reactor =
        new RenewalReactor(context, place.registry, sessions_, &call_stats_, place.silent,
                           ++last_stream_, [this, state](StreamSessions::StreamId id) {
                             renewal_streams_.Remove(*state);
                             EndSessionsOf(id, (*state)->swept());
                           });
    *state = reactor->state();
    if (!place.refusal.ok()) (*state)->End(place.refusal);
    if (!renewal_streams_.Add(*state)) (*state)->End(ShuttingDown());
    return reactor;
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Subscribe(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes) override {
    std::string owner;
    absl::StatusOr<std::shared_ptr<Registry>> registry =
        RegistryFor(*context, Method::kSubscribe, &owner);
    absl::Status refusal = registry.status();
    SubscribeRequest request;
    if (refusal.ok()) refusal = ParseWithin(kSmallRequest, *bytes, &request);
    Places places;
    if (refusal.ok()) {
      places = AllOrNone({subscriptions_.Enter(), subscriptions_of_owners_.Enter(owner),
                          subscriptions_per_connection_.Enter(ConnectionOf(context->peer()))});
    }
    if (places.full == 0) {
      refusal = Overloaded(Limit::kSubscriptions, subscriptions_.limit());
    } else if (places.full == 1) {
      refusal =
          Overloaded(Limit::kSubscriptions, subscriptions_of_owners_.limit(),
                     absl::StrCat(" (the share of one owner, of ", subscriptions_.limit(), ")"));
    } else if (places.full == 2) {
      refusal =
          Overloaded(Limit::kSubscriptionsPerConnection, subscriptions_per_connection_.limit());
    }
    auto state = std::make_shared<std::shared_ptr<SubscribeReactor::State>>();
    auto place = std::make_shared<Reads::Place>();
    auto* reactor = new SubscribeReactor(
        context, request, cache_, &call_stats_, [this, place] { return Withdraw(*place); },
        [this, state, held = std::move(places.held)] { subscribe_streams_.Remove(*state); });
    *state = reactor->state();
    if (!refusal.ok()) {
      (*state)->Started(refusal);
    } else if (!subscribe_streams_.Add(*state)) {
      (*state)->Started(ShuttingDown());
    } else {
      *place = Read(ReaderOf(*context, owner),
                    [reactor, registry = *std::move(registry), request = std::move(request)] {
                      reactor->Start(registry.get(), request);
                    });
    }
    return reactor;
  }

 private:
  using Reads = FairQueue<absl::AnyInvocable<void() &&>>;

  // A small call. `on_success`, if given, sees the response before the client.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Unary(
      const grpc::CallbackServerContext& context, Method name, const grpc::ByteBuffer& bytes,
      grpc::ByteBuffer* response, void (Registry::*method)(const Request&, Callback<Response>),
      std::function<void(const Request&, const Response&)> on_success = nullptr) {
    const ScopedTrace trace(TraceParentOf(context.client_metadata()));
    std::shared_ptr<void> token = calls_.Enter();
    absl::Status refusal;
    if (token == nullptr) refusal = Overloaded(Limit::kCalls, calls_.limit());
    if (stopping_) refusal = ShuttingDown();
    constexpr bool kIsList = std::is_same_v<Request, ListRequest>;
    std::string owner;
    const std::shared_ptr<Registry> registry =
        RegistryFor(context, name, &refusal, kIsList ? &owner : nullptr);
    std::string reader;
    std::shared_ptr<void> list;
    // Where the List waits, for its reactor.
    std::shared_ptr<Reads::Place> place;
    std::function<void()> on_cancel;
    if constexpr (kIsList) {
      reader = ReaderOf(context, owner);
      if (refusal.ok()) list = lists_of_readers_.Enter(reader);
      if (refusal.ok() && list == nullptr) {
        token.reset();  // while the refusal is on its way, however long
        refusal = Overloaded(Limit::kCalls, lists_of_readers_.limit(),
                             absl::StrCat(" (Lists of one ", owner.empty() ? "connection" : "owner",
                                          ", its share of ", calls_.limit(), " calls)"));
      }
      place = std::make_shared<Reads::Place>();
      on_cancel = [this, place] { Withdraw(*place); };
    }
    Request request;
    if (refusal.ok()) refusal = ParseWithin(kSmallRequest, bytes, &request);
    // Where callers have no names, none may take one.
    if constexpr (std::is_same_v<Request, OpenSessionRequest>) {
      if (access_ == nullptr) request.clear_owner();
    }
    typename UnaryReactor<Response, grpc::ByteBuffer>::Hook hook;
    if (on_success != nullptr) {
      hook = [request, on_success = std::move(on_success)](const Response& response) {
        on_success(request, response);
      };
    }
    return UnaryReactor<Response, grpc::ByteBuffer>::Run(
        response, std::move(token), {&call_stats_, name},
        [&](Callback<Response> done) {
          if (!refusal.ok()) return std::move(done)(refusal);
          if constexpr (kIsList) {
            done = [list = std::move(list),
                    done = std::move(done)](absl::StatusOr<Response> response) mutable {
              list.reset();  // before the caller can ask again
              std::move(done)(std::move(response));
            };
            *place = ListElsewhere(reader, registry, std::move(request), std::move(done));
            return;
          }
          (registry.get()->*method)(request, std::move(done));
        },
        std::move(hook), std::move(on_cancel));
  }

  // What a read costs is its caller's choice: large sets, filters that match little. So reads have
  // threads of their own, and those that serve connections are free to renew sessions: an instance
  // that lives does not expire because others read. Readers take turns on these threads.
  Reads::Place Read(const std::string& reader, absl::AnyInvocable<void() &&> read) {
    Reads::Place place;
    {
      MutexLock lock(&reads_mu_);
      place = waiting_reads_.Push(reader, std::move(read));
      if (reading_ == BulkThreads()) return place;
      ++reading_;
    }
    reads_->Execute([this] { CarryOutReads(); });
    return place;
  }

  // Carries out what waits, until nothing does.
  void CarryOutReads() {
    reads_mu_.Lock();
    while (!waiting_reads_.empty()) {
      Reads::Taken next = waiting_reads_.Pop();
      reads_mu_.Unlock();
      std::move(next.task)();
      next.task = nullptr;
      reads_mu_.Lock();
      waiting_reads_.Done(next.owner);
    }
    --reading_;
    reads_mu_.Unlock();
  }

  // The client of a read has gone: one that still waits is not carried out, and gives up its places
  // at once. False: it does not wait.
  bool Withdraw(const Reads::Place& place) {
    std::optional<absl::AnyInvocable<void() &&>> read;  // goes without the lock
    MutexLock lock(&reads_mu_);
    read = waiting_reads_.Remove(place);
    return read.has_value();
  }

  // Who takes turns: the owner, or where callers have no names, the connection.
  static std::string ReaderOf(const grpc::CallbackServerContext& context,
                              const std::string& owner) {
    return owner.empty() ? ConnectionOf(context.peer()) : owner;
  }

  Reads::Place ListElsewhere(const std::string& reader, std::shared_ptr<Registry> registry,
                             ListRequest request, Callback<ListResponse> done) {
    return Read(reader, [this, registry = std::move(registry), request = std::move(request),
                         parent = CurrentTrace(), done = std::move(done)]() mutable {
      const ScopedTrace trace(std::move(parent));
      if (stopping_) return std::move(done)(ShuttingDown());
      Guarded([&] { registry->List(request, std::move(done)); }).IgnoreError();
    });
  }

  // A call on encoded messages, carried out by `call(registry, request, done)`.
  template <typename Response, typename Call>
  grpc::ServerUnaryReactor* Sized(const grpc::CallbackServerContext& context, Method name,
                                  const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                  Call call) {
    const ScopedTrace trace(TraceParentOf(context.client_metadata()));
    Place place = Admit(*request);
    std::shared_ptr<Registry> registry = RegistryFor(context, name, &place.refusal);
    return UnaryReactor<Response, grpc::ByteBuffer>::Run(
        response, std::move(place.token), {&call_stats_, name}, [&](Callback<Response> done) {
          if (!place.refusal.ok()) return std::move(done)(place.refusal);
          CarryOut(std::move(registry), *request, std::move(call), std::move(done));
        });
  }

  // A place among the calls under way, kept until the registry has answered, or why there is none.
  struct Place {
    std::shared_ptr<void> token;
    absl::Status refusal;
  };

  // What a stream begins with. Until it has been of use it takes one of few places that its
  // connection has: what is only begun is kept small.
  struct StreamPlace {
    std::shared_ptr<Registry> registry;  // as the caller may use it; not used after a refusal
    std::shared_ptr<void> silent;
    absl::Status refusal;
  };

  StreamPlace AdmitStream(const grpc::CallbackServerContext& context, Method name) {
    StreamPlace place{registry_, silent_streams_.Enter(ConnectionOf(context.peer())),
                      absl::OkStatus()};
    if (place.silent == nullptr) {
      place.refusal = Overloaded(Limit::kSilentStreams, silent_streams_.limit());
    }
    // Who may do nothing at all may not keep a stream either.
    if (place.refusal.ok() && access_ != nullptr) {
      place.refusal = access_->CheckAny(context, CallStats::MethodName(name));
    }
    if (auto registry = RegistryFor(context, name, &place.refusal); registry != nullptr) {
      place.registry = std::move(registry);
    }
    return place;
  }

  static bool IsBulk(const grpc::ByteBuffer& request) {
    return request.Length() > kLargestSmallRequest;
  }

  Place Admit(const grpc::ByteBuffer& request) {
    Place place{calls_.Enter(), absl::OkStatus()};
    if (place.token == nullptr) place.refusal = Overloaded(Limit::kCalls, calls_.limit());
    if (IsBulk(request) && bulk_bytes_ + static_cast<int64_t>(request.Length()) > max_bulk_bytes_) {
      place.refusal = Overloaded(Limit::kBulkBytes, max_bulk_bytes_);
    }
    if (stopping_) place.refusal = ShuttingDown();
    return place;
  }

  // Calls `call(registry, request, done)`: at once if the request is small, else on the threads for
  // bulk. With `stay` a large one stays on this thread if no other is under way and it is not that
  // large: to change threads costs as much as to store many instances. So at most one thread that
  // serves connections is with bulk.
  template <typename Response, typename Call>
  void CarryOut(std::shared_ptr<Registry> registry, const grpc::ByteBuffer& request, Call call,
                Callback<Response> done, bool stay = false) {
    if (!IsBulk(request)) return call(registry.get(), request, std::move(done));
    const auto size = static_cast<int64_t>(request.Length());
    std::shared_ptr<void> under_way = bulk_calls_.Enter();
    if (stay && bulk_calls_.count() == 1 && request.Length() <= kLargestMessageHere) {
      return call(registry.get(), request, std::move(done));
    }
    bulk_bytes_ += size;
    bulk_->Execute([this, under_way = std::move(under_way), registry = std::move(registry), request,
                    size, call = std::move(call), parent = CurrentTrace(),
                    done = std::move(done)]() mutable {
      const ScopedTrace trace(std::move(parent));
      bulk_bytes_ -= size;
      if (stopping_) return std::move(done)(ShuttingDown());
      Guarded([&] { call(registry.get(), request, std::move(done)); }).IgnoreError();
    });
  }

  // `most`: how many there may be; `of_what`, if not of all.
  absl::Status Overloaded(Limit limit, int64_t most, const std::string& of_what = "") {
    call_stats_.Refused(limit);
    return WithRetryDelay(
        Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                absl::StrCat("too many ", TextOf(limit), " at once, at most ", most, of_what,
                             " are allowed; try again in ", absl::FormatDuration(overload_delay_)),
                {{"limit", absl::StrCat(most)}}),
        overload_delay_);
  }

  // The KeepAlive stream `id` has ended: its process has gone, unless it is the server that stops,
  // or that has ended the stream for its silence.
  void EndSessionsOf(StreamSessions::StreamId id, bool silent) {
    if (stopping_) return;
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

  // As RegistryFor; an error goes to `refusal`, and with one already there it is not looked for.
  std::shared_ptr<Registry> RegistryFor(const grpc::ServerContextBase& context, Method name,
                                        absl::Status* refusal, std::string* owner = nullptr) {
    if (!refusal->ok()) return nullptr;
    absl::StatusOr<std::shared_ptr<Registry>> registry = RegistryFor(context, name, owner);
    *refusal = registry.status();
    return registry.ok() ? *std::move(registry) : nullptr;
  }

  // The registry as the caller may use it; an error: its credentials are not accepted. `owner` is
  // how it is known, if callers are distinguished.
  absl::StatusOr<std::shared_ptr<Registry>> RegistryFor(const grpc::ServerContextBase& context,
                                                        Method name, std::string* owner = nullptr) {
    if (access_ == nullptr) return registry_;
    absl::StatusOr<Identity> caller = access_->Identify(context, CallStats::MethodName(name));
    if (!caller.ok()) return caller.status();
    if (owner != nullptr) *owner = caller->OwnerTag();
    return std::make_shared<GuardedRegistry>(registry_.get(), access_, *std::move(caller));
  }

  const std::shared_ptr<Registry> registry_;     // not owned
  const std::shared_ptr<AccessControl> access_;  // null: everybody may do everything
  const Batch::Limits batch_;
  const absl::Duration overload_delay_;
  const int64_t max_bulk_bytes_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> bulk_bytes_ = 0;
  std::atomic<StreamSessions::StreamId> last_stream_ = 0;
  static constexpr int kSweeps = 4;
  static constexpr int kSweepsOfAge = 10;

  CallStats call_stats_;
  Gauge calls_;
  Gauge bulk_calls_{0};          // no limit; under way, as `call` has not returned
  KeyedGauge lists_of_readers_;  // waiting or under way
  Gauge subscriptions_;
  KeyedGauge subscriptions_of_owners_;
  KeyedGauge subscriptions_per_connection_;
  KeyedGauge silent_streams_{kSilentStreamsPerConnection};
  // Callbacks that the registry holds may outlive the server.
  const std::shared_ptr<StreamSessions> sessions_ = std::make_shared<StreamSessions>();
  const std::shared_ptr<EventCache> cache_ = std::make_shared<EventCache>();
  OpenStreams<SubscribeReactor::State> subscribe_streams_;
  OpenStreams<RenewalReactor::State> renewal_streams_;
  OpenStreams<RegisterStreamReactor::State> register_streams_;
  std::unique_ptr<ThreadPool> bulk_ = std::make_unique<ThreadPool>(BulkThreads());
  mutable Mutex reads_mu_;
  Reads waiting_reads_ ABSL_GUARDED_BY(reads_mu_);
  int reading_ ABSL_GUARDED_BY(reads_mu_) = 0;  // threads that carry them out
  std::unique_ptr<ThreadPool> reads_ = std::make_unique<ThreadPool>(BulkThreads());
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
  const int ping_ms = static_cast<int>(absl::ToInt64Milliseconds(options.ping_interval));
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  if (options.idle_connection_timeout < absl::InfiniteDuration()) {
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_IDLE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(options.idle_connection_timeout)));
  }
  if (const absl::Duration oldest = LongestStream(options); oldest < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Millis(oldest));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Millis(1.1 * oldest));
  }
  if (options.max_streams_per_connection > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  }
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  // gRPC checks the size of a message before it inflates it, not after.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetMaxSendMessageSize(-1);
  std::vector<std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor>> doors;
  for (const ListenAddress& listen : server->listen_) {
    // A Unix socket does not leave the machine; its mode says who may connect.
    const bool tls = options.credentials != nullptr && !listen.address().is_unix();
    doors.push_back(builder.experimental().AddExternalConnectionAcceptor(
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
  ConnectionAcceptor::Options acceptor;
  acceptor.unacknowledged_timeout = options.ping_interval;
  acceptor.on_refused = [service = server->service_.get()] { service->ConnectionRefused(); };
  for (size_t i = 0; i < doors.size(); ++i) {
    auto sockets = server->listen_[i].Listen();
    if (!sockets.ok()) return sockets.status();
    for (const int socket : *sockets) {
      acceptor.listeners.push_back(
          {socket, [door = doors[i]](int listener, int fd) {
             grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
             connection.listener_fd = listener;
             connection.fd = fd;
             door->HandleNewConnection(&connection);
           }});
    }
    server->addresses_.push_back(server->listen_[i].text());
  }
  if (auto status = server->service_->StartSweep(options); !status.ok()) return status;
  server->SetServing(true);
  auto accepting = ConnectionAcceptor::Start(std::move(acceptor));
  if (!accepting.ok()) return accepting.status();
  server->acceptor_ = *std::move(accepting);
  return server;
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
  // are sent elsewhere.
  absl::SleepFor(std::min(grace, kFarewell));
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  service_->Finish();
}

}  // namespace failback
