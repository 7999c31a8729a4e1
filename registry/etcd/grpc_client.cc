#include "registry/etcd/grpc_client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "registry/base/log.h"
#include "registry/base/steady_time.h"
#include "registry/etcd/error.h"
#include "registry/etcd/grpc_stream.h"
#include "registry/rpc/byte_buffers.h"
#include "retry/clock.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::AuthenticateRequest;
using etcdserverpb::AuthenticateResponse;
using etcdserverpb::LeaseGrantRequest;
using etcdserverpb::LeaseGrantResponse;
using etcdserverpb::LeaseKeepAliveRequest;
using etcdserverpb::LeaseKeepAliveResponse;
using etcdserverpb::LeaseRevokeRequest;
using etcdserverpb::LeaseRevokeResponse;
using etcdserverpb::LeaseTimeToLiveRequest;
using etcdserverpb::LeaseTimeToLiveResponse;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using etcdserverpb::WatchRequest;
using etcdserverpb::WatchResponse;

absl::Status Closed() { return absl::CancelledError("the etcd client is closed"); }

// Answers whose revision is that of the whole cluster, not of what one member has seen of it.
template <typename Response>
constexpr bool kLinearizable =
    std::is_same_v<Response, RangeResponse> || std::is_same_v<Response, TxnResponse>;

}  // namespace

struct GrpcClient::Delayed {
  absl::AnyInvocable<void() &&> task;
  Timeout timeout;
};

// One unary call, through all its attempts. Kept alive by the thread that runs its next step.
template <typename Request, typename Response>
struct GrpcClient::Call : std::enable_shared_from_this<Call<Request, Response>> {
  using Start = void (*)(const Member&, grpc::ClientContext*, const Request*, Response*,
                         std::function<void(grpc::Status)>);

  GrpcClient* client;
  Request request;
  Response response;
  Done<Response> done;
  Start start;
  bool authenticates = false;  // the call that fetches a token needs none

  const int64_t begin_nanos = Clock::Real()->NowNanos();
  SteadyTime deadline;
  std::unique_ptr<grpc::ClientContext> context;
  std::shared_ptr<const Member> member;
  std::string token;
  size_t attempts = 0;
  bool token_renewed = false;
  int64_t known_revision = 0;

  void Finish(absl::StatusOr<Response> result) {
    // What the callback holds goes with it, while the call still counts as under way.
    client->Ended(result.status(), Clock::Real()->NowNanos() - begin_nanos);
    Done<Response> taken = std::move(done);
    std::move(taken)(std::move(result));
  }

  void Attempt() {
    if (authenticates) return AttemptWith(std::string());
    client->GetToken([self = this->shared_from_this()](absl::StatusOr<std::string> token) {
      if (!token.ok()) return self->Finish(token.status());
      self->AttemptWith(*std::move(token));
    });
  }

  void AttemptWith(std::string with_token) {
    token = std::move(with_token);
    ++attempts;
    auto next = std::make_unique<grpc::ClientContext>();
    Prepare(token, next.get());
    const absl::Duration left = deadline - SteadyNow();
    next->set_deadline(absl::ToChronoTime(
        absl::Now() + std::clamp(client->options_.attempt_timeout, absl::Milliseconds(1),
                                 std::max(left, absl::Milliseconds(1)))));
    response.Clear();
    known_revision = client->KnownRevision();
    member = client->Pick();
    context = std::move(next);
    if (!client->Enter(context.get())) return Finish(Closed());
    (*start)(*member, context.get(), &request, &response,
             [self = this->shared_from_this()](const grpc::Status& status) {
               // Whatever follows happens while the call counts as under way.
               grpc::ClientContext* const entered = self->context.get();
               const std::unique_ptr<grpc::ClientContext> keep = std::move(self->context);
               GrpcClient* const client = self->client;
               {
                 const Frame frame(client);
                 self->OnStatus(FromEtcd(status));
               }
               client->Leave(entered);
             });
  }

