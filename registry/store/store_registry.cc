#include "registry/store/store_registry.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "registry/canonical.h"
#include "registry/errors.h"
#include "registry/ids.h"
#include "registry/log.h"
#include "registry/proto_time.h"
#include "registry/selector.h"
#include "registry/store/encoded_batch.h"
#include "registry/store/memory_storage.h"
#include "registry/store/sqlite_storage.h"
#include "retry/clock.h"

namespace failback {
namespace {

constexpr char kMemoryUri[] = "memory:";
constexpr char kSqliteScheme[] = "sqlite://";
// A page of a filtered listing looks at no more records than this; it may be shorter than asked
// for.
constexpr size_t kMaxFiltered = 5000;
// A commit takes no more intents of large calls than this, some 15 ms of work, but for a single
// call's: who comes during somebody's bulk waits for one commit, not for all of it.
constexpr int64_t kMostIntentsPerCommit = 2000;
// Calls of no more intents than this go before the others.
constexpr size_t kSmallCall = 20;
constexpr absl::Duration kOverloadDelay = absl::Milliseconds(200);
constexpr int64_t kPurgeIncarnationsEveryMs = int64_t{3600} * 1000;

absl::Status SessionUnknown() {
  return Refusal(registry::v1::ERROR_REASON_SESSION_UNKNOWN,
                 "session_id: the session has ended, or never was: open a new one");
}

absl::Status Cancelled() { return absl::CancelledError("the registry is being destroyed"); }

absl::Status Overloaded(int64_t queued) {
  return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_OVERLOADED,
                                absl::StrCat(queued, " intents wait for their commit")),
                        kOverloadDelay);
}

}  // namespace

// A Register or an Unregister on its way: the intents as spelled, and what came of each.
struct StoreRegistry::Batch {
  std::string session_id;
  std::vector<Intent> intents;
  std::vector<IntentOutcome> outcomes;  // not OK from the start: refused by validation
  absl::AnyInvocable<void(absl::Status, std::vector<IntentOutcome>, uint64_t revision) &&> done;

  int64_t Size() const { return static_cast<int64_t>(intents.size()); }
  void Fail(const absl::Status& status) && { std::move(done)(status, {}, 0); }
};

struct StoreRegistry::Opening {
  State::Transaction::Opening opening;
  Callback<OpenSessionResponse> done;

  void Fail(const absl::Status& status) && { std::move(done)(status); }
};

struct StoreRegistry::Ending {
  std::vector<std::string> session_ids;
  State::Transaction::End end = State::Transaction::End::kClosed;
  Callback<CloseSessionResponse> done;  // null for expiry

  void Fail(const absl::Status& status) && {
    if (done) std::move(done)(status);
  }
};

// An operator's mark on its way.
struct StoreRegistry::Marking {
  std::string key;                                // canonical
  std::optional<registry::v1::OfflineMark> mark;  // none: back into rotation
  Callback<SetOfflineResponse> done;

  void Fail(const absl::Status& status) && { std::move(done)(status); }
};

// Forgets fences whose time has passed.
struct StoreRegistry::Purging {
  void Fail(const absl::Status& status) && {}
};

struct StoreRegistry::Group {
  std::vector<Ending> endings;
  std::vector<Opening> openings;
  std::vector<Batch> batches;
  std::vector<Marking> markings;
  bool purge = false;
  int64_t intents = 0;

  void Add(Ending ending) { endings.push_back(std::move(ending)); }
  void Add(Opening opening) { openings.push_back(std::move(opening)); }
  void Add(Batch batch) {
    intents += static_cast<int64_t>(batch.intents.size());
    batches.push_back(std::move(batch));
  }
  void Add(Marking marking) { markings.push_back(std::move(marking)); }
  void Add(Purging) { purge = true; }

  // Puts small calls first, in order of arrival as the others, and takes off what is too much for
  // one commit; null if nothing is. At least one of the others stays, so that none waits for ever.
  std::unique_ptr<Group> SplitOff() {
    if (intents <= kMostIntentsPerCommit) return nullptr;
    const auto large = std::stable_partition(
        batches.begin(), batches.end(),
        [](const Batch& batch) { return batch.intents.size() <= kSmallCall; });
    auto end = large == batches.end() ? large : large + 1;
    int64_t taken = 0;
    for (auto it = batches.begin(); it != end; ++it) taken += it->Size();
    for (; end != batches.end() && taken + end->Size() <= kMostIntentsPerCommit; ++end) {
      taken += end->Size();
    }
    if (end == batches.end()) return nullptr;
    auto rest = std::make_unique<Group>();
    rest->batches.assign(std::make_move_iterator(end), std::make_move_iterator(batches.end()));
    rest->intents = intents - taken;
    batches.erase(end, batches.end());
    intents = taken;
    return rest;
  }

