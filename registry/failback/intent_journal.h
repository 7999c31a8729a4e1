// Where intents survive the process: one SQLite file in a folder of its own.
//
// The journal holds what is desired now and not the history: a row for each key that is to be there
// or is owed an unregister. Changes are queued, and one thread writes all that has gathered as one
// transaction (group commit), then reports how far it has come. So the caller never waits for the
// disk, and a hundred thousand intents are a few transactions.
//
// Rows have integer ids that the caller keeps with its records; keys are not indexed on disk,
// because an append to an integer table is an order of magnitude faster than an insert into a text
// index.
//
// The folder is locked against a second process. A file that is damaged is moved aside, kept as
// `journal.db.corrupt-<n>`, and a new one begun: an agent that starts without its memory is better
// than one that does not start. That costs the incarnation too, since the numbers that it has used
// are not known any more. Damaged is what SQLite calls corrupt or no database, and what fails the
// checks made here; nothing else moves a file. One that cannot be read now (locked, no descriptors,
// an I/O error) is waited for, and then Open() fails. One that can be read and not written is
// opened: what is in it is carried on, and what is new is reported as not written.
//
// Beside the file is a mark of how far it has come (registry/store/sqlite/store_mark.h), by which a
// file that was put back to an earlier moment is noticed; was_put_back() says so. What it holds is
// then no longer the last word, and the numbers that follow keep clear of those that it cannot
// know.
//
//   auto journal = IntentJournal::Open(options);
//   for (auto& intent : (*journal)->TakeIntents()) …
//   (*journal)->Start([](uint64_t sequence, const absl::Status& status) { … });
//   intent.row = (*journal)->NewRow();
//   const uint64_t sequence = (*journal)->Put(intent);   // durable when `sequence` is reported
//
// Thread safety: all methods from any thread. Put(), Remove() and PutSnapshot() only queue, and may
// be called with a lock held; `on_commit` runs without locks on the journal's thread.
//
// Invariants:
// 1. What was reported as written is there after kill -9; with `full_sync` also after a power cut.
// 2. Writes become visible in the order in which they were queued, each with all before it.

#ifndef FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_
#define FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "registry/base/disk.h"
#include "registry/base/file_lock.h"
#include "registry/base/outage_log.h"
#include "registry/store/sqlite/sqlite_database.h"
#include "registry/store/sqlite/store_mark.h"
#include "retry/hashed_wheel_timer.h"
#include "retry/histogram.h"
#include "retry/mutex.h"

namespace failback {

class IntentJournal : public std::enable_shared_from_this<IntentJournal> {
 public:
  struct Options {
    // Created if it is not there (its parent is).
    std::string dir;
    // Names this life of the process from now on; empty: the one in the journal, or a new one.
    std::string incarnation;
    // Sync each commit to the disk: intents survive a power cut, too.
    bool full_sync = false;
    // For trying again what could not be written; outlives the journal's Stop(). nullptr: it is
    // tried again with the next change, and by Stop().
    HashedWheelTimer* timer = nullptr;
    // No thread: Flush() writes. For tests on simulated time.
    bool manual = false;
    // How long Open() waits for a file that cannot be read now, on the thread that calls it.
    absl::Duration patience = absl::Seconds(10);
    Disk* disk = Disk::Real();  // outlives the journal
  };

  struct Intent {
    int64_t row = 0;
    // Canonical.
    std::string key;
    bool present = false;
    bool persistent = false;
    // Serialized ServiceInstance; empty when gone.
    std::string payload;
    uint64_t generation = 0;
    // The local session that owns it (its incarnation, and who opened it), its TTL and its own
    // number; empty: none.
    std::string owner;
    absl::Duration owner_ttl;
    uint64_t owner_generation = 0;
    // An operator has cancelled it: neither sent nor repaired.
    bool given_up = false;
  };

  struct Snapshot {
    // Canonical.
    std::string selector;
    // Serialized SubscribeResponse with the whole set; empty in PutSnapshot(): there is none.
    std::string event;
  };

  struct Statistics {
    int64_t bytes = 0;  // of its files
    // Why it could last not be written, and since when; OK when it can.
    absl::Status error;
    absl::Time error_since;
    // How long a group took to be written, in nanoseconds, and how many intents were in it.
    Histogram write_nanos{kLatencyBoundsNanos};
    Histogram group_intents{kBatchBounds};
  };

  using OnCommit = std::function<void(uint64_t sequence, const absl::Status& status)>;

  // FAILED_PRECONDITION: the folder cannot be used, is in use by another process, or was written by
  // a newer version. UNAVAILABLE, PERMISSION_DENIED: the file cannot be read, and was left as it
  // is. The message names the folder.
  static absl::StatusOr<std::shared_ptr<IntentJournal>> Open(Options options);