  void OnStatus(const absl::Status& status) {
    if (status.ok()) {
      if constexpr (kLinearizable<Response>) {
        client->NoteHeader(known_revision, response.header());
      }
      return Finish(std::move(response));
    }
    const bool needs_token =
        ErrorOf(status) == Error::kInvalidToken ||
        // Authentication has been switched on since.
        (ErrorOf(status) == Error::kAuthFailed && token.empty() && !client->options_.user.empty());
    if (needs_token && !authenticates && !token_renewed) {
      token_renewed = true;
      client->DropToken(token);
      return Attempt();
    }
    const size_t members = client->options_.endpoints.size();
    const bool round = attempts % members == 0;
    const absl::Duration pause = round ? client->options_.round_delay : absl::ZeroDuration();
    if (!IsTransient(status) || client->closed() || SteadyNow() + pause >= deadline) {
      if (absl::IsDeadlineExceeded(status)) {
        return Finish(absl::UnavailableError(
            absl::StrCat("no member of etcd has answered within ",
                         absl::FormatDuration(client->options_.call_timeout))));
      }
      return Finish(client->closed() ? Closed() : status);
    }
    client->Report(*member, status);
    if (!round) return Attempt();
    client->After(pause, [self = this->shared_from_this()] { self->Attempt(); });
  }
};

void GrpcClient::Ended(const absl::Status& status, int64_t nanos) {
  if (!absl::IsCancelled(status)) NoteAnswer(status);
  const auto place = static_cast<size_t>(status.code());
  ended_[place < ended_.size() ? place : 2].fetch_add(1, std::memory_order_relaxed);  // 2: UNKNOWN
  duration_nanos_.Observe(nanos);
}

void GrpcClient::NoteAnswer(const absl::Status& status) {
  const bool answers = !absl::IsUnavailable(status);
  if (answers_.load(std::memory_order_relaxed) == answers ||
      answers_.exchange(answers) == answers) {
    return;
  }
  if (answers) {
    Log(LogLevel::kInfo, "etcd answers again");
  } else {
    Log(LogLevel::kError, "etcd does not answer: calls are refused until it does",
        {{"members", absl::StrJoin(options_.endpoints, ",")},
         {"error", std::string(status.message())}});
  }
}

GrpcClient::Statistics GrpcClient::Stats() const {
  Statistics stats;
  for (size_t code = 0; code < ended_.size(); ++code) {
    stats.ended[code] = ended_[code].load(std::memory_order_relaxed);
  }
  stats.duration_nanos = duration_nanos_.Snapshot();
  MutexLock lock(&token_mu_);
  stats.tokens = tokens_;
  return stats;
}

GrpcClient::GrpcClient(Options options)
    : options_(std::move(options)),
      clock_(options_.timer->clock()),
      channels_(options_.endpoints, options_.channel) {
  members_.resize(options_.endpoints.size());
}

GrpcClient::~GrpcClient() { Close(); }

template <typename Request, typename Response, typename Start>
void GrpcClient::Unary(Request request, Done<Response> done, Start start) {
  auto call = std::make_shared<Call<Request, Response>>();
  call->client = this;
  call->request = std::move(request);
  call->done = std::move(done);
  call->start = start;
  call->authenticates = std::is_same_v<Request, AuthenticateRequest>;
  call->deadline = SteadyNow() + options_.call_timeout;
  call->Attempt();
}

void GrpcClient::Range(RangeRequest request, Done<RangeResponse> done) {
  Unary(std::move(request), std::move(done),
        [](const Member& member, auto... call) { member.kv->async()->Range(std::move(call)...); });
}

void GrpcClient::Txn(TxnRequest request, Done<TxnResponse> done) {
  Unary(std::move(request), std::move(done),
        [](const Member& member, auto... call) { member.kv->async()->Txn(std::move(call)...); });
}

void GrpcClient::EncodedTxn(std::string request, Done<TxnResponse> done) {
  Unary(ToByteBuffer(std::move(request)), std::move(done),
        [](const Member& member, grpc::ClientContext* context, const grpc::ByteBuffer* in,
           TxnResponse* out, std::function<void(grpc::Status)> on_status) {
          grpc::TemplatedGenericStub<grpc::ByteBuffer, TxnResponse> stub(member.picked.channel);
          stub.UnaryCall(context, "/etcdserverpb.KV/Txn", grpc::StubOptions(), in, out,
                         std::move(on_status));
        });
}