  void Fail(const absl::Status& status) && {
    for (auto& ending : endings) std::move(ending).Fail(status);
    for (auto& opening : openings) std::move(opening).Fail(status);
    for (auto& batch : batches) std::move(batch).Fail(status);
    for (auto& marking : markings) std::move(marking).Fail(status);
  }
};

// What a commit owes to callers and subscribers, paid when no lock is held.
class StoreRegistry::Aftermath {
 public:
  void Call(absl::AnyInvocable<void() &&> callback) { callbacks_.push_back(std::move(callback)); }
  SubscriptionHub::Deliveries* deliveries() { return &deliveries_; }
  void Run() {
    for (auto& callback : callbacks_) std::move(callback)();
    SubscriptionHub::Deliver(deliveries_);
  }

 private:
  std::vector<absl::AnyInvocable<void() &&>> callbacks_;
  SubscriptionHub::Deliveries deliveries_;
};

absl::StatusOr<std::unique_ptr<StoreRegistry>> StoreRegistry::Open(Options options) {
  const std::string& uri = options.uri;
  std::unique_ptr<Storage> storage;
  if (uri == kMemoryUri) {
    storage = std::make_unique<MemoryStorage>();
  } else if (uri.rfind(kSqliteScheme, 0) == 0) {
    const std::string path = uri.substr(sizeof(kSqliteScheme) - 1);
    if (path.size() < 2 || path.front() != '/' || path.back() == '/') {
      return InvalidField("store",
                          absl::StrCat("\"", uri, "\" names no file by its absolute path: ",
                                       "sqlite:///var/lib/failback/registry.db"));
    }
    SqliteStorage::Options sqlite;
    sqlite.path = path;
    sqlite.durability = options.durability;
    auto opened = SqliteStorage::Open(std::move(sqlite));
    if (!opened.ok()) return opened.status();
    storage = *std::move(opened);
  } else {
    return InvalidField("store", absl::StrCat("\"", uri,
                                              "\" is neither memory: nor "
                                              "sqlite:///absolute/path"));
  }
  return OpenOn(std::move(options), std::move(storage));
}

absl::StatusOr<std::unique_ptr<StoreRegistry>> StoreRegistry::OpenOn(
    Options options, std::unique_ptr<Storage> storage) {
  if (options.timer == nullptr) return absl::InvalidArgumentError("timer: is required");
  if (options.min_ttl < absl::Milliseconds(1) || options.max_ttl < options.min_ttl) {
    return InvalidField(
        "session_ttl",
        absl::StrCat("minimum ", absl::FormatDuration(options.min_ttl), " and maximum ",
                     absl::FormatDuration(options.max_ttl), " are no range of at least 1 ms"));
  }
  if (!(options.guard_share >= 0 && options.guard_share <= 1)) {
    return InvalidField("guard_share", absl::StrCat(options.guard_share, " is not in 0..1"));
  }
  std::unique_ptr<StoreRegistry> registry(
      new StoreRegistry(std::move(options), std::move(storage)));
  if (auto status = registry->Start(); !status.ok()) return status;
  return registry;
}

StoreRegistry::StoreRegistry(Options options, std::unique_ptr<Storage> storage)
    : options_(std::move(options)),
      storage_(std::move(storage)),
      inline_(options_.commit_inline || !storage_->blocks()) {
  State::Options state;
  state.max_instances = options_.max_instances;
  state.max_instances_per_session = options_.max_instances_per_session;
  state.max_sessions = options_.max_sessions;
  state.min_retention_ms = absl::ToInt64Milliseconds(options_.min_fence_retention);
  state.incarnation_memory_ms = absl::ToInt64Milliseconds(options_.incarnation_memory);
  state_ = std::make_unique<State>(state);
  Leases::Options leases;
  leases.timer = options_.timer;
  leases.guard = options_.guard;
  leases.guard_min_sessions = options_.guard_min_sessions;
  leases.guard_share = options_.guard_share;
  leases_ = std::make_unique<Leases>(leases, [this](std::vector<std::string> session_ids) {
    OnLeasesDue(std::move(session_ids));
  });
}

