#include "registry/etcd/writer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "registry/etcd/error.h"
#include "registry/etcd/gather.h"
#include "registry/etcd/instance_writes.h"
#include "registry/etcd/stored.h"
#include "registry/etcd/txn.h"
#include "registry/etcd/txn_encoder.h"
#include "registry/model/errors.h"
#include "retry/mutex.h"

namespace failback {
namespace etcd {
namespace {

using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// How often a chunk decides again because a concurrent writer was faster.
constexpr int kMaxTries = 16;
// etcd allows 128 (--max-txn-ops), of at most 1.5 MiB (--max-request-bytes). 125 make two
// transactions of the 250 registrations that an agent sends at a time.
constexpr int kOperationsPerTxn = 125;
constexpr size_t kBytesPerTxn = 1 << 20;
// Below the 128.
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
    bool guess = session() != nullptr;
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
    KnownKey known;
    // What is to be done.
    Verdict verdict;
    bool keeps_lease = false;
    bool over = false;
  };

  const Session* session() const { return batch_->session.get(); }
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
    writer_->window_.Enter([self = shared_from_this(), read = std::move(read)]() mutable {
      self->writer_->client_->Txn(std::move(read), [self](absl::StatusOr<TxnResponse> response) {
        self->writer_->window_.Leave();
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
        item.known.mark_revision = mark == nullptr ? 0 : mark->mod_revision();
      }
      const mvccpb::KeyValue* const kv = Found(response, first++, item.key);
      item.known.read = true;
      item.known.mod_revision = kv == nullptr ? 0 : kv->mod_revision();
      item.known.lease = kv == nullptr ? 0 : kv->lease();
      item.known.current =
          kv == nullptr ? StoredRecord() : DecodeStored(intent(item).key, kv->value());
    }
  }

  // Whether the key is as the intent wishes, for good.
  bool Already(const Item& item) const {
    const Intent& wish = intent(item);
    if (!wish.registers) return !item.known.current.instance;
    if (item.known.current.instance != wish.instance) return false;
    const std::string& owner = session() == nullptr ? std::string() : session()->incarnation;
    if (item.known.current.meta.owner() != owner) return false;
    if (session() == nullptr || wish.persistent) return item.known.lease == 0;
    return session()->Has(item.known.lease);
  }

  void Decide() {
    // Which intents apply to the keys as they are known, and which are refused or done.
    bool left = false;
    bool read = false;
    for (Item& item : items_) {
      if (item.over) continue;
      if (session() != nullptr) {
        item.verdict = failback::Decide(item.known.current.fence(), session()->rank, intent(item),
                                        Already(item));
      } else {
        // A detached call is a concurrent writer: applied as it comes, and the fence stays.
        item.verdict = {absl::OkStatus(), 0, !Already(item)};
      }
      item.over = !item.verdict.applies;
      if (item.over) outcome(item) = {item.verdict.status, item.verdict.generation};
      left = left || !item.over;
      read = read || item.known.read;
    }
    if (read && session() != nullptr && intent(items_.front()).registers) {
      // Where one was there already, the next chunk had better look first.
      MutexLock lock(&batch_->session->mu);
      batch_->session->expects_absent =
          std::none_of(items_.begin(), items_.end(),
                       [](const Item& item) { return item.known.mod_revision != 0; });
    }
    // What applies may be beyond a limit.
    if (left && !HoldLimits()) return;
    left = std::any_of(items_.begin(), items_.end(), [](const Item& item) { return !item.over; });
    if (!left) return;
    if (++tries_ > kMaxTries) {
      return Fail(absl::AbortedError("concurrent writers change the same instances all the time"));
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
    if (most == 0 || session() == nullptr) return true;
    std::vector<Item*> more;
    for (Item& item : items_) {
      if (NeedsLease(item) && !session()->Has(item.known.lease)) more.push_back(&item);
    }
    const std::optional<int64_t> held = session()->Held();
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
      if (!item.over && intent(item).registers && item.known.mod_revision == 0)
        more.push_back(&item);
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
    return std::any_of(items.begin(), items.end(),
                       [](const Item* item) { return !item->known.read; });
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
    return !item.over && session() != nullptr && intent(item).registers && !intent(item).persistent;
  }
  bool LeavesTombstone(const Item& item) const {
    return !item.over && InstanceWrites::LeavesTombstone(session(), intent(item), item.known);
  }
  // What its key is put on.
  int64_t LeaseOf(const Item& item) const {
    if (!intent(item).registers) return tombstone_lease_;
    if (!NeedsLease(item)) return 0;
    return item.keeps_lease ? item.known.lease : lease_;
  }

  absl::Duration Retention() const {
    absl::Duration retention = kMinFenceRetention;
    if (session() != nullptr) retention = std::max(retention, session()->ttl());
    for (const Item& item : items_) {
      retention = std::max(retention, absl::Milliseconds(item.known.current.meta.retention_ms()));
    }
    return retention;
  }

  // A lease for what is new in the session, one for tombstones.
  void TakeLeases() {
    GiveRoomBack();
    // Before it is asked which leases it keeps.
    if (session() != nullptr) key_lease_ = session()->KeyLease();
    int64_t instances = 0;
    int64_t tombstones = 0;
    for (Item& item : items_) {
      const bool needs_lease = NeedsLease(item);
      item.keeps_lease = needs_lease && item.known.lease != 0 && session()->Keeps(item.known.lease);
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

  // Whether the fence of an instance that has just expired is on its way: then the keys are read
  // when it is there.
  bool AwaitsFence() {
    if (session() == nullptr) return false;
    for (const Item& item : items_) {
      if (item.over || item.known.mod_revision != 0 || !intent(item).registers) continue;
      if (writer_->fences_->Await(intent(item).key, session()->rank,
                                  [self = shared_from_this()] { self->Read(); })) {
        return true;
      }
    }
    return false;
  }

  // About what the transaction will have.
  size_t BytesToSend() const {
    size_t each = 200;  // framing, numbers
    if (session() != nullptr) {
      each += session()->incarnation.size() + session()->client_name.size();
    }
    size_t bytes = each;
    for (const Item& item : items_) {
      bytes += 2 * item.key.size() + intent(item).instance.size() + each;
    }
    return bytes;
  }

  void Send() {
    if (AwaitsFence()) return;
    InstanceWrites writes(writer_->keys_, session(), Retention(),
                          absl::ToUnixMillis(writer_->client_->WallNow()));
    TxnEncoder& txn = *writes.txn();
    txn.Reserve(BytesToSend());
    // On condition that the session lives, and that no other TTL has retired its leases.
    if (session() != nullptr) {
      const std::string key = writer_->keys_->Session(session()->id);
      txn.CompareCreated(key, session()->create_revision);
      txn.CompareLease(key, key_lease_);
      txn.GetElse(key);
    }
    for (const Item& item : items_) {
      if (!item.over) {
        writes.Add(intent(item), item.key, item.known, item.verdict, LeaseOf(item));
      }
    }
    for (const Item& item : items_) {
      if (!item.over && txn.operations() < kMostOperations) {
        writes.DropIndex(intent(item), item.known);
      }
    }
    writer_->window_.Enter([self = shared_from_this(), txn = std::move(txn)]() mutable {
      self->writer_->client_->EncodedTxn(std::move(txn).Take(),
                                         [self](absl::StatusOr<TxnResponse> response) {
                                           self->writer_->window_.Leave();
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
    // A condition did not hold: the session's, or that of a key, which is read and decided again.
    if (session() != nullptr) {
      if (!writer_->sessions_->Refresh(*batch_->session, Found(*response, 0))) {
        return Fail(SessionUnknown());
      }
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
          session() != nullptr && item.known.lease != 0 && !intent(item).registers;
      if (left_lease) writer_->sessions_->GiveRoom(batch_->session, item.known.lease, 1);
    }
  }

  void OnLeaseLost() {
    // The tombstones' lease, then that of the session: what is tried again shows which.
    if (const int64_t lease = std::exchange(tombstone_lease_, 0); lease != 0) {
      writer_->tombstones_.Drop(lease);
      if (++tries_ > kMaxTries) return Fail(absl::AbortedError("leases end all the time"));
      if (!std::exchange(tombstone_lease_lost_, true)) return TakeLeases();
    }
    if (session() == nullptr) {
      return Fail(absl::UnavailableError("the lease of a tombstone has ended at once"));
    }
    std::vector<int64_t> used = {lease_};
    for (const Item& item : items_) {
      if (NeedsLease(item)) used.push_back(item.known.lease);
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
    if (chunk == nullptr || operations + cost > kOperationsPerTxn || bytes + size > kBytesPerTxn) {
      chunk = std::make_shared<Chunk>(this, batch, gather);
      chunk->Reserve(std::min(batch->intents.size() - i, size_t{kOperationsPerTxn}));
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

}  // namespace etcd
}  // namespace failback
