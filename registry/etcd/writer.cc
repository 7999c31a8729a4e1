#include "registry/etcd/writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/etcd/txn_encoder.h"
#include "registry/model/errors.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// How often a chunk decides again because a concurrent writer was faster.
constexpr int kMaxTries = 16;
// Below the 128 that etcd allows.
constexpr int kMostOperations = 127;

// About what an intent takes in a transaction: the instance, and the key twice, meta data, framing.
size_t BytesOf(const Intent& intent) {
  constexpr size_t kOverhead = 700;
  return intent.instance.size() + kOverhead;
}

}  // namespace

// One call: its chunks write their outcomes into their own places.
struct Writer::Job {
  SessionPtr session;
  std::vector<Intent> intents;
  Written written;
  Mutex mu;
  uint64_t revision ABSL_GUARDED_BY(mu) = 0;

  void NoteRevision(int64_t value) {
    MutexLock lock(&mu);
    revision = std::max(revision, static_cast<uint64_t>(value));
  }

  bool AsAsked() const {
    return std::equal(intents.begin(), intents.end(), written.outcomes.begin(),
                      [](const Intent& intent, const IntentOutcome& outcome) {
                        return outcome.status.ok() && outcome.generation == intent.generation;
                      });
  }
};

// Some intents of a batch, written together. Kept alive by its next step.
class Writer::Chunk : public std::enable_shared_from_this<Chunk> {
 public:
  Chunk(Writer* writer, std::shared_ptr<Job> batch, std::shared_ptr<Gather> gather)
      : writer_(writer), batch_(std::move(batch)), gather_(std::move(gather)) {}

  ~Chunk() { Settle(false); }

  // Room for so many intents at once.
  void Reserve(size_t items) { items_.reserve(items); }
  void Add(size_t index) {
    Item& item = items_.emplace_back();
    item.index = index;
    item.key = writer_->keys_->Instance(batch_->intents[index].key);
  }

  void Start() {
    bool guess = batch_->session != nullptr;
    for (const Item& item : items_) guess = guess && intent(item).registers;
    if (guess) {
      MutexLock lock(&batch_->session->mu);
      guess = batch_->session->expects_absent;
    }
    if (guess) return Decide();
    Read();
  }

 private:
  struct Item {
    size_t index;  // in the batch
    std::string key;
    // The key as it is known, or guessed, to be.
    bool read = false;
    int64_t mod_revision = 0;
    int64_t create_revision = 0;
    int64_t lease = 0;
    StoredRecord current;
    int64_t mark_revision = 0;  // of the operator's mark, which goes with a deregistration
    // What is to be done.
    Verdict verdict;
    bool keeps_lease = false;
    bool over = false;
  };

  const Intent& intent(const Item& item) const { return batch_->intents[item.index]; }
  IntentOutcome& outcome(const Item& item) { return batch_->written.outcomes[item.index]; }

  void Fail(const absl::Status& status) { gather_->Note(status); }

  void Read() {
    TxnRequest read;
    for (const Item& item : items_) {
      if (item.over) continue;
      if (intent(item).registers) {
        AddGet(item.key, read.mutable_success());
      } else {
        AddGet(writer_->keys_->InstanceWithMark(intent(item).key), read.mutable_success());
      }
    }
    writer_->EnterWindow([self = shared_from_this(), read = std::move(read)]() mutable {
      self->writer_->client_->Txn(std::move(read), [self](absl::StatusOr<TxnResponse> response) {
        self->writer_->LeaveWindow();
        if (!response.ok()) return self->Fail(response.status());
        self->Learn(*response, 0);
        self->Decide();
      });
    });
  }

  // Takes what the gets of a transaction, from `first` on, have found.
  void Learn(const TxnResponse& response, int first) {
    batch_->NoteRevision(response.header().revision());
    for (Item& item : items_) {
      if (item.over) continue;
      if (!intent(item).registers) {
        const auto* mark = Found(response, first, writer_->keys_->Mark(intent(item).key));
        item.mark_revision = mark == nullptr ? 0 : mark->mod_revision();
      }
      const mvccpb::KeyValue* const kv = Found(response, first++, item.key);
      item.read = true;
      item.mod_revision = kv == nullptr ? 0 : kv->mod_revision();
      item.create_revision = kv == nullptr ? 0 : kv->create_revision();
      item.lease = kv == nullptr ? 0 : kv->lease();
      item.current = kv == nullptr ? StoredRecord() : DecodeStored(intent(item).key, kv->value());
    }
  }