absl::Status StoreRegistry::Start() {
  std::vector<std::pair<std::string, int64_t>> sessions;
  {
    MutexLock writer(&writer_mu_);
    MutexLock lock(&mu_);
    if (auto status = state_->Load(storage_.get(), Now()); !status.ok()) return status;
    store_id_ = state_->store_id();
    epoch_ = state_->epoch();
    revision_ = state_->revision();
    hub_ = SubscriptionHub::Create(options_.subscriptions, epoch_, revision_);
    for (const Session* session : state_->Sessions()) {
      sessions.emplace_back(session->id, session->ttl_ms);
    }
    SchedulePurge();
  }
  // A registry that was not there does not blame its clients: full leases for all.
  for (const auto& [id, ttl_ms] : sessions) leases_->Grant(id, absl::Milliseconds(ttl_ms));
  if (!inline_) committer_ = std::thread([this] { CommitLoop(); });
  return absl::OkStatus();
}

StoreRegistry::~StoreRegistry() {
  std::unique_ptr<Group> left;
  {
    MutexLock lock(&queue_mu_);
    stopping_ = true;
    left = std::move(queue_);
    queued_.SignalAll();
  }
  if (committer_.joinable()) committer_.join();
  leases_->Stop();
  Timeout purge;
  {
    MutexLock lock(&purge_mu_);
    purge_stopped_ = true;
    purge = std::move(purge_);
  }
  if (purge && !purge.Cancel()) purge.Wait();
  if (left != nullptr) std::move(*left).Fail(Cancelled());
  if (hub_ != nullptr) {
    SubscriptionHub::Deliveries deliveries;
    hub_->EndAll(Cancelled(), &deliveries);
    SubscriptionHub::Deliver(deliveries);
  }
}

Moment StoreRegistry::Now() const {
  const Clock* const clock = options_.timer->clock();
  return {absl::ToUnixMillis(clock->WallNow()), clock->NowNanos() / 1000000};
}

absl::Duration StoreRegistry::ClampTtl(const google::protobuf::Duration& ttl) const {
  absl::Duration wanted = FromProto(ttl);
  if (wanted == absl::ZeroDuration()) wanted = options_.default_ttl;
  return absl::Ceil(std::clamp(wanted, options_.min_ttl, options_.max_ttl), absl::Milliseconds(1));
}

bool StoreRegistry::EndsWithStream(const std::string& session_id) const {
  MutexLock lock(&mu_);
  const Session* const session = state_->FindSession(session_id);
  return session != nullptr && session->ends_with_stream;
}

void StoreRegistry::OpenSession(const OpenSessionRequest& request,
                                Callback<OpenSessionResponse> done) {
  if (auto status = ValidateOpenSession(request); !status.ok()) return std::move(done)(status);
  Opening operation;
  operation.opening.incarnation = request.incarnation();
  operation.opening.client_name = request.client_name();
  operation.opening.ttl_ms = absl::ToInt64Milliseconds(ClampTtl(request.ttl()));
  operation.opening.ends_with_stream = request.ends_with_stream();
  if (request.store_id() == store_id_) operation.opening.claimed_rank = request.rank();
  operation.opening.new_session_id = NewSessionId(request.owner());
  operation.opening.owner = request.owner();
  operation.done = std::move(done);
  Submit(std::move(operation));
}

void StoreRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  if (auto status = ValidateKeepAlive(request); !status.ok()) return std::move(done)(status);
  const absl::Duration ttl = leases_->Renew(request.session_id());
  if (ttl == absl::ZeroDuration()) return std::move(done)(SessionUnknown());
  KeepAliveResponse response;
  response.set_session_id(request.session_id());
  *response.mutable_ttl() = ToProto(ttl);
  response.set_epoch(epoch_);
  response.set_revision(revision());
  std::move(done)(std::move(response));
}

void StoreRegistry::CloseSession(const CloseSessionRequest& request,
                                 Callback<CloseSessionResponse> done) {
  if (auto status = ValidateCloseSession(request); !status.ok()) return std::move(done)(status);
  Ending operation;
  operation.session_ids.push_back(request.session_id());
  operation.done = std::move(done);
  Submit(std::move(operation));
}

