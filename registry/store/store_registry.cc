#include "registry/store/store_registry.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "registry/base/proto_time.h"
#include "registry/model/canonical.h"
#include "registry/model/errors.h"
#include "registry/model/ids.h"
#include "registry/store/memory_storage.h"
#include "registry/store/sqlite/sqlite_storage.h"
#include "registry/store/store_operations.h"
#include "retry/clock.h"

namespace failback {
namespace {

constexpr char kMemoryUri[] = "memory:";
constexpr char kSqliteScheme[] = "sqlite://";

}  // namespace

absl::Status StoreRegistry::CheckUri(const std::string& uri) {
  if (uri == kMemoryUri) return absl::OkStatus();
  if (!absl::StartsWith(uri, kSqliteScheme)) {
    return absl::InvalidArgumentError("allowed are memory: and sqlite:///PATH");
  }
  const size_t path = sizeof(kSqliteScheme) - 1;
  if (uri.size() < path + 2 || uri[path] != '/' || uri.back() == '/') {
    return absl::InvalidArgumentError(
        "a file is named by its absolute path, as sqlite:///var/lib/failback/registry.db");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StoreRegistry>> StoreRegistry::Open(Options options) {
  const std::string& uri = options.uri;
  if (absl::Status status = CheckUri(uri); !status.ok()) {
    return InvalidField("store", absl::StrCat("'", uri, "' is no store: ", status.message()));
  }
  std::unique_ptr<Storage> storage;
  if (uri == kMemoryUri) {
    storage = std::make_unique<MemoryStorage>();
  } else {
    SqliteStorage::Options sqlite;
    sqlite.path = uri.substr(sizeof(kSqliteScheme) - 1);
    sqlite.durability = options.durability;
    sqlite.checkpoint_pages = options.checkpoint_pages;
    sqlite.executor = options.executor;
    auto opened = SqliteStorage::Open(std::move(sqlite));
    if (!opened.ok()) return opened.status();
    storage = *std::move(opened);
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
      inline_(options_.commit_inline || !storage_->blocks()),
      purge_(options_.timer, [this] { Submit(PurgeOp()); }),
      probe_(options_.timer, [this] { Submit(ProbeOp()); }),
      held_look_(options_.timer, [this] { LookAtHeld(); }) {
  State::Options state;
  state.max_instances = options_.max_instances;
  state.max_instances_per_session = options_.max_instances_per_session;
  state.max_sessions = options_.max_sessions;
  state.max_incarnations = options_.max_incarnations;
  state.max_tombstones = options_.max_tombstones;
  state.callers_have_names = options_.callers_have_names;
  state_ = std::make_unique<State>(state);
  Leases::Options leases;
  leases.timer = options_.timer;
  leases.guard = options_.guard;
  leases.guard_min_sessions = options_.guard_min_sessions;
  leases.guard_share = options_.guard_share;
  leases.guard_longest_hold = options_.guard_longest_hold;
  leases_ = std::make_unique<Leases>(
      leases, [this](std::vector<std::string> session_ids) { OnLeasesDue(std::move(session_ids)); },
      [this] { held_look_.Arm(absl::ZeroDuration()); });
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
  if (!inline_) {
    // Half of the processors, as for bulk: they leave room for those that serve the connections.
    comparers_ = std::make_unique<TaskScope>(
        options_.executor, std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2));
    committer_ = std::make_unique<TaskScope>(options_.executor, 1);
  }
  return absl::OkStatus();
}

StoreRegistry::~StoreRegistry() {
  std::unique_ptr<Group> left;
  {
    MutexLock lock(&queue_mu_);
    stopping_ = true;
    left = std::move(queue_);
  }
  if (committer_ != nullptr) committer_->Close();
  leases_->Stop();
  for (Wakeup* wakeup : {&purge_, &probe_, &held_look_}) wakeup->Stop();
  if (left != nullptr) std::move(*left).Fail(RegistryGone());
  if (hub_ != nullptr) {
    SubscriptionHub::Deliveries deliveries;
    hub_->EndAll(RegistryGone(), &deliveries);
    SubscriptionHub::Deliver(deliveries);
  }
  if (comparers_ != nullptr) comparers_->Close();  // without followers there is nothing to compare
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

void StoreRegistry::OpenSession(const OpenSessionRequest& request,
                                Callback<OpenSessionResponse> done) {
  if (auto status = ValidateOpenSession(request); !status.ok()) return std::move(done)(status);
  OpenOp operation;
  operation.opening.incarnation = request.incarnation();
  operation.opening.client_name = request.client_name();
  operation.opening.ttl_ms = absl::ToInt64Milliseconds(ClampTtl(request.ttl()));
  operation.opening.ends_with_stream = request.ends_with_stream();
  if (request.store_id() == store_id_) operation.opening.claimed_rank = request.rank();
  operation.opening.new_session_id = NewSessionId(request.owner());
  operation.opening.owner = request.owner();
  operation.process = request.process();
  operation.done = std::move(done);
  Submit(std::move(operation));
}

void StoreRegistry::KeepAlive(const KeepAliveRequest& request, Callback<KeepAliveResponse> done) {
  if (auto status = ValidateKeepAlive(request); !status.ok()) return std::move(done)(status);
  const Leases::Renewal renewal = leases_->Renew(request.session_id(), request.process());
  if (renewal.ttl == absl::ZeroDuration()) return std::move(done)(SessionUnknown());
  if (renewal.contested) LogContested(request.session_id());
  if (request.has_report()) {
    agent_reports_.Take(request.session_id(), request.report(), options_.timer->clock()->WallNow());
    // It may have ended meanwhile.
    if (!leases_->Look(request.session_id()).has_value()) {
      agent_reports_.Drop(request.session_id());
    }
  }
  KeepAliveResponse response;
  response.set_session_id(request.session_id());
  *response.mutable_ttl() = ToProto(renewal.ttl);
  response.set_epoch(epoch_);
  response.set_revision(revision());
  response.set_process(renewal.process);
  std::move(done)(std::move(response));
}

void StoreRegistry::CloseSession(const CloseSessionRequest& request,
                                 Callback<CloseSessionResponse> done) {
  if (auto status = ValidateCloseSession(request); !status.ok()) return std::move(done)(status);
  EndOp operation;
  operation.session_ids.push_back(request.session_id());
  operation.done = std::move(done);
  Submit(std::move(operation));
}

void StoreRegistry::Write(Batch batch, Callback<BatchResult> done) {
  if (auto status = batch.Check(options_.max_batch); !status.ok()) return std::move(done)(status);
  WriteOp operation;
  operation.session_id = batch.session_id();
  operation.intents = std::move(batch).TakeIntents();
  operation.outcomes = BeginOutcomes(operation.intents);
  operation.done = [epoch = epoch_, done = std::move(done)](
                       absl::Status status, const WriteOp& decided, uint64_t revision) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    std::move(done)(ResultOf(decided.outcomes, decided.as_asked, epoch, revision));
  };
  Submit(std::move(operation));
}

void StoreRegistry::SetOffline(const SetOfflineRequest& request,
                               Callback<SetOfflineResponse> done) {
  if (auto status = ValidateSetOffline(request); !status.ok()) return std::move(done)(status);
  SetOfflineOp operation;
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

}  // namespace failback