  // Whether the key is as the intent wishes, for good.
  bool Already(const Item& item) const {
    const Intent& wish = intent(item);
    const Session* const session = batch_->session.get();
    if (!wish.registers) return !item.current.instance;
    if (item.current.instance != wish.instance) return false;
    const std::string& owner = session == nullptr ? std::string() : session->incarnation;
    if (item.current.meta.owner() != owner) return false;
    if (session == nullptr || wish.persistent) return item.lease == 0;
    return session->Has(item.lease);
  }

  void Decide() {
    bool left = false;
    bool read = false;
    for (Item& item : items_) {
      if (item.over) continue;
      if (batch_->session != nullptr) {
        item.verdict = failback::Decide(item.current.fence(), batch_->session->rank, intent(item),
                                        Already(item));
      } else {
        // A detached call is a concurrent writer: applied as it comes, and the fence stays.
        item.verdict = {absl::OkStatus(), 0, !Already(item)};
      }
      item.over = !item.verdict.applies;
      if (item.over) outcome(item) = {item.verdict.status, item.verdict.generation};
      left = left || !item.over;
      read = read || item.read;
    }
    if (read && batch_->session != nullptr && intent(items_.front()).registers) {
      // Where one was there already, the next chunk had better look first.
      MutexLock lock(&batch_->session->mu);
      batch_->session->expects_absent = std::none_of(
          items_.begin(), items_.end(), [](const Item& item) { return item.mod_revision != 0; });
    }
    if (left && !HoldLimits()) return;
    left = std::any_of(items_.begin(), items_.end(), [](const Item& item) { return !item.over; });
    if (!left) return;
    if (++tries_ > kMaxTries) {
      return Fail(absl::AbortedError("other hands change the same instances all the time"));
    }
    TakeLeases();
  }

  void Settle(bool written) {
    if (reserved_ > 0) writer_->limits_->Settle(Limits::kInstances, reserved_, written);
    reserved_ = 0;
  }

  // Refuses what is beyond the limits. False when something has to be read first: then it goes on
  // after that.
  bool HoldLimits() {
    Settle(false);
    return HoldLimitOfSession() && HoldLimitOfInstances();
  }

  bool HoldLimitOfSession() {
    const int64_t most = writer_->limits_->max_instances_per_session();
    if (most == 0 || batch_->session == nullptr) return true;
    std::vector<Item*> more;
    for (Item& item : items_) {
      if (NeedsLease(item) && !batch_->session->Has(item.lease)) more.push_back(&item);
    }
    const std::optional<int64_t> held = batch_->session->Held();
    if (more.empty()) return true;
    if (held.has_value() && *held + static_cast<int64_t>(more.size()) <= most) return true;
    if (HasGuess(more)) return ReadFirst();
    if (!held.has_value() || !std::exchange(counted_, true)) {
      writer_->sessions_->Count(batch_->session,
                                [self = shared_from_this()](const absl::Status& status) {
                                  if (!status.ok()) return self->Fail(status);
                                  self->Decide();
                                });
      return false;
    }
    const auto room = static_cast<size_t>(std::max<int64_t>(0, most - *held));
    for (; more.size() > room; more.pop_back()) {
      Refuse(more.back(), writer_->limits_->SessionIsFull());
    }
    return true;
  }

  bool HoldLimitOfInstances() {
    std::vector<Item*> more;
    for (Item& item : items_) {
      if (!item.over && intent(item).registers && item.mod_revision == 0) more.push_back(&item);
    }
    if (more.empty()) return true;
    reserved_ = writer_->limits_->Reserve(Limits::kInstances, static_cast<int64_t>(more.size()));
    if (reserved_ == static_cast<int64_t>(more.size())) return true;
    if (HasGuess(more)) return ReadFirst();
    for (; static_cast<int64_t>(more.size()) > reserved_; more.pop_back()) {
      Refuse(more.back(), writer_->limits_->Reached(Limits::kInstances));
    }
    return true;
  }

  // What is guessed to be new may be there.
  static bool HasGuess(const std::vector<Item*>& items) {
    return std::any_of(items.begin(), items.end(), [](const Item* item) { return !item->read; });
  }

  bool ReadFirst() {
    Settle(false);
    Read();
    return false;
  }

  void Refuse(Item* item, const absl::Status& status) {
    item->over = true;
    outcome(*item) = {status, 0};
  }

