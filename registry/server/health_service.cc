#include "registry/server/health_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "registry/model/errors.h"
#include "registry/rpc/bounded_call.h"
#include "registry/rpc/bounded_parse.h"
#include "registry/rpc/byte_buffers.h"
#include "registry/server/refusals.h"

namespace failback {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Services are called so, and not longer.
constexpr size_t kMaxName = 256;

absl::Status CheckName(const std::string& name) {
  if (name.size() <= kMaxName) return absl::OkStatus();
  return InvalidField("service", absl::StrCat("is ", name.size(), " bytes long, at most ", kMaxName,
                                              " are allowed"));
}

// Of a peer, as `ipv4:10.0.0.1:4711`, what is the same for all its connections.
std::string AddressOf(const std::string& peer) {
  return peer.rfind("unix:", 0) == 0 ? peer : peer.substr(0, peer.rfind(':'));
}

grpc::ByteBuffer Encoded(HealthCheckResponse::ServingStatus state) {
  HealthCheckResponse response;
  response.set_status(state);
  return EncodedMessage(response);
}

}  // namespace

// One Watch, which gRPC owns until OnDone: then it is let go here.
class HealthService::Watcher final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                                     public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(HealthService* service, std::string name, std::vector<std::shared_ptr<void>> permits)
      : service_(service), name_(std::move(name)), permits_(std::move(permits)) {}

  // To be called once before gRPC has it.
  void Hold() { self_ = shared_from_this(); }

  void Notify(State state) {
    MutexLock lock(&mu_);
    next_ = state;
    Advance();
  }

  // After what is still to be sent.
  void End(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
    Advance();
  }

 private:
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) EndDisconnected();
    Advance();
  }
  void OnCancel() override {
    MutexLock lock(&mu_);
    EndDisconnected();
    Advance();
  }
  void OnDone() override {
    service_->Remove(name_, self_);
    permits_.clear();
    const std::shared_ptr<Watcher> last = std::move(self_);
  }

  void EndDisconnected() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    next_.reset();
    if (!end_.has_value()) end_ = Disconnected();
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    if (next_.has_value() && next_ != sent_) {
      sent_ = *next_;
      response_ = Encoded(*std::exchange(next_, std::nullopt));
      writing_ = true;
      return StartWrite(&response_);
    }
    next_.reset();
    if (!end_.has_value()) return;
    finished_ = true;
    Finish(StatusToGrpc(*end_));
  }

  HealthService* const service_;
  const std::string name_;
  std::vector<std::shared_ptr<void>> permits_;
  std::shared_ptr<Watcher> self_;
  Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<State> next_ ABSL_GUARDED_BY(mu_);  // still to be sent: the newest only
  std::optional<State> sent_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer response_;
};

HealthService::HealthService(const Options& options)
    : options_(options),
      watches_(options.max_watches),
      watches_of_addresses_(options.max_watches_per_address),
      watches_of_connections_(options.max_watches_per_connection) {}

HealthService::~HealthService() = default;

HealthService::State HealthService::StateOf(const std::string& name) const {
  const auto it = serving_.find(name);
  if (it == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return it->second && !stopped_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Set(const std::string& name, bool serving) {
  // Notified under the lock, so that two changes come in their order; a watcher only notes them.
  MutexLock lock(&mu_);
  serving_[name] = serving;
  const auto it = watchers_.find(name);
  if (it == watchers_.end()) return;
  for (const auto& watcher : it->second) watcher->Notify(StateOf(name));
}

void HealthService::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  for (const auto& [name, watchers] : watchers_) {
    for (const auto& watcher : watchers) {
      watcher->Notify(StateOf(name));
      watcher->End(ShuttingDown());
    }
  }
}

void HealthService::Remove(const std::string& name, const std::shared_ptr<Watcher>& watcher) {
  MutexLock lock(&mu_);
  const auto it = watchers_.find(name);
  if (it == watchers_.end()) return;
  it->second.erase(watcher);
  if (it->second.empty()) watchers_.erase(it);
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return BoundedCall<HealthCheckRequest, HealthCheckResponse>(
      context, *request, response, absl::OkStatus(),
      [this](const HealthCheckRequest& request, Callback<HealthCheckResponse> done) {
        if (auto status = CheckName(request.service()); !status.ok()) {
          return std::move(done)(status);
        }
        HealthCheckResponse found;
        {
          MutexLock lock(&mu_);
          found.set_status(StateOf(request.service()));
        }
        if (found.status() == HealthCheckResponse::SERVICE_UNKNOWN) {
          return std::move(done)(absl::NotFoundError("there is no such service"));
        }
        std::move(done)(std::move(found));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  HealthCheckRequest request;
  absl::Status status = ParseWithin(kSmallRequest, *bytes, &request);
  if (status.ok()) status = CheckName(request.service());
  Permits permits;
  if (status.ok()) {
    const std::string peer = context->peer();
    permits = AllOrNone({watches_.Enter(), watches_of_addresses_.Enter(AddressOf(peer)),
                         watches_of_connections_.Enter(ConnectionOf(peer))});
  }
  if (permits.full.has_value()) {
    const std::pair<const char*, int> limits[] = {
        {"", watches_.limit()},
        {" from one address", watches_of_addresses_.limit()},
        {" on one connection", watches_of_connections_.limit()},
    };
    const auto& [where, limit] = limits[*permits.full];
    status = WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                                    absl::StrCat("too many watches at once", where, ", at most ",
                                                 limit, " are allowed"),
                                    {{"limit", absl::StrCat(limit)}}),
                            options_.overload_delay);
  }
  auto watcher = std::make_shared<Watcher>(this, status.ok() ? request.service() : std::string(),
                                           std::move(permits.held));
  watcher->Hold();
  if (!status.ok()) {
    watcher->End(status);
    return watcher.get();
  }
  MutexLock lock(&mu_);
  watchers_[request.service()].insert(watcher);
  watcher->Notify(StateOf(request.service()));
  if (stopped_) {
    watcher->End(ShuttingDown());
  }
  return watcher.get();
}

}  // namespace failback