template <typename Response>
void StoreRegistry::SubmitBatch(std::string session_id, IntentBatch spelled,
                                Callback<Response> done) {
  Batch batch;
  batch.session_id = std::move(session_id);
  batch.intents = std::move(spelled.intents);
  batch.outcomes = std::move(spelled.outcomes);
  batch.done = [epoch = epoch_, done = std::move(done)](absl::Status status,
                                                        std::vector<IntentOutcome> outcomes,
                                                        uint64_t revision) mutable {
    if (!status.ok()) return std::move(done)(status);
    std::move(done)(BatchResponse<Response>(outcomes, epoch, revision));
  };
  Submit(std::move(batch));
}

void StoreRegistry::Register(const RegisterRequest& request, Callback<RegisterResponse> done) {
  const absl::Status status = ValidateRegister(request, options_.max_batch);
  if (!status.ok()) return std::move(done)(status);
  SubmitBatch(request.session_id(), SpellBatch(request), std::move(done));
}

bool StoreRegistry::RegisterEncoded(std::string_view request, Callback<RegisterResponse>* done) {
  std::optional<EncodedBatch> spelled = SpellEncodedRegister(request, options_.max_batch);
  if (!spelled.has_value()) return false;
  SubmitBatch(std::move(spelled->session_id), std::move(spelled->batch), std::move(*done));
  return true;
}

void StoreRegistry::Unregister(const UnregisterRequest& request,
                               Callback<UnregisterResponse> done) {
  const absl::Status status = ValidateUnregister(request, options_.max_batch);
  if (!status.ok()) return std::move(done)(status);
  SubmitBatch(request.session_id(), SpellBatch(request), std::move(done));
}

template <typename Operation>
void StoreRegistry::Submit(Operation operation) {
  if (inline_) {
    Group group;
    group.Add(std::move(operation));
    Aftermath aftermath;
    {
      MutexLock writer(&writer_mu_);
      CommitGroup(std::move(group), &aftermath);
    }
    aftermath.Run();
    return;
  }
  absl::Status refused;
  {
    MutexLock lock(&queue_mu_);
    if (queue_ == nullptr && !stopping_) queue_ = std::make_unique<Group>();
    if (stopping_) {
      refused = Cancelled();
    } else if (std::is_same_v<Operation, Batch> && queue_->intents > options_.max_queued_intents) {
      refused = Overloaded(queue_->intents);
    } else {
      queue_->Add(std::move(operation));
      queued_.Signal();
      return;
    }
  }
  std::move(operation).Fail(refused);
}

void StoreRegistry::CommitLoop() {
  for (;;) {
    std::unique_ptr<Group> group;
    {
      MutexLock lock(&queue_mu_);
      while (queue_ == nullptr && !stopping_) queued_.Wait(&queue_mu_);
      if (stopping_) return;
      group = std::move(queue_);
      queue_ = group->SplitOff();
    }
    Aftermath aftermath;
    {
      MutexLock writer(&writer_mu_);
      CommitGroup(std::move(*group), &aftermath);
    }
    aftermath.Run();
  }
}

