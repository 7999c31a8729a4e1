#include "gateway/xds/ads_service.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gateway/xds/response_encoding.h"
#include "gateway/xds/service_name.h"
#include "registry/base/log.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/model/shared_limit.h"
#include "registry/model/validation.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/grpc_threads.h"

namespace failback::xds {
namespace {

using envoy::service::discovery::v3::DiscoveryRequest;

// What a client is asked to wait when there are too many.
constexpr absl::Duration kOverloadDelay = absl::Seconds(5);

// Of one request: names, and what the client says of itself.
constexpr WireBounds kRequest{4 << 20, 64 << 10};

// Who a stream's names are charged to: the caller, or, where callers are not distinguished, where
// it comes from.
std::string ClientOf(const grpc::CallbackServerContext& context, const Identity& caller) {
  if (caller.kind != Identity::Kind::kAnonymous) return caller.OwnerTag();
  std::string peer = context.peer();
  return peer.rfind("unix:", 0) == 0 ? "unix" : peer.substr(0, peer.rfind(':'));
}

absl::Status TooMany(const char* what, int64_t limit) {
  return WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_OVERLOADED,
              absl::StrCat("too many ", what, " at once, at most ", limit, " are allowed"),
              {{"limit", absl::StrCat(limit)}}),
      kOverloadDelay);
}

ServiceCache::Options WithExecutor(ServiceCache::Options options, Executor* executor) {
  options.executor = executor;
  return options;
}

}  // namespace

