#include "tests/simulate/etcd/model_client.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

namespace failback::simulate {
namespace {

using etcdserverpb::LeaseKeepAliveRequest;
using etcdserverpb::LeaseKeepAliveResponse;
using etcdserverpb::LeaseRevokeResponse;
using etcdserverpb::LeaseTimeToLiveResponse;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using etcdserverpb::WatchCreateRequest;
using etcdserverpb::WatchRequest;
using etcdserverpb::WatchResponse;

absl::Status Closed() { return absl::CancelledError("the etcd client is closed"); }

}  // namespace

struct ModelClient::Shared {
  Network* network;
  int link;
  std::weak_ptr<Process> self;
  HashedWheelTimer* timer;  // of `self`, which outlives the client
  std::shared_ptr<EtcdHost> host;
  bool closed = false;
  uint64_t last = 0;
  std::map<uint64_t, std::function<void(const absl::Status&)>> calls;  // that are under way
  std::map<uint64_t, std::shared_ptr<absl::AnyInvocable<void() &&>>> delayed;
  std::map<uint64_t, std::function<void(const absl::Status&)>> streams;
};

// One stream, both sides of it: what each sends goes one message at a time, in order.
template <typename Request, typename Response>
class ModelClient::ModelStream final
    : public etcd::Client::Stream<Request>,
      public std::enable_shared_from_this<ModelStream<Request, Response>> {
 public:
  ModelStream(std::shared_ptr<Shared> shared, StreamEvents<Response> events)
      : shared_(std::move(shared)), events_(std::move(events)) {}

  void Start() override {
    self_ = this->shared_from_this();
    if (shared_->closed) return End(Closed());
    id_ = ++shared_->last;
    shared_->streams[id_] = [this](const absl::Status& status) { End(status); };
    wake_ = shared_->host->Wake([this] { Wake(); });
    PumpUp();
  }

  void Send(Request request) override {
    up_.push_back(std::move(request));
    if (self_ != nullptr) PumpUp();
  }

  void Abandon(const absl::Status& reason) override { End(reason); }

 private:
  void PumpUp() {
    if (sending_up_ || over_ || up_.empty()) return;
    sending_up_ = true;
    const auto self = this->shared_from_this();
    shared_->network->SendOnStream(
        shared_->link, Way::kToRegistry, shared_->host->process(),
        [self, request = std::move(up_.front())] {
          self->sending_up_ = false;
          self->Take(request);
          self->PumpUp();
        },
        [self] { self->Break(); });
    up_.pop_front();
  }

  void Answer(Response response) {
    down_.push_back(std::move(response));
    PumpDown();
  }

  void PumpDown() {
    if (sending_down_ || over_) return;
    if (down_.empty()) Gather();
    if (down_.empty()) return;
    sending_down_ = true;
    const auto self = this->shared_from_this();
    shared_->network->SendOnStream(
        shared_->link, Way::kToClient, shared_->self,
        [self, response = std::move(down_.front())] {
          self->sending_down_ = false;
          if (self->over_) return;
          self->events_.on_message(response);
          self->PumpDown();
        },
        [self] { self->Break(); });
    down_.pop_front();
  }

  // The connection is broken: the client finds out.
  void Break() {
    shared_->host->Forget(wake_);
    const auto self = this->shared_from_this();
    shared_->network->SendNews(shared_->link, Way::kToClient, shared_->self,
                               [self] { self->End(absl::UnavailableError("connection reset")); });
  }

  void End(const absl::Status& status) {
    if (std::exchange(over_, true)) return;
    const std::shared_ptr<ModelStream> self = std::move(self_);
    shared_->host->Forget(wake_);
    shared_->streams.erase(id_);
    events_.on_end(status);
  }

  // --- At etcd.

  void Take(const LeaseKeepAliveRequest& request) {
    LeaseKeepAliveResponse response;
    *response.mutable_header() = model().Header();
    response.set_id(request.id());
    response.set_ttl(model().LeaseKeepAlive(request.id()));
    Answer(std::move(response));
  }

  void Take(const WatchRequest& request) {
    WatchResponse response;
    *response.mutable_header() = model().Header();
    if (request.has_cancel_request()) {
      response.set_watch_id(request.cancel_request().watch_id());
      response.set_canceled(watched_.erase(response.watch_id()) > 0);
    } else if (request.has_progress_request()) {
      response.set_watch_id(-1);
    } else {
      const WatchCreateRequest& create = request.create_request();
      response.set_watch_id(create.watch_id());
      response.set_created(true);
      const int64_t start = create.start_revision();
      watched_[create.watch_id()] = {create, start == 0 ? model().revision() + 1 : start};
    }
    Answer(std::move(response));
  }

  // Messages about what is new.
  void Gather() {
    if constexpr (std::is_same_v<Response, WatchResponse>) {
      for (auto it = watched_.begin(); it != watched_.end();) {
        auto& [create, next] = it->second;
        WatchResponse response;
        *response.mutable_header() = model().Header();
        response.set_watch_id(it->first);
        if (next < model().compacted()) {
          response.set_canceled(true);
          response.set_compact_revision(model().compacted());
          down_.push_back(std::move(response));
          it = watched_.erase(it);
          continue;
        }
        for (mvccpb::Event& event : model().EventsFrom(next, create.key(), create.range_end())) {
          *response.add_events() = std::move(event);
        }
        next = std::max(next, model().revision() + 1);  // it may begin in the future
        if (response.events_size() > 0) down_.push_back(std::move(response));
        ++it;
      }
    }
  }

  void Wake() {
    if (!watched_.empty()) PumpDown();
  }

  EtcdModel& model() { return shared_->host->model(); }

  const std::shared_ptr<Shared> shared_;
  const StreamEvents<Response> events_;
  std::shared_ptr<ModelStream> self_;  // from its start to its end
  uint64_t id_ = 0, wake_ = 0;
  bool over_ = false, sending_up_ = false, sending_down_ = false;
  std::deque<Request> up_;
  std::deque<Response> down_;
  // By watch: what is followed, and the revision that is next.
  std::map<int64_t, std::pair<WatchCreateRequest, int64_t>> watched_;
};

ModelClient::ModelClient(Network* network, int link, const std::shared_ptr<Process>& self,
                         std::shared_ptr<EtcdHost> host)
    : shared_(std::make_shared<Shared>()) {
  shared_->network = network;
  shared_->link = link;
  shared_->self = self;
  shared_->timer = self->timer();
  shared_->host = std::move(host);
}

ModelClient::~ModelClient() { Shutdown(); }

template <typename Response>
void ModelClient::Unary(std::function<absl::StatusOr<Response>(EtcdModel*)> ask,
                        Done<Response> done) {
  if (shared_->closed) return std::move(done)(Closed());
  const uint64_t id = ++shared_->last;
  const std::weak_ptr<Shared> weak = shared_;
  const auto held = std::make_shared<Done<Response>>(std::move(done));
  // The first answer, or the end of the call, is what counts.
  const auto finish = [weak, id, held](absl::StatusOr<Response> answer) {
    const auto shared = weak.lock();
    if (shared == nullptr || shared->calls.erase(id) == 0) return;
    // What the callback holds goes with it.
    Done<Response> taken = std::move(*held);
    std::move(taken)(std::move(answer));
  };
  shared_->calls[id] = finish;
  for (absl::Duration at = absl::ZeroDuration(); at < timing_.call_timeout;
       at += timing_.attempt_timeout) {
    const auto attempt = [weak, id, ask, finish] {
      const auto shared = weak.lock();
      if (shared == nullptr || shared->calls.count(id) == 0) return;
      // What has been sent arrives, whether its sender is there or not. The model is there while
      // its process is.
      shared->network->Send(shared->link, Way::kToRegistry, shared->host->process(),
                            [network = shared->network, link = shared->link, client = shared->self,
                             model = &shared->host->model(), ask, finish] {
                              network->Send(link, Way::kToClient, client,
                                            [finish, answer = ask(model)] { finish(answer); });
                            });
    };
    if (at == absl::ZeroDuration()) {
      attempt();
    } else {
      shared_->timer->ScheduleUnbounded(attempt, at).IgnoreError();
    }
  }
  const auto give_up = [finish] {
    finish(absl::UnavailableError("no member of etcd has answered"));
  };
  shared_->timer->ScheduleUnbounded(give_up, timing_.call_timeout).IgnoreError();
}

void ModelClient::Range(RangeRequest request, Done<RangeResponse> done) {
  Unary<RangeResponse>(
      [request = std::move(request)](EtcdModel* model) { return model->Range(request); },
      std::move(done));
}

void ModelClient::Txn(TxnRequest request, Done<TxnResponse> done) {
  Unary<TxnResponse>(
      [request = std::move(request)](EtcdModel* model) { return model->Txn(request); },
      std::move(done));
}

void ModelClient::EncodedTxn(std::string request, Done<TxnResponse> done) {
  TxnRequest parsed;
  if (!parsed.ParseFromString(request)) {
    return std::move(done)(absl::InternalError("not a transaction"));
  }
  Txn(std::move(parsed), std::move(done));
}

void ModelClient::LeaseGrant(int64_t ttl_seconds, Done<int64_t> done) {
  Unary<int64_t>(
      [ttl_seconds](EtcdModel* model) -> absl::StatusOr<int64_t> {
        return model->LeaseGrant(ttl_seconds);
      },
      std::move(done));
}

void ModelClient::LeaseRevoke(int64_t lease, Done<LeaseRevokeResponse> done) {
  Unary<LeaseRevokeResponse>(
      [lease](EtcdModel* model) -> absl::StatusOr<LeaseRevokeResponse> {
        if (absl::Status status = model->LeaseRevoke(lease); !status.ok()) return status;
        return LeaseRevokeResponse();
      },
      std::move(done));
}

void ModelClient::LeaseTimeToLive(int64_t lease, bool keys, Done<LeaseTimeToLiveResponse> done) {
  Unary<LeaseTimeToLiveResponse>(
      [lease, keys](EtcdModel* model) -> absl::StatusOr<LeaseTimeToLiveResponse> {
        return model->LeaseTimeToLive(lease, keys);
      },
      std::move(done));
}

std::shared_ptr<etcd::Client::WatchStream> ModelClient::NewWatch(
    StreamEvents<WatchResponse> events) {
  return std::make_shared<ModelStream<WatchRequest, WatchResponse>>(shared_, std::move(events));
}

std::shared_ptr<etcd::Client::RenewalStream> ModelClient::NewRenewal(
    StreamEvents<LeaseKeepAliveResponse> events) {
  return std::make_shared<ModelStream<LeaseKeepAliveRequest, LeaseKeepAliveResponse>>(
      shared_, std::move(events));
}

void ModelClient::After(absl::Duration delay, absl::AnyInvocable<void() &&> task) {
  if (shared_->closed) return std::move(task)();
  const uint64_t id = ++shared_->last;
  shared_->delayed[id] = std::make_shared<absl::AnyInvocable<void() &&>>(std::move(task));
  const auto run = [weak = std::weak_ptr<Shared>(shared_), id] {
    const auto shared = weak.lock();
    if (shared == nullptr) return;
    const auto it = shared->delayed.find(id);
    if (it == shared->delayed.end()) return;
    const auto due = std::move(it->second);
    shared->delayed.erase(it);
    std::move (*due)();
  };
  shared_->timer->ScheduleUnbounded(run, delay).IgnoreError();
}

const Clock& ModelClient::clock() const { return *shared_->timer->clock(); }

bool ModelClient::closed() const { return shared_->closed; }

void ModelClient::BreakStreams() {
  for (const auto& [id, end] : std::map(shared_->streams)) {
    if (shared_->streams.count(id) > 0) end(absl::UnavailableError("connection reset"));
  }
}

void ModelClient::Shutdown() {
  shared_->closed = true;
  for (const auto& [id, finish] : std::map(shared_->calls)) finish(Closed());
  for (const auto& [id, end] : std::map(shared_->streams)) {
    if (shared_->streams.count(id) > 0) end(Closed());
  }
  for (auto& [id, task] : std::exchange(shared_->delayed, {})) std::move (*task)();
}

}  // namespace failback::simulate