void StoreRegistry::CommitGroup(Group group, Aftermath* aftermath) {
  const Moment now = Now();
  State::Transaction transaction(state_.get(), now);
  std::vector<std::string> expiring;
  for (Ending& ending : group.endings) {
    for (std::string& id : ending.session_ids) {
      if (ending.end == State::Transaction::End::kClosed) {
        transaction.EndSession(id, ending.end);
      } else if (leases_->BeginEnd(id)) {
        transaction.EndSession(id, ending.end);
        expiring.push_back(std::move(id));
      }
    }
  }
  std::vector<State::Transaction::Opened> opened;
  opened.reserve(group.openings.size());
  for (Opening& opening : group.openings) {
    opened.push_back(transaction.OpenSession(opening.opening));
  }
  if (group.purge) {
    const bool incarnations =
        now.monotonic_ms >= incarnations_purged_ms_ + kPurgeIncarnationsEveryMs;
    if (incarnations) incarnations_purged_ms_ = now.monotonic_ms;
    transaction.Purge(incarnations);
  }
  std::vector<absl::Status> call_statuses(group.batches.size());
  for (size_t b = 0; b < group.batches.size(); ++b) {
    Batch& batch = group.batches[b];
    Session* session = nullptr;
    if (!batch.session_id.empty()) {
      session = transaction.FindSession(batch.session_id);
      if (session == nullptr) {
        call_statuses[b] = SessionUnknown();
        continue;
      }
    }
    for (size_t i = 0; i < batch.intents.size(); ++i) {
      if (!batch.outcomes[i].status.ok()) continue;
      batch.outcomes[i] = transaction.Apply(session, std::move(batch.intents[i]));
    }
    batch.intents.clear();
  }
  std::vector<State::Transaction::Marked> marked;
  marked.reserve(group.markings.size());
  for (const Marking& marking : group.markings) {
    marked.push_back(
        transaction.SetOffline(marking.key, marking.mark.has_value() ? &*marking.mark : nullptr));
  }

  if (!transaction.empty()) {
    if (auto status = Write(transaction, now, aftermath); !status.ok()) {
      for (const std::string& id : expiring) leases_->Retry(id, options_.write_retry);
      aftermath->Call(
          [group = std::move(group), status]() mutable { std::move(group).Fail(status); });
      return;
    }
    MutexLock lock(&mu_);
    if (!write_status_.ok()) {
      aftermath->Call([] { Log(LogLevel::kInfo, "the store can be written again"); });
      write_status_ = absl::OkStatus();
    }
    if (group.intents > 0) group_intents_.Observe(group.intents);
    CommitResult result = transaction.Commit();
    revision_.store(result.revision, std::memory_order_release);
    for (const std::string& id : result.ended_sessions) leases_->Drop(id);
    hub_->Publish(std::move(result), aftermath->deliveries());
  }
  ++groups_;
  intents_ += group.intents;
  if (!expiring.empty()) {
    expired_sessions_ += static_cast<int64_t>(expiring.size());
    aftermath->Call([sessions = expiring.size()] {
      Log(LogLevel::kInfo, "sessions expired", {{"sessions", absl::StrCat(sessions)}});
    });
  }
  SchedulePurge();

  const uint64_t revision = this->revision();
  for (Ending& ending : group.endings) {
    if (!ending.done) continue;
    aftermath->Call([done = std::move(ending.done), revision]() mutable {
      CloseSessionResponse response;
      response.set_revision(revision);
      std::move(done)(std::move(response));
    });
  }
  for (size_t i = 0; i < opened.size(); ++i) {
    const absl::Duration ttl = absl::Milliseconds(group.openings[i].opening.ttl_ms);
    if (opened[i].status.ok()) leases_->Grant(opened[i].session_id, ttl);
    aftermath->Call([this, done = std::move(group.openings[i].done), opened = std::move(opened[i]),
                     ttl]() mutable {
      if (!opened.status.ok()) return std::move(done)(opened.status);
      OpenSessionResponse response;
      response.set_session_id(opened.session_id);
      *response.mutable_ttl() = ToProto(ttl);
      response.set_rank(opened.rank);
      response.set_store_id(store_id_);
      response.set_epoch(epoch_);
      response.set_resumed(opened.resumed);
      response.mutable_limits()->set_max_request_bytes(options_.max_request_bytes);
      response.mutable_limits()->set_max_batch(options_.max_batch);
      response.mutable_limits()->set_max_instances_per_session(
          static_cast<uint64_t>(options_.max_instances_per_session));
      std::move(done)(std::move(response));
    });
  }
  for (size_t b = 0; b < group.batches.size(); ++b) {
    aftermath->Call([done = std::move(group.batches[b].done), status = std::move(call_statuses[b]),
                     outcomes = std::move(group.batches[b].outcomes), revision]() mutable {
      std::move(done)(std::move(status), std::move(outcomes), revision);
    });
  }
  for (size_t i = 0; i < marked.size(); ++i) {
    aftermath->Call([this, done = std::move(group.markings[i].done), marked = std::move(marked[i]),
                     revision]() mutable {
      if (!marked.status.ok()) return std::move(done)(marked.status);
      SetOfflineResponse response;
      if (marked.mark) {
        response.mutable_offline()->ParseFromArray(marked.mark.data(),
                                                   static_cast<int>(marked.mark.size()));
      }
      response.set_unchanged(!marked.changed);
      response.set_epoch(epoch_);
      response.set_revision(revision);
      std::move(done)(std::move(response));
    });
  }
}