// One stream. gRPC owns the reactor, which goes at OnDone; the cache may hold this for longer.
class AdsService::Stream final : public ServiceCache::Follower,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(AdsService* service, Reactor* reactor, Identity caller, std::string client,
         std::shared_ptr<void> silent)
      : service_(service),
        caller_(std::move(caller)),
        client_(std::move(client)),
        silent_(std::move(silent)),
        reactor_(reactor),
        state_(service->version_prefix_) {}

  void Begin() {
    MutexLock lock(&mu_);
    Advance();
  }

  // The request under way has been read, or there is none any more.
  void OnRead(bool ok, const grpc::ByteBuffer& bytes) {
    if (!ok) return End(absl::OkStatus());
    DiscoveryRequest request;
    if (absl::Status parsed = ParseWithin(kRequest, bytes, &request); !parsed.ok()) {
      return End(parsed);
    }
    StreamState::Step step;
    {
      MutexLock lock(&mu_);
      if (reactor_ == nullptr || end_.has_value()) return;
      silent_.reset();  // before any answer: who has one may open the next stream
      step = state_.OnRequest(request);
      service_->Note(state_, request, step.kind);
    }
    // Not under the lock: the cache may notify at once.
    for (const std::string& name : step.follow) {
      absl::Status status = Guard(name);
      if (status.ok()) status = service_->cache_.Follow(name, shared_from_this());
      if (!status.ok()) return End(status);
    }
    for (const std::string& name : step.unfollow) {
      service_->cache_.Unfollow(name, shared_from_this());
      Unguard(name);
    }
    if (!step.error.ok()) return End(step.error);
    MutexLock lock(&mu_);
    reading_ = false;
    Advance();
  }

  void OnWritten(bool ok) {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = absl::CancelledError("the client has gone");
    Advance();
  }

  void OnServiceChanged(const std::string& name) override {
    MutexLock lock(&mu_);
    state_.Changed(name);
    Advance();
  }

  void End(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
    Advance();
  }

  // Nothing is read any more.
  void Done() {
    while (!followed_.empty()) {
      const std::string name = followed_.begin()->first;
      service_->cache_.Unfollow(name, shared_from_this());
      Unguard(name);
    }
  }

 private:
  // Notes that `name` is followed, unless the caller may not read it. The stream ends when new
  // rules take that back.
  absl::Status Guard(const std::string& name) {
    if (absl::Status status = service_->Count(client_); !status.ok()) return status;
    AccessControl::WatchId& watch = followed_[name];
    AccessControl* const access = service_->options_.access.get();
    const absl::StatusOr<Selector> selector = ParseServiceName(name);
    // What is no service has nothing to read.
    if (access == nullptr || !selector.ok()) return absl::OkStatus();
    auto judge = [caller = caller_, ns = selector->namespace_(),
                  service = selector->service()](const AccessRules& rules) {
      return rules.Judge(caller, config::v1::PERMISSION_READ, ns.empty() ? kDefaultNamespace : ns,
                         service);
    };
    watch = access->Watch(judge, [stream = weak_from_this()](const absl::Status& status) {
      if (const auto open = stream.lock()) open->End(status);
    });
    absl::Status status = judge(*access->rules());
    if (status.ok()) return status;
    return access->Denied(caller_, "Discover", config::v1::PERMISSION_READ, std::move(status));
  }

  void Unguard(const std::string& name) {
    const auto found = followed_.find(name);
    if (found == followed_.end()) return;
    if (found->second != 0) service_->options_.access->Unwatch(found->second);
    followed_.erase(found);
    service_->Uncount(client_);
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  AdsService* const service_;
  const Identity caller_;
  const std::string client_;
  // With the watch of each, or 0. Used by one read at a time, and after the last.
  std::map<std::string, AccessControl::WatchId> followed_;
  Mutex mu_;
  std::shared_ptr<void> silent_ ABSL_GUARDED_BY(mu_);  // null once it was not, and at the end
  Reactor* reactor_ ABSL_GUARDED_BY(mu_);              // null once finished
  StreamState state_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

class AdsService::Reactor final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Reactor(AdsService* service, Identity caller, std::string client, std::shared_ptr<void> place,
          std::shared_ptr<void> silent)
      : service_(service),
        place_(std::move(place)),
        stream_(std::make_shared<Stream>(service, this, std::move(caller), std::move(client),
                                         std::move(silent))) {}

  const std::shared_ptr<Stream>& stream() const { return stream_; }
  grpc::ByteBuffer* read_buffer() { return &read_; }

 private:
  void OnReadDone(bool ok) override { stream_->OnRead(ok, read_); }
  void OnWriteDone(bool ok) override { stream_->OnWritten(ok); }
  void OnCancel() override { stream_->End(absl::CancelledError("the client has gone")); }
  void OnDone() override {
    stream_->Done();
    {
      MutexLock lock(&service_->mu_);
      service_->streams_.erase(stream_);
    }
    delete this;
  }

  AdsService* const service_;
  const std::shared_ptr<void> place_;  // among the streams of its caller
  const std::shared_ptr<Stream> stream_;
  grpc::ByteBuffer read_;
};

void AdsService::Stream::Advance() {
  if (reactor_ == nullptr) return;
  if (!end_.has_value()) {
    if (!writing_) {
      const auto source = [this](ResourceType type, const std::string& name)
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                return service_->cache_.Find(type, name, state_.zone());
                              };
      if (const auto response = state_.Next(source)) {
        ++service_->responses_;
        written_ = EncodeResponse(*response);
        writing_ = true;
        reactor_->StartWrite(&written_);
      }
    }
    if (!reading_) {
      reading_ = true;
      reactor_->StartRead(reactor_->read_buffer());
    }
    return;
  }
  silent_.reset();
  if (!writing_) std::exchange(reactor_, nullptr)->Finish(StatusToGrpc(*end_));
}

AdsService::AdsService(Registry* registry, const Options& options)
    : options_(options),
      version_prefix_(absl::StrCat(RandomId().substr(0, 8), "-")),
      streams_of_callers_(static_cast<int>(SharedLimit{"discovery streams", "of this server",
                                                       static_cast<int64_t>(options.max_streams)}
                                               .share())),
      cache_(registry, WithExecutor(options.cache, &executor_)) {
  KeepGrpcCallbackThreads();
}

AdsService::~AdsService() = default;