void GrpcClient::LeaseGrant(int64_t ttl_seconds, Done<int64_t> done) {
  LeaseGrantRequest request;
  request.set_ttl(ttl_seconds);
  Done<LeaseGrantResponse> granted =
      [done = std::move(done)](const absl::StatusOr<LeaseGrantResponse>& response) mutable {
        if (!response.ok()) return std::move(done)(response.status());
        std::move(done)(response->id());
      };
  Unary(std::move(request), std::move(granted), [](const Member& member, auto... call) {
    member.lease->async()->LeaseGrant(std::move(call)...);
  });
}

void GrpcClient::LeaseRevoke(int64_t lease, Done<LeaseRevokeResponse> done) {
  LeaseRevokeRequest request;
  request.set_id(lease);
  Unary(std::move(request), std::move(done), [](const Member& member, auto... call) {
    member.lease->async()->LeaseRevoke(std::move(call)...);
  });
}

void GrpcClient::LeaseTimeToLive(int64_t lease, bool keys, Done<LeaseTimeToLiveResponse> done) {
  LeaseTimeToLiveRequest request;
  request.set_id(lease);
  request.set_keys(keys);
  Unary(std::move(request), std::move(done), [](const Member& member, auto... call) {
    member.lease->async()->LeaseTimeToLive(std::move(call)...);
  });
}

std::shared_ptr<Client::WatchStream> GrpcClient::NewWatch(StreamEvents<WatchResponse> events) {
  return GrpcStream<WatchRequest, WatchResponse>::Make(
      this, std::move(events),
      [](const Member& member, auto... call) { member.watch->async()->Watch(std::move(call)...); });
}

std::shared_ptr<Client::RenewalStream> GrpcClient::NewRenewal(
    StreamEvents<LeaseKeepAliveResponse> events) {
  return GrpcStream<LeaseKeepAliveRequest, LeaseKeepAliveResponse>::Make(
      this, std::move(events), [](const Member& member, auto... call) {
        member.lease->async()->LeaseKeepAlive(std::move(call)...);
      });
}

void GrpcClient::After(absl::Duration delay, absl::AnyInvocable<void() &&> task) {
  auto delayed = std::make_shared<Delayed>();
  delayed->task = std::move(task);
  uint64_t id;
  {
    MutexLock lock(&mu_);
    if (!closed_) {
      id = ++last_delayed_;
      auto timeout = options_.timer->NewTimeout(
          [this, id] {
            std::shared_ptr<Delayed> due;
            {
              MutexLock lock(&mu_);
              const auto it = delayed_.find(id);
              if (it == delayed_.end()) return;  // Close has it
              due = std::move(it->second);
              delayed_.erase(it);
              ++running_;
            }
            {
              const Frame frame(this);
              std::move(due->task)();
              due.reset();
            }
            MutexLock lock(&mu_);
            if (--running_ == 0) idle_.SignalAll();
          },
          delay);
      if (timeout.ok()) {
        delayed->timeout = *std::move(timeout);
        delayed_.emplace(id, std::move(delayed));
        return;
      }
    }
  }
  std::move(delayed->task)();
}

void GrpcClient::Shutdown() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Delayed>> delayed;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    delayed.swap(delayed_);
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }
  for (auto& [id, entry] : delayed) {
    // The task of the timer touches this client: it has to be over.
    if (!entry->timeout.Cancel()) entry->timeout.Wait();
    std::move(entry->task)();
  }
}

void GrpcClient::Close() {
  Shutdown();
  MutexLock lock(&mu_);
  while (!contexts_.empty() || running_ > 0) idle_.Wait(&mu_);
}

bool GrpcClient::InCallback() const {
  MutexLock lock(&mu_);
  return frames_.contains(std::this_thread::get_id());
}