  bool NeedsLease(const Item& item) const {
    return !item.over && batch_->session != nullptr && intent(item).registers &&
           !intent(item).persistent;
  }
  bool LeavesTombstone(const Item& item) const {
    if (item.over || intent(item).registers) return false;
    return batch_->session != nullptr || item.current.fence().rank != 0;
  }

  absl::Duration Retention() const {
    absl::Duration retention = writer_->options_.min_fence_retention;
    if (batch_->session != nullptr) retention = std::max(retention, batch_->session->ttl());
    for (const Item& item : items_) {
      retention = std::max(retention, absl::Milliseconds(item.current.meta.retention_ms()));
    }
    return retention;
  }

  // A lease for what is new in the session, one for tombstones.
  void TakeLeases() {
    GiveRoomBack();
    // Before it is asked which leases it keeps.
    if (batch_->session != nullptr) key_lease_ = batch_->session->KeyLease();
    int64_t instances = 0;
    int64_t tombstones = 0;
    for (Item& item : items_) {
      const bool needs_lease = NeedsLease(item);
      item.keeps_lease = needs_lease && item.lease != 0 && batch_->session->Keeps(item.lease);
      if (needs_lease && !item.keeps_lease) ++instances;
      if (LeavesTombstone(item)) ++tombstones;
    }
    auto self = shared_from_this();
    if (instances == 0) return TakeTombstoneLease(tombstones);
    writer_->sessions_->TakeRoom(batch_->session, instances,
                                 [self, instances, tombstones](absl::StatusOr<int64_t> lease) {
                                   if (!lease.ok()) return self->Fail(lease.status());
                                   self->lease_ = *lease;
                                   self->room_ = instances;
                                   self->TakeTombstoneLease(tombstones);
                                 });
  }

  // Room on the lease that an attempt before this one has taken and not used.
  void GiveRoomBack() {
    if (room_ > 0) writer_->sessions_->GiveRoom(batch_->session, lease_, room_);
    room_ = 0;
  }

  void TakeTombstoneLease(int64_t tombstones) {
    if (tombstones == 0) return Send();
    writer_->tombstones_.Take(Retention(), tombstones,
                              [self = shared_from_this()](absl::StatusOr<int64_t> lease) {
                                if (!lease.ok()) return self->Fail(lease.status());
                                self->tombstone_lease_ = *lease;
                                self->Send();
                              });
  }

  // The index of instances without a lease follows the instance: what it was, and will be.
  std::string IndexBefore(const Item& item) const {
    return item.current.instance && item.lease == 0 ? item.current.meta.owner() : std::string();
  }
  std::string IndexAfter(const Item& item) const {
    return batch_->session != nullptr && intent(item).registers && intent(item).persistent
               ? batch_->session->incarnation
               : std::string();
  }
  void AddIndex(const Item& item, TxnEncoder* txn) const {
    const std::string after = IndexAfter(item);
    if (after.empty() || after == IndexBefore(item)) return;
    txn->Put(writer_->keys_->Persistent(after, intent(item).key), "", "", 0);
  }
  void DropIndex(const Item& item, TxnEncoder* txn) const {
    const std::string before = IndexBefore(item);
    if (before.empty() || before == IndexAfter(item)) return;
    txn->Delete(writer_->keys_->Persistent(before, intent(item).key));
  }

  // A deregistration ends the operator's mark.
  void DropMark(const Item& item, TxnEncoder* txn) const {
    const std::string mark = writer_->keys_->Mark(intent(item).key);
    txn->CompareModified(mark, item.mark_revision);
    if (item.mark_revision != 0) txn->Delete(mark);
  }

  // What the writes of one transaction have in common, and what each of them sets again.
  struct Writes {
    uint32_t retention_ms;
    int64_t now_ms;
    TxnEncoder txn;
    failback::etcd::v1::Meta meta;
    std::string head;
  };

  // How long the fence is kept, and it; what else there is of the one before stays.
  void SetFence(const Item& item, Writes* writes) const {
    auto& meta = writes->meta;
    if (batch_->session != nullptr) {
      StoredRecord::SetFence(FenceOf(batch_->session->rank, item.verdict, intent(item)),
                             meta.mutable_fence());
    } else if (item.current.meta.has_fence()) {
      *meta.mutable_fence() = item.current.meta.fence();
    } else {
      meta.clear_fence();
    }
    meta.set_retention_ms(meta.has_fence() ? writes->retention_ms : 0);
  }