void AdsService::Stop() {
  std::set<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    streams = streams_;
  }
  for (const auto& stream : streams) {
    stream->End(
        Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the discovery server is stopping"));
  }
}

AdsService::Statistics AdsService::Stats() const {
  Statistics statistics;
  {
    MutexLock lock(&mu_);
    statistics = statistics_;
    statistics.responses = responses_;
    statistics.streams = static_cast<int64_t>(streams_.size());
  }
  statistics.cache = cache_.Stats();
  return statistics;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AdsService::StreamAggregatedResources(
    grpc::CallbackServerContext* context) {
  constexpr char kCall[] = "StreamAggregatedResources";
  absl::StatusOr<Identity> caller = Identity();
  if (options_.access != nullptr) caller = options_.access->Identify(*context, kCall);
  const Identity known = caller.value_or(Identity());
  const bool named = known.kind != Identity::Kind::kAnonymous;
  std::shared_ptr<void> place = streams_of_callers_.Enter(named ? known.OwnerTag() : "");
  std::shared_ptr<void> silent = silent_streams_.Enter(ConnectionOf(context->peer()));
  absl::Status room;
  if (place == nullptr) {
    room = TooMany("discovery streams of one caller", streams_of_callers_.limit());
  } else if (silent == nullptr) {
    room =
        TooMany("discovery streams without a request on one connection", silent_streams_.limit());
  }
  auto* reactor =
      new Reactor(this, known, ClientOf(*context, known), std::move(place), std::move(silent));
  const std::shared_ptr<Stream> stream = reactor->stream();
  absl::Status refusal = caller.status();
  if (refusal.ok() && options_.access != nullptr) {
    refusal = options_.access->CheckAny(*context, kCall);
  }
  if (refusal.ok()) refusal = room;
  {
    MutexLock lock(&mu_);
    if (!refusal.ok()) {
      // Not let in.
    } else if (stopped_) {
      refusal =
          Refusal(registry::v1::ERROR_REASON_SHUTTING_DOWN, "the discovery server is stopping");
    } else if (streams_.size() >= options_.max_streams) {
      refusal = TooMany("discovery streams", static_cast<int64_t>(options_.max_streams));
    } else {
      streams_.insert(stream);
    }
  }
  if (refusal.ok()) {
    stream->Begin();
  } else {
    stream->End(refusal);
  }
  return reactor;
}

absl::Status AdsService::Count(const std::string& client) {
  const size_t most = options_.max_names_per_client();
  MutexLock lock(&mu_);
  size_t& names = names_[client];
  if (names < most) {
    ++names;
    return absl::OkStatus();
  }
  return Refusal(
      registry::v1::ERROR_REASON_LIMIT_REACHED,
      absl::StrCat("this client follows ", most, " services over xDS, the most that one may"),
      {{"limit", absl::StrCat(most)}});
}

void AdsService::Uncount(const std::string& client) {
  MutexLock lock(&mu_);
  const auto it = names_.find(client);
  if (--it->second == 0) names_.erase(it);
}

void AdsService::Note(const StreamState& state, const DiscoveryRequest& request,
                      StreamState::Kind kind) {
  const std::optional<ResourceType> type = TypeOfUrl(request.type_url());
  {
    MutexLock lock(&mu_);
    if (kind == StreamState::Kind::kAck) ++statistics_.acks;
    if (kind == StreamState::Kind::kNack) {
      ++statistics_.nacks;
      statistics_.last_nack = Nack{absl::Now(), state.node_id(), state.user_agent(), *type,
                                   request.error_detail().message()};
    }
  }
  if (kind == StreamState::Kind::kNack) {
    refused_log_.Log(LogLevel::kError, "xds client refused a response",
                     {{"node", state.node_id()},
                      {"client", state.user_agent()},
                      {"type", TypeName(*type)},
                      {"kept", request.version_info()},
                      {"reason", request.error_detail().message()}});
  }
}

}  // namespace failback::xds