  // As Stop().
  ~IntentJournal();
  IntentJournal(const IntentJournal&) = delete;
  IntentJournal& operator=(const IntentJournal&) = delete;

  // What was there when it was opened; the second call has nothing.
  std::vector<Intent> TakeIntents();
  // Oldest first.
  std::vector<Snapshot> TakeSnapshots();
  const std::string& incarnation() const { return incarnation_; }
  uint64_t last_generation() const { return last_generation_; }
  // The file is not as it was last: intents may be older than what their owners said last, and
  // others may be missing. So it is taken at each start, until Settle().
  bool was_put_back() const { return was_put_back_; }
  // Nothing of before this life is in doubt any more.
  void Settle();

  // Begins to write. `on_commit` runs after each attempt: all up to `sequence` is written, or, with
  // an error, is not yet; then it is tried again with the next change, and after a second.
  void Start(OnCommit on_commit);

  int64_t NewRow() { return last_row_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Each returns its sequence.
  uint64_t Put(Intent intent);
  uint64_t Remove(int64_t row);
  uint64_t PutSnapshot(Snapshot snapshot);
  // From the next start on `incarnation` is the one of this journal, also where the options name
  // `refused`, which it takes the place of.
  uint64_t ReplaceIncarnation(const std::string& refused, const std::string& incarnation);

  Statistics Stats() const;

  // Manual: writes what is queued, here and now. Otherwise does nothing.
  void Flush();

  // Writes what is queued and ends; `on_commit` is not called any more. May be called from it, and
  // the journal may be destroyed there. Returns the last error.
  absl::Status Stop();

 private:
  struct Batch {
    std::map<int64_t, std::optional<Intent>> rows;  // nullopt: removed
    std::map<std::string, std::string> snapshots;
    std::map<std::string, std::string> meta;
    uint64_t generation = 0;
    uint64_t sequence = 0;
    bool settled = false;  // the mark is to be written again
    bool empty() const { return rows.empty() && snapshots.empty() && meta.empty() && !settled; }
  };

  explicit IntentJournal(Options options);
  std::string Path() const { return options_.dir + "/journal.db"; }
  // OpenDatabase(), again and again while the file cannot be read.
  absl::Status WaitForDatabase();
  absl::Status OpenDatabase();
  absl::Status CheckSchema();
  absl::Status Load();
  absl::Status LoadMeta();
  absl::Status LoadIntents();
  absl::Status LoadSnapshots();
  absl::Status FindOutWhetherPutBack();
  absl::Status PrepareWrites();
  absl::Status KeepIncarnation();
  // Moves the files aside and says where to.
  absl::StatusOr<std::string> MoveAside();
  void Close();
  // How far the file has come.
  StoreMark::Position Position() const;
  // Notes, and logs when it is news, whether the file can be written.
  void Report(const absl::Status& status);
  // The same of its mark.
  void ReportMark(const absl::Status& status);
  void Work();
  // Wakes the writer up in a while.
  void TryAgainLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes one batch as one transaction.
  absl::Status Write(const Batch& batch);
  absl::Status WriteRows(const Batch& batch);
  // Takes what is queued, with what could not be written before.
  bool TakeBatch();

  const Options options_;
  std::optional<FileLock> lock_;
  std::unique_ptr<SqliteDatabase> db_;
  std::optional<StoreMark> mark_;
  bool created_ = false;  // by this life
  std::string incarnation_;
  std::string refused_;  // in its place, when the options name this one
  uint64_t last_generation_ = 0;
  bool was_put_back_ = false;
  std::atomic<bool> marks_{true};
  std::vector<Intent> intents_;
  std::vector<Snapshot> snapshots_;
  std::atomic<int64_t> last_row_{0};
  OnCommit on_commit_;

  // The writer's own.
  uint64_t written_generation_ = 0;
  uint64_t writes_ = 0;  // transactions, since the file was made
  Batch writing_;
  bool failing_ = false;
  bool flushing_ = false;
  OutageLog outage_;
  bool mark_failed_ = false;
  std::string named_;                     // the incarnation in the file
  std::unique_ptr<SqliteStatement> put_;  // go before db_, as the next four
  std::unique_ptr<SqliteStatement> remove_;
  std::unique_ptr<SqliteStatement> put_meta_;
  std::unique_ptr<SqliteStatement> put_snapshot_;
  std::unique_ptr<SqliteStatement> drop_snapshot_;

  mutable Mutex mu_;
  CondVar changed_;
  Statistics stats_ ABSL_GUARDED_BY(mu_);
  Batch queued_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool try_again_ ABSL_GUARDED_BY(mu_) = false;  // a failed write has waited long enough
  Timeout retry_ ABSL_GUARDED_BY(mu_);           // until then
  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_REGISTRY_FAILBACK_INTENT_JOURNAL_H_
