#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "registry/base/log.h"
#include "registry/base/proto_time.h"
#include "registry/model/errors.h"
#include "registry/store/store_operations.h"
#include "registry/store/store_registry.h"
#include "retry/clock.h"

namespace failback {
namespace {

// How long clients, and the registry itself, wait after the store could not be written.
constexpr absl::Duration kWriteRetry = absl::Seconds(1);
// A store that could not be written is tried again with a commit of nothing when no caller has
// written for so long, so that its return is noticed.
constexpr absl::Duration kWriteProbe = absl::Seconds(5);
constexpr absl::Duration kOverloadDelay = absl::Milliseconds(200);
constexpr int64_t kPurgeIncarnationsEveryMs = int64_t{3600} * 1000;
// A commit forgets no more than this, a few milliseconds of work; the next follows after a pause.
constexpr size_t kMostPurgedPerCommit = 2000;
constexpr int64_t kPurgePauseMs = 20;
constexpr int64_t kPurgePeriodMs = 1000;
// In the log's line about sessions that expired together.
constexpr size_t kMostClientsNamed = 5;

// This thread runs callbacks of a commit: what they submit is not committed on top of them.
thread_local bool answering = false;

absl::Status Overloaded(int64_t queued, int64_t most) {
  return WithRetryDelay(
      Refusal(registry::v1::ERROR_REASON_OVERLOADED,
              absl::StrCat(queued, " intents wait for their commit, at most ", most,
                           " may; try again in ", absl::FormatDuration(kOverloadDelay)),
              {{"limit", absl::StrCat(most)}}),
      kOverloadDelay);
}

}  // namespace

// Sparing a small call that is alone the way to the thread that commits and back. Timers' threads
// submit no writes, and large calls may take long.
template <typename Operation>
bool StoreRegistry::MayCommitHere(const Operation& operation) const {
  if constexpr (std::is_same_v<Operation, WriteOp>) {
    return !answering && !committing_ && queue_ == nullptr &&
           operation.intents.size() <= kSmallCall &&
           write_estimate_nanos_.load(std::memory_order_relaxed) <
               absl::ToInt64Nanoseconds(options_.quick_write);
  }
  return false;
}

template <typename Operation>
void StoreRegistry::Submit(Operation operation) {
  if (inline_) {
    Group group;
    group.Add(std::move(operation));
    Effects effects;
    {
      MutexLock writer(&writer_mu_);
      CommitGroup(std::move(group), &effects);
      if (storage_->wants_checkpoint()) storage_->Checkpoint();
    }
    effects.Run();
    Compare(*effects.due());
    return;
  }
  absl::Status refused;
  switch (Admit(operation, &refused)) {
    case Admission::kRefused:
      return std::move(operation).Fail(refused);
    case Admission::kQueued:
      return;
    case Admission::kQueuedFirst:
      return ScheduleTurn();
    case Admission::kHere: {
      Group group;
      group.Add(std::move(operation));
      return CommitInTurn(std::move(group));
    }
  }
}

// Moves from `operation` only when it queues it.
template <typename Operation>
StoreRegistry::Admission StoreRegistry::Admit(Operation& operation, absl::Status* refused) {
  MutexLock lock(&queue_mu_);
  const int64_t queued = queue_ == nullptr ? 0 : queue_->intents;
  if (stopping_) {
    *refused = RegistryGone();
    return Admission::kRefused;
  }
  if (std::is_same_v<Operation, WriteOp> && queued > options_.max_queued_intents) {
    *refused = Overloaded(queued, options_.max_queued_intents);
    return Admission::kRefused;
  }
  if (MayCommitHere(operation)) {
    committing_ = true;
    return Admission::kHere;
  }
  if (queue_ == nullptr) queue_ = std::make_unique<Group>();
  queue_->Add(std::move(operation));
  return WantsTurn() ? Admission::kQueuedFirst : Admission::kQueued;
}

template void StoreRegistry::Submit(WriteOp);
template void StoreRegistry::Submit(OpenOp);
template void StoreRegistry::Submit(EndOp);
template void StoreRegistry::Submit(SetOfflineOp);
template void StoreRegistry::Submit(PurgeOp);
template void StoreRegistry::Submit(ProbeOp);

bool StoreRegistry::WantsTurn() {
  if (scheduled_ || committing_ || stopping_ || (queue_ == nullptr && !checkpoint_due_))
    return false;
  return scheduled_ = true;
}

void StoreRegistry::ScheduleTurn() {
  committer_->Execute([this] { CommitTurn(); });
}

// A checkpoint, or what has queued up; what is left then gets a turn of its own.
void StoreRegistry::CommitTurn() {
  std::unique_ptr<Group> group;
  {
    MutexLock lock(&queue_mu_);
    scheduled_ = false;
    // A caller that commits meanwhile schedules the next turn.
    if (committing_ || stopping_ || (queue_ == nullptr && !checkpoint_due_)) return;
    committing_ = true;
    if (!checkpoint_due_) {
      group = std::move(queue_);
      queue_ = group->SplitOff();
    }
  }
  if (group == nullptr) return RunCheckpoint();
  CommitInTurn(std::move(*group));
}

void StoreRegistry::CommitInTurn(Group group) {
  Effects effects;
  {
    // Before callers are answered: their next call may be alone again.
    bool checkpoint_due = false;
    const absl::Cleanup turn_is_over = [this, &checkpoint_due] { EndTurn(checkpoint_due); };
    MutexLock writer(&writer_mu_);
    CommitGroup(std::move(group), &effects);
    checkpoint_due = storage_->wants_checkpoint();
  }
  const absl::Cleanup answered = [] { answering = false; };  // also when a callback throws
  answering = true;
  effects.Run();
  Compare(*effects.due());
}

void StoreRegistry::EndTurn(bool checkpoint_due) {
  bool turn = false;
  {
    MutexLock lock(&queue_mu_);
    committing_ = false;
    checkpoint_due_ = checkpoint_due;
    turn = WantsTurn();
  }
  if (turn) ScheduleTurn();
}

void StoreRegistry::Compare(const SubscriptionHub::Due& due) {
  for (const auto& topic : due) {
    if (!inline_) {
      CompareLater(topic);
      continue;
    }
    while (CompareOnce(topic)) {
    }
  }
}

// As a task after each turn, behind those of others: a service with many filters holds up no other.
void StoreRegistry::CompareLater(std::shared_ptr<SubscriptionHub::Topic> topic) {
  comparers_->Execute([this, topic = std::move(topic)]() mutable {
    if (CompareOnce(topic)) CompareLater(std::move(topic));
  });
}

bool StoreRegistry::CompareOnce(const std::shared_ptr<SubscriptionHub::Topic>& topic) {
  SubscriptionHub::Deliveries deliveries;
  const bool more = hub_->Compare(
      topic, [this](const std::string& name) { return Present(name); }, &deliveries);
  SubscriptionHub::Deliver(deliveries);
  return more;
}

// In a turn, which it ends.
void StoreRegistry::RunCheckpoint() {
  {
    MutexLock writer(&writer_mu_);
    storage_->Checkpoint();
  }
  EndTurn(/*checkpoint_due=*/false);
}

void StoreRegistry::CommitGroup(Group group, Effects* effects) {
  const Moment now = Now();
  State::Transaction transaction(state_.get(), now);
  Decided decided = Decide(&group, &transaction, now);
  bool probe = false;
  if (group.probe) {
    MutexLock lock(&mu_);
    probe = !write_status_.ok();
  }
  if (!transaction.empty() || probe) {
    if (auto status = Persist(transaction, now, effects); !status.ok()) {
      for (const std::string& id : decided.expiring) leases_->Retry(id, kWriteRetry);
      effects->Call(
          [group = std::move(group), status]() mutable { std::move(group).Fail(status); });
      return;
    }
    Publish(&transaction, group.intents, effects);
  }
  ++groups_;
  intents_ += group.intents;
  if (!decided.expiring.empty()) {
    expired_sessions_ += static_cast<int64_t>(decided.expiring.size());
    effects->Call([expiries = std::move(decided.expiries)] {
      for (const Decided::Expiry& expiry : expiries) expiry.LogEnd();
    });
  }
  SchedulePurge();
  Answer(std::move(group), std::move(decided), effects);
}

StoreRegistry::Decided StoreRegistry::Decide(Group* group, State::Transaction* transaction,
                                             Moment now) {
  Decided decided;
  for (EndOp& ending : group->endings) {
    transaction->InOrderOfOpening(&ending.session_ids);
    for (std::string& id : ending.session_ids) {
      if (ending.end == State::Transaction::End::kClosed) {
        transaction->EndSession(id, ending.end);
      } else if (const std::optional<LeaseEnd> end = leases_->BeginEnd(id)) {
        Decided::Expiry* const expiry = decided.ExpiryOf(*end);
        ++expiry->sessions;
        const Session* const session = transaction->FindSession(id);
        if (session != nullptr && expiry->clients.size() < kMostClientsNamed) {
          expiry->clients.push_back(session->incarnation->DisplayName());
        }
        transaction->EndSession(id, ending.end, &expiry->instances, *end);
        decided.expiring.push_back(std::move(id));
      }
    }
  }
  decided.opened.reserve(group->openings.size());
  for (OpenOp& opening : group->openings) {
    decided.opened.push_back(transaction->OpenSession(opening.opening));
  }
  if (group->purge) {
    if (!purged_to_.has_value() &&
        now.monotonic_ms >= incarnations_purged_ms_ + kPurgeIncarnationsEveryMs) {
      incarnations_purged_ms_ = now.monotonic_ms;
      purged_to_ = State::EndedPlace(std::numeric_limits<int64_t>::min(), 0);
    }
    purge_on_ = transaction->Purge(kMostPurgedPerCommit) == kMostPurgedPerCommit;
    if (purged_to_.has_value()) {
      purged_to_ = transaction->PurgeIncarnations(*purged_to_, kMostPurgedPerCommit);
      purge_on_ |= purged_to_.has_value();
    }
  }
  transaction->Reserve(static_cast<size_t>(group->intents));
  decided.writes.reserve(group->writes.size());
  for (WriteOp& write : group->writes) decided.writes.push_back(DecideWrite(&write, transaction));
  decided.marked.reserve(group->markings.size());
  for (const SetOfflineOp& marking : group->markings) {
    decided.marked.push_back(
        transaction->SetOffline(marking.key, marking.mark.has_value() ? &*marking.mark : nullptr));
  }
  return decided;
}

absl::Status StoreRegistry::DecideWrite(WriteOp* write, State::Transaction* transaction) {
  Session* session = nullptr;
  if (!write->session_id.empty()) {
    session = transaction->FindSession(write->session_id);
    if (session == nullptr) return SessionUnknown();
  }
  write->as_asked = true;
  for (size_t i = 0; i < write->intents.size(); ++i) {
    if (!write->outcomes[i].status.ok()) {
      write->as_asked = false;
      continue;
    }
    const uint64_t generation = write->intents[i].generation;
    write->outcomes[i] = transaction->Apply(session, std::move(write->intents[i]));
    const IntentOutcome& outcome = write->outcomes[i];
    write->as_asked &= outcome.status.ok() && outcome.generation == generation;
  }
  write->intents.clear();
  return absl::OkStatus();
}

void StoreRegistry::Publish(State::Transaction* transaction, int64_t intents, Effects* effects) {
  CommitResult result = Commit(transaction, intents, effects);
  hub_->Publish(
      std::move(result), [this](const std::string& topic) { return Present(topic); },
      effects->deliveries(), effects->due());
}

CommitResult StoreRegistry::Commit(State::Transaction* transaction, int64_t intents,
                                   Effects* effects) {
  MutexLock lock(&mu_);
  write_status_ = absl::OkStatus();
  if (write_outage_.Worked(options_.timer->clock()->NowNanos())) {
    effects->Call([] { Log(LogLevel::kInfo, "the store can be written again"); });
  }
  if (intents > 0) group_intents_.Observe(intents);
  CommitResult result = transaction->Commit();
  revision_.store(result.revision, std::memory_order_release);
  for (const std::string& id : result.ended_sessions) {
    leases_->Drop(id);
    agent_reports_.Drop(id);
  }
  return result;
}

void StoreRegistry::Answer(Group group, Decided decided, Effects* effects) {
  const uint64_t revision = this->revision();
  for (EndOp& ending : group.endings) {
    if (!ending.done) continue;
    effects->Call([done = std::move(ending.done), revision]() mutable {
      CloseSessionResponse response;
      response.set_revision(revision);
      std::move(done)(std::move(response));
    });
  }
  for (size_t i = 0; i < decided.opened.size(); ++i) {
    State::Transaction::Opened& opened = decided.opened[i];
    const absl::Duration ttl = absl::Milliseconds(group.openings[i].opening.ttl_ms);
    if (opened.status.ok()) leases_->Grant(opened.session_id, ttl, group.openings[i].process);
    effects->Call([this, done = std::move(group.openings[i].done), opened = std::move(opened),
                   ttl]() mutable {
      if (!opened.status.ok()) return std::move(done)(opened.status);
      std::move(done)(OpenedResponse(opened, ttl));
    });
  }
  for (size_t b = 0; b < group.writes.size(); ++b) {
    effects->Call([write = std::move(group.writes[b]), status = std::move(decided.writes[b]),
                   revision]() mutable { std::move(write).Answer(std::move(status), revision); });
  }
  for (size_t i = 0; i < decided.marked.size(); ++i) {
    effects->Call([epoch = epoch_, done = std::move(group.markings[i].done),
                   marked = std::move(decided.marked[i]), revision]() mutable {
      if (!marked.status.ok()) return std::move(done)(marked.status);
      SetOfflineResponse response;
      if (marked.mark) {
        response.mutable_offline()->ParseFromArray(marked.mark.data(),
                                                   static_cast<int>(marked.mark.size()));
      }
      response.set_unchanged(!marked.changed);
      response.set_epoch(epoch);
      response.set_revision(revision);
      std::move(done)(std::move(response));
    });
  }
}

OpenSessionResponse StoreRegistry::OpenedResponse(const State::Transaction::Opened& opened,
                                                  absl::Duration ttl) const {
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
  return response;
}

absl::Status StoreRegistry::Persist(const State::Transaction& transaction, Moment now,
                                    Effects* effects) {
  if (storage_->forgets()) return absl::OkStatus();
  const auto read_only = [&](const absl::Status& cause) {
    return WithRetryDelay(Refusal(registry::v1::ERROR_REASON_STORE_READ_ONLY,
                                  absl::StrCat("the store cannot be written: ", cause.message())),
                          kWriteRetry);
  };
  if (now.monotonic_ms < write_again_ms_) {
    MutexLock lock(&mu_);
    return read_only(write_status_);
  }
  const int64_t begin = options_.timer->clock()->NowNanos();
  const absl::Status status = storage_->Write(transaction.MakeWrites());
  const int64_t took = options_.timer->clock()->NowNanos() - begin;
  const int64_t estimate = write_estimate_nanos_.load(std::memory_order_relaxed);
  write_estimate_nanos_.store(estimate + (took - estimate) / 8, std::memory_order_relaxed);
  {
    MutexLock lock(&mu_);
    write_nanos_.Observe(took);
  }
  if (status.ok()) return absl::OkStatus();
  write_again_ms_ = Now().monotonic_ms + absl::ToInt64Milliseconds(kWriteRetry);
  // While callers write no probe is needed.
  probe_.PutOff(kWriteProbe);
  MutexLock lock(&mu_);
  if (write_outage_.Failed(options_.timer->clock()->NowNanos())) {
    effects->Call([status] {
      Log(LogLevel::kError, "the store cannot be written: reads go on",
          {{"error", std::string(status.message())}});
    });
  }
  write_status_ = status;
  return read_only(status);
}

void StoreRegistry::OnLeasesDue(std::vector<std::string> session_ids) {
  EndOp operation;
  operation.session_ids = std::move(session_ids);
  operation.end = State::Transaction::End::kExpired;
  Submit(std::move(operation));
}

// When the next fence without instance is due, and not more often than once a second; but soon
// after a purge that has left something.
void StoreRegistry::SchedulePurge() {
  const int64_t now = Now().monotonic_ms;
  int64_t due = state_->NextPurgeMs();
  if (state_->incarnations() > state_->sessions()) {
    due = std::min(due, now + kPurgeIncarnationsEveryMs);
  }
  if (due == std::numeric_limits<int64_t>::max()) return;
  purge_.Arm(absl::Milliseconds(purge_on_ ? kPurgePauseMs
                                          : std::max<int64_t>(due - now + 1, kPurgePeriodMs)));
}

}  // namespace failback