void GrpcClient::EnterFrame(int change) {
  MutexLock lock(&mu_);
  const auto it = frames_.try_emplace(std::this_thread::get_id(), 0).first;
  it->second += change;
  if (it->second == 0) frames_.erase(it);
}

bool GrpcClient::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

std::shared_ptr<const GrpcClient::Member> GrpcClient::Pick() {
  GrpcChannels::Picked picked = channels_.Pick();
  MutexLock lock(&members_mu_);
  auto& member = members_[picked.index];
  if (member == nullptr || member->picked.channel != picked.channel) {
    auto fresh = std::make_shared<Member>();
    fresh->picked = picked;
    fresh->kv = etcdserverpb::KV::NewStub(picked.channel);
    fresh->lease = etcdserverpb::Lease::NewStub(picked.channel);
    fresh->watch = etcdserverpb::Watch::NewStub(picked.channel);
    fresh->auth = etcdserverpb::Auth::NewStub(picked.channel);
    member = std::move(fresh);
  }
  return member;
}

void GrpcClient::Report(const Member& member, const absl::Status& status) {
  if (!IsTransient(status)) return;
  channels_.Report(member.picked, absl::UnavailableError(""));
}

void GrpcClient::Prepare(const std::string& token, grpc::ClientContext* context) {
  // A member that is cut off from the others says so at once.
  context->AddMetadata("hasleader", "true");
  if (!token.empty()) context->AddMetadata("token", token);
}

bool GrpcClient::Enter(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  if (closed_) return false;
  contexts_.insert(context);
  return true;
}

void GrpcClient::Leave(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  contexts_.erase(context);
  if (contexts_.empty()) idle_.SignalAll();
}

void GrpcClient::GetToken(Done<std::string> ready) {
  std::string token;
  {
    MutexLock lock(&token_mu_);
    if (!options_.user.empty() && !without_token_ && token_.empty()) {
      waiting_.push_back(std::exchange(ready, nullptr));
      if (std::exchange(fetching_, true)) return;
    } else {
      token = token_;
    }
  }
  if (!ready) return FetchToken();
  std::move(ready)(std::move(token));
}

void GrpcClient::DropToken(const std::string& token) {
  MutexLock lock(&token_mu_);
  if (token_ == token) token_.clear();
  without_token_ = false;
}

void GrpcClient::FetchToken() {
  AuthenticateRequest request;
  request.set_name(options_.user);
  request.set_password(options_.password);
  Unary<AuthenticateRequest, AuthenticateResponse>(
      std::move(request),
      [this](absl::StatusOr<AuthenticateResponse> response) {
        if (response.ok()) return OnToken(response->token());
        OnToken(response.status());
      },
      [](const Member& member, auto... call) {
        member.auth->async()->Authenticate(std::move(call)...);
      });
}

void GrpcClient::OnToken(absl::StatusOr<std::string> token) {
  std::vector<Done<std::string>> waiting;
  {
    MutexLock lock(&token_mu_);
    fetching_ = false;
    waiting.swap(waiting_);
    if (ErrorOf(token.status()) == Error::kAuthNotEnabled) {
      without_token_ = true;
      token = std::string();
    }
    if (token.ok()) token_ = *token;
    if (token.ok() && !token_.empty()) ++tokens_;
  }
  for (auto& ready : waiting) std::move(ready)(token);
}

int64_t GrpcClient::KnownRevision() {
  MutexLock lock(&revision_mu_);
  return revision_;
}

void GrpcClient::NoteHeader(int64_t known_at_start, const etcdserverpb::ResponseHeader& header) {
  {
    MutexLock lock(&revision_mu_);
    const bool same_cluster = header.cluster_id() == cluster_id_;
    cluster_id_ = header.cluster_id();
    if (!same_cluster || header.revision() >= known_at_start || revision_ < known_at_start) {
      revision_ = same_cluster ? std::max(revision_, header.revision()) : header.revision();
      return;
    }
    // What the call could not have missed is not there any more.
    revision_ = header.revision();
  }
  if (options_.on_regress) options_.on_regress();
}

}  // namespace etcd
}  // namespace failback