absl::Status StoreRegistry::Write(const State::Transaction& transaction, Moment now,
                                  Aftermath* aftermath) {
  if (storage_->forgets()) return absl::OkStatus();
  const auto read_only = [&](const absl::Status& cause) {
    return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY,
                                  absl::StrCat("the store cannot be written: ", cause.message())),
                          options_.write_retry);
  };
  if (now.monotonic_ms < write_again_ms_) {
    MutexLock lock(&mu_);
    return read_only(write_status_);
  }
  const int64_t begin = options_.timer->clock()->NowNanos();
  const absl::Status status = storage_->Write(transaction.MakeWrites());
  {
    MutexLock lock(&mu_);
    write_nanos_.Observe(options_.timer->clock()->NowNanos() - begin);
  }
  if (status.ok()) return status;
  write_again_ms_ = Now().monotonic_ms + absl::ToInt64Milliseconds(options_.write_retry);
  MutexLock lock(&mu_);
  if (write_status_.ok()) {
    aftermath->Call([status] {
      Log(LogLevel::kError, "the store cannot be written: reads go on",
          {{"error", std::string(status.message())}});
    });
  }
  write_status_ = status;
  return read_only(status);
}

void StoreRegistry::OnLeasesDue(std::vector<std::string> session_ids) {
  Ending operation;
  operation.session_ids = std::move(session_ids);
  operation.end = State::Transaction::End::kExpired;
  Submit(std::move(operation));
}

// Wakes when the next fence without instance is due, and not more often than once a second.
void StoreRegistry::SchedulePurge() {
  MutexLock lock(&purge_mu_);
  if (purge_armed_ || purge_stopped_) return;
  const int64_t now = Now().monotonic_ms;
  int64_t due = state_->NextPurgeMs();
  if (state_->incarnations() > state_->sessions()) {
    due = std::min(due, now + kPurgeIncarnationsEveryMs);
  }
  if (due == std::numeric_limits<int64_t>::max()) return;
  const int64_t delay = std::max<int64_t>(due - now + 1, 1000);
  auto timeout = options_.timer->NewTimeout([this] { OnPurgeDue(); }, absl::Milliseconds(delay));
  if (!timeout.ok()) return;
  purge_ = *std::move(timeout);
  purge_armed_ = true;
}

void StoreRegistry::OnPurgeDue() {
  {
    MutexLock lock(&purge_mu_);
    if (purge_stopped_) return;
    purge_armed_ = false;
  }
  Submit(Purging());
}

std::unique_ptr<SubscribeStream> StoreRegistry::Subscribe(
    const SubscribeRequest& request, std::shared_ptr<NotifyListener> listener) {
  SubscriptionHub::Deliveries deliveries;
  std::unique_ptr<SubscribeStream> stream;
  if (auto status = ValidateSubscribe(request); !status.ok()) {
    stream = SubscriptionHub::Refuse(std::move(listener), status, &deliveries);
  } else {
    SubscribeRequest spelled = request;
    NormalizeSelector(spelled.mutable_selector());
    const std::string service = absl::StrCat(spelled.selector().namespace_(), std::string(1, '\0'),
                                             spelled.selector().service());
    MutexLock lock(&mu_);
    if (!request.session_id().empty() && state_->FindSession(request.session_id()) == nullptr) {
      stream = SubscriptionHub::Refuse(std::move(listener), SessionUnknown(), &deliveries);
    } else {
      stream = hub_->Subscribe(
          spelled, state_->revision(),
          [&] {
            return spelled.selector().service().empty()
                       ? state_->Services(spelled.selector().namespace_())
                       : state_->Instances(service);
          },
          std::move(listener), &deliveries);
    }
  }
  SubscriptionHub::Deliver(deliveries);
  return stream;
}

void StoreRegistry::Unsubscribe(const UnsubscribeRequest& request,
                                Callback<UnsubscribeResponse> done) {
  if (auto status = ValidateUnsubscribe(request); !status.ok()) return std::move(done)(status);
  SubscriptionHub::Deliveries deliveries;
  absl::Status status;
  {
    // A session that has ended took its subscriptions with it.
    MutexLock lock(&mu_);
    if (state_->FindSession(request.session_id()) != nullptr) {
      status = hub_->Unsubscribe(request, &deliveries);
    }
  }
  SubscriptionHub::Deliver(deliveries);
  if (!status.ok()) return std::move(done)(status);
  std::move(done)(UnsubscribeResponse());
}