  // When the instance was made and changed, and by whom.
  void SetHistory(const Item& item, Writes* writes) const {
    auto& meta = writes->meta;
    meta.set_create_ms(writes->now_ms);
    meta.set_modify_ms(writes->now_ms);
    meta.set_create_revision(0);
    if (item.current.instance) {
      const auto& before = item.current.meta;
      if (before.create_ms() != 0) meta.set_create_ms(before.create_ms());
      meta.set_create_revision(before.create_revision() != 0 ? before.create_revision()
                                                             : item.mod_revision);
      if (item.current.instance == intent(item).instance && before.modify_ms() != 0) {
        meta.set_modify_ms(before.modify_ms());
      }
    }
    if (batch_->session == nullptr) return;
    meta.set_owner(batch_->session->incarnation);
    meta.set_client_name(batch_->session->client_name);
  }

  // When the instance went and by whom, for an operator.
  void SetEnd(Writes* writes) const {
    auto& meta = writes->meta;
    meta.set_create_ms(0);
    meta.set_modify_ms(writes->now_ms);
    meta.set_create_revision(0);
    meta.clear_owner();
    if (batch_->session != nullptr) meta.set_client_name(batch_->session->client_name);
  }

  void AddWrite(const Item& item, Writes* writes) const {
    TxnEncoder& txn = writes->txn;
    txn.CompareModified(item.key, item.mod_revision);
    AddIndex(item, &txn);
    std::string_view instance;
    int64_t lease = tombstone_lease_;
    if (intent(item).registers) {
      SetHistory(item, writes);
      instance = intent(item).instance.view();
      lease = 0;
      if (NeedsLease(item)) lease = item.keeps_lease ? item.lease : lease_;
    } else {
      DropMark(item, &txn);
      if (!LeavesTombstone(item)) return txn.Delete(item.key);
      SetEnd(writes);
    }
    SetFence(item, writes);
    EncodeMeta(writes->meta, &writes->head);
    txn.Put(item.key, writes->head, instance, lease);
  }

  // Whether the fence of an instance that has just expired is on its way: then the keys are read
  // when it is there.
  bool AwaitsFence() {
    if (batch_->session == nullptr) return false;
    for (const Item& item : items_) {
      if (item.over || item.mod_revision != 0 || !intent(item).registers) continue;
      if (writer_->fences_->Await(intent(item).key, batch_->session->rank,
                                  [self = shared_from_this()] { self->Read(); })) {
        return true;
      }
    }
    return false;
  }

  // About what the transaction will have.
  size_t BytesToSend() const {
    size_t each = 200;  // framing, numbers
    if (batch_->session != nullptr) {
      each += batch_->session->incarnation.size() + batch_->session->client_name.size();
    }
    size_t bytes = each;
    for (const Item& item : items_) {
      bytes += 2 * item.key.size() + intent(item).instance.size() + each;
    }
    return bytes;
  }