InstanceRecord StoreRegistry::ToRecord(const ListItem& item, ServiceInstance instance) {
  InstanceRecord record;
  *record.mutable_instance() = std::move(instance);
  record.set_incarnation(item.incarnation);
  record.set_rank(item.rank);
  record.set_generation(item.generation);
  record.set_client_name(item.client_name);
  record.set_create_revision(item.create_revision);
  record.set_modify_revision(item.modify_revision);
  *record.mutable_create_time() = ToProto(absl::FromUnixMillis(item.create_ms));
  *record.mutable_modify_time() = ToProto(absl::FromUnixMillis(item.modify_ms));
  record.set_state(registry::v1::INTENT_STATE_ACKNOWLEDGED);
  return record;
}

void StoreRegistry::List(const ListRequest& request, Callback<ListResponse> done) {
  if (auto status = ValidateList(request); !status.ok()) return std::move(done)(status);
  const Selector& selector = request.selector();
  const bool filtered = HasFilter(selector);
  ListQuery query;
  query.incarnation = request.incarnation();
  if (request.has_selector() || request.incarnation().empty()) {
    query.services = selector.namespace_().empty() ? kDefaultNamespace : selector.namespace_();
    query.services += '\0';
    query.services += selector.service();
    query.one_service = !selector.service().empty();
  }
  if (!request.page_token().empty()) {
    InstanceKey last;
    if (!absl::WebSafeBase64Unescape(request.page_token(), &query.after) ||
        !ParseCanonicalKey(query.after, &last)) {
      return std::move(done)(InvalidField("page_token", "is not a token of an earlier page"));
    }
  }
  const auto page_size = static_cast<size_t>(
      request.page_size() == 0 ? kMaxPageSize : std::min(request.page_size(), kMaxPageSize));
  query.max_items = filtered ? kMaxFiltered : page_size;
  if (filtered) query.max_bytes = std::numeric_limits<size_t>::max();

  ListResponse response;
  response.set_epoch(epoch_);
  ListPage page;
  {
    MutexLock lock(&mu_);
    page = state_->List(query);
    response.set_revision(state_->revision());
  }
  std::string next = page.next_after;
  size_t bytes = 0;
  InstanceKey last;
  for (const ListItem& item : page.items) {
    ServiceInstance instance;
    instance.ParseFromArray(item.instance.data(), static_cast<int>(item.instance.size()));
    if (filtered) {
      if (!SelectorMatches(selector, instance)) continue;
      bytes += item.instance.size();
      if (static_cast<size_t>(response.records_size()) == page_size ||
          (response.records_size() > 0 && bytes > ListQuery().max_bytes)) {
        next = CanonicalKey(last);
        break;
      }
      last = instance.key();
    }
    *response.add_records() = ToRecord(item, std::move(instance));
  }
  if (!next.empty()) response.set_next_page_token(absl::WebSafeBase64Escape(next));
  std::move(done)(std::move(response));
}

void StoreRegistry::SetOffline(const SetOfflineRequest& request,
                               Callback<SetOfflineResponse> done) {
  if (auto status = ValidateSetOffline(request); !status.ok()) return std::move(done)(status);
  Marking operation;
  operation.key = CanonicalKey(request.key());
  if (request.offline()) {
    registry::v1::OfflineMark& mark = operation.mark.emplace();
    mark.set_reason(request.reason());
    mark.set_by(request.by());
    *mark.mutable_time() = ToProto(absl::FromUnixMillis(Now().unix_ms));
  }
  operation.done = std::move(done);
  Submit(std::move(operation));
}

void StoreRegistry::SetEvictionGuard(bool on) { leases_->SetGuard(on); }

StoreRegistry::Statistics StoreRegistry::Stats() const {
  Statistics stats;
  stats.store_id = store_id_;
  stats.epoch = epoch_;
  stats.groups = groups_;
  stats.intents = intents_;
  stats.expired_sessions = expired_sessions_;
  stats.leases = leases_->Stats();
  stats.subscribers = hub_->subscribers();
  stats.files = storage_->Files();
  // All that a commit changes under mu_.
  MutexLock lock(&mu_);
  stats.revision = state_->revision();
  stats.instances = state_->instances();
  stats.services = state_->services();
  stats.tombstones = state_->tombstones();
  stats.sessions = state_->sessions();
  stats.incarnations = state_->incarnations();
  stats.write_status = write_status_;
  stats.write_nanos = write_nanos_;
  stats.group_intents = group_intents_;
  return stats;
}

absl::Status StoreRegistry::CheckInvariants() const {
  MutexLock writer(&writer_mu_);
  MutexLock lock(&mu_);
  return state_->CheckInvariants();
}

}  // namespace failback