  void Send() {
    if (AwaitsFence()) return;
    Writes writes;
    writes.retention_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(Retention()));
    writes.now_ms = absl::ToUnixMillis(absl::Now());
    TxnEncoder& txn = writes.txn;
    txn.Reserve(BytesToSend());
    if (batch_->session != nullptr) {
      const std::string key = writer_->keys_->Session(batch_->session->id);
      txn.CompareCreated(key, batch_->session->create_revision);
      txn.CompareLease(key, key_lease_);
      txn.GetElse(key);
    }
    for (const Item& item : items_) {
      if (!item.over) AddWrite(item, &writes);
    }
    for (const Item& item : items_) {
      // An index too many does no harm, an operation too many does.
      if (!item.over && txn.operations() < kMostOperations) DropIndex(item, &txn);
    }
    writer_->EnterWindow([self = shared_from_this(), txn = std::move(txn)]() mutable {
      self->writer_->client_->EncodedTxn(std::move(txn).Take(),
                                         [self](absl::StatusOr<TxnResponse> response) {
                                           self->writer_->LeaveWindow();
                                           self->OnResponse(std::move(response));
                                         });
    });
  }

  void OnResponse(absl::StatusOr<TxnResponse> response) {
    if (!response.ok()) {
      if (ErrorOf(response.status()) == Error::kLeaseNotFound) return OnLeaseLost();
      return Fail(response.status());
    }
    if (response->succeeded()) return OnWritten(*response);
    if (batch_->session != nullptr) {
      const mvccpb::KeyValue* const session = Found(*response, 0);
      if (session == nullptr || session->create_revision() != batch_->session->create_revision) {
        writer_->sessions_->Forget(batch_->session->id);
        return Fail(SessionUnknown());
      }
      writer_->sessions_->Adopt(batch_->session->id, *session);
    }
    Read();
  }

  void OnWritten(const TxnResponse& response) {
    room_ = 0;  // used
    Settle(true);
    batch_->NoteRevision(response.header().revision());
    for (Item& item : items_) {
      if (item.over) continue;
      item.over = true;
      outcome(item) = {absl::OkStatus(), item.verdict.generation};
      const bool left_lease =
          batch_->session != nullptr && item.lease != 0 && !intent(item).registers;
      if (left_lease) writer_->sessions_->GiveRoom(batch_->session, item.lease, 1);
    }
  }

  void OnLeaseLost() {
    // The tombstones' lease, then that of the session: what is tried again shows which.
    if (const int64_t lease = std::exchange(tombstone_lease_, 0); lease != 0) {
      writer_->tombstones_.Drop(lease);
      if (++tries_ > kMaxTries) return Fail(absl::AbortedError("leases end all the time"));
      if (!std::exchange(tombstone_lease_lost_, true)) return TakeLeases();
    }
    if (batch_->session == nullptr) {
      return Fail(absl::UnavailableError("the lease of a tombstone has ended at once"));
    }
    std::vector<int64_t> used = {lease_};
    for (const Item& item : items_) {
      if (NeedsLease(item)) used.push_back(item.lease);
    }
    writer_->sessions_->Lose(batch_->session, std::move(used),
                             [self = shared_from_this()](const absl::Status& status) {
                               if (!status.ok()) return self->Fail(status);
                               self->Read();
                             });
  }

  Writer* const writer_;
  const std::shared_ptr<Job> batch_;
  const std::shared_ptr<Gather> gather_;
  std::vector<Item> items_;
  int64_t lease_ = 0;
  int64_t room_ = 0;       // taken on lease_, not used yet
  int64_t reserved_ = 0;   // new instances, of the limit
  bool counted_ = false;   // what the session has
  int64_t key_lease_ = 0;  // of the session's key, as the leases were chosen
  int64_t tombstone_lease_ = 0;
  bool tombstone_lease_lost_ = false;
  int tries_ = 0;
};

void Writer::Write(SessionPtr session, std::vector<Intent> intents, Client::Done<Written> done) {
  auto batch = std::make_shared<Job>();
  batch->session = std::move(session);
  batch->intents = std::move(intents);
  batch->written.outcomes = BeginOutcomes(batch->intents);
  auto gather =
      std::make_shared<Gather>([batch, done = std::move(done)](const absl::Status& status) mutable {
        if (!status.ok()) return std::move(done)(status);
        {
          MutexLock lock(&batch->mu);
          batch->written.revision = batch->revision;
        }
        batch->written.as_asked = batch->AsAsked();
        std::move(done)(std::move(batch->written));
      });
  std::vector<std::shared_ptr<Chunk>> chunks;
  std::shared_ptr<Chunk> chunk;
  int operations = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < batch->intents.size(); ++i) {
    if (!batch->written.outcomes[i].status.ok()) continue;
    const Intent& intent = batch->intents[i];
    // Two where there is an index of a persistent instance, or may be a mark.
    const int cost = intent.registers && !intent.persistent ? 1 : 2;
    const size_t size = BytesOf(intent);
    if (chunk == nullptr || operations + cost > options_.operations_per_txn ||
        bytes + size > options_.bytes_per_txn) {
      chunk = std::make_shared<Chunk>(this, batch, gather);
      chunk->Reserve(std::min(batch->intents.size() - i,
                              static_cast<size_t>(std::max(1, options_.operations_per_txn))));
      chunks.push_back(chunk);
      operations = 0;
      bytes = 0;
    }
    chunk->Add(i);
    operations += cost;
    bytes += size;
  }
  gather.reset();
  chunk.reset();
  for (auto& next : chunks) next->Start();
}

void Writer::EnterWindow(absl::AnyInvocable<void() &&> task) {
  {
    MutexLock lock(&mu_);
    if (in_flight_ >= options_.max_in_flight) {
      queue_.push_back(std::move(task));
      return;
    }
    ++in_flight_;
  }
  std::move(task)();
}

void Writer::LeaveWindow() {
  absl::AnyInvocable<void() &&> next;
  {
    MutexLock lock(&mu_);
    if (queue_.empty()) {
      --in_flight_;
      return;
    }
    next = std::move(queue_.front());
    queue_.pop_front();
  }
  std::move(next)();
}

}  // namespace etcd
}  // namespace failback
